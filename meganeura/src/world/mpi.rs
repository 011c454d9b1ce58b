//! Ranks that MPI connects.
//!
//! Before each collective, ranks compare what they came with. That exchange of a few bytes is begun and asked after rather than waited for, so
//! that a rank that waits notices when another one leaves: whoever leaves says so. Once all ranks have come, MPI may block.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};

use super::{Engine, Purpose};
use crate::error::bail;
use crate::{DType, Error, ErrorKind, Result};

/// What a rank says when it leaves: how many collectives it took part in.
const LEAVING: i32 = 1;
/// What a rank says that lost another one, and will not come to the end.
const LOST: i32 = 2;

/// The most elements of a call: MPI counts in 32 bits.
const MOST: usize = 1 << 30;

/// How long a wait asks again and again before it lets others have the processor.
const SPINNING: Duration = Duration::from_micros(50);

/// How long a rank that lost another one stays, so that the other can say why it left before it is ended.
const PARTING: Duration = Duration::from_millis(500);

/// A process among those that `mpirun` started.
pub(super) struct Mpi {
    rank: usize,
    hosts: Vec<String>,
    /// One call of MPI at a time.
    state: Mutex<State>,
}

struct State {
    /// `None` once it was left.
    universe: Option<Universe>,
    /// Collectives that this rank took part in.
    collectives: u64,
    /// Ranks that left, and how many collectives each had taken part in.
    left: Vec<(usize, u64)>,
    /// The rank that was lost.
    lost: Option<usize>,
}

/// What the ranks must agree on before a collective: its number, its purpose, the bytes of a number, and all bytes.
type Header = [u64; 4];

impl Mpi {
    /// Starts MPI, which a process does once.
    pub(super) fn start() -> Result<Self> {
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized) else {
            bail!(Argument, "MPI was started before, and a process joins a world once");
        };
        if threading < Threading::Serialized {
            bail!(Argument, "this MPI lets no other thread than the first one call it, and plans run on others");
        }
        let world = SimpleCommunicator::world();
        let name = mpi::environment::processor_name().unwrap_or_else(|_| "an unknown host".to_owned());
        let mut padded = [0u8; 64];
        let len = name.len().min(padded.len());
        padded[..len].copy_from_slice(&name.as_bytes()[..len]);
        let mut all = vec![0u8; padded.len() * world.size() as usize];
        world.all_gather_into(&padded[..], &mut all[..]);
        let hosts = all.chunks_exact(padded.len()).map(|name| {
            let name = String::from_utf8_lossy(name);
            name.trim_end_matches('\0').to_owned()
        });
        let state = State { universe: Some(universe), collectives: 0, left: Vec::new(), lost: None };
        Ok(Self { rank: world.rank() as usize, hosts: hosts.collect(), state: Mutex::new(state) })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of whoever waits for a rank that left.
    fn lost(&self, rank: usize) -> Error {
        let message = format!("rank {rank} on {} left while rank {} waited for it", self.hosts[rank], self.rank);
        Error::new(ErrorKind::PeerLost, message)
    }

    /// Takes part in the next collective, if all ranks come to the same.
    fn meet(&self, purpose: Purpose, dtype: DType, bytes: usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if let Some(rank) = state.lost {
            return Err(self.lost(rank));
        }
        state.collectives += 1;
        let own: Header = [state.collectives, purpose as u64, dtype.bytes() as u64, bytes as u64];
        let all = self.headers(&mut state, own)?;
        let headers = all.as_chunks::<4>().0;
        match headers.iter().position(|header| *header != headers[0]) {
            None => Ok(state),
            Some(rank) => {
                let spell = |header: &Header| {
                    let [number, purpose, bytes_each, bytes] = *header;
                    let count = bytes / bytes_each;
                    let what = match Purpose::ALL[purpose as usize] {
                        Purpose::Mean => format!("averages {count} numbers of {bytes_each} bytes"),
                        Purpose::Count => format!("adds up {count} numbers"),
                        Purpose::Agree => format!("asks {count} questions"),
                        Purpose::Share => format!("takes {bytes} bytes of rank 0"),
                    };
                    format!("{what} in its exchange {number}")
                };
                bail!(
                    Argument,
                    "rank 0 {}, and rank {rank} on {} {}: all ranks must do the same",
                    spell(&headers[0]),
                    self.hosts[rank],
                    spell(&headers[rank])
                )
            }
        }
    }

    /// What every rank came with. The buffers are MPI's until that is known, and stay so where it is not.
    fn headers(&self, state: &mut State, own: Header) -> Result<Vec<u64>> {
        let all = vec![0u64; own.len() * self.hosts.len()].into_boxed_slice();
        let (own, all) = (Box::leak(Box::new(own)), Box::leak(all));
        let (sent, received) = (&raw mut *own, &raw mut *all);
        let world = SimpleCommunicator::world();
        self.wait(state, world.immediate_all_gather_into(StaticScope, &own[..], all))?;
        // SAFETY: both were leaked above, and MPI is done with them: where it is not, the wait failed, and they stay leaked.
        let (sent, received) = unsafe { (Box::from_raw(sent), Box::from_raw(received)) };
        drop(sent);
        Ok(received.into_vec())
    }

    /// Waits until a collective is done, or a rank that has not come to it leaves.
    fn wait<D: ?Sized>(&self, state: &mut State, mut request: Request<'static, D, StaticScope>) -> Result<()> {
        let begin = Instant::now();
        loop {
            request = match request.test() {
                Ok(_) => return Ok(()),
                Err(request) => request,
            };
            state.left.extend(received(LEAVING));
            if let Some(&(rank, _)) = state.left.iter().find(|(_, collectives)| *collectives < state.collectives) {
                state.lost = Some(rank);
                mem::forget(request);
                return Err(self.lost(rank));
            }
            pause(begin);
        }
    }

    /// Waits until every rank has left; `false` if one says that it lost another. No collective: others may be in the middle of one.
    fn all_leave(&self, state: &mut State) -> bool {
        let begin = Instant::now();
        while state.left.len() + 1 < self.hosts.len() {
            if received(LOST).is_some() {
                return false;
            }
            state.left.extend(received(LEAVING));
            pause(begin);
        }
        true
    }

    /// Adds up what all ranks have come with.
    fn all_reduce_of<T: Equivalence + bytemuck::Pod>(from: &[u8], to: &mut [u8]) {
        let (from, to): (&[T], &mut [T]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
        for (from, to) in from.chunks(MOST).zip(to.chunks_mut(MOST)) {
            SimpleCommunicator::world().all_reduce_into(from, to, SystemOperation::sum());
        }
    }
}

impl Engine for Mpi {
    fn all_reduce(&self, purpose: Purpose, dtype: DType, from: &[u8], to: &mut [u8]) -> Result<()> {
        let _held = self.meet(purpose, dtype, from.len())?;
        match dtype {
            DType::F32 => Self::all_reduce_of::<f32>(from, to),
            DType::F64 => Self::all_reduce_of::<f64>(from, to),
            DType::U32 => Self::all_reduce_of::<u32>(from, to),
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<()> {
        let _held = self.meet(Purpose::Share, DType::U32, bytes.len())?;
        for chunk in bytes.chunks_mut(MOST) {
            SimpleCommunicator::world().process_at_rank(0).broadcast_into(chunk);
        }
        Ok(())
    }
}

impl Drop for Mpi {
    /// Says so to the other ranks, and waits until they leave as well: MPI ends for all at once.
    fn drop(&mut self) {
        let mut state = self.state();
        let Some(universe) = state.universe.take() else { return };
        let (kind, lost) = (if state.lost.is_some() { LOST } else { LEAVING }, state.lost.is_some());
        let collectives: &'static [u64; 1] = Box::leak(Box::new([state.collectives]));
        let world = SimpleCommunicator::world();
        for rank in (0..world.size()).filter(|&rank| rank as usize != self.rank) {
            // A few bytes, which MPI sends whether or not anybody waits for them.
            mem::forget(world.process_at_rank(rank).immediate_send_with_tag(StaticScope, &collectives[..], kind));
        }
        if !lost && self.all_leave(&mut state) {
            return drop(universe);
        }
        // Ending MPI would wait for those who do not come. Whoever started the ranks ends the others once this process is gone.
        mem::forget(universe);
        std::thread::sleep(PARTING);
    }
}

/// A message of this kind, if there is one, and the rank that sent it.
fn received(kind: i32) -> Option<(usize, u64)> {
    let any = SimpleCommunicator::world();
    let status = any.any_process().immediate_probe_with_tag(kind)?;
    let rank = status.source_rank();
    let (collectives, _) = any.process_at_rank(rank).receive_with_tag::<u64>(kind);
    Some((rank as usize, collectives))
}

/// Waits a little before asking again, the longer the longer it took.
fn pause(begin: Instant) {
    let waited = begin.elapsed();
    if waited < SPINNING {
        std::hint::spin_loop();
    } else {
        std::thread::sleep((waited / 16).min(Duration::from_millis(1)));
    }
}
