//! Adapters: two factors of a matrix that is added to a parameter.

use std::sync::Arc;

use super::{Cell, Param};
use crate::tape::{Tape, Var};
use crate::{Buffer, Shape};

/// A matrix of low rank that is added to a parameter wherever it is used: `W + s·B·A`.
///
/// Shapes: `W [out, …]`, which is a matrix `[out, in]` with all but the first axis joined; `a [rank, in]`,
/// `b [out, rank]`, `s []`.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) a: Param,
    pub(crate) b: Param,
    pub(crate) scale: Buffer,
}

impl Adapter {
    /// The two extents of a parameter as a matrix, if it is one.
    pub(crate) fn matrix(shape: Shape) -> Option<[usize; 2]> {
        match shape.dims() {
            [out, rest @ ..] if !rest.is_empty() => Some([*out, rest.iter().product()]),
            _ => None,
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    /// Its tensors.
    pub(crate) fn cells(&self) -> [&Arc<Cell>; 3] {
        [self.a.cell(), self.b.cell(), self.scale.cell()]
    }

    /// Another handle on the same adapter.
    pub(crate) fn tied(&self) -> Self {
        Self { a: self.a.tied(), b: self.b.tied(), scale: self.scale.tied() }
    }

    /// `W + s·B·A`
    #[track_caller]
    pub(crate) fn add_to(&self, weight: &Var) -> Var {
        let tape = weight.tape();
        let (a, b) = (tape.param(&self.a), tape.param(&self.b));
        let product = b.matmul(&a) * tape.buffer(&self.scale);
        weight + product.reshape(weight.shape())
    }

    /// `W`, which this is beside, `A`, `B` and `s`.
    #[track_caller]
    pub(crate) fn parts(&self, tape: &Tape, weight: &Param) -> [Var; 4] {
        [tape.cell(weight.cell()), tape.param(&self.a), tape.param(&self.b), tape.buffer(&self.scale)]
    }
}

/// The part of a leaf that is not its cell: an adapter, or nothing.
pub(super) trait Beside: Clone + Default {
    /// Another handle on the same part.
    fn tied(&self) -> Self;
}

impl Beside for () {
    fn tied(&self) -> Self {}
}

impl Beside for Option<Box<Adapter>> {
    fn tied(&self) -> Self {
        self.as_deref().map(|adapter| Box::new(adapter.tied()))
    }
}

impl Param {
    /// `true` if a matrix of low rank is added to it where it is used; see [`Lora`](crate::Lora).
    /// [`value`](Self::value) is without.
    #[must_use]
    pub fn is_adapted(&self) -> bool {
        self.beside.is_some()
    }

    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.beside.as_deref()
    }

    pub(crate) fn set_adapter(&mut self, adapter: Option<Adapter>) {
        self.beside = adapter.map(Box::new);
    }
}
