//! Worlds: the processes that train one model together, each with its own device.
//!
//! The *ranks* of a world run the same program, each on its part of every batch. They average their gradients
//! ([`Grads::average`](crate::Grads::average)), so their models stay equal. `mpirun` or `torchrun` starts the ranks:
//!
//! ```sh
//! mpirun -n 4 target/release/my-training
//! ```
//!
//! A program started without a launcher is a world of one rank, and computes the same as without a world. The guide
//! [many devices][scaling] explains a program step by step.
//!
//! [scaling]: https://docs.rs/meganeura/latest/meganeura/guide/scaling/index.html
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
//! for batch in data.batches(16).shuffle(7).epoch(0).part_of(&world).on(&device) {
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
//! # Collective calls
//!
//! Ranks meet in each averaged step, in [`share`](World::share), [`sum`](World::sum),
//! [`text_of_first`](World::text_of_first), [`expect_same`](World::expect_same) and [`device`](World::device), where
//! batches are requested, in the `over` of each metric, and in a shared run, when it is opened and in each `advance`
//! and `end_epoch`. All ranks make these calls, in the same order. If they differ in purpose or size, every rank gets
//! an error with both. A rank that leaves, is killed or hangs while others wait for it causes an error on those
//! ([`PeerLost`](crate::ErrorKind::PeerLost)), which names it and its host.
//!
//! Rank 0 writes the files ([`is_first`](World::is_first)).

mod collective;
mod engine;
#[cfg(all(feature = "gpu", target_os = "linux"))]
mod gpus;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(all(feature = "gpu", target_os = "linux"))]
pub(crate) mod nccl;
mod shards;
#[cfg_attr(
    not(any(feature = "mpi", all(feature = "gpu", target_os = "linux"))),
    expect(dead_code, reason = "nothing connects ranks")
)]
mod start;
#[cfg_attr(
    not(any(feature = "mpi", all(feature = "gpu", target_os = "linux"))),
    expect(dead_code, reason = "nothing connects ranks")
)]
mod watch;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[doc(hidden)]
pub use collective::Collective;
#[cfg(feature = "gpu")]
pub(crate) use collective::Range;
#[doc(hidden)]
pub use shards::Shards;

use crate::error::{bail, here};
use crate::{DType, Result};
use engine::{Engine, Purpose};
use watch::{Header, Watch};

/// The processes that train one model together; see the [module's page](self). Cheap to clone; clones are the same
/// world.
///
/// A process leaves the world when its last clone is dropped.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    rank: usize,
    /// The host of each rank.
    hosts: Vec<String>,
    /// One exchange at a time.
    engine: Mutex<Box<dyn Engine>>,
    /// The connection to the other ranks, if there are any.
    watch: Option<Arc<Watch>>,
    #[cfg(all(feature = "gpu", target_os = "linux"))]
    gpus: gpus::Connection,
}

impl World {
    /// A world of only this process.
    #[must_use]
    pub fn alone() -> Self {
        Self::made(0, vec!["this host".to_owned()], Box::new(engine::Alone), None)
    }

    /// Rank 0 of two, without the other one.
    #[cfg(test)]
    pub(crate) fn of_two() -> Self {
        Self::made(0, vec!["this host".to_owned(); 2], Box::new(engine::Alone), None)
    }

    fn made(rank: usize, hosts: Vec<String>, engine: Box<dyn Engine>, watch: Option<Arc<Watch>>) -> Self {
        Self(Arc::new(Inner {
            rank,
            hosts,
            engine: Mutex::new(engine),
            watch,
            #[cfg(all(feature = "gpu", target_os = "linux"))]
            gpus: gpus::Connection::default(),
        }))
    }

    /// The engine that exchanges gradients: `NCCL 2.28.9`, or `Open MPI v4.1.4 through the host`. Once there is a
    /// [device](Self::device), it adds the reason for not using NCCL.
    #[must_use]
    pub fn engine(&self) -> String {
        let name = || self.0.engine.lock().unwrap_or_else(PoisonError::into_inner).name();
        #[cfg(all(feature = "gpu", target_os = "linux"))]
        {
            self.0.gpus.describe(name)
        }
        #[cfg(not(all(feature = "gpu", target_os = "linux")))]
        name()
    }

    /// The number of this process, below [`size`](Self::size).
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.hosts.len()
    }

    /// `true` on rank 0, which writes files and reports progress.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// `true` if there is no other rank.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// The index of this process among the ranks of its host: 0 for the first.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        let hosts = &self.0.hosts;
        hosts[..self.rank()].iter().filter(|host| **host == hosts[self.rank()]).count()
    }

    /// The number of ranks on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        let hosts = &self.0.hosts;
        hosts.iter().filter(|host| **host == hosts[self.rank()]).count()
    }

    /// The sums of these numbers over all ranks, the same on each. For counts and metrics to log: the call waits for
    /// all ranks.
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
    /// Fails if another rank called something else, or left.
    #[track_caller]
    pub fn sum(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        let mut sums = vec![0.0; numbers.len()];
        here(|| self.add_up(Purpose::Count, numbers, &mut sums))?;
        Ok(sums)
    }

    fn add_up(&self, purpose: Purpose, numbers: &[f64], sums: &mut [f64]) -> Result<()> {
        let from: &[u8] = bytemuck::cast_slice(numbers);
        let mut engine = self.meet([purpose as u64, DType::F64.bytes() as u64, from.len() as u64, 0])?;
        self.completed(engine.all_reduce(DType::F64, from, bytemuck::cast_slice_mut(sums)))
    }

    /// The result of this rank's part in a meeting. If it failed, the others are told.
    fn completed<T>(&self, result: Result<T>) -> Result<T> {
        if let (Err(_), Some(watch)) = (&result, &self.0.watch) {
            watch.abandon();
        }
        result
    }

    /// Waits until all ranks have arrived with the same header, and returns the engine.
    fn meet(&self, header: Header) -> Result<MutexGuard<'_, Box<dyn Engine>>> {
        let engine = self.0.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = &self.0.watch {
            watch.expect(watch.come(header)?)?;
        }
        Ok(engine)
    }

    /// For each question, `true` if any rank says yes.
    #[doc(hidden)]
    pub fn agree<const N: usize>(&self, own: [bool; N]) -> Result<[bool; N]> {
        let mut sums = [0.0; N];
        self.add_up(Purpose::Agree, &own.map(|yes| f64::from(u8::from(yes))), &mut sums)?;
        Ok(sums.map(|sum| sum > 0.0))
    }

    /// The text of rank 0: something that only it knows, such as the name of a new folder.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left.
    #[track_caller]
    pub fn text_of_first(&self, text: &str) -> Result<String> {
        here(|| {
            let mut len = (text.len() as u64).to_le_bytes();
            self.broadcast(&mut len)?;
            let mut of_first = text.as_bytes().to_vec();
            let len = usize::try_from(u64::from_le_bytes(len)).expect("a text fits in memory");
            crate::host::reserve(&mut of_first, len.saturating_sub(text.len()))?;
            of_first.resize(len, 0);
            self.broadcast(&mut of_first)?;
            Ok(String::from_utf8(of_first).expect("rank 0 sent a text"))
        })
    }

    /// Checks that all ranks have the same text: a setting, a path, the version of a program.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument) on every rank, and names the rank with another text.
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
                        "{what} of rank 0: {of_first}; rank {rank} on {} has another{own}",
                        self.0.hosts[rank]
                    )
                }
            }
        })
    }

    /// The result of this rank if all ranks have one, else the error of this rank, or that of another.
    #[doc(hidden)]
    pub fn expect_all<T>(&self, result: Result<T>) -> Result<T> {
        let mut failed = vec![0.0; self.size()];
        failed[self.rank()] = f64::from(u8::from(result.is_err()));
        let mut all_failed = vec![0.0; self.size()];
        self.add_up(Purpose::Agree, &failed, &mut all_failed)?;
        let result = result?;
        match all_failed.iter().position(|failed| *failed != 0.0) {
            None => Ok(result),
            Some(rank) => bail!(PeerLost, "rank {rank} on {} failed, and reports its own error", self.0.hosts[rank]),
        }
    }

    /// Broadcasts the bytes of rank 0.
    #[doc(hidden)]
    pub fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let mut engine = self.meet([Purpose::Share as u64, 1, bytes.len() as u64, 0])?;
        self.completed(engine.broadcast(bytes))
    }
}

impl Drop for Inner {
    /// Tells the other ranks, and waits until they leave as well: an engine ends for all at once.
    fn drop(&mut self) {
        let in_order = self.watch.as_ref().is_none_or(|watch| watch.leave());
        self.engine.get_mut().unwrap_or_else(PoisonError::into_inner).end(in_order);
        #[cfg(all(feature = "gpu", target_os = "linux"))]
        if !in_order {
            self.gpus.abort();
        }
    }
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

/// The same on every rank, for the dumps of plans.
impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({})", self.size())
    }
}

#[cfg(test)]
mod tests {
    mod attacked;

    use super::*;

    #[test]
    fn a_world_of_one_changes_nothing() {
        let world = World::alone();
        assert_eq!((world.rank(), world.size(), world.local_rank(), world.local_size()), (0, 1, 0, 1));
        assert_eq!(world.sum(&[1.0, 2.5]).unwrap(), [1.0, 2.5]);
        world.expect_same("the batch", "16").unwrap();
        assert_eq!((world.to_string(), format!("{world:?}")), ("rank 0 of 1".to_owned(), "World(1)".to_owned()));
        assert_eq!((world == world.clone(), world == World::alone()), (true, false));
    }
}
