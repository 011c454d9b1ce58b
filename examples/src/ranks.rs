//! Several processes that train together: `--ranks`.

use std::env;
use std::io::ErrorKind::NotFound;
use std::process::{Command, exit};

use meganeura::run::Interrupt;
use meganeura::world::World;
use meganeura::{Error, ErrorKind, Result};

/// The variable that is set in processes started here.
const STARTED: &str = "MEGANEURA_RANKS";

/// Open MPI's settings, passed in the environment, so that other MPIs need not understand them: there may be more
/// processes than cores, no process is bound to one core, and a container's root user may start them.
const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// The world of this process. If several ranks are requested and this process is not one of them, it starts them, waits
/// for them, and exits with their exit code.
///
/// # Errors
///
/// If they cannot be started, or do not find each other.
pub fn join(ranks: Option<u32>) -> Result<World> {
    let is_rank = [STARTED, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "TORCHELASTIC_RUN_ID"]
        .into_iter()
        .any(|name| env::var_os(name).is_some());
    match ranks {
        Some(ranks) if ranks > 1 && !is_rank => start(ranks),
        _ => World::join(),
    }
}

fn start(ranks: u32) -> Result<World> {
    let failed = |why: String| Err(Error::new(ErrorKind::Argument, format!("--ranks {ranks}: {why}")));
    if !cfg!(feature = "mpi") {
        return failed(
            "this program was built without the feature `mpi`; run it with `cargo run --features mpi`".to_owned(),
        );
    }
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(format!("the path of this program is not known: {error}")),
    };
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string()]).arg(program).args(env::args_os().skip(1));
    let user = |name: &str| env::var_os(name).is_some();
    command.envs(OPEN_MPI.into_iter().filter(|(name, _)| !user(name))).env(STARTED, ranks.to_string());
    // `mpirun` handles Ctrl-C and passes it on; this process waits for `mpirun`.
    let _held = Interrupt::on_ctrl_c()?;
    match command.status() {
        Ok(status) => exit(status.code().unwrap_or(1)),
        Err(error) if error.kind() == NotFound => {
            failed("there is no `mpirun`; on Debian it comes with `apt-get install openmpi-bin`".to_owned())
        }
        Err(error) => failed(format!("`mpirun` does not start: {error}")),
    }
}
