//! The contents of a file of data: unpacked if need be, and with the place of whatever is wrong in every error.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use crate::{Error, ErrorKind, Result};

/// What gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file that is read from the beginning to the end.
pub(super) struct Contents<'a> {
    name: String,
    bytes: Box<dyn BufRead + 'a>,
    /// How many bytes were read, of what was unpacked.
    offset: u64,
    is_packed: bool,
}

impl Contents<'static> {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| unreadable(path, error))?;
        Contents::new(path.display().to_string(), BufReader::new(file))
    }
}

impl<'a> Contents<'a> {
    /// What `bytes` gives, under this name in errors.
    pub(super) fn new(name: String, mut bytes: impl BufRead + 'a) -> Result<Self> {
        let mut head = Vec::new();
        let read = (&mut bytes).take(GZIP.len() as u64).read_to_end(&mut head);
        let is_packed = head == GZIP;
        let bytes = Box::new(Cursor::new(head).chain(bytes));
        let mut contents = Self { name, bytes, offset: 0, is_packed };
        if let Err(error) = read {
            return Err(contents.failed(error));
        }
        if is_packed {
            contents.unpack()?;
        }
        Ok(contents)
    }

    #[cfg(feature = "gzip")]
    fn unpack(&mut self) -> Result<()> {
        let packed = std::mem::replace(&mut self.bytes, Box::new(io::empty()));
        self.bytes = Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(packed)));
        Ok(())
    }

    #[cfg(not(feature = "gzip"))]
    fn unpack(&mut self) -> Result<()> {
        Err(self.wrong(0, "packed with gzip, which is read with the feature `gzip` of this crate"))
    }

    /// How many bytes were read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// As many of the next bytes as there are, up to `most`. Memory grows with what is there, whatever was asked for.
    pub(super) fn up_to(&mut self, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.bytes).take(most).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        read.map(|_| bytes).map_err(|error| self.failed(error))
    }

    /// The next `count` bytes, which are `what`.
    pub(super) fn exactly(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        let start = self.offset;
        let bytes = self.up_to(count)?;
        if (bytes.len() as u64) < count {
            let message = format!("the file ends here, in {what}: {count} bytes from byte {start} on were expected");
            return Err(self.wrong(self.offset, message));
        }
        Ok(bytes)
    }

    /// The next line, without what ends it; `None` at the end. One longer than `most` bytes is an error.
    pub(super) fn line(&mut self, most: u64) -> Result<Option<Vec<u8>>> {
        let (start, mut line) = (self.offset, Vec::new());
        let read = (&mut self.bytes).take(most.saturating_add(1)).read_until(b'\n', &mut line);
        self.offset += line.len() as u64;
        read.map_err(|error| self.failed(error))?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 > most {
            return Err(self.wrong(start, format!("a line of more than {most} bytes, which is no row of numbers")));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }

    /// That the file ends here.
    pub(super) fn end(&mut self, expected: &str) -> Result<()> {
        let offset = self.offset;
        if self.up_to(1)?.is_empty() { Ok(()) } else { Err(self.wrong(offset, format!("the file goes on {expected}"))) }
    }

    /// That there is something wrong with what stands at byte `offset`.
    pub(super) fn wrong(&self, offset: u64, message: impl AsRef<str>) -> Error {
        let (name, message) = (&self.name, message.as_ref());
        let unpacked = if self.is_packed { " of what was unpacked" } else { "" };
        Error::new(ErrorKind::Data, format!("{name}, byte {offset}{unpacked}: {message}"))
    }

    fn failed(&self, error: io::Error) -> Error {
        // What the unpacking complains about; files themselves end without an error.
        let is_wrong = [io::ErrorKind::InvalidData, io::ErrorKind::InvalidInput, io::ErrorKind::UnexpectedEof];
        if self.is_packed && is_wrong.contains(&error.kind()) {
            return self.wrong(self.offset, format!("cannot be unpacked further: {error}")).caused_by(error);
        }
        let message = format!("{} could not be read at byte {}: {error}", self.name, self.offset);
        Error::new(ErrorKind::Io, message).caused_by(error)
    }
}

/// That a file or folder cannot be opened.
pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{} could not be read: {error}", path.display())).caused_by(error)
}
