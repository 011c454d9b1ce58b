//! Finding and joining the world of this process.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::watch::{Secret, Watch};
use super::{Engine, Inner, World};
use crate::error::{bail, here};
use crate::{Error, ErrorKind, Result};

/// Environment variables with the rank and the number of ranks, by starter.
const STARTERS: [(&str, &str, &str); 4] = [
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    (TORCHRUN, "RANK", "WORLD_SIZE"),
];

/// The interface that rank 0 listens on for ranks of its own host.
const HERE: &str = "127.0.0.1";
/// The interfaces for ranks of any host.
const EVERYWHERE: &str = "0.0.0.0";

/// The starter that works without MPI.
const TORCHRUN: &str = "torchrun";

/// Rank 0's text for ranks that MPI connects.
#[cfg(feature = "mpi")]
const MPI: &str = "mpi";

impl World {
    /// The world of this process: the ranks started by `mpirun`, `mpiexec`, `srun` or `torchrun`, or only this process
    /// if there is no starter.
    ///
    /// MPI connects the ranks of the first three, with the feature `mpi`. The ranks of `torchrun` meet at
    /// `MASTER_ADDR`, and NCCL connects them; each needs an NVIDIA GPU.
    ///
    /// Rank 0 listens for the others, and ignores connections that do not prove a secret. MPI carries the secret from
    /// rank 0 to the others. Under `torchrun`, the environment variable `MEGANEURA_SECRET` holds it: a random text of
    /// at least 16 characters, the same for every rank. The guide explains [what the network is trusted for][trust].
    ///
    /// [trust]: https://docs.rs/meganeura/latest/meganeura/guide/scaling/index.html#what-the-network-is-trusted-for
    ///
    /// # Errors
    ///
    /// Fails if there are several ranks, but not the feature or library that connects them, or no secret under
    /// `torchrun`; if ranks do not find each other within a minute; or if they differ in the number of ranks or in the
    /// framework's version.
    #[track_caller]
    pub fn join() -> Result<Self> {
        static JOINED: Mutex<Weak<Inner>> = Mutex::new(Weak::new());

        here(|| {
            let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(world) = joined.upgrade() {
                return Ok(Self(world));
            }
            let world = match started(|name| std::env::var(name).ok()) {
                None => Self::alone(),
                Some((starter, rank, size)) => Self::of_starter(starter, &rank, &size)?,
            };
            *joined = Arc::downgrade(&world.0);
            Ok(world)
        })
    }

    fn of_starter(starter: &str, rank: &str, size: &str) -> Result<Self> {
        let world = if starter == TORCHRUN { Self::by_nccl(rank, size) } else { Self::by_mpi(starter, size) };
        world.map_err(|error| error.context(format!("rank {rank} of {size}, started by {starter}")))
    }

    #[cfg(feature = "mpi")]
    fn by_mpi(starter: &str, size: &str) -> Result<Self> {
        let mut engine = super::mpi::Mpi::start()?;
        if engine.size() == 1 && size != "1" {
            bail!(
                Argument,
                "{starter} started {size} ranks, and MPI knows of one: the program was built with another MPI than \
                 that of {starter}"
            );
        }
        let (rank, size, host) = (engine.rank(), engine.size(), engine.host());
        // If all ranks are on this host, no other host needs to reach it.
        let (interface, name) = if engine.is_one_host() { (HERE, HERE) } else { (EVERYWHERE, &host[..]) };
        // Rank 0's address, and the secret that its ranks have and other programs lack. Both are zero if it failed, and
        // then it says why.
        let mut told = [0; Secret::LEN + 256];
        let listening = if rank == 0 { Self::tell(interface, name, size, &mut told) } else { Ok(()) };
        engine.broadcast(&mut told)?;
        listening?;
        let (secret, address) = told.split_first_chunk().expect("a secret and an address");
        let address = String::from_utf8_lossy(address);
        let address = address.trim_end_matches('\0');
        if address.is_empty() {
            bail!(PeerLost, "rank 0 cannot listen to the others, and reports its own error");
        }
        let watch = Watch::join(address, rank, size, &host, &Secret::of_bytes(*secret))?;
        if watch.word() != MPI {
            bail!(PeerLost, "the listener at {address} is not rank 0 of such a world");
        }
        Ok(Self::connected(rank, Arc::new(watch), Box::new(engine)))
    }

    /// Starts the hub, and writes down what the other ranks need.
    #[cfg(feature = "mpi")]
    fn tell(interface: &str, name: &str, size: usize, told: &mut [u8; Secret::LEN + 256]) -> Result<()> {
        let (own, address) = told.split_first_chunk_mut::<{ Secret::LEN }>().expect("a secret and an address");
        let secret = Secret::random()?;
        let port = listen(&format!("{interface}:0"), size, MPI.to_owned(), secret.clone())?;
        let spelled = format!("{name}:{port}");
        let Some(room) = address.get_mut(..spelled.len()) else {
            bail!(Argument, "the name of this host is too long for an address: {name}");
        };
        room.copy_from_slice(spelled.as_bytes());
        *own = *secret.bytes();
        Ok(())
    }

    #[cfg(not(feature = "mpi"))]
    fn by_mpi(_: &str, _: &str) -> Result<Self> {
        bail!(Argument, "the program was built without the feature `mpi`")
    }

    /// Ranks that meet at an address from the environment, and exchange everything through NCCL.
    #[cfg(all(feature = "gpu", target_os = "linux"))]
    fn by_nccl(rank: &str, size: &str) -> Result<Self> {
        use super::nccl::{Libraries, Nccl, Staged, UniqueId, Which};

        let number = |name: &str, text: &str| {
            text.parse::<usize>().map_err(|_| Error::new(ErrorKind::Argument, format!("{name}={text} is not a number")))
        };
        let var =
            |name: &str| std::env::var(name).map_err(|_| Error::new(ErrorKind::Argument, format!("{name} is not set")));
        let (rank, size) = (number("RANK", rank)?, number("WORLD_SIZE", size)?);
        let local = number("LOCAL_RANK", &var("LOCAL_RANK")?)?;
        let (master, port) = (var("MASTER_ADDR")?, number("MASTER_PORT", &var("MASTER_PORT")?)?);
        // The port itself may be in use by the starter's own store.
        let is_taken = std::env::var("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|value| value == "True");
        let port = port + usize::from(is_taken);
        let secret = Secret::of_environment(std::env::var(Secret::NAMED).ok().as_deref())?;
        // If all ranks are on this host, no other host needs to reach it.
        let is_one_host = std::env::var("LOCAL_WORLD_SIZE").is_ok_and(|local| local.parse() == Ok(size));
        let (interface, master) = if is_one_host { (HERE, HERE) } else { (EVERYWHERE, &master[..]) };
        let libraries = Libraries::open()
            .map_err(|error| error.context("these ranks exchange numbers through NCCL; `mpirun` needs none"))?;
        if rank == 0 {
            let id = libraries.unique_id()?;
            listen(&format!("{interface}:{port}"), size, id.to_string(), secret.clone())?;
        }
        let watch = Arc::new(Watch::join(&format!("{master}:{port}"), rank, size, &super::watch::host(), &secret)?);
        let id = UniqueId::of_text(watch.word())?;
        let nccl = Nccl::open(libraries, &Which::Number(local), (rank, size))?;
        nccl.connect(id, || watch.fault())?;
        let engine = Box::new(Staged::new(Arc::clone(&nccl), Arc::clone(&watch)));
        let world = Self::connected(rank, watch, engine);
        world.link_gpus(&nccl);
        Ok(world)
    }

    #[cfg(not(all(feature = "gpu", target_os = "linux")))]
    fn by_nccl(_: &str, _: &str) -> Result<Self> {
        bail!(Argument, "without NCCL, which needs Linux and the feature `gpu`, MPI connects ranks: use `mpirun`")
    }

    pub(super) fn connected(rank: usize, watch: Arc<Watch>, engine: Box<dyn Engine>) -> Self {
        Self::made(rank, watch.hosts().to_vec(), engine, Some(watch))
    }
}

/// Starts the hub at an address, with a text for all ranks, and returns the port.
fn listen(address: &str, size: usize, word: String, secret: Secret) -> Result<u16> {
    let failed = |error| Error::new(ErrorKind::Io, format!("rank 0 cannot listen at {address}")).caused_by(error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Watch::serve(listener, size, word, secret)?;
    Ok(port)
}

/// The starter of this process, its rank and the number of ranks, if there are several.
fn started(var: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String, String)> {
    // `srun` may have started `torchrun`.
    let is_torchrun = var("TORCHELASTIC_RUN_ID").is_some();
    let starters = STARTERS.iter().filter(|(name, ..)| !is_torchrun || *name == TORCHRUN);
    let mut told = starters.filter_map(|&(name, rank, size)| Some((name, var(rank)?, var(size)?)));
    told.find(|(_, _, size)| size != "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_pass_rank_and_size_in_the_environment() {
        let with = |vars: &'static [(&str, &str)]| {
            started(move |name| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("RANK", "1")]), None);
        assert_eq!(with(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), None);
        let told = with(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("RANK", "7")]);
        assert_eq!(told, Some(("mpirun", "1".to_owned(), "4".to_owned())));
        let both: &[_] = &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("RANK", "5"), ("WORLD_SIZE", "8")];
        assert_eq!(with(both).map(|told| told.0), Some("srun"));
        let both = with(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ]);
        assert_eq!(both, Some((TORCHRUN, "5".to_owned(), "8".to_owned())));
    }
}
