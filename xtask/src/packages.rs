//! System packages that tests need, installed with apt.

use std::env;
use std::process::Command;

use crate::Done;
use crate::process::{self, output};

/// The prefix of apt commands, on systems that have apt.
pub fn administrator(release: &str) -> Option<&'static [&'static str]> {
    superuser().filter(|_| is_debian(release) && has_program("apt-get"))
}

/// `true` if the system finds a program of this name.
pub fn has_program(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}

/// The prefix of commands that change the system: empty for root, `sudo` for others, `None` if neither works.
fn superuser() -> Option<&'static [&'static str]> {
    match output("id", &["-u"])?.trim() {
        "0" => Some(&[]),
        _ => has_program("sudo").then_some(&["sudo"]),
    }
}

/// Refreshes the package lists, which a fresh image lacks, and installs.
pub fn install(administrator: &[&str], packages: &[&str]) -> Done {
    let apt_get = |args: &[&str]| {
        // sudo clears the environment, hence `env`.
        let words = [administrator, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"], args].concat();
        process::run(Command::new(words[0]).args(&words[1..]))
    };
    apt_get(&["update"])?;
    apt_get(&[&["install", "--yes", "--no-install-recommends"][..], packages].concat())
}

/// `true` if `/etc/os-release` names Debian or a descendant.
pub fn is_debian(release: &str) -> bool {
    let values = release.lines().filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")));
    values.flat_map(|value| value.trim_matches('"').split(' ')).any(|id| matches!(id, "debian" | "ubuntu"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_distinguished() {
        assert!(is_debian("PRETTY_NAME=\"Debian GNU/Linux 13\"\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("NAME=\"not debian\"\nID=fedora\n"));
        assert!(!is_debian(""));
    }
}
