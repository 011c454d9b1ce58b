//! Adapters: two factors whose product is added to a parameter.

use std::sync::Arc;

use super::{Cell, Param};
use crate::{Buffer, Shape};

/// A low-rank matrix that is added to a parameter wherever the parameter is used: `W + s·B·A`.
///
/// Shapes: `W [out, …]`, taken as a matrix `[out, in]` with all axes but the first joined; `a [rank, in]`,
/// `b [out, rank]`, `s []`.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub a: Param,
    pub b: Param,
    pub scale: Buffer,
}

impl Adapter {
    /// The extents of a parameter as a matrix; `None` if it is not one.
    pub fn matrix(shape: Shape) -> Option<[usize; 2]> {
        match shape.dims() {
            [out, rest @ ..] if !rest.is_empty() => Some([*out, rest.iter().product()]),
            _ => None,
        }
    }

    pub fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    /// Its tensors.
    pub fn cells(&self) -> [&Arc<Cell>; 3] {
        [self.a.cell(), self.b.cell(), self.scale.cell()]
    }

    /// Another handle to the same adapter.
    pub fn tied(&self) -> Self {
        Self { a: self.a.tied(), b: self.b.tied(), scale: self.scale.tied() }
    }
}

/// The part of a leaf beside its cell: an adapter, or nothing.
pub(super) trait Beside: Clone + Default {
    /// Another handle to the same part.
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
    /// `true` if a low-rank matrix is added to it where it is used; see `Lora`. [`value`](Self::value) does not include
    /// it.
    #[must_use]
    pub fn is_adapted(&self) -> bool {
        self.beside.is_some()
    }

    #[doc(hidden)]
    pub fn adapter(&self) -> Option<&Adapter> {
        self.beside.as_deref()
    }

    #[doc(hidden)]
    pub fn set_adapter(&mut self, adapter: Option<Adapter>) {
        self.beside = adapter.map(Box::new);
    }
}
