//! Code that the derive accepts. Every case runs, and none may cause a warning.
#![deny(warnings)]

mod behaviour;
mod config;
mod containers;
mod crate_path;
mod display;
mod enums;
mod generic;
mod hygiene_names;
mod hygiene_shadowed;
mod init;
mod input;
mod lifetime;
mod named;
mod options;
mod raw_identifier;
mod residual;
mod sequential;
mod tuple;
mod unit;
mod written_by_macro;
