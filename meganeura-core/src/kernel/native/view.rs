//! Operands and results of native kernels.

use crate::Layout;

/// An operand: elements and their layout.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: Slice<'a, T>,
    layout: Layout,
}

/// The memory behind a [`View`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slice<'a, T> {
    Float(&'a [T]),
    Index(&'a [u32]),
}

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
            Slice::Index(_) => unreachable!("indices where the type rule promised floats"),
        }
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
            Slice::Float(_) => unreachable!("floats where the type rule promised indices"),
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
            Self::Index(_) => unreachable!("indices where the type rule promised floats"),
        }
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
            Self::Float(_) => unreachable!("floats where the type rule promised indices"),
        }
    }
}
