//! `cargo xtask sanitize`: the native kernels under AddressSanitizer, which needs a nightly toolchain.

use crate::Done;
use crate::process;

/// The tests that reach unsafe code: the kernels' own, and every operation's on the CPU.
const TESTS: [[&str; 4]; 2] =
    [["-p", "meganeura-unit", "--test=meganeura", "kernel"], ["-p", "meganeura-tests", "--test=suite", "ops::"]];

/// Builds into a separate folder, without the GPU executor, whose drivers the sanitizer does not support.
pub fn run() -> Done {
    let version = process::output("rustc", &["-vV"]).unwrap_or_default();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc does not name its host")?;
    TESTS.iter().try_for_each(|tests| {
        let mut cargo = std::process::Command::new("cargo");
        cargo.args(["+nightly", "test", "--no-default-features", "--target", host, "--target-dir", "target/sanitize"]);
        // The threads of rayon's pool never end, which is not a leak.
        cargo.args(tests).env("RUSTFLAGS", "-Zsanitizer=address").env("ASAN_OPTIONS", "detect_leaks=0");
        // A cargo that rustup started passes its toolchain on to child processes.
        for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
            cargo.env_remove(name);
        }
        process::run(&mut cargo)
    })
}
