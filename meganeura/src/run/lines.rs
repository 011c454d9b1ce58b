//! Files of lines of JSON, which only grow.
//!
//! A crash can cut the last line, wherever it strikes; no other. A line that could not be written whole, on a full disk, is
//! taken back.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json::Object;
use crate::Result;
use crate::error::bail;
use crate::io::{io_error, sync_folder};

/// A file to append to.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: File,
    /// Where the last whole line ends.
    bytes: u64,
    /// Whether there may be more behind it.
    has_rest: bool,
}

impl Lines {
    /// Opens a file, or makes one, to go on behind the last whole line.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::open_at(path, whole_lines(path)?.len() as u64)
    }

    /// Opens a file to go on where it had so many bytes. What was written since, which is to be written again, is taken away by
    /// the first [`append`](Self::append).
    ///
    /// A file with fewer is an error, for no crash of this program makes it shorter. One that is not there is begun anew: somebody
    /// took it away.
    pub(super) fn open_at(path: &Path, bytes: u64) -> Result<Self> {
        let is_new = !path.exists();
        let bytes = if is_new { 0 } else { bytes };
        // Not to append alone: Windows does not let such a file be cut.
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = open().map_err(|error| io_error("opened", path, error))?;
        if is_new {
            let folder = path.parent().unwrap_or(Path::new(""));
            sync_folder(folder).map_err(|error| io_error("written", folder, error))?;
        }
        let length = file.metadata().map_err(|error| io_error("read", path, error))?.len();
        if length < bytes {
            bail!(
                Checkpoint,
                "{} has {length} bytes and had {bytes} when the checkpoint was saved: something cut it off. Put it back, or \
                 rename it to go on with an empty one",
                path.display()
            );
        }
        Ok(Self { path: path.to_owned(), file, bytes, has_rest: length > bytes })
    }

    /// How long the file is.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes lines, all or none of them.
    pub(super) fn append(&mut self, lines: &[Value]) -> Result<()> {
        if self.has_rest {
            self.file.set_len(self.bytes).map_err(|error| io_error("cut", &self.path, error))?;
            self.has_rest = false;
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        match self.file.seek(SeekFrom::Start(self.bytes)).and_then(|_| self.file.write_all(text.as_bytes())) {
            Ok(()) => {
                self.bytes += text.len() as u64;
                Ok(())
            }
            Err(error) => {
                // A part of it may have been written.
                self.has_rest = true;
                Err(io_error("written", &self.path, error))
            }
        }
    }

    /// Makes durable what was written.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| io_error("written", &self.path, error))
    }
}

/// What the whole lines of a file are made of, one by one: a file of a long training has a million. Of one that is not there, nothing.
pub(super) fn read<T>(path: &Path, make: impl Fn(Object) -> Result<T>) -> Result<Vec<T>> {
    let bytes = whole_lines(path)?;
    let object = |(index, line)| Object::parse(format!("{}, line {},", path.display(), index + 1), line);
    bytes.split_inclusive(|&byte| byte == b'\n').enumerate().map(|line| make(object(line)?)).collect()
}

/// The last whole line of a file, if there is one.
pub(super) fn last(path: &Path) -> Result<Option<Object>> {
    let bytes = whole_lines(path)?;
    let line = bytes.split_inclusive(|&byte| byte == b'\n').next_back();
    line.map(|line| Object::parse(format!("{}, the last line,", path.display()), line)).transpose()
}

/// A file up to the last end of a line. What is behind is being written, or was when a crash struck.
fn whole_lines(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(io_error("read", path, error)),
    };
    bytes.truncate(bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ErrorKind;

    fn objects(path: &Path) -> Result<Vec<Object>> {
        read(path, Ok)
    }

    #[test]
    fn a_line_that_was_cut_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut lines = Lines::open(&path).unwrap();
        lines.append(&[json!({"a": 1}), json!({"a": 2})]).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!((lines.bytes(), &whole[..]), (16, &b"{\"a\":1}\n{\"a\":2}\n"[..]));
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
    fn what_comes_after_the_checkpoint_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, "{\"a\":1}\n{\"a\":2}\n{\"a\"").unwrap();
        let mut lines = Lines::open_at(&path, 8).unwrap();
        assert_eq!(objects(&path).unwrap().len(), 2, "not before something is written");
        lines.append(&[]).unwrap();
        assert_eq!(lines.bytes(), 8);
        assert_eq!(fs::read(&path).unwrap(), b"{\"a\":1}\n");
        let error = Lines::open_at(&path, 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Checkpoint);
        assert!(error.to_string().contains("has 8 bytes and had 9"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"{\"a\":1}\n", "an error changes nothing");
    }

    #[test]
    fn nonsense_within_is_named() {
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
