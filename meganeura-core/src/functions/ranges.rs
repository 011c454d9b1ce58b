//! Ranges of several axes, the argument of [`Var::at`](crate::Var::at).

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// The selection of an axis: a range of its elements, or a single one, which removes the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisRange {
    start: usize,
    /// One past the last; `None`: to the end.
    end: Option<usize>,
    one: bool,
}

impl AxisRange {
    pub(super) fn takes_one(self) -> bool {
        self.one
    }

    pub(super) fn within(self, extent: usize) -> Range<usize> {
        self.start..self.end.unwrap_or(extent)
    }
}

macro_rules! ranges {
    ($($Range:ty: |$range:ident| $start:expr, $end:expr, $one:expr;)+) => {
        $(impl From<$Range> for AxisRange {
            fn from($range: $Range) -> Self {
                Self { start: $start, end: $end, one: $one }
            }
        })+
    };
}

ranges! {
    usize: |at| at, at.checked_add(1), true;
    Range<usize>: |range| range.start, Some(range.end), false;
    RangeFrom<usize>: |range| range.start, None, false;
    RangeTo<usize>: |range| 0, Some(range.end), false;
    RangeInclusive<usize>: |range| *range.start(), range.end().checked_add(1), false;
    RangeToInclusive<usize>: |range| 0, range.end.checked_add(1), false;
    RangeFull: |_range| 0, None, false;
}

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
