//! A Vulkan driver for the GPU tests.
//!
//! On Linux a driver is a loader, `libvulkan.so.1`, and a manifest that names the driver's library. Without a GPU,
//! Mesa's lavapipe runs every kernel on the CPU. macOS has Metal and Windows has DX12, so nothing is needed there.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::packages::{self, administrator, is_debian};
use crate::process::output;

const PACKAGES: [&str; 2] = ["libvulkan1", "mesa-vulkan-drivers"];

/// Debian's package of the validation layer, which detects misuse of Vulkan.
const LAYER: &str = "vulkan-validationlayers";

/// Looks for a driver, and with `install`, installs Mesa's if the system has apt. Never fails: without a driver, the
/// tests themselves report the missing adapter.
pub fn ensure(install: bool) {
    if !cfg!(target_os = "linux") || is_present() {
        return;
    }
    eprintln!("There is no Vulkan driver, and the GPU tests need one.");
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let line = install_line(&release);
    let Some(administrator) = administrator(&release).filter(|_| install) else {
        eprintln!("Without one they cannot run. A driver that runs on the CPU comes with: {line}");
        return;
    };
    eprintln!("Installing Mesa's, which runs on the CPU if there is no GPU: {line}");
    if let Err(message) = packages::install(administrator, &PACKAGES) {
        eprintln!("That did not work: {message}\nThe GPU tests cannot run.");
    }
}

/// Installs Vulkan's validation layer if possible. Without it, the tests that need it show as ignored.
pub fn ensure_layer() {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_there = ["/usr/share", "/usr/local/share", "/etc"].iter().any(|root| {
        let layers = children(&Path::new(root).join("vulkan/explicit_layer.d"));
        layers.iter().any(|file| file.to_string_lossy().contains("khronos_validation"))
    });
    if is_there {
        return;
    }
    if let Some(Err(message)) = administrator(&release).map(|administrator| packages::install(administrator, &[LAYER]))
    {
        eprintln!("Vulkan's validation layer could not be installed: {message}");
    }
}

/// SwiftShader's manifest in Debian's package of Chromium, which runs WebGPU on it if there is no GPU.
const SWIFTSHADER: (&str, &str) = ("/usr/lib/chromium/vk_swiftshader_icd.json", "chromium");

/// The manifest of SwiftShader, a second driver that computes on the CPU. Installs it if it is missing, if possible.
pub fn swiftshader() -> Option<&'static str> {
    let (manifest, package) = SWIFTSHADER;
    if !is_manifest(manifest) {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if let Some(Err(message)) =
            administrator(&release).map(|administrator| packages::install(administrator, &[package]))
        {
            eprintln!("SwiftShader could not be installed: {message}");
        }
    }
    is_manifest(manifest).then_some(manifest)
}

fn is_present() -> bool {
    has_loader() && has_manifest()
}

fn has_loader() -> bool {
    const NAME: &str = "libvulkan.so.1";
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = env::split_paths(&path).collect();
    dirs.extend(["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64"].map(PathBuf::from));
    // Debian has a library directory for each architecture.
    dirs.extend(children(Path::new("/usr/lib")));
    dirs.iter().any(|dir| dir.join(NAME).exists())
        || ["ldconfig", "/sbin/ldconfig"].iter().any(|l| output(l, &["-p"]).is_some_and(|list| list.contains(NAME)))
}

fn has_manifest() -> bool {
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        // If one of these is set, the loader looks nowhere else.
        if let Some(files) = env::var_os(variable).filter(|files| !files.is_empty()) {
            return env::split_paths(&files).any(|file| is_manifest(&file) || children(&file).iter().any(is_manifest));
        }
    }
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    let shared = env::var_os("XDG_DATA_DIRS").filter(|dirs| !dirs.is_empty());
    let shared = shared.unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    let roots = env::split_paths(&shared).chain(["/etc".into(), "/usr/share".into()]).chain(home);
    roots.flat_map(|root| children(&root.join("vulkan/icd.d"))).any(|file| is_manifest(&file))
}

fn is_manifest(file: impl AsRef<Path>) -> bool {
    file.as_ref().extension().is_some_and(|extension| extension == "json") && file.as_ref().is_file()
}

fn children(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The command that installs a driver.
fn install_line(release: &str) -> String {
    let ids: Vec<_> =
        release.lines().filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE="))).collect();
    let is = |name: &str| ids.iter().any(|id| id.contains(name));
    if is_debian(release) {
        format!("apt-get install {}", PACKAGES.join(" "))
    } else if is("fedora") || is("rhel") {
        "dnf install vulkan-loader mesa-vulkan-drivers".into()
    } else if is("arch") {
        "pacman -S vulkan-icd-loader vulkan-swrast".into()
    } else if is("alpine") {
        "apk add vulkan-loader mesa-vulkan-swrast".into()
    } else {
        "your system's packages of the Vulkan loader and of Mesa's Vulkan drivers (lavapipe)".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_commands_fit_the_distribution() {
        assert_eq!(install_line("ID=ubuntu\n"), "apt-get install libvulkan1 mesa-vulkan-drivers");
        assert!(install_line("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n").starts_with("dnf "));
        assert!(install_line("ID=alpine\n").starts_with("apk "));
        assert!(install_line("").contains("lavapipe"));
    }

    #[test]
    fn only_json_files_are_manifests() {
        let manifest = crate::process::root().join("Cargo.toml");
        assert!(manifest.is_file() && !is_manifest(&manifest));
        assert!(!is_manifest("there/is/no/such.json"));
    }
}
