//! MPI, for the tests of several ranks.

use std::fs;

use crate::packages::{administrator, has_program, install};

/// Debian's packages: Open MPI's programs, its headers, and what the crate `mpi` reads those with.
const PACKAGES: [&str; 4] = ["openmpi-bin", "libopenmpi-dev", "libclang-dev", "clang"];

/// Whether programs with the feature `mpi` can be built and started.
pub fn is_there() -> bool {
    ["mpicc", "mpirun", "clang"].into_iter().all(has_program)
}

/// The features of the workspace that are on where it is there.
pub const FEATURES: &str = "meganeura-examples/mpi,meganeura-tests/mpi";

/// Installs it where that can be done. Without it, what needs it is left out.
pub fn ensure() {
    if is_there() {
        return;
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if let Some(Err(message)) = administrator(&release).map(|administrator| install(administrator, &PACKAGES)) {
        eprintln!("MPI could not be installed: {message}");
    }
}
