//! Options, exit code and device: shared by every program.

use std::fmt::Display;
use std::process::ExitCode;

use clap::Parser;
use meganeura::{Device, Result};

/// The whole of a program's `main`: calls the function with the options of the command line. An error is printed to
/// stderr and gives exit code 1.
pub fn run<O: Parser, E: Display>(program: impl FnOnce(&O) -> Result<(), E>) -> ExitCode {
    match program(&O::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The device of a `--device` option: `auto` lets the framework choose, anything else is a name.
///
/// # Errors
///
/// If there is no device of this name; the message lists the existing ones.
pub fn device(name: &str) -> Result<Device> {
    match name {
        "auto" => Device::best(),
        name => Device::named(name),
    }
}
