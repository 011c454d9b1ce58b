//! Bounds are put on the types of fields that mention a type parameter, not on the parameter.

use std::marker::PhantomData;

use meganeura::Var;
use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, apply, device, leaves};

#[derive(Module)]
#[module(sequential)]
struct Stack<L, const N: usize = 2>
where
    L: Clone,
{
    layers: [Keep<L>; N],
}

/// A module for every `T`: a bound `T: Module` would be too strict.
#[derive(Module)]
#[module(sequential)]
struct Keep<T> {
    scale: Scale,
    #[module(skip)]
    _kept: T,
}

trait Family {
    type Block;
}

struct Scales;

impl Family for Scales {
    type Block = Scale;
}

/// `F` is not a module, but `F::Block` is.
#[derive(Module)]
#[module(sequential)]
struct Tower<F: Family + ?Sized> {
    blocks: Vec<F::Block>,
    last: <F as Family>::Block,
    #[module(skip)]
    _family: PhantomData<F>,
}

/// A bound `Vec<Tree<T>>: Module` would need itself as its proof.
#[derive(Module)]
struct Tree<T> {
    value: T,
    children: Vec<Tree<T>>,
    parent: Option<Box<Self>>,
}

#[derive(Module)]
enum Either<A, B> {
    A(A),
    B { b: B },
}

#[derive(Module)]
#[module(sequential)]
struct Built<L, M: ?Sized> {
    #[module(init)]
    layer: L,
    #[module(init = Scale::new(2.0))]
    scale: Scale,
    #[module(skip, init = PhantomData)]
    _m: PhantomData<M>,
}

#[derive(Module)]
struct NotCloned;

impl Layer for NotCloned {
    fn forward(&self, x: &Var) -> Var {
        x.clone()
    }
}

#[test]
fn generics_need_no_bounds() -> Result<()> {
    let device = device();
    let scale = |factor| Scale::new(factor).init(&device, Seed::new(0));

    let keep = |factor| Ok::<_, meganeura::Error>(Keep { scale: scale(factor)?, _kept: "text" });
    let mut stack: Stack<&str> = Stack { layers: [keep(2.0)?, keep(3.0)?] };
    assert_eq!(leaves(&mut stack), ["layers.0.scale.weight", "layers.1.scale.weight"]);
    assert_eq!(apply(&stack, 1.0)?, 6.0);

    let mut tower = Tower::<Scales> { blocks: vec![scale(2.0)?], last: scale(5.0)?, _family: PhantomData };
    assert_eq!(leaves(&mut tower), ["blocks.0.weight", "last.weight"]);
    assert_eq!(apply(&tower, 1.0)?, 10.0);

    let leaf = Tree { value: scale(1.0)?, children: vec![], parent: None };
    let mut tree = Tree { value: scale(1.0)?, children: vec![leaf], parent: None };
    assert_eq!(leaves(&mut tree), ["value.weight", "children.0.value.weight"]);

    let mut either = [Either::A(scale(1.0)?), Either::B { b: NotCloned }];
    assert_eq!(leaves(&mut either), ["0.0.weight"]);

    let mut built = Built::<NotCloned, str>::init(&device, 42)?;
    assert_eq!(leaves(&mut built), ["scale.weight"]);
    assert_eq!(apply(&built, 1.0)?, 2.0);
    Ok(())
}
