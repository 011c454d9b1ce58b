//! `cargo xtask web`: installs the page's requirements, then runs the program in `xtask/web`.

use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::packages::{administrator, has_program, install, is_debian};
use crate::process::{self, cargo, output};
use crate::{Done, mpi, test, vulkan};

const TARGET: &str = "wasm32-unknown-unknown";

/// Debian's packages of the browser and its WebDriver.
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

#[derive(Args, Debug, Default)]
pub struct Options {
    /// `build`, `test`, or nothing to serve the page; `help` has details
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// The package that builds, serves and tests the page.
pub const PACKAGE: &str = "xtask-web";

pub fn run(options: &Options) -> Done {
    ensure_target()?;
    if options.args.first().is_some_and(|word| word == "test") {
        ensure_browser()?;
        // The page is compared with a native device of the same kind.
        vulkan::ensure(true);
    }
    let mut program = if test::is_ci() {
        mpi::ensure();
        test::program(PACKAGE)?
    } else {
        let mut cargo = cargo();
        cargo.args(["run", "--quiet", "--package", PACKAGE, "--"]);
        cargo
    };
    process::run(program.args(&options.args).env("NODEVICE_SELECT", "1"))
}

/// The tests of the page, as CI runs them.
pub fn test() -> Done {
    run(&Options { args: vec!["test".to_owned()] })
}

/// Rust's standard library for WebAssembly.
fn ensure_target() -> Done {
    let libraries = output("rustc", &["--print", "target-libdir", "--target", TARGET]).unwrap_or_default();
    if Path::new(libraries.trim()).is_dir() {
        return Ok(());
    }
    eprintln!("Rust's standard library for {TARGET} is not installed, and the page needs it.");
    process::run(Command::new("rustup").args(["target", "add", TARGET]))
        .map_err(|error| format!("{error}; install Rust's standard library for {TARGET}"))
}

fn ensure_browser() -> Done {
    let is_there = || has_program("chromium") && has_program("chromedriver");
    if is_there() {
        return Ok(());
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    // On other systems, the package of this name only redirects to another package format.
    if let Some(administrator) = administrator(&release).filter(|_| is_debian(&release)) {
        install(administrator, &PACKAGES)?;
    }
    if is_there() { Ok(()) } else { Err(format!("the test needs {}", PACKAGES.join(" and "))) }
}
