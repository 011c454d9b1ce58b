//! Ranges of several axes, the argument of [`Var::at`](crate::Var::at).

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use super::axis::Axis;

/// The selection of an axis: a range of its elements, or a single one, which removes the axis. A number below 0 counts
/// from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisRange {
    start: isize,
    /// One past the last; `None`: to the end.
    end: Option<isize>,
    one: bool,
}

impl AxisRange {
    pub(super) fn takes_one(self) -> bool {
        self.one
    }

    /// The range of an axis of this extent, or the number that is before its start.
    pub(super) fn within(self, extent: usize) -> Result<Range<usize>, isize> {
        let from_start = |at: isize| at.among(extent);
        Ok(from_start(self.start)?..self.end.map_or(Ok(extent), from_start)?)
    }
}

/// A number of elements. None has as many as `isize::MAX`.
fn place(at: impl TryInto<isize>) -> isize {
    at.try_into().unwrap_or(isize::MAX)
}

/// One past this element; `None` past the last one.
fn after(at: impl TryInto<isize>) -> Option<isize> {
    place(at).checked_add(1).filter(|&end| end != 0)
}

macro_rules! ranges {
    ($($T:ty)+) => {
        $(
            ranges! {
                $T: |at| place(at), after(at), true;
                Range<$T>: |range| place(range.start), Some(place(range.end)), false;
                RangeFrom<$T>: |range| place(range.start), None, false;
                RangeTo<$T>: |range| 0, Some(place(range.end)), false;
                RangeInclusive<$T>: |range| place(*range.start()), after(*range.end()), false;
                RangeToInclusive<$T>: |range| 0, after(range.end), false;
            }
        )+
    };
    ($($Range:ty: |$range:ident| $start:expr, $end:expr, $one:expr;)+) => {
        $(impl From<$Range> for AxisRange {
            fn from($range: $Range) -> Self {
                Self { start: $start, end: $end, one: $one }
            }
        })+
    };
}

ranges! { usize isize i32 }
ranges! { RangeFull: |_range| 0, None, false; }

/// Ranges of axes, starting with the first: one, a tuple or a slice of them.
pub trait Ranges {
    /// The selection of each axis.
    fn ranges(self) -> Vec<AxisRange>;
}

impl<R: Into<AxisRange>> Ranges for R {
    fn ranges(self) -> Vec<AxisRange> {
        vec![self.into()]
    }
}

impl Ranges for &[AxisRange] {
    fn ranges(self) -> Vec<AxisRange> {
        self.to_vec()
    }
}

macro_rules! tuples {
    ($($($R:ident)+;)+) => {
        $(impl<$($R: Into<AxisRange>),+> Ranges for ($($R,)+) {
            #[expect(non_snake_case, reason = "a variable for each type, of the same name")]
            fn ranges(self) -> Vec<AxisRange> {
                let ($($R,)+) = self;
                vec![$($R.into()),+]
            }
        })+
    };
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}
