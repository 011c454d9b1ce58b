//! Starts this program as the ranks of a world.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use super::RANK;

/// The variable that names NCCL's library.
const NCCL: &str = "MEGANEURA_NCCL";

/// The time for ranks to notice that another one ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// A way to start ranks.
#[derive(Clone, Copy)]
pub(super) enum Starter {
    /// `mpirun`. More ranks than cores, and running as root in a container, are intended.
    Mpirun,
    /// One process each, as if `torchrun` had started them on hosts of their own. NCCL then lets them share a GPU.
    Hosts,
}

/// Ranks that have ended.
pub(super) struct Ended {
    /// `true` if none failed.
    pub(super) is_success: bool,
    /// Those that stayed after another had failed, and were killed. `mpirun` kills ranks itself.
    pub(super) stayed: usize,
    /// Their errors.
    pub(super) said: String,
}

impl Starter {
    /// `true` if ranks can be started, or if CI expects it.
    pub(super) fn is_here(self) -> bool {
        let var = |name: &str| env::var_os(name);
        match self {
            Self::Mpirun if !cfg!(feature = "mpi") => false,
            Self::Mpirun => {
                var("CI").is_some_and(|value| value == "true")
                    || var("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join("mpirun").is_file()))
            }
            Self::Hosts => var(NCCL).is_some_and(|named| named != "off"),
        }
    }

    /// Runs a program of this file's ranks, and waits for all of them.
    pub(super) fn run(self, folder: &Path, ranks: usize, program: &[&str]) -> io::Result<Ended> {
        let rank = |command: &mut Command| {
            command.arg(RANK).arg(folder).args(program).env("RAYON_NUM_THREADS", "1").env("MEGANEURA_CACHE", "off");
        };
        match self {
            Self::Mpirun => {
                // Ranks that create the same folder at the same time would fail.
                let sessions = tempfile::tempdir()?;
                let mut command = Command::new("mpirun");
                command.env("OMPI_MCA_orte_tmpdir_base", sessions.path());
                command.args(["-n", &ranks.to_string()]).arg(env::current_exe()?);
                for name in
                    ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
                {
                    command.env(name, "1");
                }
                command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
                command.env("OMPI_MCA_hwloc_base_binding_policy", "none");
                rank(&mut command);
                let output = command.output()?;
                let said = format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
                Ok(Ended { is_success: output.status.success(), stayed: 0, said })
            }
            Self::Hosts => {
                let logs = tempfile::tempdir()?;
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
                let log = |number: usize| logs.path().join(number.to_string());
                let start = |number: usize| {
                    let mut command = Command::new(env::current_exe()?);
                    let number_of =
                        [("RANK", number), ("WORLD_SIZE", ranks), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)];
                    command.envs(number_of.map(|(name, value)| (name, value.to_string())));
                    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
                    command.env("MEGANEURA_SECRET", "only for this test");
                    command.env("NCCL_HOSTID", format!("host {number}")).env("NCCL_SOCKET_IFNAME", "lo");
                    rank(&mut command);
                    command.stdout(Stdio::null()).stderr(fs::File::create(log(number))?).spawn()
                };
                let mut children = (0..ranks).map(start).collect::<io::Result<Vec<_>>>()?;
                let (is_success, stayed) = wait(&mut children)?;
                let texts = (0..ranks).map(|number| fs::read_to_string(log(number)));
                Ok(Ended { is_success, stayed, said: texts.collect::<io::Result<Vec<_>>>()?.concat() })
            }
        }
    }
}

/// Waits until all have ended; `true` if none failed. Once one has, those that stay too long are killed, and counted.
fn wait(children: &mut [Child]) -> io::Result<(bool, usize)> {
    let (mut failed, mut stayed) = (None, 0);
    loop {
        let mut running = 0;
        for child in &mut *children {
            match child.try_wait()? {
                None => running += 1,
                Some(status) if !status.success() => drop(failed.get_or_insert_with(Instant::now)),
                Some(_) => {}
            }
        }
        if running == 0 {
            return Ok((failed.is_none(), stayed));
        }
        if failed.is_some_and(|since: Instant| since.elapsed() > PATIENCE) {
            stayed = stayed.max(running);
            children.iter_mut().try_for_each(Child::kill)?;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
