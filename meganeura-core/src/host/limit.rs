//! The limit on host memory: a request that cannot be met is an error.
//!
//! Linux grants almost any request, and later kills the process that touches the pages. So larger requests are compared
//! with the memory that is available: to the system, and to the control groups of this process, such as a container's.
//! Small ones are too, each time that they add up to a large one. Other systems refuse by themselves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::bail;
use crate::{Error, ErrorKind, Result};

/// The environment variable with another limit: `off`, or the number of bytes that one request may have.
const NAMED: &str = "MEGANEURA_HOST_MEMORY";

/// The bytes after which the memory is looked at again. Looking takes as long as writing a few megabytes. As many stay
/// free, for requests that nobody looks at.
const LARGE: u64 = 64 << 20;

/// The kind of limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Off,
    Bytes(u64),
    /// The memory that is available.
    Available,
}

impl Limit {
    fn parse(text: Option<&str>) -> Result<Self> {
        match text.map(str::trim) {
            None | Some("") => Ok(Self::Available),
            Some("off") => Ok(Self::Off),
            Some(number) => match number.parse() {
                Ok(bytes) => Ok(Self::Bytes(bytes)),
                Err(_) => bail!(Argument, "{NAMED}={number} is neither `off` nor a number of bytes"),
            },
        }
    }

    fn get() -> Result<Self> {
        static LIMIT: OnceLock<Result<Limit, String>> = OnceLock::new();
        let parse = || Self::parse(std::env::var(NAMED).ok().as_deref()).map_err(|error| error.message().to_owned());
        LIMIT.get_or_init(parse).clone().map_err(|message| Error::new(ErrorKind::Argument, message))
    }

    /// Fails if a request is too large. `since` counts the bytes since the last look; `look` tells the available bytes,
    /// if the system does.
    fn expect(self, bytes: u64, since: &AtomicU64, look: impl FnOnce() -> Option<u64>) -> Result<()> {
        match self {
            Self::Off => {}
            Self::Bytes(most) if bytes > most => {
                bail!(OutOfMemory, "no room for {bytes} bytes of host memory: {NAMED} allows {most} at a time");
            }
            Self::Bytes(_) => {}
            Self::Available => {
                if since.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) < LARGE {
                    return Ok(());
                }
                since.store(0, Ordering::Relaxed);
                if let Some(available) = look().filter(|available| bytes.saturating_add(LARGE) > *available) {
                    bail!(
                        OutOfMemory,
                        "no room for {bytes} bytes of host memory: {available} are available, and the system would end \
                         the process; {NAMED}=off lets it try"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Fails if there is no room for a request.
pub(super) fn expect_room(bytes: usize) -> Result<()> {
    static SINCE: AtomicU64 = AtomicU64::new(0);

    Limit::get()?.expect(bytes as u64, &SINCE, available)
}

/// The bytes that this process can still allocate, if the system tells.
#[cfg(not(target_os = "linux"))]
fn available() -> Option<u64> {
    None
}

/// The bytes that this process can still allocate, if the system tells.
#[cfg(target_os = "linux")]
fn available() -> Option<u64> {
    linux::available(std::path::Path::new("/"))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::path::Path;

    /// The number after a name, in a file of such lines.
    fn field(text: &str, name: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([':', ' ']))?;
        line.split_whitespace().next()?.parse().ok()
    }

    fn number(path: &Path) -> Option<u64> {
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// The smallest of what the system and each control group have left. `root` is `/`, but for tests.
    pub(super) fn available(root: &Path) -> Option<u64> {
        let system = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let kilobytes = |name| field(&system, name).unwrap_or(0).saturating_mul(1024);
        let swap = kilobytes("SwapFree");
        let free = field(&system, "MemAvailable")?.saturating_mul(1024).saturating_add(swap);
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let in_groups = groups.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let second = controllers.is_empty();
            if !second && !controllers.split(',').any(|controller| controller == "memory") {
                return None;
            }
            let top = root.join(if second { "sys/fs/cgroup" } else { "sys/fs/cgroup/memory" });
            // A container may see its own group as the top, under the path that the host knows.
            let groups = Path::new(path.trim_start_matches('/')).ancestors();
            groups.filter_map(|group| left(&top.join(group), second, swap)).min()
        });
        Some(in_groups.min().map_or(free, |left| left.min(free)))
    }

    /// What a group may still allocate, if it has a limit. Its cached files can be dropped.
    fn left(group: &Path, second: bool, swap: u64) -> Option<u64> {
        let [limit, used] = match second {
            true => ["memory.max", "memory.current"],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        };
        let (limit, used) = (number(&group.join(limit))?, number(&group.join(used))?);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let names =
            if second { ["active_file", "inactive_file"] } else { ["total_active_file", "total_inactive_file"] };
        let cached: u64 = names.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(cached)).saturating_add(swap))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A folder with these files.
        fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            root
        }

        const MEMINFO: (&str, &str) =
            ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\nSwapFree:  1000 kB\n");

        #[test]
        fn the_tightest_group_decides() {
            let of = |files: &[(&str, &str)]| available(system(files).path());
            assert_eq!(of(&[]), None);
            assert_eq!(of(&[MEMINFO]), Some(5000 * 1024));
            let second = [
                MEMINFO,
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/outer/inner/memory.current", "1\n"),
                ("sys/fs/cgroup/outer/memory.max", "2000000\n"),
                ("sys/fs/cgroup/outer/memory.current", "1500000\n"),
                ("sys/fs/cgroup/outer/memory.stat", "anon 7\nactive_file 100\ninactive_file 300000\nshmem 9\n"),
            ];
            assert_eq!(of(&second), Some(500_000 + 300_100 + 1000 * 1024));
            let first = [
                MEMINFO,
                ("proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/of-the-host\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2000000\n"),
            ];
            assert_eq!(of(&first), Some(1000 * 1024), "more is in use than the limit");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_sets_a_limit() {
        assert_eq!(Limit::parse(None).unwrap(), Limit::Available);
        assert_eq!(Limit::parse(Some("off")).unwrap(), Limit::Off);
        assert_eq!(Limit::parse(Some(" 4096 ")).unwrap(), Limit::Bytes(4096));
        let error = Limit::parse(Some("1 GB")).unwrap_err().to_string();
        assert!(error.contains("MEGANEURA_HOST_MEMORY=1 GB is neither"), "{error}");
        let since = AtomicU64::new(0);
        Limit::Bytes(4096).expect(4096, &since, || None).unwrap();
        let error = Limit::Bytes(4096).expect(4097, &since, || None).unwrap_err();
        assert!(error.kind() == ErrorKind::OutOfMemory && error.to_string().contains("allows 4096"), "{error}");
        Limit::Off.expect(u64::MAX, &since, || Some(0)).unwrap();
        Limit::Available.expect(u64::MAX, &since, || None).unwrap();
    }

    #[test]
    fn small_requests_add_up_to_a_large_one() {
        let (since, mut looks) = (AtomicU64::new(0), 0);
        let mut request = |available| {
            Limit::Available.expect(LARGE / 16, &since, || {
                looks += 1;
                Some(available)
            })
        };
        // One in sixteen is looked at, and the last of them finds no room.
        (0..47).for_each(|_| request(2 * LARGE).unwrap());
        assert_eq!(request(LARGE).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(looks, 3);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn more_than_is_available_is_an_error() {
        // Other programs may free some of theirs meanwhile, but not as much.
        let more = available().expect("Linux tells").saturating_mul(4);
        let error = crate::host::reserve(&mut Vec::<u8>::new(), usize::try_from(more).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let message = error.to_string();
        assert!(message.contains(" are available, and the system would end the process"), "{message}");
        assert!(message.contains("MEGANEURA_HOST_MEMORY=off"), "{message}");
    }
}
