//! `cargo xtask test`: every test, including those on the GPU. `cargo xtask table` and `agreement`: the errors that
//! some tests measure.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::kernels::TRANSLATING;
use crate::process::{self, cargo};
use crate::{Done, mpi, vulkan, web};

#[derive(Args, Debug, Default)]
pub struct Options {
    /// Fail if there is no GPU, instead of showing its tests as ignored; implied by CI=true
    #[arg(long)]
    require_gpu: bool,

    /// Install nothing: report missing programs and continue
    #[arg(long)]
    no_install: bool,

    /// Skip what `cargo xtask kernels` tests, which has just run
    #[arg(long)]
    after_kernels: bool,

    /// The inner loop: the native kernel of every operation and layer, then the framework's unit tests; with a FILTER,
    /// all tests with it in their names, on the GPU too
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "")]
    quick: Option<String>,

    /// Passed on to `cargo test`, for example `-- -p meganeura conv2d`
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

impl Options {
    pub fn after_kernels() -> Self {
        Self { after_kernels: true, ..Self::default() }
    }
}

/// Runs the tests to try first after a change.
fn quick(filter: &str) -> Done {
    let run = |target: &str, filter: &str| {
        let mut cargo = command(&["--test".to_owned(), target.to_owned()]);
        process::run(cargo.arg("--").args((!filter.is_empty()).then_some(filter)))
    };
    let units = run("core", filter).and(run("meganeura", filter));
    let native = if filter.is_empty() { "::native::" } else { filter };
    run("suite", native).and(units)
}

/// Makes sure that there is a Vulkan driver, then runs the tests.
pub fn run(options: &Options) -> Done {
    if let Some(filter) = &options.quick {
        return quick(filter);
    }
    vulkan::ensure(!options.no_install);
    let in_ci = is_ci();
    if in_ci && !options.no_install {
        vulkan::ensure_layer();
        mpi::ensure();
    }
    if in_ci && cfg!(target_os = "linux") && !with_mpi() {
        return Err("there is no MPI, and CI tests several ranks".to_owned());
    }
    let mut args = options.args.clone();
    if options.after_kernels {
        let given = args.iter().any(|arg| arg == "--");
        args.extend((!given).then(|| "--".to_owned()));
        args.extend(TRANSLATING.into_iter().flat_map(|[_, name]| ["--skip", name]).map(String::from));
    }
    let mut cargo = command(&args);
    if options.require_gpu || in_ci {
        cargo.env("MEGANEURA_REQUIRE_GPU", "1");
    }
    process::run(&mut cargo)
}

/// Tests of operations that are skipped on SwiftShader, by parts of their names. It takes minutes to compile
/// attention's tiles, so attention is composed there. Its sine and cosine have an error of 2e-4 (Vulkan allows 2⁻¹¹),
/// and the test of an expanded operand uses a sine.
const NOT_ON_SWIFTSHADER: [&str; 4] = ["::attention", "wgsl::sin ", "wgsl::cos ", "::expand recorded [4]"];

/// Tests the kernels of the other operations on a second driver.
pub fn on_swiftshader() -> Done {
    vulkan::ensure(true);
    let manifest = vulkan::swiftshader().ok_or("there is no SwiftShader to test on")?;
    if is_ci() {
        // With the features of all tests, so that these need no second build.
        mpi::ensure();
    }
    let skipped = NOT_ON_SWIFTSHADER.iter().flat_map(|name| ["--skip", name]);
    let args = ["--test", "suite", "--", "ops::wgsl::"].into_iter().chain(skipped);
    let mut cargo = command(&args.map(String::from).collect::<Vec<_>>());
    cargo.env("VK_DRIVER_FILES", manifest).env("MEGANEURA_DEVICE", "SwiftShader").env("MEGANEURA_REQUIRE_GPU", "1");
    process::run(&mut cargo)
}

pub fn with_mpi() -> bool {
    cfg!(target_os = "linux") && mpi::is_there()
}

/// `cargo test` with these arguments, for the whole workspace unless they name packages, with the build options of all
/// tests.
pub fn command(args: &[String]) -> Command {
    let mut cargo = cargo();
    cargo.args(arguments(args, with_mpi(), is_ci()));
    // Otherwise, Mesa looks for a display to choose the adapter, and complains on every start if there is none.
    cargo.env("NODEVICE_SELECT", "1");
    cargo
}

/// Runs the tests of the operations, and prints their measurements.
pub fn table() -> Done {
    process::run(&mut tables("--table"))
}

#[derive(Args, Debug)]
pub struct Agreement {
    /// Also write the models to this folder, under PyTorch's names, for `tests/pytorch/make_golden.py --check-ours DIR`
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

/// Runs the tests against PyTorch's numbers, and prints the differences.
pub fn agreement(options: &Agreement) -> Done {
    let mut cargo = tables("--agreement");
    if let Some(directory) = &options.save {
        // Tests run in the folder of their package.
        let directory = std::path::absolute(directory).map_err(|error| error.to_string())?;
        cargo.env("MEGANEURA_SAVE", directory);
    }
    process::run(&mut cargo)
}

/// The integration tests, with an argument that prints a table.
fn tables(asked: &str) -> Command {
    vulkan::ensure(true);
    let mut cargo = cargo();
    cargo.args(["test", "--package", "meganeura-tests", "--test", "suite", "--", asked]);
    cargo.env("NODEVICE_SELECT", "1");
    cargo
}

/// The whole workspace, unless packages are named; with the tests of several ranks, if there is MPI.
fn arguments(args: &[String], with_mpi: bool, in_ci: bool) -> Vec<&str> {
    let own = args.iter().take_while(|arg| *arg != "--");
    let named =
        own.clone().any(|arg| arg == "-p" || arg.starts_with("--package") || arg.starts_with("--manifest-path"));
    let fail_fast = own.clone().any(|arg| arg == "--no-fail-fast");
    let mut all = vec!["test"];
    if !named {
        all.extend(selection(with_mpi, in_ci));
    }
    all.extend((!fail_fast).then_some("--no-fail-fast"));
    all.extend(args.iter().map(String::as_str));
    all
}

/// The packages and features of all tests. Those of the page have dependencies that take long to compile: `cargo xtask
/// web test` has them to itself, but in CI, which runs both, one build of the framework serves all.
fn selection(with_mpi: bool, in_ci: bool) -> Vec<&'static str> {
    let without: &[_] = if in_ci { &[] } else { &["--exclude", web::PACKAGE] };
    [&["--workspace"], without, &["--features", features(with_mpi)]].concat()
}

/// Builds a program of the workspace as the tests are built, which need the framework as well, and returns its command.
pub fn program(name: &str) -> Result<Command, String> {
    let selection = selection(with_mpi(), is_ci());
    process::run(cargo().args(["build", "--profile", "test", "--bin", name]).args(selection))?;
    Ok(Command::new(process::target().join("debug").join(name)))
}

/// The workspace's features, with those that need MPI.
const WITH_MPI: &str = "meganeura-examples/images,meganeura-examples/tokenizers,meganeura-examples/mpi,\
                        meganeura-tests/mpi,meganeura-unit/mpi";

/// The others.
const WITHOUT_MPI: &str = "meganeura-examples/images,meganeura-examples/tokenizers";

/// The features of the whole workspace that no dependency of a test enables.
pub fn features(with_mpi: bool) -> &'static str {
    if with_mpi { WITH_MPI } else { WITHOUT_MPI }
}

/// `true` in CI.
pub fn is_ci() -> bool {
    is_set(env::var("CI").ok().as_deref())
}

fn is_set(ci: Option<&str>) -> bool {
    ci.is_some_and(|value| !matches!(value, "" | "0" | "false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(args: &[&str]) -> String {
        arguments(&args.iter().copied().map(String::from).collect::<Vec<_>>(), false, false).join(" ")
    }

    #[test]
    fn several_ranks_are_tested_where_there_is_mpi() {
        let all = arguments(&[], true, false).join(" ");
        let features = "meganeura-examples/images,meganeura-examples/tokenizers,meganeura-examples/mpi,\
                        meganeura-tests/mpi,meganeura-unit/mpi";
        assert_eq!(all, format!("test --workspace --exclude xtask-web --features {features} --no-fail-fast"));
        assert_eq!(arguments(&["-p".to_owned()], true, false).join(" "), "test --no-fail-fast -p");
        let all = arguments(&[], false, true).join(" ");
        assert_eq!(all, format!("test --workspace --features {WITHOUT_MPI} --no-fail-fast"));
    }

    #[test]
    fn everything_is_tested_unless_packages_are_named() {
        let everything = "test --workspace --exclude xtask-web --features meganeura-examples/images,\
                          meganeura-examples/tokenizers --no-fail-fast";
        assert_eq!(line(&[]), everything);
        assert_eq!(line(&["conv2d"]), format!("{everything} conv2d"));
        assert_eq!(line(&["-p", "meganeura", "conv2d"]), "test --no-fail-fast -p meganeura conv2d");
        assert_eq!(line(&["conv2d", "--", "-p"]), format!("{everything} conv2d -- -p"));
    }

    #[test]
    fn common_values_of_ci_are_understood() {
        assert!(is_set(Some("true")) && is_set(Some("1")));
        assert!(!is_set(None) && !is_set(Some("")) && !is_set(Some("false")));
    }
}
