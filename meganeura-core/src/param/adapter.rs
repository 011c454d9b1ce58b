//! Adapters: two factors whose product is added to a parameter.

use std::sync::Arc;

use super::{Cell, Param};
use crate::{Buffer, Shape};

/// A low-rank matrix that is added to a parameter wherever the parameter is used: `W + s·B·A`. With magnitudes `m`
/// (`DoRA`), each row or column of the sum has this norm, up to the sign: `m · (W + s·B·A) / ‖W + s·B·A‖`, where no
/// gradient flows through the norm. A bias is added to the layer's result, times `s`.
///
/// Shapes: `W [out, …]`, taken as a matrix `[out, in]` with all axes but the first joined; `a [rank, in]`,
/// `b [out, rank]`, `s []`, `m [out, 1]` or `[1, in]`, the bias `[out]`.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub a: Param,
    pub b: Param,
    pub scale: Buffer,
    pub magnitude: Option<Param>,
    pub bias: Option<Param>,
    /// The probability with which training drops an element of the input of `A`.
    pub dropout: f64,
}

/// The way in which a layer uses a parameter. Adapters of other programs depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    #[default]
    Other,
    /// A matrix `[out, in]` that multiplies vectors.
    Linear,
    /// Rows `[count, width]` that are looked up.
    Embedding,
    /// A kernel. It is plain if the padding is zeros and the elements of the kernel are neighbours.
    Conv {
        groups: usize,
        is_plain: bool,
    },
    ConvTranspose,
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

    /// `true` for PEFT's adapter of a convolution in groups: `a [rank, groups·in]`, `b [out, rank/groups]`. Its first
    /// factor reads the channels of all groups, and the second one is in groups, so it is no sum with the kernel.
    pub fn is_across_groups(&self) -> bool {
        self.b.shape()[1] != self.rank()
    }

    /// Its parameters, with their names below the weight's.
    pub fn params(&self) -> impl Iterator<Item = (&'static str, &Param)> {
        let optional = [("lora_magnitude", &self.magnitude), ("lora_bias", &self.bias)];
        let optional = optional.into_iter().filter_map(|(name, param)| Some((name, param.as_ref()?)));
        [("lora_a", &self.a), ("lora_b", &self.b)].into_iter().chain(optional)
    }

    /// Its tensors.
    pub fn cells(&self) -> impl Iterator<Item = &Arc<Cell>> {
        self.params().map(|(_, param)| param.cell()).chain([self.scale.cell()])
    }

    /// `true` if it is a product and nothing else.
    pub fn is_plain(&self) -> bool {
        self.magnitude.is_none() && self.bias.is_none()
    }

    /// Another handle to the same adapter.
    pub fn tied(&self) -> Self {
        Self {
            a: self.a.tied(),
            b: self.b.tied(),
            scale: self.scale.tied(),
            magnitude: self.magnitude.as_ref().map(Param::tied),
            bias: self.bias.as_ref().map(Param::tied),
            dropout: self.dropout,
        }
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

/// The adapter of a parameter, and its use.
#[derive(Clone, Default)]
pub struct OfParam {
    adapter: Option<Box<Adapter>>,
    r#use: Use,
}

impl Beside for OfParam {
    fn tied(&self) -> Self {
        Self { adapter: self.adapter.as_deref().map(|adapter| Box::new(adapter.tied())), r#use: self.r#use }
    }
}

impl Param {
    /// `true` if a low-rank matrix is added to it where it is used; see `Lora`. [`value`](Self::value) does not include
    /// it.
    #[must_use]
    pub fn is_adapted(&self) -> bool {
        self.beside.adapter.is_some()
    }

    #[doc(hidden)]
    pub fn adapter(&self) -> Option<&Adapter> {
        self.beside.adapter.as_deref()
    }

    #[doc(hidden)]
    pub fn set_adapter(&mut self, adapter: Option<Adapter>) {
        self.beside.adapter = adapter.map(Box::new);
    }

    /// States the use of this handle, by the layer that has it.
    #[doc(hidden)]
    #[must_use]
    pub fn used_as(mut self, r#use: Use) -> Self {
        self.beside.r#use = r#use;
        self
    }

    #[doc(hidden)]
    pub fn usage(&self) -> Use {
        self.beside.r#use
    }
}
