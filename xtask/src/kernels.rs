//! `cargo xtask kernels`: compiles every kernel with the compilers of platforms where no tests run.
//!
//! Tests translate the kernels and write them to a folder. Tint, Chrome's WGSL compiler, comes with Dawn's npm package.
//! DXC, DirectX's HLSL compiler, comes with a Python package. Metal's compiler exists only on macOS, so nothing
//! compiles the MSL here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::Done;
use crate::packages::{self, administrator, has_program};
use crate::process::{self, root};
use crate::test;

/// The tests that translate kernels: a target, and a part of their names.
pub const TRANSLATING: [[&str; 2]; 2] = [["variants", "every_variant_translates"], ["suite", "planned::"]];

/// Programs, and their Debian packages.
const PROGRAMS: [(&str, &str); 4] =
    [("node", "nodejs"), ("npm", "npm"), ("python3", "python3"), ("pip3", "python3-pip")];

/// A Python package that contains DXC for Linux. Microsoft publishes DXC outside of any registry.
const DXC: &str = "compushady==0.17.5";

pub fn run() -> Done {
    let folder = root().join("target").join("kernels");
    let wgsl = folder.join("translated");
    write(&wgsl)?;
    install()?;
    // Each takes minutes on one core.
    thread::scope(|scope| {
        let dxc = scope.spawn(|| match library() {
            Some(name) => dxc(&folder, &wgsl, name),
            None => {
                eprintln!("xtask: DXC for Linux exists only for x86-64 and 64-bit ARM: it did not compile the kernels");
                Ok(())
            }
        });
        let tint = tint(&folder, &wgsl);
        tint.and(dxc.join().unwrap_or_else(|_| Err("DXC's thread panicked".to_owned())))
    })
}

/// Runs the tests that translate all kernels.
fn write(folder: &Path) -> Done {
    // Files of an earlier run may no longer be kernels.
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    for [target, name] in TRANSLATING {
        let args = ["--test", target, name].map(String::from);
        process::run(test::command(&args).env("MEGANEURA_KERNELS", folder))?;
    }
    Ok(())
}

/// Installs the programs that run the compilers, if possible.
fn install() -> Done {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !has_program(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    match administrator(&release) {
        Some(administrator) => packages::install(administrator, &packages),
        None => Err(format!("{} must be there, from {}", missing[0].0, packages.join(", "))),
    }
}

fn tint(folder: &Path, wgsl: &Path) -> Done {
    let own = folder.join("tint");
    copy("tint.mjs", &own)?;
    copy("package.json", &own)?;
    // A lock file would name the registry.
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--prefix"]).arg(&own);
    process::run(&mut npm)?;
    process::run(Command::new("node").arg(own.join("tint.mjs")).arg(wgsl))
}

/// The DXC library for this machine.
fn library() -> Option<&'static str> {
    match (cfg!(target_os = "linux"), std::env::consts::ARCH) {
        (true, "x86_64") => Some("libdxcompiler_x86_64.so.3.7"),
        (true, "aarch64") => Some("libdxcompiler_aarch64.so.3.7"),
        _ => None,
    }
}

fn dxc(folder: &Path, hlsl: &Path, name: &str) -> Done {
    let own = folder.join("dxc");
    let library = own.join(name);
    if !library.is_file() {
        fs::create_dir_all(&own).map_err(|error| format!("{}: {error}", own.display()))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--no-deps", "--no-binary=:all:", "--dest"]).arg(&own).arg(DXC);
        process::run(&mut pip)?;
        let packed = own.join(format!("{}.tar.gz", DXC.replace("==", "-")));
        let inside = format!("{}/compushady/backends/{name}", DXC.replace("==", "-"));
        process::run(
            Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&own).args(["--strip-components=3", &inside]),
        )?;
    }
    let script = root().join("tests").join("kernels").join("dxc.py");
    process::run(Command::new("python3").arg(script).arg(library).arg(hlsl))
}

/// Copies a file of `tests/kernels`.
fn copy(name: &str, to: &Path) -> Done {
    let from: PathBuf = root().join("tests").join("kernels").join(name);
    fs::create_dir_all(to)
        .and_then(|()| fs::copy(&from, to.join(name)))
        .map(drop)
        .map_err(|error| format!("{name}: {error}"))
}
