//! Running other programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Done;

/// The root of the workspace. Every command runs there, wherever `cargo xtask` was called.
pub fn root() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map(Path::to_owned).unwrap_or(xtask)
}

/// The cargo that called xtask, or the one on the path.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The folder of cargo's builds.
pub fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Prints the command and runs it in the root; its output goes straight to the terminal.
pub fn run(command: &mut Command) -> Done {
    let line = display(command);
    eprintln!("\n$ {line}");
    let status = command.current_dir(root()).status().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) }
}

/// The output of a command, or `None` if the command is missing or fails.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as one would type it.
fn display(command: &Command) -> String {
    let envs = command.get_envs().filter_map(|(key, value)| {
        let (key, value) = (key.to_string_lossy(), value?.to_string_lossy());
        Some(if value.contains(' ') { format!("{key}=\"{value}\"") } else { format!("{key}={value}") })
    });
    // Cargo is called by its full path, which is less readable than its name.
    let program = Path::new(command.get_program()).file_stem().unwrap_or(command.get_program());
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    envs.chain([program.to_string_lossy().into_owned()]).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_as_typed() {
        let mut command = Command::new("/opt/rust/bin/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").env("CI", "true");
        assert_eq!(display(&command), "CI=true RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }

    #[test]
    fn a_missing_program_has_no_output() {
        assert_eq!(output("there-is-no-such-program", &[]), None);
    }
}
