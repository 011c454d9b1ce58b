//! The operands and results of operations that may be bf16, and the order of their elements.

use crate::Shape;
use crate::kernel::launch::Format;

/// The operands and results of a kernel that are bf16: all of these or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bf16 {
    /// The order of the elements.
    pub innermost: Innermost,
    /// Another order that the kernel can take: used if an operand is stored so, and none in the first order.
    pub otherwise: Option<Innermost>,
    /// The operands that are read as bf16.
    pub operands: &'static [usize],
    /// `true` if the lines of operands that are read strided may also lie along the axis before the last.
    pub turned: bool,
    /// The form in which result 0 is stored.
    pub stores: Stores,
    /// `true` if the other results are bf16 as well, in lines of the API's order, which the kernel writes itself.
    pub others: bool,
    /// `true` if operands in `f32` should be converted for this form, as for products on matrix units. Otherwise the
    /// form is used only if another operation has its operands in bf16 anyway.
    pub wanted: bool,
}

impl Bf16 {
    /// A form that is used only if another operation has its operands in bf16 anyway, with lines along the innermost
    /// axis alone, and other results in `f32`.
    #[must_use]
    pub fn new(innermost: Innermost, operands: &'static [usize], stores: Stores) -> Self {
        Self { innermost, otherwise: None, operands, turned: false, stores, others: false, wanted: false }
    }
}

/// The axis along which elements form lines of bf16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Innermost {
    /// The channels of images `[N, C, H, W]`.
    Channels,
    /// The last axis, as in the API, in rows of whole lines. Operands that the kernel reads strided must be in lines;
    /// they are read through their views, in bf16 or in `f32`.
    Last,
    /// As in the API, without padding: lines may belong to several of its rows.
    Flat,
}

impl Innermost {
    /// The format of a tensor as bf16, if it can be stored so.
    #[must_use]
    pub fn format(self, shape: Shape) -> Option<Format> {
        match self {
            Self::Channels => Format::images(shape),
            Self::Last => Format::rows(shape),
            Self::Flat => Format::flat(shape),
        }
    }
}

/// The way in which a kernel that reads bf16 stores result 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stores {
    /// As other kernels do, in `f32`, element by element.
    Full,
    /// Likewise; or by lines in the order of the API, if ranks exchange the result as bf16. See `Access`.
    FullOrLines,
    /// By lines, through `store_line` of `shared/epilogue_lines`.
    Lines,
    /// Bf16, two to a word, which the kernel writes itself; nothing is fused into the store.
    Words,
}

impl Stores {
    /// `true` if the kernel counts elements of result 0 in the order of the API.
    #[must_use]
    pub fn in_order(self) -> bool {
        matches!(self, Self::Full | Self::FullOrLines)
    }
}
