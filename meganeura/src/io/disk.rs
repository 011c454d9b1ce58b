//! The file operations of saving and of runs: all operations that write, and whose failure must lose nothing.
//!
//! A test can record them on its thread, to determine what a power failure may leave, and can make any of them fail. In
//! production each is a plain call of the standard library.

#[cfg(test)]
pub(crate) mod simulated;

use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::file::{regular, without_links};

/// A file operation that is about to start.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests look at operations"))]
pub(crate) enum Operation<'a> {
    Read,
    List,
    /// An existing file keeps its contents.
    OpenFile(&'a Path),
    Write(&'a Path, u64, &'a [u8]),
    Cut(&'a Path, u64),
    Sync(&'a Path),
    RemoveFile(&'a Path),
    CreateFolder(&'a Path),
    RemoveFolder(&'a Path),
    /// Both paths are in the same folder.
    Rename(&'a Path, &'a Path),
    SyncFolder(&'a Path),
}

#[cfg(not(test))]
fn perform<T>(_: Operation<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    act()
}
#[cfg(test)]
use simulated::perform;

/// A file that is written.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    file: fs::File,
}

impl File {
    /// Opens a file for writing, and creates it if it is missing. It is a regular file, and no link to one: what is cut
    /// or written belongs to the caller.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        // Not in append mode: Windows cannot truncate such a file.
        options.write(true).create(true).truncate(false);
        let open = || {
            expect_own(path)?;
            regular(without_links(&mut options).open(path)?)
        };
        Ok(Self { path: path.to_owned(), file: perform(Operation::OpenFile(path), open)? })
    }

    /// Creates a file, which must not exist.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: perform(Operation::OpenFile(path), || fs::File::create_new(path))? })
    }

    /// A file that is open already.
    #[cfg(test)]
    pub(crate) fn of(path: &Path, file: fs::File) -> Self {
        Self { path: path.to_owned(), file }
    }

    pub(crate) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Writes bytes at `offset`. If it fails, part of them may have been written.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Self { path, file } = self;
        let write = || file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(bytes));
        perform(Operation::Write(path, offset, bytes), write)
    }

    /// Truncates or extends the file to this length.
    pub(crate) fn cut(&self, length: u64) -> io::Result<()> {
        perform(Operation::Cut(&self.path, length), || self.file.set_len(length))
    }

    /// Makes the written bytes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        perform(Operation::Sync(&self.path), || self.file.sync_all())
    }
}

/// The contents of a file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    perform(Operation::Read, || crate::file::read(path))
}

/// The entries of a folder.
pub(crate) fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = || fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
    perform(Operation::List, entries)
}

/// Renames a file or folder within its parent folder.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    perform(Operation::Rename(from, to), || fs::rename(from, to))
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    perform(Operation::RemoveFile(path), || fs::remove_file(path))
}

/// `true` if there is a symbolic link at this path.
pub(crate) fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

/// `true` if there is anything at this path, be it a link that leads nowhere.
pub(crate) fn is_taken(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn link() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, and what it leads to may belong to others")
}

/// Fails unless there is a regular file at this path, or nothing, for a file that is cut or written.
pub(crate) fn expect_own(path: &Path) -> io::Result<()> {
    expect_no_link(path)?;
    fs::symlink_metadata(path).map_or(Ok(()), |found| crate::file::expect_regular(found.file_type()))
}

/// Fails if this path is a symbolic link, for a folder in which files are deleted.
pub(crate) fn expect_no_link(path: &Path) -> io::Result<()> {
    if is_link(path) { Err(link()) } else { Ok(()) }
}

/// Removes a folder with its contents. Symbolic links are removed, not followed, this path included.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    if is_link(path) {
        return remove_file(path);
    }
    for path in list(path)? {
        if fs::symlink_metadata(&path)?.is_dir() { remove_folder(&path) } else { remove_file(&path) }?;
    }
    perform(Operation::RemoveFolder(path), || fs::remove_dir(path))
}

/// Creates a folder; its parent must exist.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    perform(Operation::CreateFolder(path), || fs::create_dir(path))
}

/// Creates a folder and its missing ancestors, durably. The name of a folder that exists is made durable as well: the
/// process that created it may have been killed before it could.
pub(crate) fn create_folders(path: &Path) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<_> = path.ancestors().take_while(is_missing).collect();
    for folder in missing.iter().rev() {
        match create_folder(folder) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            result => result?,
        }
    }
    if !path.as_os_str().is_empty() && !path.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    path.ancestors().take(missing.len().max(1)).filter_map(Path::parent).try_for_each(sync_folder)
}

/// Makes names in a folder as durable as the files. Other systems have no call for it, or need none.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !cfg!(unix) {
        return Ok(());
    }
    match perform(Operation::SyncFolder(folder), || fs::File::open(folder)?.sync_all()) {
        // Some file systems have no such call either, and some folders allow writing but not reading.
        Err(error) if matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported) => Ok(()),
        result => result,
    }
}

/// Creates a file with these bytes, durably.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write(0, bytes)?;
    file.sync()
}

/// Writes a file next to `path`, then renames it.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    // Unique to this process and this call: others may be saving under the same name.
    name.push(format!(".{}-{}.partial", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let partial = path.with_file_name(name);
    // From a killed process with the same number.
    if is_taken(&partial) {
        remove_file(&partial)?;
    }
    // Otherwise the new name could survive a power failure, and the contents not.
    let written = write_new(&partial, bytes);
    let result = written.and_then(|()| rename(&partial, path));
    if result.is_err() {
        // The first error is the one to report.
        drop(remove_file(&partial));
        return result;
    }
    sync_folder(path.parent().unwrap_or(Path::new("")))
}
