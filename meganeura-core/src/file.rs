//! Files that are read: regular files only.
//!
//! Opening a named pipe waits for a writer, which may never come, and some devices have no end. Neither may hang a
//! program that was only given a path. So a file is opened without waiting, and refused if it is not regular.
//!
//! A pipe that the caller hands over as an open descriptor is read to its end: `/dev/stdin` of a pipeline, and
//! `/dev/fd/63` of a shell's `<(…)`. Such a pipe has a writer.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::ErrorKind;
use crate::host::reserve;

/// Folders and files that name the open descriptors of this process.
#[cfg(unix)]
const DESCRIPTORS: [&str; 4] = ["/dev/stdin", "/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    if is_descriptor(path) {
        let file = options.open(path)?;
        return if is_pipe(&file)? { Ok(file) } else { regular(file) };
    }
    regular(without_waiting(&mut options).open(path)?)
}

/// The kind of an error about a file.
pub fn kind(error: &io::Error) -> ErrorKind {
    if error.kind() == io::ErrorKind::OutOfMemory { ErrorKind::OutOfMemory } else { ErrorKind::Io }
}

/// The contents of a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    contents(open(path)?)
}

/// The contents of an open file. Fails if there is no room for them.
pub fn contents(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = |bytes: &mut Vec<u8>, more: u64| {
        reserve(bytes, usize::try_from(more).unwrap_or(usize::MAX))
            .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error.message().to_owned()))
    };
    let length = file.metadata()?.len();
    room(&mut bytes, length)?;
    // A file that grows, and a pipe, of which nobody knows the length.
    loop {
        let length = bytes.len();
        let end = bytes.capacity().max(length + 1);
        room(&mut bytes, (end - length) as u64)?;
        if (&mut file).take((end - length) as u64).read_to_end(&mut bytes)? == 0 {
            return Ok(bytes);
        }
    }
}

/// Makes opening a file for reading or writing return at once, whatever is there.
pub(crate) fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

/// Makes opening a file fail if its path ends in a symbolic link, and return at once. For files that belong to a run:
/// what a link leads to does not.
pub fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW);
    options
}

/// The file, if it is regular.
pub fn regular(file: File) -> io::Result<File> {
    expect_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Fails for all but regular files.
pub fn expect_regular(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a file", name(kind))))
}

#[cfg(unix)]
fn name(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "something else",
    }
}

#[cfg(not(unix))]
fn name(kind: FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { "something else" }
}

#[cfg(unix)]
fn is_descriptor(path: &Path) -> bool {
    path.to_str().is_some_and(|path| DESCRIPTORS.iter().any(|known| path.starts_with(known)))
}

#[cfg(not(unix))]
fn is_descriptor(_: &Path) -> bool {
    false
}

#[cfg(unix)]
fn is_pipe(file: &File) -> io::Result<bool> {
    Ok(std::os::unix::fs::FileTypeExt::is_fifo(&file.metadata()?.file_type()))
}

#[cfg(not(unix))]
fn is_pipe(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Makes a named pipe.
    pub(crate) fn pipe(path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in a zero.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "1,2").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        assert_eq!(read(&at("file")).unwrap(), b"1,2");
        assert_eq!(read(&at("link")).unwrap(), b"1,2");
        assert_eq!(read(&at("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
        pipe(&at("pipe"));
        std::os::unix::fs::symlink(at("pipe"), at("link to a pipe")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (path, what) in [
            (at("pipe"), "a named pipe"),
            (at("link to a pipe"), "a named pipe"),
            (folder.path().to_owned(), "a folder"),
            ("/dev/zero".into(), "a device"),
            ("/dev/null".into(), "a device"),
        ] {
            let error = read(&path).unwrap_err().to_string();
            assert_eq!(error, format!("it is {what}, not a file"), "{}", path.display());
        }
        assert!(read(&at("socket")).is_err());
    }

    #[test]
    fn a_pipe_that_is_handed_over_is_read() {
        let (end, mut other) = io::pipe().unwrap();
        let text = "1,2\n".repeat(1000);
        let writing = {
            let text = text.clone();
            std::thread::spawn(move || other.write_all(text.as_bytes()).unwrap())
        };
        let path = format!("/dev/fd/{}", end.as_raw_fd());
        assert_eq!(read(Path::new(&path)).unwrap(), text.as_bytes());
        writing.join().unwrap();
    }

    #[test]
    fn a_file_without_end_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        // Takes no space on the disk.
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
