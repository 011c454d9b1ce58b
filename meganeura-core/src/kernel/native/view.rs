//! Operands and results of native kernels.

use super::element::Integer;
use crate::Layout;

/// An operand: elements and their layout.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: Slice<'a, T>,
    layout: Layout,
}

/// The memory behind a [`View`].
#[derive(Debug)]
pub(crate) enum Slice<'a, T> {
    Float(&'a [T]),
    Index(&'a [u32]),
    Int(&'a [i32]),
    Long(&'a [i64]),
}

impl<T> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<'_, T> {}

impl<'a, T> View<'a, T> {
    pub(crate) fn new(data: Slice<'a, T>, layout: Layout) -> Self {
        Self { data, layout }
    }

    /// Shape, strides and offset into the slice.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The extents.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.layout.shape_ref().dims()
    }

    /// The storage's floats; element `i` of the operand is at `layout().at(i)`, which is `i` for contiguous operands.
    ///
    /// # Panics
    ///
    /// If the operand holds indices: the operation's type rule should have refused it.
    #[must_use]
    pub fn floats(&self) -> &'a [T] {
        match self.data {
            Slice::Float(data) => data,
            _ => unreachable!("integers where the type rule promised floats"),
        }
    }

    /// The storage's elements, of whatever type.
    pub(crate) fn slice(&self) -> Slice<'a, T> {
        self.data
    }

    /// The storage's integers, as [`View::floats`].
    pub(crate) fn integers<I: OfType>(&self) -> &'a [I] {
        I::of(self.data)
    }

    /// The storage's indices, as [`View::floats`].
    ///
    /// # Panics
    ///
    /// If the operand holds floats.
    #[must_use]
    pub fn indices(&self) -> &'a [u32] {
        match self.data {
            Slice::Index(data) => data,
            _ => unreachable!("other numbers where the type rule promised indices"),
        }
    }

    /// The operand's own indices, in order. Its layout must be contiguous.
    ///
    /// # Panics
    ///
    /// If the operand holds floats.
    #[must_use]
    pub fn contiguous_indices(&self) -> &'a [u32] {
        &self.indices()[self.layout.offset()..][..self.layout.shape().elements()]
    }
}

/// A result: always contiguous.
#[derive(Debug)]
pub enum OutView<'a, T> {
    /// A result of floats.
    Float(&'a mut [T]),
    /// A result of indices.
    Index(&'a mut [u32]),
    /// A result of 32-bit integers.
    Int(&'a mut [i32]),
    /// A result of 64-bit integers.
    Long(&'a mut [i64]),
}

impl<T> OutView<'_, T> {
    /// The floats to write.
    ///
    /// # Panics
    ///
    /// If the result holds indices.
    #[must_use]
    pub fn floats(&mut self) -> &mut [T] {
        match self {
            Self::Float(data) => data,
            _ => unreachable!("integers where the type rule promised floats"),
        }
    }

    /// The integers to write.
    pub(crate) fn integers<I: OfType>(&mut self) -> &mut [I] {
        I::of_result(self)
    }

    /// The indices to write.
    ///
    /// # Panics
    ///
    /// If the result holds floats.
    #[must_use]
    pub fn indices(&mut self) -> &mut [u32] {
        match self {
            Self::Index(data) => data,
            _ => unreachable!("other numbers where the type rule promised indices"),
        }
    }
}

/// An integer with arithmetic, as the element type of operands and results.
pub(crate) trait OfType: Integer {
    /// The elements, which are of this type.
    fn of<T>(slice: Slice<'_, T>) -> &[Self];
    /// The elements to write, which are of this type.
    fn of_result<'a, T>(result: &'a mut OutView<'_, T>) -> &'a mut [Self];
}

macro_rules! of_type {
    ($($T:ident $variant:ident;)+) => {
        $(impl OfType for $T {
            fn of<T>(slice: Slice<'_, T>) -> &[Self] {
                match slice {
                    Slice::$variant(data) => data,
                    _ => unreachable!(concat!("other numbers where the type rule promised ", stringify!($T))),
                }
            }

            fn of_result<'a, T>(result: &'a mut OutView<'_, T>) -> &'a mut [Self] {
                match result {
                    OutView::$variant(data) => data,
                    _ => unreachable!(concat!("other numbers where the type rule promised ", stringify!($T))),
                }
            }
        })+
    };
}

of_type! {
    i32 Int;
    i64 Long;
}

/// Evaluates an expression of the elements of an operand and of a result, which are of one type, whatever type that is.
macro_rules! of_one_type {
    ($x:expr, $y:expr, |$from:ident, $to:ident| $e:expr) => {
        match ($crate::kernel::native::View::slice(&$x), &mut $y) {
            ($crate::kernel::native::Slice::Float($from), $crate::kernel::native::OutView::Float($to)) => $e,
            ($crate::kernel::native::Slice::Index($from), $crate::kernel::native::OutView::Index($to)) => $e,
            ($crate::kernel::native::Slice::Int($from), $crate::kernel::native::OutView::Int($to)) => $e,
            ($crate::kernel::native::Slice::Long($from), $crate::kernel::native::OutView::Long($to)) => $e,
            _ => unreachable!("the type rule promised elements of one type"),
        }
    };
}
pub(crate) use of_one_type;
