//! Append-only files of JSON lines.
//!
//! A crash can cut the last line, but no other. A line that could not be written completely, on a full disk, is
//! removed. If a sync fails, everything since the last successful one is written again: after a failure, the system may
//! consider nothing left to write.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::checksum::{Checksum, is_of};
use super::json::Object;
use crate::Result;
use crate::error::bail;
use crate::io::{disk, io_error};

/// A file for appending.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: disk::File,
    durable: Extent,
    /// The lines after those.
    recent: Vec<u8>,
    /// `true` if the file is known to end after `recent`.
    is_written: bool,
}

/// A prefix of a file: its length and its checksum.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) bytes: u64,
    pub(super) sum: Checksum,
}

impl Extent {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sum: Checksum::of(bytes) }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.sum.add(bytes);
    }
}

impl Lines {
    /// Opens or creates a file, to continue after its last whole line.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let whole = whole_lines(path)?;
        Self::open_behind(path, Extent::of(&whole))
    }

    /// Opens a file to continue after a prefix with this checksum. The first [`append`](Self::append) removes
    /// everything after it, which will be written again.
    ///
    /// A file with fewer or other bytes is an error, because no crash of this program causes that. A missing file is
    /// started anew: somebody removed it.
    pub(super) fn open_at(path: &Path, (bytes, digits): (u64, &str)) -> Result<Self> {
        let there = if bytes > 0 { read_if_there(path)? } else { None };
        let Some(found) = there else { return Self::open_behind(path, Extent::of(&[])) };
        expect_whole(path, &found, (bytes, digits))?;
        Self::open_behind(path, Extent::of(&found[..usize::try_from(bytes).unwrap_or(found.len())]))
    }

    fn open_behind(path: &Path, durable: Extent) -> Result<Self> {
        let file = disk::File::open(path).map_err(|error| io_error("opened", path, error))?;
        // Also for an old file: the process that created it may have been killed before its own sync.
        let folder = path.parent().unwrap_or(Path::new(""));
        disk::sync_folder(folder).map_err(|error| io_error("written", folder, error))?;
        let length = file.length().map_err(|error| io_error("read", path, error))?;
        let is_written = length == durable.bytes;
        Ok(Self { path: path.to_owned(), file, durable, recent: Vec::new(), is_written })
    }

    /// The file's length and checksum.
    pub(super) fn extent(&self) -> Extent {
        let mut extent = self.durable.clone();
        extent.add(&self.recent);
        extent
    }

    /// Appends lines, all or none of them.
    pub(super) fn append(&mut self, lines: &[Value]) -> Result<()> {
        self.expect_written()?;
        if lines.is_empty() {
            return Ok(());
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let end = self.durable.bytes + self.recent.len() as u64;
        // A part of it may have been written.
        self.is_written = false;
        self.file.write(end, text.as_bytes()).map_err(|error| io_error("written", &self.path, error))?;
        self.is_written = true;
        self.recent.extend(text.into_bytes());
        Ok(())
    }

    /// Restores the file's expected state, after an error or a crash.
    fn expect_written(&mut self) -> Result<()> {
        if !self.is_written {
            let cut = self.file.cut(self.durable.bytes);
            let written = cut.and_then(|()| match &self.recent[..] {
                [] => Ok(()),
                recent => self.file.write(self.durable.bytes, recent),
            });
            written.map_err(|error| io_error("written", &self.path, error))?;
            self.is_written = true;
        }
        Ok(())
    }

    /// Makes the appended lines durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.expect_written()?;
        self.is_written = false;
        self.file.sync().map_err(|error| io_error("written", &self.path, error))?;
        self.is_written = true;
        self.durable.add(&self.recent);
        self.recent.clear();
        Ok(())
    }
}

/// Fails unless the file starts with `bytes` bytes of this checksum.
pub(super) fn expect_whole(path: &Path, found: &[u8], (bytes, digits): (u64, &str)) -> Result<()> {
    const REMEDY: &str = "Put it back, or rename it to go on with an empty one";
    let length = found.len();
    let Some(there) = usize::try_from(bytes).ok().and_then(|bytes| found.get(..bytes)) else {
        bail!(
            Checkpoint,
            "{} has {length} bytes and had {bytes} when the checkpoint was saved: something cut it off. {REMEDY}",
            path.display()
        );
    };
    if !is_of(there, digits) {
        bail!(
            Checkpoint,
            "{} is damaged: its first {bytes} bytes are others than when the checkpoint was saved. {REMEDY}",
            path.display()
        );
    }
    Ok(())
}

/// The whole lines of a file, converted one by one: the file of a long training has a million. Empty if there is no
/// file.
pub(super) fn read<T>(path: &Path, make: impl Fn(Result<Object>) -> Result<T>) -> Result<Vec<T>> {
    let bytes = whole_lines(path)?;
    let object = |(index, line)| Object::parse(format!("{}, line {},", path.display(), index + 1), line);
    bytes.split_inclusive(|&byte| byte == b'\n').enumerate().map(|line| make(object(line))).collect()
}

/// The last whole line of a file, if there is one.
pub(super) fn last(path: &Path) -> Result<Option<Object>> {
    let bytes = whole_lines(path)?;
    let line = bytes.split_inclusive(|&byte| byte == b'\n').next_back();
    line.map(|line| Object::parse(format!("{}, the last line,", path.display()), line)).transpose()
}

/// A file up to its last newline. Anything after that is being written, or was when a crash happened.
fn whole_lines(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = read_if_there(path)?.unwrap_or_default();
    bytes.truncate(bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1));
    Ok(bytes)
}

pub(super) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match disk::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::ErrorKind;

    fn objects(path: &Path) -> Result<Vec<Object>> {
        read(path, |line| line)
    }

    #[test]
    fn an_incomplete_line_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut lines = Lines::open(&path).unwrap();
        lines.append(&[json!({"a": 1}), json!({"a": 2})]).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!((lines.extent().bytes, &whole[..]), (16, &b"{\"a\":1}\n{\"a\":2}\n"[..]));
        assert_eq!(lines.extent().sum.digits(), Checksum::of(&whole).digits());
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let kept = if cut >= 8 { 1 } else { 0 };
            assert_eq!(objects(&path).unwrap().len(), kept, "cut at {cut}");
            assert_eq!(
                last(&path).unwrap().map(|line| line.whole("a").unwrap()),
                (kept > 0).then_some(1),
                "cut at {cut}"
            );
            let mut lines = Lines::open(&path).unwrap();
            lines.append(&[json!({"b": 3})]).unwrap();
            let all = objects(&path).unwrap();
            assert_eq!(all.len(), kept + 1, "cut at {cut}");
            assert_eq!(all[kept].whole("b").unwrap(), 3);
        }
    }

    #[test]
    fn lines_after_the_checkpoint_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, "{\"a\":1}\n{\"a\":2}\n{\"a\"").unwrap();
        let sum = Checksum::of(b"{\"a\":1}\n").digits();
        let mut lines = Lines::open_at(&path, (8, &sum)).unwrap();
        assert_eq!(objects(&path).unwrap().len(), 2, "lines are removed only when something is written");
        lines.append(&[]).unwrap();
        assert_eq!(lines.extent().bytes, 8);
        assert_eq!(fs::read(&path).unwrap(), b"{\"a\":1}\n");
        for (extent, part) in
            [((9, &*sum), "has 8 bytes and had 9"), ((8, "0123456789abcdef"), "its first 8 bytes are others")]
        {
            let error = Lines::open_at(&path, extent).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checkpoint);
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(fs::read(&path).unwrap(), b"{\"a\":1}\n", "an error changes nothing");
        }
        let absent = Lines::open_at(&folder.path().join("absent"), (9, &sum)).unwrap();
        assert_eq!(absent.extent().bytes, 0, "the file was deleted");
    }

    #[test]
    fn damaged_lines_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, "{\"a\":1}\n{\"a\"\n{\"a\":2}\n").unwrap();
        let error = objects(&path).unwrap_err().to_string();
        assert!(error.contains("lines, line 2, is damaged"), "{error}");
        assert_eq!(last(&path).unwrap().unwrap().whole("a").unwrap(), 2, "the end is whole");
        assert!(objects(&folder.path().join("absent")).unwrap().is_empty());
        assert!(last(&folder.path().join("absent")).unwrap().is_none());
        assert_eq!(objects(folder.path()).unwrap_err().kind(), ErrorKind::Io);
    }
}
