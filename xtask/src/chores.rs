//! CI's checks besides the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::process::{self, cargo};
use crate::{Done, deny, mpi, msrv, test, tidy};

/// The checks, cheapest first.
pub const LINTS: [fn() -> Done; 7] = [fmt, tidy::run, clippy, doc, msrv::run, package, deny::run];

/// Features of the framework that are checked separately; the tests enable `testing` and `gpu`.
const ALONE: [&str; 4] = ["", "gzip", "images", "onnx"];

/// The published crates, in the order of publishing.
const PUBLISHED: [&str; 3] = ["meganeura-shaders", "meganeura-derive", "meganeura"];

/// Runs all checks, also after a failure, so that one round shows everything; then reports the failed ones.
pub fn run(chores: &[fn() -> Done]) -> Done {
    let failures: Vec<_> = chores.iter().filter_map(|chore| chore().err()).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\nxtask: ")) }
}

fn fmt() -> Done {
    process::run(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Done {
    if test::is_ci() {
        mpi::ensure();
    }
    let (features, alone) = if mpi::is_there() { (mpi::FEATURES, Some("mpi")) } else { ("", None) };
    let all = ["clippy", "--workspace", "--all-targets", "--features", features];
    process::run(cargo().args(all).args(["--", "-D", "warnings"]))?;
    // The workspace enables every feature; the framework must also build without any, and with each of them alone.
    ALONE.into_iter().chain(alone).try_for_each(|features| {
        let only = ["clippy", "-p", "meganeura", "--no-default-features", "--features", features];
        process::run(cargo().args(only).args(["--", "-D", "warnings"]))
    })
}

fn doc() -> Done {
    process::run(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Builds each published crate from its packaged files, which may differ from the repository's.
fn package() -> Done {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    if let Some(home) = home {
        forget_unpacked(&home.join("registry").join("src"));
    }
    process::run(package_command(&mut cargo()))
}

/// Cargo unpacks the crates that it verifies into a folder named only after the target directory's path. It keeps the
/// contents from the last time: an old version of this project with the same version number.
fn forget_unpacked(sources: &Path) {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Local registries have no host before the dash.
    for registry in folders(sources).filter(|path| name(path).starts_with('-')) {
        let own = |path: &PathBuf| PUBLISHED.iter().any(|crate_| name(path).starts_with(&format!("{crate_}-")));
        // A failed removal is not an error yet; if it matters, packaging fails.
        folders(&registry).filter(own).for_each(|path| drop(fs::remove_dir_all(path)));
    }
}

fn package_command(cargo: &mut Command) -> &mut Command {
    // The check is about the package's contents, not about uncommitted changes.
    cargo.args(["package", "--allow-dirty"]).args(PUBLISHED.iter().flat_map(|name| ["--package", name]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_does_not_hide_the_next() {
        let chores: [fn() -> Done; 3] = [|| Err("first".into()), || Ok(()), || Err("second".into())];
        assert_eq!(run(&chores), Err("first\nxtask: second".into()));
        assert_eq!(run(&chores[1..2]), Ok(()));
    }

    #[test]
    fn only_own_crates_of_local_registries_are_forgotten() {
        let sources = env::temp_dir().join(format!("meganeura-xtask-{}", std::process::id()));
        for folder in ["-12ab/meganeura-shaders-0.1.0", "-12ab/serde-1.0.0", "index.example-34cd/meganeura-0.1.0"] {
            fs::create_dir_all(sources.join(folder).join("src")).unwrap();
        }
        forget_unpacked(&sources);
        let left = |folder: &str| sources.join(folder).exists();
        assert!(!left("-12ab/meganeura-shaders-0.1.0"));
        assert!(left("-12ab/serde-1.0.0") && left("index.example-34cd/meganeura-0.1.0"));
        fs::remove_dir_all(sources).unwrap();
    }

    #[test]
    fn every_published_crate_is_packaged() {
        let root = process::root();
        for entry in fs::read_dir(&root).unwrap() {
            let Ok(manifest) = fs::read_to_string(entry.unwrap().path().join("Cargo.toml")) else { continue };
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            let published = !manifest.contains("\npublish = false");
            assert_eq!(PUBLISHED.contains(&name), published, "{name}: publish in its Cargo.toml, or PUBLISHED here");
        }
    }
}
