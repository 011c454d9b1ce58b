//! MPI, for the tests with several ranks.

use std::fs;

use crate::packages::{administrator, has_program, install};

/// Debian's packages: Open MPI's programs, its headers, and the library that the crate `mpi` parses them with.
const PACKAGES: [&str; 4] = ["openmpi-bin", "libopenmpi-dev", "libclang-dev", "clang"];

/// `true` if programs with the feature `mpi` can be built and run.
pub fn is_there() -> bool {
    ["mpicc", "mpirun", "clang"].into_iter().all(has_program)
}

/// Installs MPI if possible. Without it, the tests that need it are left out.
pub fn ensure() {
    if is_there() {
        return;
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if let Some(Err(message)) = administrator(&release).map(|administrator| install(administrator, &PACKAGES)) {
        eprintln!("MPI could not be installed: {message}");
    }
}
