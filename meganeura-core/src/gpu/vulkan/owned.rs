//! Folders and files that only this user can write, by the system's permissions. On systems other than Unix,
//! permissions are not checked; there the cache folder belongs to the user unless `MEGANEURA_CACHE` names another.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Creates a folder and its parents, for this user alone.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Creates a file for this user alone; fails if it exists.
pub(super) fn create_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Checks a folder, if it exists; the error is the reason not to use it.
pub(super) fn folder(path: &Path) -> Result<(), &'static str> {
    match fs::metadata(path) {
        Err(_) => Ok(()),
        Ok(found) if !found.is_dir() => Err("its folder is not a directory"),
        Ok(found) => expect_own(&found, ["its folder belongs to another user", "others can write to its folder"]),
    }
}

/// Checks an open file; the error is the reason not to use it.
pub(super) fn file(file: &File) -> Result<(), &'static str> {
    match file.metadata() {
        Ok(found) if found.is_file() => {
            expect_own(&found, ["its file belongs to another user", "others can write to its file"])
        }
        _ => Err("its file is not a regular file"),
    }
}

#[cfg(unix)]
fn expect_own(found: &fs::Metadata, [of_another, writable]: [&'static str; 2]) -> Result<(), &'static str> {
    use std::os::unix::fs::MetadataExt;

    // SAFETY: the call returns a number of the process, and cannot fail.
    let user = unsafe { libc::geteuid() };
    if found.uid() != user {
        return Err(of_another);
    }
    if found.mode() & 0o022 == 0 { Ok(()) } else { Err(writable) }
}

#[cfg(not(unix))]
fn expect_own(_: &fs::Metadata, _: [&'static str; 2]) -> Result<(), &'static str> {
    Ok(())
}
