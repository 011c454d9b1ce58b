//! A simulated disk for tests: records the operations of a thread, and makes one of them fail.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::Operation;

/// An operation that took effect, or a note that the test left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Create(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    Cut(PathBuf, u64),
    Sync(PathBuf),
    /// A sync that failed. The data that it should have written is lost: later syncs do not write it.
    Lost(PathBuf),
    CreateFolder(PathBuf),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncFolder(PathBuf),
    Note(u64),
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing happens.
    Refused(ErrorKind),
    /// Half of the bytes are written. Operations other than writes fail as in `Refused`.
    Half(ErrorKind),
    /// The operation takes effect, but reports an error.
    Done(ErrorKind),
    /// The process is killed: neither this operation nor any later one happens.
    Killed,
}

#[derive(Debug, Default)]
struct Simulation {
    events: Vec<Event>,
    operations: usize,
    fault: Option<(usize, Fault)>,
    has_failed: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<Simulation>> = const { RefCell::new(None) };
}

/// The log of a simulation.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) events: Vec<Event>,
    pub(crate) operations: usize,
    /// `true` if the run reached the operation that should fail.
    pub(crate) has_failed: bool,
}

/// Runs `work` on the real disk, and makes one operation fail. Operations count from 0.
pub(crate) fn on_disk<T>(fault: Option<(usize, Fault)>, work: impl FnOnce() -> T) -> (T, Seen) {
    CURRENT.with_borrow_mut(|current| *current = Some(Simulation { fault, ..Simulation::default() }));
    let result = work();
    let Simulation { events, operations, has_failed, .. } = CURRENT.take().expect("no other simulation inside");
    (result, Seen { events, operations, has_failed })
}

/// Records a note among the events.
pub(crate) fn note(what: u64) {
    CURRENT.with_borrow_mut(|current| current.iter_mut().for_each(|current| current.events.push(Event::Note(what))));
}

pub(super) fn perform<T>(operation: Operation<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let fault = CURRENT.with_borrow_mut(|current| {
        let current = current.as_mut()?;
        let number = current.operations;
        current.operations += 1;
        let fault = match current.fault {
            Some((at, fault)) if at == number || fault == Fault::Killed && at < number => Some(fault),
            _ => None,
        };
        current.has_failed |= fault.is_some();
        Some(fault)
    });
    match fault {
        None => act(),
        Some(None) => recorded(operation, act),
        Some(Some(fault)) => {
            fail(operation, fault, act);
            match fault {
                Fault::Refused(kind) | Fault::Half(kind) | Fault::Done(kind) => Err(kind.into()),
                Fault::Killed => Err(io::Error::other("the process was killed")),
            }
        }
    }
}

fn record(event: Event) {
    CURRENT.with_borrow_mut(|current| current.as_mut().expect("a simulation").events.push(event));
}

/// Performs the operation and records it.
fn recorded<T>(operation: Operation<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let is_new = matches!(operation, Operation::OpenFile(path) if !path.exists());
    let result = act()?;
    let owned = Path::to_owned;
    match operation {
        Operation::OpenFile(path) if is_new => record(Event::Create(owned(path))),
        Operation::Read | Operation::List | Operation::OpenFile(_) => {}
        Operation::Write(path, offset, bytes) => record(Event::Write(owned(path), offset, bytes.to_vec())),
        Operation::Cut(path, length) => record(Event::Cut(owned(path), length)),
        Operation::Sync(path) => record(Event::Sync(owned(path))),
        Operation::CreateFolder(path) => record(Event::CreateFolder(owned(path))),
        Operation::RemoveFile(path) | Operation::RemoveFolder(path) => record(Event::Remove(owned(path))),
        Operation::Rename(from, to) => record(Event::Rename(owned(from), owned(to))),
        Operation::SyncFolder(path) => record(Event::SyncFolder(owned(path))),
    }
    Ok(result)
}

/// Performs as much of the operation as this fault allows.
fn fail<T>(operation: Operation<'_>, fault: Fault, act: impl FnOnce() -> io::Result<T>) {
    match (fault, operation) {
        (Fault::Killed, _) => {}
        (_, Operation::Sync(path)) => record(Event::Lost(path.to_owned())),
        (Fault::Half(_), Operation::Write(path, offset, bytes)) => {
            let half = &bytes[..bytes.len() / 2];
            let mut file = OpenOptions::new().write(true).open(path).expect("open already");
            file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(half)).expect("room for it");
            record(Event::Write(path.to_owned(), offset, half.to_vec()));
        }
        (Fault::Refused(_) | Fault::Half(_), _) => {}
        (Fault::Done(_), operation) => drop(recorded(operation, act)),
    }
}
