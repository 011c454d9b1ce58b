//! `cargo xtask derive-time`: the time that `#[derive(Module)]` adds to a debug build.
//!
//! After the dependencies, it builds a crate of 200 structs with ten fields each, alternately with and without the
//! derive.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Done;
use crate::process::{cargo, root, target};

const STRUCTS: usize = 200;
const ROUNDS: usize = 3;

/// The limit for the derive alone, in seconds.
const LIMIT: f64 = 3.0;

/// The types of fields, and their builders.
const FIELDS: [(&str, &str); 10] = [
    ("Conv2d", "Conv2d::new(8, 8, 3)"),
    ("GroupNorm", "GroupNorm::new(2, 8)"),
    ("Vec<Linear>", "vec![Linear::new(8, 8); 2]"),
    ("[Conv2d; 2]", "[Conv2d::new(8, 8, 1), Conv2d::new(8, 8, 1)]"),
    ("(Conv2d, Relu)", "(Conv2d::new(8, 8, 1), Relu)"),
    ("Box<LayerNorm>", "Box::new(LayerNorm::new([8]))"),
    ("Conv2d", "Conv2d::new(8, 8, 1).bias(false)"),
    ("GroupNorm", "GroupNorm::new(4, 8)"),
    ("Vec<(Linear, Gelu)>", "vec![(Linear::new(8, 8), Gelu)]"),
    ("Linear", "Linear::new(8, 8)"),
];

/// Measures and prints the times; fails if the derive exceeds its limit.
pub fn run() -> Done {
    let folder = folder();
    write(&folder).map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
    // The first builds include the dependencies.
    for features in [Features::None, Features::Derive, Features::All] {
        build(&folder, features)?;
    }
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (times, features) in times.iter_mut().zip([Features::None, Features::Derive, Features::All]) {
            times.push(build(&folder, features)?.as_secs_f64());
        }
    }
    let [none, derive, all] = times.map(median);
    println!("{STRUCTS} structs of {} fields, a debug build, median of {ROUNDS}:", FIELDS.len());
    println!("  without the derive                  {none:5.2} s");
    println!("  with it                             {derive:5.2} s, {:+.2} s", derive - none);
    println!("  and with `sequential` and `init`    {all:5.2} s, {:+.2} s", all - none);
    if derive - none > LIMIT {
        return Err(format!("the derive takes more than {LIMIT} s"));
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Features {
    None,
    Derive,
    All,
}

impl Features {
    fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Derive => "derive",
            Self::All => "all",
        }
    }
}

/// A folder outside the repository's files.
fn folder() -> PathBuf {
    target().join("derive-time")
}

fn write(folder: &Path) -> std::io::Result<()> {
    let framework = root().join("meganeura");
    fs::create_dir_all(folder.join("src"))?;
    fs::write(
        folder.join("Cargo.toml"),
        format!(
            "[package]\nname = \"derive-time\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [dependencies]\nmeganeura = {{ path = {framework:?}, default-features = false }}\n\n\
             [features]\nderive = []\nall = [\"derive\"]\n"
        ),
    )?;
    // The same versions as in the workspace.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::write(folder.join("src/lib.rs"), source())
}

fn source() -> String {
    let mut source = "use meganeura::nn::*;\n".to_owned();
    for index in 0..STRUCTS {
        let derive = "#[cfg_attr(feature = \"derive\", derive(meganeura::Module))]\n#[cfg_attr(feature = \"all\", module(sequential))]";
        writeln!(source, "\n{derive}\npub struct Net{index} {{").expect("a String takes all");
        for (index, (ty, init)) in FIELDS.iter().enumerate() {
            writeln!(
                source,
                "    #[cfg_attr(feature = \"all\", module(init = {init}, then = relu))]\n    pub field{index}: {ty},"
            )
            .expect("a String takes all");
        }
        source.push_str("}\n");
    }
    source
}

/// The build time of the crate itself.
fn build(folder: &Path, features: Features) -> Result<Duration, String> {
    let lib = folder.join("src/lib.rs");
    // Cargo rebuilds files that are newer than the last build.
    fs::write(&lib, source()).map_err(|error| format!("{}: {error}", lib.display()))?;
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--features", features.name()]).current_dir(folder);
    cargo.arg("--target-dir").arg(folder.join("target")).env("CARGO_INCREMENTAL", "0");
    let start = Instant::now();
    let status = cargo.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let time = start.elapsed();
    if status.success() { Ok(time) } else { Err(format!("{} does not build ({status})", folder.display())) }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn the_source_has_200_structs_with_10_fields() {
        let source = source();
        assert_eq!(source.matches("pub struct").count(), STRUCTS);
        assert_eq!(source.matches("pub field").count(), STRUCTS * 10);
    }
}
