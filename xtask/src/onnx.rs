//! `cargo xtask onnx`: compares `onnxruntime`'s results on exported files with this framework's.
//!
//! Tests export every layer, every operation and the models of the examples, and write inputs and outputs beside the
//! files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Done;
use crate::packages::{self, administrator, has_program};
use crate::process::{self, root};
use crate::test;

/// The packages that the script needs.
const PACKAGES: [&str; 4] = ["numpy", "onnx", "onnxruntime", "safetensors"];

pub fn run() -> Done {
    let folder = root().join("target").join("onnx");
    let (files, python) = (folder.join("files"), folder.join("python"));
    // Files of an earlier run may no longer have a test.
    if files.exists() {
        fs::remove_dir_all(&files).map_err(|error| format!("{}: {error}", files.display()))?;
    }
    let args = ["-p", "meganeura-tests", "--test", "suite", "onnx::"].map(String::from);
    process::run(test::command(&args).env("MEGANEURA_ONNX", &files))?;
    install(&python)?;
    let script = root().join("tests").join("onnx").join("check.py");
    process::run(Command::new("python3").env("PYTHONPATH", &python).arg(script).arg(&files))
}

/// Installs the packages into a folder, unless they are already there.
fn install(python: &Path) -> Done {
    if PACKAGES.iter().all(|package| python.join(package).is_dir()) {
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
    process::run(pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(python).args(PACKAGES))
}
