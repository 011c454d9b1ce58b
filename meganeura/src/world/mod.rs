//! Worlds: the processes that train one model together, each with a device of its own.
//!
//! A world has so many *ranks*. All run the same program, each with its part of every batch, and average their gradients
//! ([`Grads::average`](crate::Grads::average)), so that their models stay the same. `mpirun` starts the ranks:
//!
//! ```sh
//! mpirun -n 4 target/release/my-training
//! ```
//!
//! Without `mpirun` a program is a world of one rank, and computes as if nothing of this were there. The guide [many
//! devices](crate::guide::scaling) goes through a program.
//!
//! ```
//! use meganeura::prelude::*;
//!
//! # fn main() -> meganeura::Result<()> {
//! let world = World::join()?;
//! let device = world.device("cpu")?; // or "auto": a GPU for each rank
//! let data = Dataset::new((0..64u8).map(f32::from).collect(), [1], (0..64).map(|i| i % 2).collect::<Vec<_>>())?;
//! let mut net = Linear::new(1, 2).init(&device, Seed::new(42))?;
//! world.share(&mut net)?; // what rank 0 has
//! let mut optimizer = AdamW::new(1e-3);
//! for batch in data.batches(16).shuffle(7).part_of(&world).on(&device) {
//!     let batch = batch?;
//!     let tape = Tape::new(&device);
//!     let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
//!     let grads = tape.backward(&loss)?.average(&net, &world)?;
//!     optimizer.step(&mut net, &grads)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What every rank must do alike
//!
//! Ranks meet: in each step, in [`share`](World::share), in [`sum`](World::sum). They must meet in the same order. Where they come for other purposes, or
//! with other numbers of numbers, all of them get an error that tells what each rank came with. A rank that leaves while others wait for it is an error of
//! theirs ([`PeerLost`](crate::ErrorKind::PeerLost)) that names it and its host. If a rank is killed, `mpirun` ends the others.
//!
//! Files are rank 0's to write ([`is_first`](World::is_first)).

mod engine;
#[cfg(feature = "mpi")]
mod mpi;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{bail, here};
use crate::{DType, Result};
use engine::{Engine, Purpose};

/// Variables by which those who start ranks tell each one its number, and how many there are.
const STARTERS: [(&str, &str, &str); 4] = [
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    (TORCHRUN, "RANK", "WORLD_SIZE"),
];

/// Starts ranks that know nothing of MPI.
const TORCHRUN: &str = "torchrun";

/// The processes that train one model together; see the [module's page](self). Cheap to clone; clones are the same world.
///
/// A process leaves the world when the last clone is dropped.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    rank: usize,
    /// The host of each rank.
    hosts: Vec<String>,
    engine: Box<dyn Engine>,
}

impl World {
    /// The world of this process: that of the ranks that `mpirun`, `mpiexec` or `srun` started, or of this process alone.
    ///
    /// # Errors
    ///
    /// If this is one of several ranks and the feature `mpi` is off, or MPI does not start.
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

    #[cfg(feature = "mpi")]
    fn of_starter(starter: &str, rank: &str, size: &str) -> Result<Self> {
        if starter == TORCHRUN {
            bail!(
                Argument,
                "this is rank {rank} of {size}, started by {starter}: MPI connects ranks, so let `mpirun` start them"
            );
        }
        let engine = mpi::Mpi::start().map_err(|error| error.context(format!("rank {rank} of {size}")))?;
        let (rank, hosts) = (engine.rank(), engine.hosts().to_vec());
        if hosts.len() == 1 && size != "1" {
            bail!(
                Argument,
                "{starter} started {size} ranks, and MPI knows of one: the program was built with another MPI than \
                 that of {starter}"
            );
        }
        Ok(Self(Arc::new(Inner { rank, hosts, engine: Box::new(engine) })))
    }

    #[cfg(not(feature = "mpi"))]
    fn of_starter(starter: &str, rank: &str, size: &str) -> Result<Self> {
        bail!(
            Argument,
            "this is rank {rank} of {size}, started by {starter}, and the program was built without the feature `mpi`"
        )
    }

    /// A world of this process alone.
    #[must_use]
    pub fn alone() -> Self {
        Self(Arc::new(Inner { rank: 0, hosts: vec!["this host".to_owned()], engine: Box::new(engine::Alone) }))
    }

    /// The number of this process, below [`size`](Self::size).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.hosts.len()
    }

    /// Whether this is rank 0, which writes files and tells how it goes.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Whether there is no other rank.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// The number of this process among the ranks of its host: 0 for the first.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        let hosts = &self.0.hosts;
        hosts[..self.rank()].iter().filter(|host| **host == hosts[self.rank()]).count()
    }

    /// How many ranks this host has.
    #[must_use]
    pub fn local_size(&self) -> usize {
        let hosts = &self.0.hosts;
        hosts.iter().filter(|host| **host == hosts[self.rank()]).count()
    }

    /// The sums of these numbers over all ranks, the same on each. For what is counted and logged: it waits for all ranks.
    ///
    /// ```
    /// use meganeura::world::World;
    ///
    /// let (right, all) = (9.0, 10.0);
    /// let sums = World::alone().sum(&[right, all])?;
    /// assert_eq!(sums[0] / sums[1], 0.9);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If another rank came with something else, or left.
    #[track_caller]
    pub fn sum(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        let mut sums = vec![0.0; numbers.len()];
        here(|| self.add_up(Purpose::Count, numbers, &mut sums))?;
        Ok(sums)
    }

    fn add_up(&self, purpose: Purpose, numbers: &[f64], sums: &mut [f64]) -> Result<()> {
        self.0.engine.all_reduce(purpose, DType::F64, bytemuck::cast_slice(numbers), bytemuck::cast_slice_mut(sums))
    }

    /// For each question, whether any rank says yes.
    pub(crate) fn agree<const N: usize>(&self, own: [bool; N]) -> Result<[bool; N]> {
        let mut sums = [0.0; N];
        self.add_up(Purpose::Agree, &own.map(|yes| f64::from(u8::from(yes))), &mut sums)?;
        Ok(sums.map(|sum| sum > 0.0))
    }

    /// The text that rank 0 came with: something that it alone knows, such as the name of a new folder.
    ///
    /// # Errors
    ///
    /// If another rank came with something else, or left.
    #[track_caller]
    pub fn text_of_first(&self, text: &str) -> Result<String> {
        here(|| {
            let mut len = (text.len() as u64).to_le_bytes();
            self.broadcast(&mut len)?;
            let mut of_first = text.as_bytes().to_vec();
            of_first.resize(usize::try_from(u64::from_le_bytes(len)).expect("a text fits in memory"), 0);
            self.broadcast(&mut of_first)?;
            Ok(String::from_utf8(of_first).expect("rank 0 sent a text"))
        })
    }

    /// That all ranks have the same text: a setting, a path, the version of a program.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) on every rank, telling which one has another.
    #[track_caller]
    pub fn expect_same(&self, what: &str, text: &str) -> Result<()> {
        here(|| {
            let of_first = self.text_of_first(text)?;
            let mut differs = vec![0.0; self.size()];
            differs[self.rank()] = f64::from(u8::from(of_first != text));
            let differs = self.sum(&differs)?;
            match differs.iter().position(|differs| *differs != 0.0) {
                None => Ok(()),
                Some(rank) => {
                    let own = if self.rank() == rank { format!(": {text}") } else { String::new() };
                    bail!(
                        Argument,
                        "{what} of rank 0 is {of_first}, and that of rank {rank} on {} is another{own}",
                        self.0.hosts[rank]
                    )
                }
            }
        })
    }

    /// The result of this rank, if all ranks come with one: else the error of this rank, or that of another.
    pub(crate) fn expect_all<T>(&self, result: Result<T>) -> Result<T> {
        let mut failed = vec![0.0; self.size()];
        failed[self.rank()] = f64::from(u8::from(result.is_err()));
        let mut all_failed = vec![0.0; self.size()];
        self.add_up(Purpose::Agree, &failed, &mut all_failed)?;
        let result = result?;
        match all_failed.iter().position(|failed| *failed != 0.0) {
            None => Ok(result),
            Some(rank) => bail!(PeerLost, "rank {rank} on {} met an error, which it tells", self.0.hosts[rank]),
        }
    }

    /// The bytes that rank 0 has.
    pub(crate) fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        self.0.engine.broadcast(bytes)
    }

    /// The mean over all ranks of each number, of floats of one type given as bytes.
    pub(crate) fn mean(&self, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        self.0.engine.all_reduce(Purpose::Mean, dtype, from, to)?;
        let share = 1.0 / self.size() as f64;
        match dtype {
            DType::F64 => bytemuck::cast_slice_mut::<_, f64>(to).iter_mut().for_each(|x| *x *= share),
            DType::F32 => bytemuck::cast_slice_mut::<_, f32>(to).iter_mut().for_each(|x| *x *= share as f32),
            DType::U32 => bail!(Argument, "numbers that count have no mean"),
        }
        Ok(())
    }
}

/// Who started this process as one of several ranks: its name, the rank, and their number.
fn started(var: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String, String)> {
    let told = STARTERS.iter().find_map(|&(name, rank, size)| Some((name, var(rank)?, var(size)?)));
    told.filter(|(_, _, size)| size != "1")
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for World {}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// `rank 1 of 4`
impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

/// The same on every rank, as in the dump of a plan.
impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({})", self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_starts_ranks_tells_them() {
        let with = |vars: &'static [(&str, &str)]| {
            started(move |name| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("RANK", "1")]), None);
        assert_eq!(with(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), None);
        let told = with(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("RANK", "7")]);
        assert_eq!(told, Some(("mpirun", "1".to_owned(), "4".to_owned())));
    }

    #[test]
    fn alone_everything_is_as_it_was() {
        let world = World::alone();
        assert_eq!((world.rank(), world.size(), world.local_rank(), world.local_size()), (0, 1, 0, 1));
        assert_eq!(world.sum(&[1.0, 2.5]).unwrap(), [1.0, 2.5]);
        world.expect_same("the batch", "16").unwrap();
        assert_eq!((world.to_string(), format!("{world:?}")), ("rank 0 of 1".to_owned(), "World(1)".to_owned()));
        assert_eq!((world == world.clone(), world == World::alone()), (true, false));
    }
}
