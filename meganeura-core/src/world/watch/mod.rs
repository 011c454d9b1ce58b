//! The control connection: ranks find each other, compare their next exchange, and detect losses.
//!
//! Each rank has a TCP connection to the *hub* in rank 0's process. A *meeting* is one exchange. Before it, every rank
//! sends a header; the hub compares the headers, and answers with a go or with the difference. Signs of life are sent
//! both ways four times a second. A process that ends is lost at once, a silent one after a few seconds.
//!
//! The hub hears nobody who has not proved the world's [`Secret`], and a rank obeys no other hub. Messages are neither
//! encrypted nor signed: whoever can read or change the network's packets can read or change them, as those of MPI and
//! NCCL.

mod door;
mod greeting;
mod hub;
mod message;
mod secret;
#[cfg(test)]
mod strangers;

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Purpose;
use crate::error::bail;
use crate::{Error, ErrorKind, Result};
use message::Message;
pub(super) use secret::Secret;

/// The interval between signs of life.
const BEAT: Duration = Duration::from_millis(250);

/// The duration of silence after which a rank is lost.
const SILENCE: Duration = Duration::from_secs(3);

/// A gap this long between the listener's own ticks means that the listener itself was stopped.
const STALL: Duration = Duration::from_secs(2);

/// How long a world takes to come together.
#[derive(Clone, Copy)]
struct Times {
    /// The time in which all ranks must join.
    joining: Duration,
    /// The time in which both ends of a new connection must prove that they know the secret.
    greeting: Duration,
}

const TIMES: Times = Times { joining: Duration::from_secs(60), greeting: Duration::from_secs(10) };

/// The header of a meeting: purpose, bytes per number, total bytes, and a digest of the rest.
pub(super) type Header = [u64; 4];

/// A rank's control connection.
pub(super) struct Watch {
    rank: usize,
    /// Rank 0's text.
    word: String,
    hosts: Vec<String>,
    stream: Arc<Mutex<TcpStream>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Run by the thread that detects a loss.
    on_loss: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

#[derive(Default)]
struct State {
    hosts: Option<Vec<String>>,
    /// The number of meetings at which this rank arrived.
    came: u64,
    /// The number of meetings that the hub has answered.
    judged: u64,
    /// A meeting with different headers, and the difference; number 0 concerns the whole world.
    refused: Option<(u64, String)>,
    lost: Option<(usize, String)>,
    /// `true` once this rank has said that it leaves.
    has_left: bool,
    /// `true` once all ranks have left.
    is_over: bool,
    /// The last message of the hub.
    heard: Option<Instant>,
}

/// Sets the options of a connection.
fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SILENCE))
}

/// This host's name.
pub(super) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).or_else(|| std::env::var("COMPUTERNAME").ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "an unknown host".into())
}

impl Watch {
    /// Starts the hub for a world of `size` ranks, with a text for all of them. Rank 0 calls it.
    pub(super) fn serve(listener: TcpListener, size: usize, word: String, secret: Secret) -> Result<()> {
        hub::serve(listener, size, word, secret, TIMES)
            .map_err(|error| Error::new(ErrorKind::Io, "rank 0 cannot listen to the others").caused_by(error))
    }

    /// Joins the world whose hub listens at `address`.
    pub(super) fn join(address: &str, rank: usize, size: usize, host: &str, secret: &Secret) -> Result<Self> {
        Self::join_within(TIMES, address, rank, size, host, secret)
    }

    fn join_within(times: Times, address: &str, rank: usize, size: usize, host: &str, secret: &Secret) -> Result<Self> {
        let failed = |error: io::Error| {
            let message = format!("rank {rank} on {host} does not reach rank 0 at {address}");
            Error::new(ErrorKind::PeerLost, message).caused_by(error)
        };
        let hello = Message::Hello {
            rank: rank as u64,
            size: size as u64,
            about: format!("{host}\n{}", env!("CARGO_PKG_VERSION")),
        };
        let stream = greeting::connect(address, times, &hello, secret).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let mut ear = stream.try_clone().map_err(failed)?;
        let stream = Arc::new(Mutex::new(stream));
        let listening = Arc::clone(&shared);
        let listen = move || {
            while let Ok(message) = Message::read(&mut ear, message::MOST) {
                listening.hear(message);
            }
            listening.lose(0, "is gone".to_owned());
        };
        let (beating, heart) = (Arc::clone(&shared), Arc::clone(&stream));
        let beat = move || beating.beat(&heart);
        for (name, task) in
            [("ranks: ear", Box::new(listen) as Box<dyn FnOnce() + Send>), ("ranks: pulse", Box::new(beat))]
        {
            thread::Builder::new().name(name.into()).spawn(task).map_err(failed)?;
        }
        let mut watch = Self { rank, word: String::new(), hosts: vec![host.to_owned(); size], stream, shared };
        let mut state = watch.shared.lock();
        let begin = Instant::now();
        let mut lines = loop {
            if let Some((_, why)) = &state.refused {
                bail!(Argument, "{why}");
            }
            if let Some(hosts) = state.hosts.take() {
                break hosts.into_iter();
            }
            if begin.elapsed() > times.joining + SILENCE || state.lost.is_some() {
                bail!(PeerLost, "rank 0 at {address} does not answer rank {rank} on {host}");
            }
            state = watch.shared.wait(state);
        };
        drop(state);
        watch.word = lines.next().unwrap_or_default();
        watch.hosts = lines.collect();
        if watch.hosts.len() != size {
            bail!(PeerLost, "the listener at {address} is not rank 0 of {size} ranks");
        }
        Ok(watch)
    }

    /// Rank 0's text.
    pub(super) fn word(&self) -> &str {
        &self.word
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Announces an arrival, and returns the meeting's number.
    pub(super) fn come(&self, header: Header) -> Result<u64> {
        let number = {
            let mut state = self.shared.lock();
            self.expect_here(&state)?;
            state.came += 1;
            state.came
        };
        self.say(&Message::Come(header));
        Ok(number)
    }

    /// Waits until all ranks have arrived at a meeting.
    pub(super) fn expect(&self, number: u64) -> Result<()> {
        let mut state = self.shared.lock();
        loop {
            // A mismatch at an earlier meeting that nobody waited for is still a mismatch.
            if let Some((_, why)) = state.refused.as_ref().filter(|(refused, _)| *refused < number) {
                bail!(Argument, "{why}");
            }
            if let Some((_, why)) = state.refused.take_if(|(refused, _)| *refused == number) {
                bail!(Argument, "{why}");
            }
            if state.judged >= number {
                return Ok(());
            }
            self.expect_here(&state)?;
            state = self.shared.wait(state);
        }
    }

    /// A loss, or a mismatch at a meeting that nobody waited for.
    #[cfg(any(test, all(feature = "gpu", target_os = "linux")))]
    pub(super) fn fault(&self) -> Option<Error> {
        let state = self.shared.lock();
        let refused = state.refused.as_ref().map(|(_, why)| Error::new(ErrorKind::Argument, why.clone()));
        refused.or_else(|| self.expect_here(&state).err())
    }

    /// Runs `act` once a rank is lost, on another thread.
    #[cfg(any(test, all(feature = "gpu", target_os = "linux")))]
    pub(super) fn on_loss(&self, act: impl Fn() + Send + 'static) {
        self.shared.on_loss.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(act));
    }

    /// Tells the others, which would wait for it, that this rank failed in the middle of a meeting.
    pub(super) fn abandon(&self) {
        self.shared.lose(self.rank, "failed".to_owned());
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        drop(stream.shutdown(Shutdown::Both));
    }

    /// Fails if a rank was lost. The cause may be a mismatch that made another rank give up before this one heard of
    /// it.
    fn expect_here(&self, state: &State) -> Result<()> {
        let Some((rank, why)) = &state.lost else { return Ok(()) };
        if let Some((_, why)) = &state.refused {
            bail!(Argument, "{why}");
        }
        bail!(PeerLost, "rank {rank} on {} {why} while rank {} waited for it", self.hosts[*rank], self.rank)
    }

    /// A failed write needs no handling: the listening thread notices.
    fn say(&self, message: &Message) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        drop(message.write(&mut &*stream));
    }

    /// Leaves the world, and waits until all ranks have; `false` if one was lost, so that some never may.
    pub(super) fn leave(&self) -> bool {
        self.say(&Message::Leaving);
        let mut state = self.shared.lock();
        state.has_left = true;
        loop {
            if state.is_over || state.lost.is_some() || state.refused.is_some() {
                return state.is_over && state.lost.is_none();
            }
            state = self.shared.wait(state);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The listening thread sees the closed connection, and then the heartbeat thread ends.
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        drop(stream.shutdown(Shutdown::Both));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, BEAT).unwrap_or_else(PoisonError::into_inner).0
    }

    fn hear(&self, message: Message) {
        let mut state = self.lock();
        state.heard = Some(Instant::now());
        match message {
            Message::Hosts(hosts) => state.hosts = Some(hosts.lines().map(str::to_owned).collect()),
            Message::Go(number) => state.judged = number,
            Message::Refused(number, why) => {
                state.judged = state.judged.max(number);
                state.refused.get_or_insert((number, why));
            }
            Message::Lost(rank, why) => {
                drop(state);
                return self.lose(usize::try_from(rank).unwrap_or(0), why);
            }
            Message::Gone => state.is_over = true,
            _ => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lose(&self, rank: usize, why: String) {
        let mut state = self.lock();
        if !state.is_over {
            state.lost.get_or_insert((rank, why));
        }
        let is_lost = state.lost.is_some();
        drop(state);
        self.changed.notify_all();
        if is_lost {
            self.on_loss.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|act| act());
        }
    }

    /// Sends signs of life as long as the world lasts, and detects a silent hub.
    fn beat(&self, stream: &Mutex<TcpStream>) {
        let mut beaten = Instant::now();
        loop {
            thread::sleep(BEAT);
            let has_stalled = beaten.elapsed() > STALL;
            beaten = Instant::now();
            {
                let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                if Message::Beat.write(&mut &*stream).is_err() {
                    return;
                }
            }
            let mut state = self.lock();
            if state.is_over || state.lost.is_some() {
                return;
            }
            if has_stalled {
                state.heard = Some(beaten);
            }
            if state.heard.is_some_and(|heard| heard.elapsed() > SILENCE) {
                drop(state);
                return self.lose(0, format!("has not answered for {} s", SILENCE.as_secs()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Header = [Purpose::Count as u64, 8, 16, 0];

    /// Runs `size` ranks in threads, and returns their results.
    fn ranks<T: Send>(size: usize, run: impl Fn(Watch, usize) -> T + Sync) -> Vec<T> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let secret = Secret::random().unwrap();
        Watch::serve(listener, size, "a word".to_owned(), secret.clone()).unwrap();
        thread::scope(|scope| {
            let rank = |rank| {
                let (run, address, secret) = (&run, &address, &secret);
                let join = move || Watch::join(address, rank, size, &format!("host {rank}"), secret).unwrap();
                scope.spawn(move || run(join(), rank))
            };
            let threads: Vec<_> = (0..size).map(rank).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn meet(watch: &Watch, header: Header) -> Result<()> {
        watch.expect(watch.come(header)?)
    }

    #[test]
    fn ranks_find_each_other_and_leave_together() {
        let left = ranks(3, |watch, _| {
            assert_eq!(
                (watch.word(), watch.hosts()),
                ("a word", &["host 0", "host 1", "host 2"].map(str::to_owned)[..])
            );
            for _ in 0..100 {
                meet(&watch, COUNT).unwrap();
            }
            assert!(watch.fault().is_none());
            watch.leave()
        });
        assert_eq!(left, [true; 3]);
    }

    #[test]
    fn ranks_that_disagree_get_an_error_and_continue() {
        ranks(2, |watch, rank| {
            let other = [Purpose::Count as u64, 8, 24, 0];
            let error = meet(&watch, if rank == 0 { COUNT } else { other }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            let expected = "rank 0 adds up 2 numbers in its exchange 1, and rank 1 on host 1 adds up 3 numbers";
            assert!(error.to_string().contains(expected), "{error}");
            meet(&watch, COUNT).unwrap();
            assert!(watch.leave());
        });
    }

    #[test]
    fn a_rank_that_does_not_wait_still_learns_of_a_mismatch() {
        ranks(2, |watch, rank| {
            watch.come([Purpose::Sum as u64, 4, 16, rank as u64]).unwrap();
            while watch.fault().is_none() {
                thread::sleep(BEAT / 50);
            }
            assert_eq!(watch.fault().unwrap().kind(), ErrorKind::Argument);
        });
    }

    #[test]
    fn waiting_ranks_notice_a_rank_that_left_or_died() {
        for leaves in [true, false] {
            ranks(3, |watch, rank| {
                meet(&watch, COUNT).unwrap();
                if rank == 1 {
                    // Leaving waits for the others; dying does not.
                    if leaves {
                        assert!(!watch.leave());
                    }
                    return;
                }
                let error = meet(&watch, COUNT).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PeerLost);
                let why = if leaves { "left" } else { "is gone" };
                assert!(error.to_string().contains(&format!("rank 1 on host 1 {why} while rank {rank}")), "{error}");
                assert_eq!(meet(&watch, COUNT).unwrap_err().kind(), ErrorKind::PeerLost, "for good");
                assert!(!watch.leave());
            });
        }
    }

    #[test]
    fn a_rank_that_fails_in_a_meeting_tells_the_others() {
        ranks(2, |watch, rank| {
            meet(&watch, COUNT).unwrap();
            let (sender, heard) = std::sync::mpsc::channel();
            watch.on_loss(move || sender.send(()).unwrap());
            if rank == 1 {
                watch.abandon();
            }
            heard.recv().unwrap();
            assert_eq!(watch.fault().unwrap().kind(), ErrorKind::PeerLost);
            assert!(!watch.leave());
        });
    }

    #[test]
    fn an_unawaited_mismatch_fails_the_next_meeting() {
        ranks(2, |watch, rank| {
            watch.come([Purpose::Sum as u64, 4, 16, rank as u64]).unwrap();
            assert_eq!(meet(&watch, COUNT).unwrap_err().kind(), ErrorKind::Argument);
        });
    }

    #[test]
    fn ranks_of_another_world_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let secret = Secret::random().unwrap();
        Watch::serve(listener, 2, String::new(), secret.clone()).unwrap();
        let first = thread::spawn({
            let (address, secret) = (address.clone(), secret.clone());
            move || Watch::join(&address, 0, 2, "here", &secret).err().unwrap().to_string()
        });
        let refused = Watch::join(&address, 2, 3, "there", &secret).err().unwrap().to_string();
        let expected = "rank 2 on there is none of 2";
        assert!(refused.contains(expected) && first.join().unwrap().contains(expected), "{refused}");
    }
}
