//! One process at a time: a lock on a file of the run's folder, which the system takes back when the process is gone.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use super::FILES;
use crate::Result;
use crate::error::bail;
use crate::io::io_error;

/// The lock, as long as this lives.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] File);

impl Lock {
    pub(super) fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(FILES.lock);
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open().map_err(|error| io_error("opened", &path, error))?;
        // Who only looks whether the run goes on holds the lock for a moment.
        for patience in (0..5u8).rev() {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if patience > 0 => sleep(Duration::from_millis(20)),
                Err(TryLockError::WouldBlock) => {
                    let holder = fs::read_to_string(&path).unwrap_or_default();
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
        // For messages: who cannot write this trains all the same.
        drop(file.set_len(0).and_then(|()| file.write_all(std::process::id().to_string().as_bytes())));
        Ok(Self(file))
    }

    /// Whether a process has it.
    pub(super) fn is_taken(folder: &Path) -> bool {
        let open = File::open(folder.join(FILES.lock));
        open.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!Lock::is_taken(folder.path()));
        let lock = Lock::take(folder.path()).unwrap();
        assert!(Lock::is_taken(folder.path()));
        let error = Lock::take(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("another process"), "{error}");
        drop(lock);
        assert!(!Lock::is_taken(folder.path()));
        Lock::take(folder.path()).unwrap();
        assert_eq!(Lock::take(&folder.path().join("absent")).unwrap_err().kind(), ErrorKind::Io);
    }
}
