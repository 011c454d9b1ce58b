//! The oldest supported Rust release: `rust-version` in the workspace's `Cargo.toml`.

use std::fs;
use std::process::Command;

use crate::Done;
use crate::process::{self, output, root};

const CHECK: [&str; 3] = ["check", "--workspace", "--all-targets"];

/// Checks everything with the oldest supported release. Where that is the one in use, clippy and the tests compile more
/// than this would.
pub fn run() -> Done {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).map_err(|error| format!("Cargo.toml: {error}"))?;
    let oldest = rust_version(&manifest).ok_or("Cargo.toml has no rust-version")?;

    let rustc = output("rustc", &["--version"]).unwrap_or_default();
    if let Some(running) = rustc.split_whitespace().nth(1).filter(|running| is_release(running, oldest)) {
        eprintln!("\nrustc is {running}, the oldest supported release: the ordinary build is the check");
        return Ok(());
    }
    let installed = output("rustup", &["toolchain", "list"]).unwrap_or_default();
    if !installed.split_whitespace().any(|toolchain| is_release(toolchain, oldest)) {
        install(oldest)?;
    }
    let installed = output("rustup", &["toolchain", "list"]).unwrap_or_default();
    let toolchain = installed.split_whitespace().find(|toolchain| is_release(toolchain, oldest)).unwrap_or(oldest);
    process::run(Command::new("rustup").args(["run", toolchain, "cargo"]).args(CHECK))
}

fn install(oldest: &str) -> Done {
    eprintln!("\nRust {oldest}, the oldest supported release, is not installed: installing it");
    let mut rustup = Command::new("rustup");
    process::run(rustup.args(["toolchain", "install", oldest, "--profile", "minimal"])).map_err(|error| {
        format!("{error}; to check with Rust {oldest}, install it: rustup toolchain install {oldest} --profile minimal")
    })
}

/// The value of `rust-version = "…"`.
fn rust_version(manifest: &str) -> Option<&str> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("rust-version"))?;
    value.split('"').nth(1)
}

/// `true` if `version` (`1.95.0`, `1.95-x86_64-unknown-linux-gnu`) is a release of `series` (`1.95`), excluding beta
/// versions.
fn is_release(version: &str, series: &str) -> bool {
    let Some(rest) = version.strip_prefix(series) else { return false };
    !rest.contains("beta") && !rest.contains("nightly") && (rest.is_empty() || rest.starts_with(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_version_is_read() {
        assert_eq!(rust_version("[workspace.package]\nrust-version = \"1.95\"\n"), Some("1.95"));
        assert_eq!(rust_version("[package]\nrust-version.workspace = true\n"), None);
    }

    #[test]
    fn releases_are_distinguished() {
        for yes in ["1.95.0", "1.95", "1.95.1-x86_64-unknown-linux-gnu", "1.95-aarch64-apple-darwin"] {
            assert!(is_release(yes, "1.95"), "{yes}");
        }
        for no in ["1.950.0", "1.9", "1.96.0", "11.95", "1.95.0-beta.2", "1.95.0-nightly", "stable-x86_64"] {
            assert!(!is_release(no, "1.95"), "{no}");
        }
    }
}
