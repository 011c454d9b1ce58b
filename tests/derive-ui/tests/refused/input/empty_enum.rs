use meganeura::prelude::*;

#[derive(Module)]
enum Never {}

fn main() {}
