//! The crates that are published: the files in each package, and that they build.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::Done;
use crate::process::{self, cargo, output, root};

/// The crates that are published, as folder and name, in the order that publishing needs.
pub const PUBLISHED: [(&str, &str); 5] = [
    ("shaders", "meganeura-shaders"),
    ("meganeura-derive", "meganeura-derive"),
    (CORE, CORE),
    ("meganeura", "meganeura"),
    ("meganeura-models", "meganeura-models"),
];

/// The crate below the framework's, which re-exports what is meant for users.
pub const CORE: &str = "meganeura-core";

/// Files that every package must have. The licences are links in the repository, and files in the package.
const FILES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Checks that each published crate has what its registry page shows, and builds it from the packaged files, which may
/// differ from the repository's.
pub fn check() -> Done {
    for (folder, name) in PUBLISHED {
        let packaged = output("cargo", &["package", "--list", "--allow-dirty", "--package", name]).unwrap_or_default();
        let read = |file: &str| {
            let path = root().join(folder).join(file);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let tracked = output("git", &["-C", folder, "ls-files", "src"]).unwrap_or_default();
        let mut wrong = missing(name, &packaged, &tracked, &read("Cargo.toml")?);
        wrong.extend(links_nowhere(&read("README.md")?));
        if !wrong.is_empty() {
            return Err(format!("{name} cannot be published: {}", wrong.join("; ")));
        }
    }
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    if let Some(home) = home {
        forget_unpacked(&home.join("registry").join("src"));
    }
    // Uncommitted files are fine: only the package's contents matter.
    let packages = PUBLISHED.iter().flat_map(|(_, name)| ["--package", name]);
    // Nobody debugs what this builds. All sources are packaged, as checked above; without the default features, nothing
    // of wgpu is built once more.
    let package = ["package", "--allow-dirty", "--no-default-features"];
    process::run(cargo().args(package).args(packages).env("CARGO_PROFILE_DEV_DEBUG", "0"))
}

/// Removes old unpacked crates. Cargo unpacks the crates that it verifies into a folder named only after the target
/// directory's path, and reuses what is there: older sources of this project under the same version number.
fn forget_unpacked(sources: &Path) {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Folders of local registries have no host name before the dash.
    for registry in folders(sources).filter(|path| name(path).starts_with('-')) {
        let own = |path: &PathBuf| PUBLISHED.iter().any(|(_, own)| name(path).starts_with(&format!("{own}-")));
        // A folder that cannot be removed may still be up to date. If it is not, packaging fails.
        folders(&registry).filter(own).for_each(|path| drop(fs::remove_dir_all(path)));
    }
}

/// The files missing from cargo's list of a package, its sources among them, and the lines missing from its manifest.
fn missing(name: &str, packaged: &str, sources: &str, manifest: &str) -> Vec<String> {
    let packaged: BTreeSet<_> = packaged.lines().collect();
    let files = FILES.into_iter().chain(sources.lines()).filter(|file| !packaged.contains(file));
    let files = files.map(|file| format!("no {file} in the package"));
    let documentation = format!("documentation = \"https://docs.rs/{name}\"");
    let lines = ["description = ", "keywords = ", "categories", "license", "readme = \"README.md\"", &documentation];
    let lines = lines.into_iter().filter(|&start| !manifest.lines().any(|line| line.starts_with(start)));
    files.chain(lines.map(|line| format!("no `{}` in Cargo.toml", line.trim_end_matches(" = ")))).collect()
}

/// Links and pictures of a README that break on a registry's page: those to files of the repository.
fn links_nowhere(readme: &str) -> Vec<String> {
    let targets = readme.match_indices("](").map(|(at, open)| &readme[at + open.len()..]);
    let targets = targets.filter_map(|rest| rest.split([')', ' ']).next());
    let nowhere = targets.filter(|target| !target.starts_with("https://") && !target.starts_with('#'));
    nowhere.map(|target| format!("the README links to `{target}`, which is not in the registry")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_published_crate_is_listed() {
        for entry in fs::read_dir(root()).unwrap() {
            let folder = entry.unwrap().path();
            let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
            let listed = PUBLISHED.contains(&(folder.file_name().unwrap().to_str().unwrap(), name));
            let published = !manifest.contains("\npublish = false");
            assert_eq!(listed, published, "{name}: publish in its Cargo.toml, or PUBLISHED here");
        }
    }

    #[test]
    fn missing_files_and_metadata_are_named() {
        let files = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs\n";
        let manifest = "description = \"\"\nkeywords = []\nreadme = \"README.md\"\nlicense.workspace = true\n\
                        categories.workspace = true\ndocumentation = \"https://docs.rs/a\"\n";
        let sources = "src/lib.rs\n";
        assert!(missing("a", files, sources, manifest).is_empty());
        assert_eq!(missing("a", &files.replace("LICENSE-MIT", "src/LICENSE-MIT"), sources, manifest).len(), 1);
        assert_eq!(missing("a", files, "src/lib.rs\nsrc/more.rs\n", manifest), ["no src/more.rs in the package"]);
        assert_eq!(
            missing("b", files, sources, manifest),
            ["no `documentation = \"https://docs.rs/b\"` in Cargo.toml"]
        );
        assert_eq!(missing("a", "", sources, "").len(), 10);
    }

    #[test]
    fn links_to_files_of_the_repository_are_found() {
        assert!(links_nowhere("[a](https://docs.rs/a) ![b](https://b.org/b.png \"b\") [c](#more)").is_empty());
        assert_eq!(links_nowhere("![a](pictures/a.png) [b](../LICENSE)").len(), 2);
    }
}
