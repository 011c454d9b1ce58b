//! `cargo xtask deny`: licences, sources, duplicate versions and known faults in the dependency tree.

use std::process::Command;

use crate::Done;
use crate::process::{self, cargo, root};

/// The release to install if there is none.
const VERSION: &str = "0.20.2";

/// Checks the tree by `deny.toml`. If the database of advisories cannot be fetched, it skips them and says so.
pub fn run() -> Done {
    let deny = installed()?;
    let check = |what: &[&str]| process::run(deny().args(["--workspace", "check"]).args(what));
    check(&["licenses", "bans", "sources"])?;
    let fetched = deny().args(["--log-level", "off", "fetch", "db"]).current_dir(root()).status();
    if fetched.is_ok_and(|status| status.success()) {
        return check(&["--disable-fetch", "advisories"]);
    }
    eprintln!("xtask: the database of advisories cannot be fetched, so known faults were not checked");
    Ok(())
}

/// The command of cargo-deny: the one on the path, or one that is built into the target directory.
fn installed() -> Result<impl Fn() -> Command, String> {
    let on_path = process::output("cargo-deny", &["--version"]).is_some();
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
