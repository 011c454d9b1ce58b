//! The contents of a data file, unpacked if necessary. Every error has the position in the file.
//!
//! Memory grows with the bytes that are read, never with a size from a header. Unpacked bytes have a limit.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

use crate::host::reserve;
use crate::{Error, ErrorKind, Result};

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The limit on unpacked bytes, as a multiple of the packed ones. Tables and images reach 50; the format allows 1032.
const GROWTH: u64 = 250;

/// The unpacked size that is always allowed, however small the packed file is.
const SMALL: u64 = 64 << 20;

/// A file that is read from beginning to end.
pub(super) struct Contents<'a> {
    name: String,
    bytes: Box<dyn BufRead + 'a>,
    /// The number of bytes read so far; unpacked bytes, if the file is packed.
    offset: u64,
    /// The number of bytes of the file that were consumed for this.
    taken: Rc<Cell<u64>>,
    is_packed: bool,
    /// The limit on unpacked bytes, if one was set, and the name of the setting, if there is one.
    limit: Option<u64>,
    setting: Option<&'static str>,
}

impl Contents<'static> {
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = crate::file::open(path).map_err(|error| unreadable(path, error))?;
        Contents::new(path.display().to_string(), BufReader::new(file))
    }
}

impl<'a> Contents<'a> {
    /// Contents read from `bytes`; errors call them `name`.
    pub(super) fn new(name: String, mut bytes: impl BufRead + 'a) -> Result<Self> {
        let mut head = Vec::new();
        let read = (&mut bytes).take(GZIP.len() as u64).read_to_end(&mut head);
        let is_packed = head == GZIP;
        let taken = Rc::new(Cell::new(0));
        let bytes = Counted { inner: Cursor::new(head).chain(bytes), taken: Rc::clone(&taken) };
        let bytes = Box::new(bytes);
        let mut contents = Self { name, bytes, offset: 0, taken, is_packed, limit: None, setting: None };
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

    /// Sets the limit on unpacked bytes, and the name of the setting, which errors mention.
    pub(super) fn limited(self, bytes: Option<u64>, setting: &'static str) -> Self {
        Self { limit: bytes, setting: Some(setting), ..self }
    }

    /// The file's name in errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The number of bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next bytes, at most `most` of them. Memory grows with the bytes that are read.
    pub(super) fn up_to(&mut self, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, most, None)?;
        Ok(bytes)
    }

    /// Appends the next bytes, up to `most` of them or up to the first byte equal to `last`.
    fn append(&mut self, bytes: &mut Vec<u8>, mut most: u64, last: Option<u8>) -> Result<()> {
        while most > 0 {
            let there = match self.bytes.fill_buf() {
                Ok(there) => there,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failed(error)),
            };
            let there = &there[..there.len().min(usize::try_from(most).unwrap_or(usize::MAX))];
            let end = last.and_then(|last| there.iter().position(|&byte| byte == last));
            let count = end.map_or(there.len(), |at| at + 1);
            reserve(bytes, count).map_err(|error| error.context(&self.name))?;
            bytes.extend_from_slice(&there[..count]);
            self.bytes.consume(count);
            self.offset += count as u64;
            self.expect_within_limit()?;
            most -= count as u64;
            if count == 0 || end.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Returns an error if the unpacked bytes exceed the limit.
    fn expect_within_limit(&self) -> Result<()> {
        let taken = self.taken.get();
        let limit = self.limit.unwrap_or_else(|| taken.saturating_mul(GROWTH).max(SMALL));
        if !self.is_packed || self.offset <= limit {
            return Ok(());
        }
        let or = self.setting.map_or(String::new(), |setting| format!(", or raise `{setting}`"));
        let message = format!("{taken} bytes of gzip grow to more than {limit}, the limit");
        Err(self.wrong(self.offset, format!("{message}; unpack the file first if this is intended{or}")))
    }

    /// The next `count` bytes; errors call them `what`.
    pub(super) fn exactly(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        let start = self.offset;
        let bytes = self.up_to(count)?;
        if (bytes.len() as u64) < count {
            let message = format!("the file ends here, in {what}: {count} bytes from byte {start} on were expected");
            return Err(self.wrong(self.offset, message));
        }
        Ok(bytes)
    }

    /// The next line, without its terminator; `None` at the end. A line longer than `most` bytes is an error.
    pub(super) fn line(&mut self, most: u64) -> Result<Option<Vec<u8>>> {
        let (start, mut line) = (self.offset, Vec::new());
        self.append(&mut line, most.saturating_add(1), Some(b'\n'))?;
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 > most {
            return Err(self.wrong(start, format!("a line of more than {most} bytes, which is not a row of numbers")));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line))
    }

    /// Returns an error unless the file ends here.
    pub(super) fn end(&mut self, expected: &str) -> Result<()> {
        let offset = self.offset;
        if self.up_to(1)?.is_empty() { Ok(()) } else { Err(self.wrong(offset, format!("the file goes on {expected}"))) }
    }

    /// An error about the contents at byte `offset`.
    pub(super) fn wrong(&self, offset: u64, message: impl AsRef<str>) -> Error {
        let (name, message) = (&self.name, message.as_ref());
        let unpacked = if self.is_packed { " of what was unpacked" } else { "" };
        Error::new(ErrorKind::Data, format!("{name}, byte {offset}{unpacked}: {message}"))
    }

    fn failed(&self, error: io::Error) -> Error {
        // Errors of unpacking; files themselves end without an error.
        let is_wrong = [io::ErrorKind::InvalidData, io::ErrorKind::InvalidInput, io::ErrorKind::UnexpectedEof];
        if self.is_packed && is_wrong.contains(&error.kind()) {
            return self.wrong(self.offset, format!("cannot be unpacked further: {error}")).caused_by(error);
        }
        let message = format!("{} could not be read at byte {}: {error}", self.name, self.offset);
        Error::new(ErrorKind::Io, message).caused_by(error)
    }
}

/// Counts the bytes that are read.
struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.taken.set(self.taken.get() + count as u64);
        self.inner.consume(count);
    }
}

/// The error for a file or folder that cannot be opened.
pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::new(crate::file::kind(&error), format!("{} could not be read: {error}", path.display())).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_runs_out_is_an_error_with_the_files_name() {
        let text = "1,2,3\n".repeat(5000);
        let read = || Contents::new("some file".into(), text.as_bytes())?.up_to(u64::MAX);
        let mut failed = 0;
        while let (result, true) = crate::host::shortage::at(failed, read) {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.to_string().starts_with("some file: no room for"), "{error}");
            failed += 1;
        }
        assert!(failed > 0);
    }

    #[cfg(feature = "gzip")]
    #[test]
    fn unpacked_size_is_limited() {
        use std::io::Write;

        let packed = |chunk: &[u8], count: usize| {
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            (0..count).for_each(|_| gz.write_all(chunk).unwrap());
            gz.finish().unwrap()
        };
        let zeros = packed(&[0; 1 << 20], 65);
        let open = || Contents::new("some.gz".into(), &zeros[..]).unwrap();
        let error = open().up_to(u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        let message = error.to_string();
        assert!(message.starts_with("some.gz, byte 671") && message.contains("of what was unpacked"), "{message}");
        assert!(message.contains("more than 67108864, the limit; unpack the file first"), "{message}");
        assert!(!message.contains("raise"), "{message}");
        // The requested size is a bound as well, and an explicit limit overrides the ratio to the packed size.
        assert_eq!(open().up_to(1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(open().limited(Some(65 << 20), "a setting").up_to(u64::MAX).unwrap().len(), 65 << 20);
        let error = open().limited(Some(4096), "a setting").up_to(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("more than 4096") && error.contains("or raise `a setting`"), "{error}");
        // A file that unpacks to 200 times its size, like a table of few distinct values, is still read.
        let mut rng = crate::Seed::new(1).rng();
        let noise: Vec<u8> = (0..5000).map(|_| rng.next_u64() as u8).collect();
        let sparse = packed(&[&noise[..], &[0; 1_000_000]].concat(), 70);
        assert!(sparse.len() * 250 > 70 * 1_005_000 && sparse.len() * 150 < 70 * 1_005_000, "{}", sparse.len());
        let read = Contents::new("sparse.gz".into(), &sparse[..]).unwrap().up_to(u64::MAX).unwrap();
        assert_eq!(read.len(), 70 * 1_005_000);
    }
}
