use meganeura::prelude::*;

#[derive(Module)]
struct Net<L, T> {
    student: Vec<L>,
    #[module(skip)]
    teacher: Option<L>,
    #[module(skip)]
    note: T,
    #[module(skip)]
    marker: std::marker::PhantomData<L>,
}

fn main() {}
