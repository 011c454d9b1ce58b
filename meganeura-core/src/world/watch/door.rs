//! The door, in rank 0's process: accepts connections until the world is complete, and lets in those that prove its
//! secret.
//!
//! Anything on the machine, or on the network, may connect. So one thread holds all connections that have proved
//! nothing, and never waits for one of them. Each has a few kilobytes and a deadline; if there are too many, the oldest
//! goes. A rank whose connection is closed comes again.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::configure;
use super::hub::Event;
use super::message::{self, Message};
use super::secret::{self, End, LEN, Nonce, Secret};

/// The interval between checks when there is nothing to do.
const KNOCK: Duration = Duration::from_millis(5);

/// The number of connections that may be accepted between two looks at all of them.
const AT_ONCE: usize = 32;

/// The number of connections that prove nothing, beyond one for each rank. Each is a file descriptor of rank 0, of
/// which a process often has 1024.
pub(super) const SPARE: usize = 128;

/// The longest text of a hello: a host and a version.
const MOST_ABOUT: usize = 1024;

/// The bytes before the hello: a random number and the proof.
const BEFORE: usize = 2 * LEN;

/// What the hub and its door share.
#[derive(Default)]
pub(super) struct Sign {
    /// Set once nobody else may join.
    pub(super) is_closed: AtomicBool,
    /// The number of connections that did not prove the secret.
    pub(super) strangers: AtomicU64,
}

/// The door of a world.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) secret: Secret,
    /// The largest number of connections that have proved nothing.
    pub(super) most: usize,
    /// The time in which a connection must prove the secret.
    pub(super) greeting: Duration,
    pub(super) sign: Arc<Sign>,
    pub(super) events: Sender<Event>,
}

/// A connection that has proved nothing yet.
struct Guest {
    stream: TcpStream,
    since: Instant,
    nonce: Nonce,
    /// What it has sent.
    sent: Vec<u8>,
}

impl Door {
    /// Lets ranks in until the hub closes. Connections that proved nothing end with it.
    pub(super) fn run(self) {
        let mut guests: VecDeque<Guest> = VecDeque::new();
        let mut admitted = 0;
        while !self.sign.is_closed.load(Ordering::Relaxed) {
            let is_idle = self.accept(&mut guests) == 0;
            for _ in 0..guests.len() {
                let mut guest = guests.pop_front().expect("a guest");
                match guest.look(&self.secret) {
                    Ok(None) if guest.since.elapsed() < self.greeting => guests.push_back(guest),
                    Ok(Some((hello, proof))) => {
                        admitted += 1;
                        let (connection, events) = (admitted, self.events.clone());
                        // Without a thread for it, the rank is not admitted, and reports that itself.
                        let hear = move || drop(hear(guest.stream, &hello, &proof, connection, &events));
                        drop(thread::Builder::new().name("ranks: ear".into()).spawn(hear));
                    }
                    Ok(None) | Err(_) => self.count_stranger(),
                }
            }
            if is_idle {
                thread::sleep(KNOCK);
            }
        }
    }

    fn accept(&self, guests: &mut VecDeque<Guest>) -> usize {
        for count in 0..AT_ONCE {
            // Without a connection, or without memory or a file descriptor for one.
            let Ok((stream, _)) = self.listener.accept() else { return count };
            match Guest::open(stream) {
                Ok(guest) => guests.push_back(guest),
                Err(_) => self.count_stranger(),
            }
            if guests.len() > self.most {
                guests.pop_front();
                self.count_stranger();
            }
        }
        AT_ONCE
    }

    fn count_stranger(&self) {
        self.sign.strangers.fetch_add(1, Ordering::Relaxed);
    }
}

impl Guest {
    /// Sends the opening. The connection's buffer is empty and larger, so this does not wait.
    fn open(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        configure(&stream)?;
        let nonce = secret::random()?;
        stream.write_all(&secret::opening(&nonce))?;
        Ok(Self { stream, since: Instant::now(), nonce, sent: Vec::new() })
    }

    /// Reads what has arrived, up to the end of the hello. Then returns the hello of a rank that proved the secret, and
    /// the hub's own proof.
    fn look(&mut self, secret: &Secret) -> io::Result<Option<(Message, [u8; LEN])>> {
        loop {
            // The words before the text tell its length.
            let words = BEFORE + message::WORDS * 8;
            let whole = match self.sent.get(BEFORE..words) {
                None => words,
                Some(words_of_hello) => words + message::text_len(words_of_hello, MOST_ABOUT)?,
            };
            if self.sent.len() == whole {
                break;
            }
            let mut bytes = [0; 512];
            let missing = (whole - self.sent.len()).min(bytes.len());
            match self.stream.read(&mut bytes[..missing]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.sent.extend(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let (before, hello) = self.sent.split_at(BEFORE);
        let (nonce, proof) = before.split_first_chunk().expect("a number and a proof");
        let proof: [u8; LEN] = proof.try_into().expect("a proof");
        if secret.proof(End::Rank, &self.nonce, nonce, hello) != blake3::Hash::from(proof) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it does not know the secret"));
        }
        let reply = secret.proof(End::Hub, &self.nonce, nonce, hello);
        Ok(Some((Message::read(&mut &hello[..], MOST_ABOUT)?, *reply.as_bytes())))
    }
}

/// Hears a rank until its connection ends.
fn hear(
    mut stream: TcpStream,
    hello: &Message,
    proof: &[u8; LEN],
    connection: u64,
    events: &Sender<Event>,
) -> io::Result<()> {
    let Message::Hello { rank, size, about } = hello else { return Ok(()) };
    stream.set_nonblocking(false)?;
    stream.write_all(proof)?;
    let (rank, about) = (usize::try_from(*rank).unwrap_or(usize::MAX), about.clone());
    drop(events.send(Event::Joined { rank, connection, size: *size, about, stream: stream.try_clone()? }));
    // Ranks send no text after their hello.
    while let Ok(message) = Message::read(&mut stream, 0) {
        if events.send(Event::Said { rank, connection, message }).is_err() {
            return Ok(());
        }
    }
    drop(events.send(Event::Ended { rank, connection }));
    Ok(())
}
