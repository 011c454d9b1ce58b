//! The on-disk cache of kernels that the driver compiled, kept from one process to the next.
//!
//! There is one file per adapter, in the user's cache folder or the one that `MEGANEURA_CACHE` names; `off` disables
//! the cache. A file that does not match is ignored, and a failed write is counted: neither is worth an error.
//!
//! A driver trusts its input, so anyone who can write the file can run code in the processes that read it. The system's
//! permissions keep others out: see [`owned`]. The checksum protects against damage by a full disk or a torn write. It
//! does not prove who wrote the file, and neither would a key that is stored beside it.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{env, ffi::OsString};

use ash::vk;

use super::{Shared, lock, owned};

/// The environment variable that names the folder.
const OVERRIDE: &str = "MEGANEURA_CACHE";

/// The start of a file, before the checksum of the rest.
const MAGIC: [u8; 8] = *b"mgnpipe3";

/// A file that would grow larger is removed instead: it holds the shapes of past experiments, and the next process
/// stores the kernels that it compiles itself.
const MOST_BYTES: usize = 64 << 20;

/// BLAKE3.
type Checksum = [u8; 32];

/// The cache on disk, if there is one.
pub(super) enum DiskCache {
    /// Turned off, or not supported.
    Off,
    /// The reason not to use it: others could have written its content, or could write it later.
    Refused(&'static str),
    On(Store),
}

/// The driver's cache, and its place on disk.
pub(super) struct Store {
    shared: Arc<Shared>,
    cache: vk::PipelineCache,
    path: PathBuf,
    warm: bool,
    state: Mutex<State>,
}

/// The state of the file on disk, and the failures.
#[derive(Default)]
struct State {
    /// The bytes of the driver's cache in the file.
    kept: Option<usize>,
    failures: u64,
}

impl DiskCache {
    /// Opens the file of this adapter, which need not exist yet.
    pub(super) fn open(shared: &Arc<Shared>, properties: &vk::PhysicalDeviceProperties) -> Self {
        let Some(folder) = folder() else { return Self::Off };
        let path = folder.join(format!("vulkan_{:04x}_{:04x}.bin", properties.vendor_id, properties.device_id));
        let kept = match owned::folder(&folder).and_then(|()| read(&path)) {
            Ok(kept) => kept,
            Err(why) => return Self::Refused(why),
        };
        let create = |data: &[u8]| {
            let description = vk::PipelineCacheCreateInfo::default().initial_data(data);
            // SAFETY: the driver itself gave these bytes to a process of this user for this device. Only this user
            // could write the file, it is intact, and it starts with the right device and driver.
            unsafe { shared.raw.create_pipeline_cache(&description, None) }.ok()
        };
        let data = kept.as_deref().and_then(unseal).filter(|data| is_of(data, properties));
        let kept = data.map(<[u8]>::len);
        let warm = data.and_then(create);
        let is_warm = warm.is_some();
        let Some(cache) = warm.or_else(|| create(&[])) else { return Self::Off };
        let state = Mutex::new(State { kept, failures: 0 });
        Self::On(Store { shared: Arc::clone(shared), cache, path, warm: is_warm, state })
    }

    pub(super) fn store(&self) -> Option<&Store> {
        if let Self::On(store) = self { Some(store) } else { None }
    }
}

impl Store {
    pub(super) fn cache(&self) -> vk::PipelineCache {
        self.cache
    }

    /// `true` if the cache held kernels of an earlier process.
    pub(super) fn is_warm(&self) -> bool {
        self.warm
    }

    /// The number of failed writes of the file.
    pub(super) fn failures(&self) -> u64 {
        lock(&self.state).failures
    }

    /// Writes the file if there is anything new. A cache only grows, and asking for its size costs nothing compared
    /// with copying it.
    pub(super) fn save(&self) {
        if self.bytes().is_none_or(|bytes| lock(&self.state).kept == Some(bytes)) {
            return;
        }
        // SAFETY: the cache lives as long as `self`.
        let data = unsafe { self.shared.raw.get_pipeline_cache_data(self.cache) };
        let Ok(data) = data else { return };
        let mut state = lock(&self.state);
        match keep(&self.path, &data, MOST_BYTES) {
            Ok(()) => state.kept = Some(data.len()),
            Err(_) => state.failures += 1,
        }
    }

    /// The size of the driver's cache.
    fn bytes(&self) -> Option<usize> {
        let (mut bytes, nowhere) = (0, std::ptr::null_mut());
        let get = self.shared.raw.fp_v1_0().get_pipeline_cache_data;
        // SAFETY: the cache lives as long as `self`; with a null pointer, only the size is written.
        let told = unsafe { get(self.shared.raw.handle(), self.cache, &raw mut bytes, nowhere) };
        (told == vk::Result::SUCCESS).then_some(bytes)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: no compilation is running any more.
        unsafe { self.shared.raw.destroy_pipeline_cache(self.cache, None) };
    }
}

/// `true` if the data starts with the header of this device and driver. Drivers check it as well; this tells data that
/// they accept from data that they ignore.
fn is_of(data: &[u8], properties: &vk::PhysicalDeviceProperties) -> bool {
    let version = vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32;
    let words = [32, version, properties.vendor_id, properties.device_id].map(u32::to_le_bytes);
    data.strip_prefix(words.as_flattened()).is_some_and(|data| data.starts_with(&properties.pipeline_cache_uuid))
}

/// The folder for cache files, if there is one.
fn folder() -> Option<PathBuf> {
    let var = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    match var(OVERRIDE) {
        Some(off) if off == "off" => None,
        Some(path) => Some(path.into()),
        None => Some(user_folder(var)?.join("meganeura")),
    }
}

/// The user's cache folder, by the conventions of the system.
fn user_folder(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        Some(absolute("HOME")?.join("Library/Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
    }
}

/// A file's bytes: a mark, a checksum, and the data.
fn seal(data: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &checksum(data), data].concat()
}

/// The content of a file, if it is intact.
fn unseal(file: &[u8]) -> Option<&[u8]> {
    let (sum, data) = file.strip_prefix(&MAGIC)?.split_first_chunk()?;
    (data.len() <= MOST_BYTES && checksum(data) == *sum).then_some(data)
}

fn checksum(data: &[u8]) -> Checksum {
    blake3::hash(data).into()
}

/// The file's bytes, if it exists and can be read; the error is the reason not to trust it.
fn read(path: &Path) -> Result<Option<Vec<u8>>, &'static str> {
    let Ok(file) = crate::file::open(path) else { return Ok(None) };
    // Checks the open file: by now another may have its name.
    owned::file(&file)?;
    let mut bytes = Vec::new();
    let most = (MOST_BYTES + MAGIC.len() + size_of::<Checksum>()) as u64;
    let read = file.take(most).read_to_end(&mut bytes);
    Ok(read.is_ok().then_some(bytes))
}

/// Writes a file, or removes it if there are too many bytes.
fn keep(path: &Path, data: &[u8], most: usize) -> io::Result<()> {
    if data.len() <= most {
        return write(path, &seal(data));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file atomically: readers see the old one or the new one, never a part. Of two processes that write at
/// once, one wins.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    owned::create_folder(folder)?;
    // Its owner may have changed since it was opened.
    owned::folder(folder).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?;
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    // A file left behind by an earlier process with this number.
    let _ = fs::remove_file(&unfinished);
    let written = owned::create_file(&unfinished).and_then(|mut file| file.write_all(bytes));
    written.and_then(|()| fs::rename(&unfinished, path)).inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_files_are_ignored() {
        for len in [0, 1, 7, 8, 9, 1000] {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let file = seal(&data);
            assert_eq!(unseal(&file), Some(&data[..]));
            for at in 0..file.len() {
                let mut wrong = file.clone();
                wrong[at] ^= 4;
                assert_eq!(unseal(&wrong), None, "byte {at} of {}", file.len());
                assert_eq!(unseal(&file[..at]), None, "{at} bytes of {}", file.len());
            }
        }
    }

    #[test]
    #[cfg(not(any(windows, target_os = "macos")))]
    fn the_environment_decides_the_place() {
        let with = |vars: &'static [(&str, &str)]| {
            user_folder(move |name| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]), Some("/c".into()));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "relative")]), Some("/h/.cache".into()));
        assert_eq!(with(&[("HOME", "/h")]), Some("/h/.cache".into()));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn files_are_replaced_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b/pipelines.bin");
        write(&path, b"one").expect("written");
        write(&path, b"two").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"two");
        assert_eq!(read(&path), Ok(Some(b"two".to_vec())));
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("read").count(), 1);
        assert!(write(&path.join("below a file"), b"three").is_err());
    }

    #[test]
    fn an_overgrown_cache_starts_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipelines.bin");
        for (bytes, is_kept) in [(10, true), (11, false), (12, false), (9, true)] {
            keep(&path, &vec![7; bytes], 10).expect("written or removed");
            assert_eq!(path.exists(), is_kept, "{bytes} bytes");
        }
        let file = read(&path).expect("ours").expect("there");
        assert_eq!(unseal(&file), Some(&[7; 9][..]));
    }

    /// Anyone who can write the file or its folder decides what code the driver runs.
    #[test]
    #[cfg(unix)]
    fn files_writable_by_others_are_neither_read_nor_written() {
        use std::os::unix::fs::PermissionsExt;

        let outside = tempfile::tempdir().expect("a folder");
        let folder = outside.path().join("caches/kernels");
        let path = folder.join("pipelines.bin");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        write(&path, b"one").expect("written");
        assert_eq!([mode(&folder), mode(&outside.path().join("caches")), mode(&path)], [0o700, 0o700, 0o600]);
        for shared in [0o620, 0o602, 0o666] {
            set(&path, shared);
            assert_eq!(read(&path), Err("others can write to its file"), "{shared:o}");
        }
        set(&path, 0o644);
        assert_eq!(read(&path), Ok(Some(b"one".to_vec())));
        for shared in [0o770, 0o707, 0o777, 0o1777] {
            set(&folder, shared);
            assert_eq!(owned::folder(&folder), Err("others can write to its folder"), "{shared:o}");
            assert_eq!(write(&path, b"two").expect_err("shared").kind(), io::ErrorKind::PermissionDenied);
        }
        set(&folder, 0o755);
        assert_eq!(owned::folder(&folder), Ok(()));
        // A link in place of the unfinished file is replaced, not followed.
        let (target, unfinished) =
            (outside.path().join("mine"), folder.join(format!("pipelines.{}.tmp", std::process::id())));
        fs::write(&target, b"mine").expect("written");
        std::os::unix::fs::symlink(&target, &unfinished).expect("linked");
        write(&path, b"two").expect("written");
        assert_eq!((fs::read(&target).expect("read"), read(&path)), (b"mine".to_vec(), Ok(Some(b"two".to_vec()))));
        assert_eq!(owned::folder(&path), Err("its folder is not a directory"));
        assert_eq!(owned::folder(&folder.join("not yet")), Ok(()));
    }
}
