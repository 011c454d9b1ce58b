//! The hub, in rank 0's process: hears all ranks, compares their arrivals, and announces losses.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::door::{Door, SPARE, Sign};
use super::message::Message;
use super::secret::Secret;
use super::{BEAT, Header, Purpose, SILENCE, STALL, Times};

/// The longest name of a host in bytes, as in the domain name system. All of them are one text.
const MOST_HOST: usize = 255;

/// What a rank did. Only ranks that proved the secret do anything here, each with its connection's number.
pub(super) enum Event {
    Joined {
        rank: usize,
        connection: u64,
        size: u64,
        about: String,
        stream: TcpStream,
    },
    Said {
        rank: usize,
        connection: u64,
        message: Message,
    },
    /// A rank's connection ended.
    Ended {
        rank: usize,
        connection: u64,
    },
}

struct Seat {
    stream: TcpStream,
    connection: u64,
    host: String,
    heard: Instant,
    /// Arrivals at meetings that others have not reached yet.
    came: VecDeque<Header>,
    is_here: bool,
}

struct Hub {
    seats: Vec<Option<Seat>>,
    /// The text for all ranks, sent once they have joined.
    word: String,
    sign: Arc<Sign>,
    /// The number of meetings that all ranks reached.
    met: u64,
    /// The reason why these ranks are not a world.
    misfit: Option<String>,
}

/// Serves a world of `size` ranks until all have left.
pub(super) fn serve(listener: TcpListener, size: usize, word: String, secret: Secret, times: Times) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let sign = Arc::new(Sign::default());
    let (sender, events) = channel();
    let hub = Hub { seats: (0..size).map(|_| None).collect(), word, sign: Arc::clone(&sign), met: 0, misfit: None };
    let door =
        Door { listener, secret, most: size.saturating_add(SPARE), greeting: times.greeting, sign, events: sender };
    thread::Builder::new().name("ranks: door".into()).spawn(move || door.run())?;
    thread::Builder::new().name("ranks: hub".into()).spawn(move || hub.run(&events, times.joining))?;
    Ok(())
}

impl Hub {
    fn run(mut self, events: &Receiver<Event>, joining: Duration) {
        let begin = Instant::now();
        let mut ticked = Instant::now();
        loop {
            match events.recv_timeout(BEAT) {
                Ok(Event::Joined { rank, connection, size, about, stream }) => {
                    self.join(rank, connection, size, &about, stream);
                }
                Ok(Event::Said { rank, connection, message }) if self.is_at(rank, connection) => {
                    self.hear(rank, &message);
                }
                Ok(Event::Ended { rank, connection }) if self.is_at(rank, connection) => self.lose(rank, "is gone"),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.is_open() && begin.elapsed() > joining {
                let missing: Vec<_> = (0..self.seats.len()).filter(|&rank| self.seats[rank].is_none()).collect();
                let (size, time) = (self.seats.len(), joining.as_secs());
                let strangers = match self.sign.strangers.load(Ordering::Relaxed) {
                    0 => String::new(),
                    number => format!("; {number} connections did not prove that they know the ranks' secret"),
                };
                self.refuse(0, &format!("of {size} ranks, {missing:?} did not join within {time} s{strangers}"));
                return self.close();
            }
            if ticked.elapsed() >= BEAT {
                self.tick(ticked.elapsed() > STALL);
                ticked = Instant::now();
            }
            if self.seats.iter().all(|seat| seat.as_ref().is_some_and(|seat| !seat.is_here)) {
                self.tell_all(&Message::Gone);
                return self.close();
            }
        }
    }

    fn is_open(&self) -> bool {
        self.seats.iter().any(Option::is_none)
    }

    fn close(&self) {
        self.sign.is_closed.store(true, Ordering::Relaxed);
    }

    /// `true` if this is the connection of a rank that joined. A connection that was refused says nothing for its rank.
    fn is_at(&self, rank: usize, connection: u64) -> bool {
        self.seats.get(rank).and_then(Option::as_ref).is_some_and(|seat| seat.connection == connection)
    }

    fn join(&mut self, rank: usize, connection: u64, size: u64, about: &str, stream: TcpStream) {
        let (host, version) = about.split_once('\n').unwrap_or((about, "?"));
        let host = &host[..host.floor_char_boundary(MOST_HOST)];
        let count = self.seats.len();
        if !self.is_open() {
            // A complete world goes on without the newcomer.
            let late = format!("rank {rank} on {host} came to a world that has all of its {count} ranks");
            return drop(Message::Refused(0, late).write(&mut &stream));
        }
        let seat = self.seats.get_mut(rank);
        let own = env!("CARGO_PKG_VERSION");
        let refused = match seat {
            _ if self.misfit.is_some() => self.misfit.take().unwrap_or_default(),
            None => format!("rank {rank} on {host} is none of {count}"),
            Some(Some(other)) => format!("rank {rank} joined twice, from {} and from {host}", other.host),
            Some(_) if size != count as u64 => format!("rank {rank} on {host} is one of {size}, and rank 0 of {count}"),
            Some(_) if version != own => {
                format!("rank {rank} on {host} runs meganeura {version}, and rank 0 runs {own}")
            }
            Some(empty) => {
                let (heard, came) = (Instant::now(), VecDeque::new());
                *empty = Some(Seat { stream, connection, host: host.to_owned(), heard, came, is_here: true });
                if !self.is_open() {
                    let hosts = self.seats.iter().flatten().map(|seat| &seat.host[..]);
                    let lines: Vec<_> = std::iter::once(&self.word[..]).chain(hosts).collect();
                    let hosts = Message::Hosts(lines.join("\n"));
                    self.tell_all(&hosts);
                    self.close();
                }
                return;
            }
        };
        // The newcomer is told, and so are the ranks that have joined.
        drop(Message::Refused(0, refused.clone()).write(&mut &stream));
        self.refuse(0, &refused);
        self.misfit = Some(refused);
    }

    fn hear(&mut self, rank: usize, message: &Message) {
        let Some(seat) = self.seats.get_mut(rank).and_then(Option::as_mut) else { return };
        seat.heard = Instant::now();
        match message {
            Message::Come(header) => {
                seat.came.push_back(*header);
                self.compare();
            }
            Message::Leaving => seat.is_here = false,
            _ => {}
        }
        self.look_for_leavers();
    }

    /// Compares arrivals, meeting by meeting, once all ranks have arrived.
    fn compare(&mut self) {
        while self.seats.iter().all(|seat| seat.as_ref().is_some_and(|seat| !seat.came.is_empty())) {
            let headers: Vec<_> = self.seats.iter_mut().flatten().filter_map(|seat| seat.came.pop_front()).collect();
            self.met += 1;
            match headers.iter().position(|header| *header != headers[0]) {
                None => self.tell_all(&Message::Go(self.met)),
                Some(rank) => {
                    let host = &self.seats[rank].as_ref().expect("it came").host;
                    let (first, other) = (spell(&headers[0], self.met), spell(&headers[rank], self.met));
                    let why = format!("rank 0 {first}, and rank {rank} on {host} {other}: all ranks must do the same");
                    self.refuse(self.met, &why);
                }
            }
        }
    }

    /// A rank that left before a meeting that others have reached is lost.
    fn look_for_leavers(&mut self) {
        if self.seats.iter().flatten().all(|seat| seat.came.is_empty()) {
            return;
        }
        let has_left = |seat: &&Option<Seat>| seat.as_ref().is_some_and(|seat| !seat.is_here && seat.came.is_empty());
        if let Some(rank) = self.seats.iter().position(|seat| has_left(&seat)) {
            self.tell_all(&Message::Lost(rank as u64, "left".to_owned()));
        }
    }

    /// Sends a sign of life, and looks for silent ranks. After a stall of the hub itself, everybody's time starts over.
    fn tick(&mut self, has_stalled: bool) {
        self.tell_all(&Message::Beat);
        let now = Instant::now();
        for rank in 0..self.seats.len() {
            let Some(seat) = &mut self.seats[rank] else { continue };
            if has_stalled {
                seat.heard = now;
            } else if seat.is_here && now - seat.heard > SILENCE {
                self.lose(rank, &format!("has not answered for {} s", SILENCE.as_secs()));
            }
        }
    }

    /// A rank that ends without announcing it is lost.
    fn lose(&mut self, rank: usize, why: &str) {
        let Some(seat) = self.seats.get_mut(rank).and_then(Option::as_mut).filter(|seat| seat.is_here) else { return };
        seat.is_here = false;
        self.tell_all(&Message::Lost(rank as u64, why.to_owned()));
    }

    fn refuse(&mut self, number: u64, why: &str) {
        self.tell_all(&Message::Refused(number, why.to_owned()));
    }

    /// A failed write needs no handling: that rank's own listening thread notices.
    fn tell_all(&mut self, message: &Message) {
        // Rank 0 last: this process may end once it knows that all have left.
        for seat in self.seats.iter().rev().flatten() {
            drop(message.write(&mut &seat.stream));
        }
    }
}

fn spell(header: &Header, number: u64) -> String {
    let [purpose, bytes_each, bytes, digest] = *header;
    let count = bytes / bytes_each.max(1);
    let what = match Purpose::of(purpose) {
        Some(Purpose::Sum) => format!("adds up {count} numbers of {bytes_each} bytes in a step"),
        Some(Purpose::Owners) => format!("shares out {count} numbers of {bytes_each} bytes (arrangement {digest:x})"),
        Some(Purpose::Count) => format!("adds up {count} numbers"),
        Some(Purpose::Agree) => format!("asks {count} questions"),
        Some(Purpose::Share) => format!("takes {bytes} bytes of rank 0"),
        None => "does what rank 0 does not know".to_owned(),
    };
    format!("{what} in its exchange {number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_world_goes_on_without_a_newcomer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pair = || {
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (near, listener.accept().unwrap().0)
        };
        let mut hub = Hub { seats: vec![None], word: String::new(), sign: Arc::default(), met: 0, misfit: None };
        let about = format!("here\n{}", env!("CARGO_PKG_VERSION"));
        let ((mut rank, at_rank), (mut late, at_late)) = (pair(), pair());
        hub.join(0, 1, 1, &about, at_rank);
        hub.join(0, 2, 1, &about, at_late);
        assert!(matches!(Message::read(&mut rank, 100), Ok(Message::Hosts(_))));
        let Ok(Message::Refused(0, why)) = Message::read(&mut late, 100) else { panic!("it was not refused") };
        assert!(why.contains("rank 0 on here came to a world that has all of its 1 ranks"), "{why}");
        assert!(hub.is_at(0, 1) && !hub.is_at(0, 2), "what the newcomer does next concerns nobody");
        assert!(hub.misfit.is_none() && hub.seats[0].as_ref().unwrap().is_here);
    }
}
