use meganeura::prelude::*;

#[derive(Module)]
struct Stack<L> {
    layers: Vec<L>,
}

fn walk(_: impl Module) {}

fn main() {
    walk(Stack { layers: vec!["not a module"] });
}

