//! What drivers compiled, kept on disk from one process to the next, where the API lets it be had (Vulkan).
//!
//! A file for each adapter, in the user's folder for caches or the one that `MEGANEURA_CACHE` names; `off` keeps nothing. A file
//! that does not fit is ignored, and one that cannot be written is counted: neither is worth an error.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::lock;

/// The environment variable that names the folder.
const OVERRIDE: &str = "MEGANEURA_CACHE";

/// What a file begins with, before the checksum of what follows.
const MAGIC: [u8; 8] = *b"mgnpipe1";

/// Larger files are neither read nor written: they hold the shapes of past experiments.
const MOST_BYTES: usize = 64 << 20;

/// The driver's cache, and where it is kept.
pub(super) struct Store {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    warm: bool,
    state: Mutex<State>,
}

/// What is on disk, and what went wrong.
#[derive(Default)]
struct State {
    checksum: u64,
    failures: u64,
}

/// The features to open an adapter with, so that its pipelines can be kept.
pub(super) fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
    adapter.features() & wgpu::Features::PIPELINE_CACHE
}

impl Store {
    /// What an earlier process kept for this adapter, or nothing yet; none where nothing is kept.
    pub(super) fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = folder()?.join(format!("{}.bin", wgpu::util::pipeline_cache_key(info)?));
        let create = |data: Option<&[u8]>| {
            let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
            let descriptor = wgpu::PipelineCacheDescriptor { label: None, data, fallback: false };
            // SAFETY: the bytes are those that `get_data` gave for an adapter of this key, as far as a checksum can tell; wgpu
            // and the driver compare device and version.
            let cache = unsafe { device.create_pipeline_cache(&descriptor) };
            pollster::block_on(scope.pop()).is_none().then_some(cache)
        };
        let kept = fs::read(&path).ok();
        let data = kept.as_deref().and_then(unpack);
        let checksum = data.map_or(0, checksum);
        let (cache, warm) = match data.and_then(|data| create(Some(data))) {
            Some(cache) => (cache, true),
            None => (create(None)?, false),
        };
        Some(Self { cache, path, warm, state: Mutex::new(State { checksum, failures: 0 }) })
    }

    pub(super) fn cache(&self) -> &wgpu::PipelineCache {
        &self.cache
    }

    /// Whether an earlier process left something.
    pub(super) fn is_warm(&self) -> bool {
        self.warm
    }

    /// How often the file could not be written.
    pub(super) fn failures(&self) -> u64 {
        lock(&self.state).failures
    }

    /// Writes the file if there is anything new.
    pub(super) fn save(&self) {
        let Some(data) = self.cache.get_data().filter(|data| data.len() <= MOST_BYTES) else { return };
        let mut state = lock(&self.state);
        let checksum = checksum(&data);
        if state.checksum == checksum {
            return;
        }
        match write(&self.path, &pack(&data)) {
            Ok(()) => state.checksum = checksum,
            Err(_) => state.failures += 1,
        }
    }
}

/// The folder that files go to, if any.
fn folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match var(OVERRIDE) {
        Some(off) if off == "off" => None,
        Some(path) => Some(path.into()),
        None => Some(user_folder(var)?.join("meganeura")),
    }
}

/// The user's folder for caches, by the conventions of the system.
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

fn pack(data: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &checksum(data).to_le_bytes(), data].concat()
}

/// What a file holds, if it is whole.
fn unpack(file: &[u8]) -> Option<&[u8]> {
    let (sum, data) = file.strip_prefix(&MAGIC)?.split_first_chunk()?;
    (data.len() <= MOST_BYTES && checksum(data) == u64::from_le_bytes(*sum)).then_some(data)
}

/// FNV-1a, eight bytes at a time.
fn checksum(data: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = data.as_chunks();
    let hash =
        words.iter().fold(0xcbf2_9ce4_8422_2325 ^ data.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash, byte.into()))
}

/// Readers see the old file or the new one, never a part; of two processes that write at a time, one wins.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&unfinished, bytes)?;
    fs::rename(&unfinished, path).inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_whole_are_ignored() {
        for len in [0, 1, 7, 8, 9, 1000] {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let file = pack(&data);
            assert_eq!(unpack(&file), Some(&data[..]));
            for at in 0..file.len() {
                let mut wrong = file.clone();
                wrong[at] ^= 4;
                assert_eq!(unpack(&wrong), None, "byte {at} of {}", file.len());
                assert_eq!(unpack(&file[..at]), None, "{at} bytes of {}", file.len());
            }
        }
    }

    #[test]
    #[cfg(not(any(windows, target_os = "macos")))]
    fn the_system_says_where() {
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
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("read").count(), 1);
        assert!(write(&path.join("below a file"), b"three").is_err());
    }
}
