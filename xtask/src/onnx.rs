//! `cargo xtask onnx`: compares `onnxruntime`'s results on exported files with this framework's.
//!
//! Tests export every layer, every operation and the models of the examples, and write inputs and outputs beside the
//! files. `cargo xtask onnx-suite`: runs ONNX's own tests of backends on the importer, see `tests/onnx/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Done;
use crate::packages::{self, administrator, has_program};
use crate::process::{self, cargo, root};
use crate::test;

/// The packages that the scripts need, in any version.
const PACKAGES: [&str; 3] = ["numpy", "onnxruntime", "safetensors"];

/// The version of the package `onnx`, with the suite whose results are listed.
const ONNX: &str = "1.23.2";

/// The scripts that write cases.
const WRITERS: [&str; 2] = ["suite.py", "onnxruntime_cases.py"];

/// Passed on to the program.
#[derive(Args, Debug)]
pub struct Suite {
    /// The device: `cpu`, `gpu`, or a part of an adapter's name. Other devices run what the CPU accepts
    #[arg(long, default_value = "cpu")]
    device: String,

    /// Run only cases with this in their names, and print what each does
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// Rewrite the list of refused cases, `tests/onnx/expected.txt`
    #[arg(long)]
    bless: bool,
}

pub fn run() -> Done {
    let (files, python) = (folder("files"), folder("python"));
    // Files of an earlier run may no longer have a test.
    if files.exists() {
        fs::remove_dir_all(&files).map_err(|error| format!("{}: {error}", files.display()))?;
    }
    let args = ["-p", "meganeura-tests", "--test", "suite", "onnx::"].map(String::from);
    process::run(test::command(&args).env("MEGANEURA_ONNX", &files))?;
    install(&python)?;
    script("check.py", &files)
}

pub fn suite(options: &Suite) -> Done {
    let text = |name: &&str| fs::read_to_string(scripts().join(name)).unwrap_or_default();
    let (cases, stamp) = (folder("suite"), folder("suite.stamp"));
    let state = format!("{ONNX}\n{}", WRITERS.iter().map(text).collect::<String>());
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&state) {
        if cases.exists() {
            fs::remove_dir_all(&cases).map_err(|error| format!("{}: {error}", cases.display()))?;
        }
        install(&folder("python"))?;
        WRITERS.iter().try_for_each(|writer| script(writer, &cases))?;
        fs::write(&stamp, state).map_err(|error| format!("{}: {error}", stamp.display()))?;
    }
    // In the profile of the tests, so that the framework is compiled once.
    let mut cargo = cargo();
    cargo.args(["run", "--profile", "test", "--package", "meganeura-onnx-suite", "--"]).arg(&cases);
    cargo.args(["--device", &options.device]);
    if let Some(only) = &options.only {
        cargo.args(["--only", only]);
    }
    if options.bless {
        cargo.arg("--bless");
    }
    process::run(&mut cargo)
}

/// A place for files of these chores.
fn folder(name: &str) -> PathBuf {
    root().join("target").join("onnx").join(name)
}

fn scripts() -> PathBuf {
    root().join("tests").join("onnx")
}

/// Runs a script of `tests/onnx` on a folder.
fn script(name: &str, folder_of_files: &Path) -> Done {
    let mut python = Command::new("python3");
    process::run(python.env("PYTHONPATH", folder("python")).arg(scripts().join(name)).arg(folder_of_files))
}

/// Installs the packages into a folder, unless they are already there.
fn install(python: &Path) -> Done {
    let has_suite = python.join(format!("onnx-{ONNX}.dist-info")).is_dir();
    if has_suite && PACKAGES.iter().all(|package| python.join(package).is_dir()) {
        return Ok(());
    }
    if !has_program("pip3") {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        match administrator(&release) {
            Some(administrator) => packages::install(administrator, &["python3", "python3-pip"])?,
            None => return Err("python3 and pip3 must be there".to_owned()),
        }
    }
    let mut pip = Command::new("python3");
    process::run(
        pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"])
            .arg(python)
            .args(PACKAGES)
            .arg(format!("onnx=={ONNX}")),
    )
}
