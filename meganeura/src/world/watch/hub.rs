//! The hub, in rank 0's process: hears all ranks, compares their arrivals, and announces losses.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Message;
use super::{BEAT, Header, JOINING, Purpose, SILENCE, STALL, configure};

/// The interval between checks for new connections.
const KNOCK: Duration = Duration::from_millis(5);

/// The time in which a new connection must identify itself.
const GREETING: Duration = Duration::from_secs(10);

enum Event {
    Joined {
        rank: u64,
        size: u64,
        about: String,
        stream: TcpStream,
    },
    Said(usize, Message),
    /// A rank's connection ended.
    Ended(usize),
}

struct Seat {
    stream: TcpStream,
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
    /// Set once nobody else may join.
    closed: Arc<AtomicBool>,
    /// The number of meetings that all ranks reached.
    met: u64,
    /// The reason why these ranks are not a world.
    misfit: Option<String>,
}

/// Serves a world of `size` ranks until all have left.
pub(super) fn serve(listener: TcpListener, size: usize, word: String) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let closed = Arc::new(AtomicBool::new(false));
    let (sender, events) = channel();
    let hub = Hub { seats: (0..size).map(|_| None).collect(), word, closed: Arc::clone(&closed), met: 0, misfit: None };
    thread::Builder::new().name("ranks: door".into()).spawn(move || admit(&listener, &closed, &sender))?;
    thread::Builder::new().name("ranks: hub".into()).spawn(move || hub.run(&events))?;
    Ok(())
}

/// Starts a listening thread for each connection.
fn admit(listener: &TcpListener, closed: &AtomicBool, events: &Sender<Event>) {
    while !closed.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let events = events.clone();
                // Without a thread for it, the rank is not admitted, and reports that itself.
                drop(thread::Builder::new().name("ranks: ear".into()).spawn(move || drop(listen(stream, &events))));
            }
            Err(_) => thread::sleep(KNOCK),
        }
    }
}

fn listen(mut stream: TcpStream, events: &Sender<Event>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    configure(&stream)?;
    stream.set_read_timeout(Some(GREETING))?;
    let Message::Hello { rank, size, about } = Message::read(&mut stream)? else { return Ok(()) };
    stream.set_read_timeout(None)?;
    let seat = usize::try_from(rank).unwrap_or(usize::MAX);
    drop(events.send(Event::Joined { rank, size, about, stream: stream.try_clone()? }));
    while let Ok(message) = Message::read(&mut stream) {
        if events.send(Event::Said(seat, message)).is_err() {
            return Ok(());
        }
    }
    drop(events.send(Event::Ended(seat)));
    Ok(())
}

impl Hub {
    fn run(mut self, events: &Receiver<Event>) {
        let begin = Instant::now();
        let mut ticked = Instant::now();
        loop {
            match events.recv_timeout(BEAT) {
                Ok(Event::Joined { rank, size, about, stream }) => self.join(rank, size, &about, stream),
                Ok(Event::Said(rank, message)) => self.hear(rank, &message),
                Ok(Event::Ended(rank)) => self.lose(rank, "is gone"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.is_open() && begin.elapsed() > JOINING {
                let missing: Vec<_> = (0..self.seats.len()).filter(|&rank| self.seats[rank].is_none()).collect();
                let (size, time) = (self.seats.len(), JOINING.as_secs());
                self.refuse(0, &format!("of {size} ranks, {missing:?} did not join within {time} s"));
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
        self.closed.store(true, Ordering::Relaxed);
    }

    fn join(&mut self, rank: u64, size: u64, about: &str, stream: TcpStream) {
        let (host, version) = about.split_once('\n').unwrap_or((about, "?"));
        let count = self.seats.len();
        let seat = usize::try_from(rank).ok().and_then(|rank| self.seats.get_mut(rank));
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
                *empty = Some(Seat { stream, host: host.to_owned(), heard, came, is_here: true });
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
        Some(Purpose::Mean) => format!("averages {count} numbers of {bytes_each} bytes"),
        Some(Purpose::Owners) => format!("shares out {count} numbers of {bytes_each} bytes (arrangement {digest:x})"),
        Some(Purpose::Count) => format!("adds up {count} numbers"),
        Some(Purpose::Agree) => format!("asks {count} questions"),
        Some(Purpose::Share) => format!("takes {bytes} bytes of rank 0"),
        None => "does what rank 0 does not know".to_owned(),
    };
    format!("{what} in its exchange {number}")
}
