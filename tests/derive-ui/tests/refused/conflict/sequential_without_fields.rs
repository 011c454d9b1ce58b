use meganeura::prelude::*;

#[derive(Module)]
#[module(sequential)]
struct Empty {}

#[derive(Module)]
#[module(sequential)]
struct Skipped(#[module(skip)] usize);

fn main() {}
