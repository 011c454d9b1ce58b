//! One process at a time: a lock on a file in the run's folder, which the system releases when the process ends.
//!
//! A lock belongs to a file, not to a path. So before a run writes, it checks that the locked file is still the one in
//! its folder. Otherwise, if the folder was deleted or moved and another run began there, both would write to it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use super::FILES;
use crate::Result;
use crate::error::bail;
use crate::file;
use crate::io::{disk, io_error};

/// The identity of a locked file: a process may reach one folder by several paths.
#[derive(Clone, PartialEq, Debug)]
struct Identity(#[cfg(unix)] [u64; 2], #[cfg(not(unix))] PathBuf);

/// The locks of this process. The number in the file does not tell: processes of two containers may have the same one.
fn own() -> MutexGuard<'static, Vec<Identity>> {
    static OWN: Mutex<Vec<Identity>> = Mutex::new(Vec::new());
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock, as long as this lives.
#[derive(Debug)]
pub(super) struct Lock {
    folder: PathBuf,
    file: File,
    identity: Identity,
}

impl Lock {
    pub(super) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(FILES.lock);
        let file = open(&path).map_err(|error| io_error("opened", &path, error))?;
        // A process that only checks whether the run is active holds the lock for a moment.
        for patience in (0..5u8).rev() {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if patience > 0 => sleep(Duration::from_millis(20)),
                Err(TryLockError::WouldBlock) if own().contains(&identity(&file, &path)?) => {
                    bail!(
                        Io,
                        "{} is in use: this process trains there. Drop the other `Run` first, or take another folder",
                        folder.display()
                    );
                }
                Err(TryLockError::WouldBlock) => {
                    let holder = disk::read(&path).unwrap_or_default();
                    let holder = String::from_utf8_lossy(&holder);
                    let holder = if holder.is_empty() { String::new() } else { format!(" (process {holder})") };
                    bail!(
                        Io,
                        "{} is in use: another process{holder} trains there. Wait for its end, or take another folder",
                        folder.display()
                    );
                }
                Err(TryLockError::Error(error)) => return Err(io_error("locked", &path, error)),
            }
        }
        let identity = identity(&file, &path)?;
        own().push(identity.clone());
        let lock = Self { folder: folder.to_owned(), file, identity };
        // It may have been replaced between opening and locking.
        lock.expect_held()?;
        // For messages only: training does not depend on this write.
        drop(lock.file.set_len(0).and_then(|()| (&lock.file).write_all(std::process::id().to_string().as_bytes())));
        Ok(lock)
    }

    /// Checks that the locked file is still the one in the folder.
    ///
    /// # Errors
    ///
    /// Fails with [`Io`](crate::ErrorKind::Io) if the folder was deleted, moved or created anew.
    pub(super) fn expect_held(&self) -> Result<()> {
        let path = self.folder.join(FILES.lock);
        match is_at(&self.file, &path) {
            Ok(true) => Ok(()),
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(io_error("read", &path, error))
            }
            _ => bail!(
                Io,
                "{} is no longer the folder that this run was opened in: it was deleted, moved or replaced meanwhile. Nothing more \
                 is written there; to keep what was trained since the last checkpoint, save the model elsewhere",
                self.folder.display()
            ),
        }
    }

    /// `true` if a process holds the lock.
    pub(super) fn is_taken(folder: &Path) -> bool {
        let open = file::open(&folder.join(FILES.lock));
        open.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut own = own();
        if let Some(at) = own.iter().position(|held| *held == self.identity) {
            own.swap_remove(at);
        }
    }
}

/// Opens the file, and creates it if it is missing. Its number is replaced, so it is no link to another file.
fn open(path: &Path) -> io::Result<File> {
    disk::expect_own(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // Without FILE_SHARE_DELETE, Windows lets nobody delete or move an open file, or a folder that contains it.
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 0x1 | 0x2);
    file::regular(file::without_links(&mut options).open(path)?)
}

#[cfg(unix)]
fn identity(file: &File, path: &Path) -> Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata().map_err(|error| io_error("read", path, error))?;
    Ok(Identity([found.dev(), found.ino()]))
}

#[cfg(not(unix))]
fn identity(_: &File, path: &Path) -> Result<Identity> {
    path.canonicalize().map(Identity).map_err(|error| io_error("read", path, error))
}

/// `true` if this open file is the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (here, there) = (file.metadata()?, fs::metadata(path)?);
    Ok((here.dev(), here.ino()) == (there.dev(), there.ino()))
}

/// `true` if there is a file at `path`: Windows keeps a file in place that is opened like this.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> io::Result<bool> {
    fs::metadata(path).map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn only_one_run_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!Lock::is_taken(folder.path()));
        let lock = Lock::take(folder.path()).unwrap();
        assert!(Lock::is_taken(folder.path()));
        let error = Lock::take(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        // The error does not send the user to look for another process.
        assert!(error.to_string().contains("this process trains there. Drop the other `Run`"), "{error}");
        drop(lock);
        assert!(!Lock::is_taken(folder.path()));
        Lock::take(folder.path()).unwrap();
        assert_eq!(Lock::take(&folder.path().join("absent")).unwrap_err().kind(), ErrorKind::Io);
    }

    #[cfg(unix)]
    #[test]
    fn the_lock_belongs_to_the_folder_even_after_a_move() {
        let parent = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (parent.path().join("run"), parent.path().join("elsewhere"));
        fs::create_dir(&folder).unwrap();
        let first = Lock::take(&folder).unwrap();
        first.expect_held().unwrap();
        let lost = |lock: &Lock| {
            let error = lock.expect_held().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("run is no longer the folder that this run was opened in"), "{error}");
        };
        fs::rename(&folder, &elsewhere).unwrap();
        lost(&first);
        fs::create_dir(&folder).unwrap();
        let second = Lock::take(&folder).unwrap();
        lost(&first);
        second.expect_held().unwrap();
        // Moved back, the folder belongs to the first run again.
        fs::remove_dir_all(&folder).unwrap();
        fs::rename(&elsewhere, &folder).unwrap();
        first.expect_held().unwrap();
        lost(&second);
        fs::remove_file(folder.join(FILES.lock)).unwrap();
        lost(&first);
    }
}
