//! The project's chores, as `cargo xtask …`.
//!
//! Everything that CI runs is a subcommand here, so it runs the same on anybody's machine. The dependencies are light,
//! because xtask has to be built before it can do anything.

mod chores;
mod deny;
mod derive_time;
mod fuzz;
mod kernels;
mod mpi;
mod msrv;
mod onnx;
mod packages;
mod process;
mod publish;
mod sanitize;
mod surface;
mod test;
mod tidy;
mod vulkan;
mod web;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's chores.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand, Debug)]
enum Chore {
    /// Run every test, after making sure that there is a Vulkan driver for the GPU tests
    Test(test::Options),
    /// Test the kernels of most operations on SwiftShader, a second Vulkan driver
    Swiftshader,
    /// Test every operation, and print the largest error of each kernel
    Table,
    /// Compare every layer, loss, optimizer and model with PyTorch's numbers, and print the largest errors
    Agreement(test::Agreement),
    /// Check rules that the compiler does not: layers, names, lengths, left-overs
    Tidy,
    /// Check that the oldest supported Rust release compiles everything
    Msrv,
    /// Compile every kernel with Chrome's WGSL compiler, and, as HLSL, with DirectX's compiler
    Kernels,
    /// Export every layer, operation and model to ONNX, and compare onnxruntime's results with ours
    Onnx,
    /// Run ONNX's own tests of backends on the importer, and compare with the list of cases that it refuses
    OnnxSuite(onnx::Suite),
    /// Fuzz every reader and parser
    Fuzz(fuzz::Options),
    /// Build the page that trains in the browser, and serve or test it
    Web(web::Options),
    /// Compare the public surface of each published crate with its list, `public-api.txt`
    Surface(surface::Options),
    /// Check licences, sources and known faults of all dependencies, with cargo-deny, after a change of Cargo.lock
    Deny,
    /// Run the native kernels' tests under AddressSanitizer (needs a nightly toolchain)
    Sanitize,
    /// Measure what `#[derive(Module)]` adds to a debug build of 200 structs
    DeriveTime,
    /// Everything that CI checks apart from the tests: fmt, tidy, clippy, doc, surface, msrv, package, deny
    Lint,
    /// Everything that CI checks: lint, kernels, fuzz, web test, swiftshader, then test
    Ci,
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Test(options) => test::run(&options),
        Chore::Swiftshader => test::on_swiftshader(),
        Chore::Table => test::table(),
        Chore::Agreement(options) => test::agreement(&options),
        Chore::Tidy => tidy::run(),
        Chore::Msrv => msrv::run(),
        Chore::Kernels => kernels::run(),
        Chore::Onnx => onnx::run(),
        Chore::OnnxSuite(options) => onnx::suite(&options),
        Chore::Fuzz(options) => fuzz::run(&options),
        Chore::Web(options) => web::run(&options),
        Chore::Surface(options) => surface::run(&options),
        Chore::Deny => deny::run(),
        Chore::Sanitize => sanitize::run(),
        Chore::DeriveTime => derive_time::run(),
        Chore::Lint => chores::run(&chores::LINTS),
        Chore::Ci => {
            // The tests run last, and also after failures: one round shows everything.
            let found = chores::run(&chores::LINTS).and(kernels::run()).and(fuzz::run(&fuzz::Options::default()));
            let found = found.and(web::test()).and(test::on_swiftshader());
            test::run(&test::Options::after_kernels()).and(found)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The result of a chore: the error is a message for the terminal.
type Done = Result<(), String>;
