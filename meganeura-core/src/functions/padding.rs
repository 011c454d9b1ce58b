//! Padding with elements of the value itself: compositions of views, flips and concatenations.

use crate::ErrorKind;
use crate::tape::Var;

/// The content of a padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Padding {
    /// Zeros.
    #[default]
    Zeros,
    /// The value mirrored at its first and last elements, which are not repeated: `c b | a b c d | c b`
    Reflect,
    /// The first and the last element: `a a | a b c d | d d`
    Replicate,
    /// The opposite end: `c d | a b c d | a b`
    Circular,
}

impl Var {
    /// Surrounds the value with elements of its own, or with zeros.
    ///
    /// `widths` are the numbers of elements before and after, for each axis.
    ///
    /// The gradient of an element is the sum over all its copies.
    ///
    /// Widths for another number of axes are an error. So is a width that is not below the extent for
    /// [reflection](Padding::Reflect), or one above it for [circular](Padding::Circular) padding.
    ///
    /// ```
    /// use meganeura::ops::Padding;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [4], &[1.0, 2.0, 3.0, 4.0])?);
    /// let padded = |mode| x.pad_with(&[(2, 1)], mode).to_vec();
    /// assert_eq!(padded(Padding::Zeros)?, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
    /// assert_eq!(padded(Padding::Reflect)?, [3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0]);
    /// assert_eq!(padded(Padding::Replicate)?, [1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
    /// assert_eq!(padded(Padding::Circular)?, [3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn pad_with(&self, widths: &[(usize, usize)], padding: Padding) -> Self {
        const NAME: &str = "pad_with";
        if padding == Padding::Zeros {
            return self.pad(widths, 0.0);
        }
        let shape = self.shape();
        if widths.len() != shape.rank() {
            let message = format!("{} pairs of widths for {} axes", widths.len(), shape.rank());
            return self.refuse(NAME, ErrorKind::Argument, message);
        }
        if !self.ty().dtype.is_float() {
            return self.refuse(NAME, ErrorKind::Shape, format!("needs floats, the operand holds {}", self.ty().dtype));
        }
        let mut result = self.clone();
        for (axis, (&(before, after), &extent)) in widths.iter().zip(shape.dims()).enumerate() {
            let most = match padding {
                Padding::Reflect => extent - 1,
                Padding::Circular => extent,
                _ => usize::MAX / 4,
            };
            if before > most || after > most {
                let message =
                    format!("widths {before} and {after} of axis {axis}, whose {extent} elements allow {most}");
                return self.refuse(NAME, ErrorKind::Argument, message);
            }
            result = result.pad_axis(axis, before, after, padding);
        }
        result
    }

    /// The margins of an axis, concatenated to it.
    #[track_caller]
    fn pad_axis(&self, axis: usize, before: usize, after: usize, padding: Padding) -> Self {
        let extent = self.shape()[axis];
        let mut parts = Vec::new();
        if before > 0 {
            parts.push(match padding {
                Padding::Reflect => self.slice(axis, 1..before + 1).flip(&[axis]),
                Padding::Circular => self.slice(axis, extent - before..extent),
                _ => self.slice(axis, 0..1).expand(self.shape().with(axis, before)),
            });
        }
        parts.push(self.clone());
        if after > 0 {
            parts.push(match padding {
                Padding::Reflect => self.slice(axis, extent - 1 - after..extent - 1).flip(&[axis]),
                Padding::Circular => self.slice(axis, 0..after),
                _ => self.slice(axis, extent - 1..extent).expand(self.shape().with(axis, after)),
            });
        }
        if parts.len() == 1 {
            return self.clone();
        }
        Self::concat(&parts.iter().collect::<Vec<_>>(), axis)
    }
}

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::functions::case::{Array, Case};

    pub(in crate::functions) fn recorded() -> Vec<Case> {
        let mut cases = Vec::new();
        for padding in [Padding::Reflect, Padding::Replicate, Padding::Circular] {
            let case = move |shape: &'static [usize], widths: &'static [(usize, usize)]| {
                let name = format!("pad_with {padding:?}").to_lowercase();
                let naive = move |x: &[Array]| {
                    let out: Vec<_> = shape.iter().zip(widths).map(|(extent, (lo, hi))| lo + extent + hi).collect();
                    let of = |element: usize| {
                        let (mut place, mut below, mut at) = (0, 1, element);
                        for (axis, (&extent, &(lo, _))) in shape.iter().zip(widths).enumerate().rev() {
                            let i = (at % out[axis]) as isize - lo as isize;
                            at /= out[axis];
                            let last = extent as isize - 1;
                            let i = match padding {
                                Padding::Reflect => last - (last - i.abs()).abs(),
                                Padding::Circular => i.rem_euclid(extent as isize),
                                _ => i.clamp(0, last),
                            };
                            place += below * i as usize;
                            below *= extent;
                        }
                        x[0].data[place]
                    };
                    let shape = crate::Shape::new(&out);
                    vec![Array { shape, data: (0..shape.elements()).map(of).collect() }]
                };
                Case::recorded(&name, &[shape], move |x| x[0].pad_with(widths, padding)).naive(naive)
            };
            cases.push(case(&[4], &[(2, 3)]));
            cases.push(case(&[2, 3, 4, 5], &[(0, 0), (0, 0), (3, 1), (2, 4)]));
            cases.push(case(&[3, 2], &[(2, 0), (0, 1)]));
            cases.push(
                Case::recorded("pad_with", &[&[2, 3]], move |x| x[0].pad_with(&[(1, 1)], padding)).expect_error(),
            );
        }
        cases.push(Case::recorded("pad_with", &[&[3]], |x| x[0].pad_with(&[(3, 0)], Padding::Reflect)).expect_error());
        cases.push(Case::recorded("pad_with", &[&[3]], |x| x[0].pad_with(&[(0, 4)], Padding::Circular)).expect_error());
        cases
    }
}
