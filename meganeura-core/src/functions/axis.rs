//! Axes by their numbers, from the first or, below 0, from the end.

use smallvec::SmallVec;

use crate::MAX_RANK;

/// The number of an axis: `0` is the first, `-1` the last.
pub trait Axis: Copy + sealed::Sealed {
    /// The number from the first axis, among this many; or, if it is below 0 and there is none, itself.
    #[doc(hidden)]
    fn among(self, axes: usize) -> Result<usize, isize>;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for usize {}
impl Axis for usize {
    fn among(self, _: usize) -> Result<usize, isize> {
        Ok(self) // The operation refuses one that is too large.
    }
}

impl sealed::Sealed for isize {}
impl Axis for isize {
    fn among(self, axes: usize) -> Result<usize, isize> {
        usize::try_from(self).ok().or_else(|| axes.checked_add_signed(self)).ok_or(self)
    }
}

impl sealed::Sealed for i32 {}
impl Axis for i32 {
    fn among(self, axes: usize) -> Result<usize, isize> {
        (self as isize).among(axes)
    }
}

/// The numbers of several axes from the first one.
pub(super) fn all_among(axes: &[impl Axis], count: usize) -> Result<SmallVec<[usize; MAX_RANK]>, isize> {
    axes.iter().map(|axis| axis.among(count)).collect()
}

/// The number of an axis of `$x` from the first one. Where there is none, returns the poisoned value from the function.
macro_rules! axis {
    ($x:expr, $op:expr, $axis:expr, of $rank:expr, |$refused:ident| $result:expr) => {
        match $crate::functions::axis::Axis::among($axis, $rank) {
            Ok(axis) => axis,
            Err(axis) => {
                let $refused = $x.refuse_axis($op, axis);
                return $result;
            }
        }
    };
    ($x:expr, $op:expr, $axis:expr, of $rank:expr) => { axis!($x, $op, $axis, of $rank, |refused| refused) };
    ($x:expr, $op:expr, $axis:expr, |$refused:ident| $result:expr) => {
        axis!($x, $op, $axis, of $x.shape().rank(), |$refused| $result)
    };
    ($x:expr, $op:expr, $axis:expr) => { axis!($x, $op, $axis, of $x.shape().rank(), |refused| refused) };
}

/// Like [`axis!`], of a slice of axes.
macro_rules! axes {
    ($x:expr, $op:expr, $axes:expr) => {
        match $crate::functions::axis::all_among($axes, $x.shape().rank()) {
            Ok(axes) => axes,
            Err(axis) => return $x.refuse_axis($op, axis),
        }
    };
}

pub(super) use {axes, axis};
