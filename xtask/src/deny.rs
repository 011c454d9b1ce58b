//! `cargo xtask deny`: licences, sources, duplicate versions and known faults in the dependency tree.
//!
//! cargo-deny takes minutes to build, and its answer changes only with the files that it reads, or when somebody finds
//! a fault. So CI compares these files with those of the last check.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::Done;
use crate::process::{self, cargo, output, root};

/// The release to install if there is none.
const VERSION: &str = "0.20.2";

/// What decides the answer.
const READ: [&str; 2] = ["Cargo.lock", "deny.toml"];

/// Git's checksums of these files when they were last checked.
const CHECKED: &str = "deny.checked";

/// Checks the tree by `deny.toml`, and notes that. If the database of advisories cannot be fetched, it skips them and
/// says so.
pub fn run() -> Done {
    let deny = installed()?;
    let check = |what: &[&str]| process::run(deny().args(["--workspace", "check"]).args(what));
    check(&["licenses", "bans", "sources"])?;
    let fetched = deny().args(["--log-level", "off", "fetch", "db"]).current_dir(root()).status();
    if fetched.is_ok_and(|status| status.success()) {
        check(&["--disable-fetch", "advisories"])?;
    } else {
        eprintln!("xtask: the database of advisories cannot be fetched, so known faults were not checked");
    }
    fs::write(checked(), sums()?).map_err(|error| format!("{CHECKED}: {error}"))
}

/// Fails if the dependencies or the rules have changed since the last check.
pub fn is_checked() -> Done {
    match fs::read_to_string(checked()) {
        Ok(last) if last == sums()? => Ok(()),
        _ => Err(format!(
            "{} changed since `cargo xtask deny` last passed: run it, and commit {CHECKED}",
            READ.join(" or ")
        )),
    }
}

fn checked() -> PathBuf {
    root().join(CHECKED)
}

fn sums() -> Result<String, String> {
    output("git", &[&["hash-object"][..], &READ].concat()).ok_or_else(|| "git cannot compute checksums".to_owned())
}

/// The command of cargo-deny: the one on the path, or one that is built into the target directory.
fn installed() -> Result<impl Fn() -> Command, String> {
    let on_path = output("cargo-deny", &["--version"]).is_some();
    let tools = root().join("target").join("tools");
    let own = tools.join("bin").join("cargo-deny");
    if !on_path && !own.is_file() {
        let mut install = cargo();
        // It takes minutes to optimise, and a second to run.
        install.args(["install", "cargo-deny", "--debug", "--locked", "--version", VERSION, "--root"]).arg(&tools);
        process::run(&mut install)?;
    }
    Ok(move || Command::new(if on_path { "cargo-deny".as_ref() } else { own.as_os_str() }))
}
