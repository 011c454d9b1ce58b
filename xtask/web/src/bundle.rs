//! From Rust and `www/` to a folder that any web server can serve.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use wasm_bindgen_cli_support::Bindgen;

use crate::{Done, root};

const TARGET: &str = "wasm32-unknown-unknown";

/// The page's build profile in `Cargo.toml`.
const PROFILE: &str = "web";

/// The largest compressed size of the WebAssembly.
const MOST: usize = 3 << 20;

/// Builds the page into `target/page`, and prints its size.
pub fn build() -> Done<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(["build", "--package", "meganeura-web", "--lib", "--target", TARGET, "--profile", PROFILE]);
    eprintln!("$ cargo build --package meganeura-web --lib --target {TARGET} --profile {PROFILE}");
    let status = cargo.current_dir(root()).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("the page's WebAssembly was not built ({status})"));
    }
    let folder = root().join("target").join("page");
    make(&target.join(TARGET).join(PROFILE).join("meganeura_web.wasm"), &folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?;

    let wasm = folder.join("pkg").join("meganeura_web_bg.wasm");
    shrink(&wasm);
    let bytes = fs::read(&wasm).map_err(|error| format!("{}: {error}", wasm.display()))?;
    let packed = gzip(&bytes).map_err(|error| error.to_string())?;
    let kib = |bytes: usize| bytes.div_ceil(1024);
    eprintln!("{}: {} KiB of WebAssembly, {} KiB compressed", folder.display(), kib(bytes.len()), kib(packed));
    if packed > MOST {
        return Err(format!("the WebAssembly has {} KiB compressed, and the limit is {}", kib(packed), kib(MOST)));
    }
    Ok(folder)
}

/// The bindings of the WebAssembly, and the files of `www/` beside them.
fn make(wasm: &Path, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(root().join("examples/web/www"))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let mut bindgen = Bindgen::new();
    bindgen
        .input_path(wasm)
        .web(true)?
        .omit_default_module_path(false)
        .typescript(false)
        .remove_name_section(true)
        .generate(folder.join("pkg"))?;
    Ok(())
}

/// Runs binaryen's `wasm-opt`, if it is installed: without it the file is somewhat larger, but works as well.
fn shrink(wasm: &Path) {
    let smaller = wasm.with_extension("opt");
    let done = Command::new("wasm-opt").args(["-O3", "--all-features"]).arg(wasm).arg("-o").arg(&smaller).output();
    match done {
        Ok(output) if output.status.success() => {
            if let Err(error) = fs::rename(&smaller, wasm) {
                eprintln!("{}: {error}", smaller.display());
            }
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("wasm-opt failed, and its input is used: {}", said.lines().next().unwrap_or_default());
        }
        Err(_) => {}
    }
}

fn gzip(bytes: &[u8]) -> io::Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.len())
}
