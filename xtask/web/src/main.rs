//! Builds, serves and tests the page of `examples/web`. `cargo xtask web` calls this after it has installed missing
//! programs.

mod browser;
mod bundle;
mod cases;
mod native;
mod server;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds the page of examples/web and serves it on this machine
#[derive(Parser, Debug)]
#[command(name = "cargo xtask web", bin_name = "cargo xtask web")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// The address to serve it at
    #[arg(long, default_value_t = 8080)]
    port: u16,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Build it into target/page
    Build,
    /// Build it, and test it in Chromium
    Test(suite::Options),
}

/// A failure is a message for the terminal.
type Done<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = bundle::build().and_then(|folder| match cli.command {
        None => server::serve(&folder, cli.port),
        Some(Command::Build) => Ok(()),
        Some(Command::Test(options)) => suite::run(&folder, &options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).unwrap_or(here)
}
