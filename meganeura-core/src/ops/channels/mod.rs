//! Statistics of channels, `[N, C, …]` → `[C]`, each in one pass: the moments of a batch, and the sums for gradients of
//! what is computed with a number per channel. Batch normalisation is made of these and elementwise work.

mod cells;
mod forms;
mod moments;
mod sums;

pub use self::moments::ChannelMoments;
pub use self::sums::ChannelSums;
use super::{Bf16, Innermost, Stores};
use crate::kernel::launch::Caps;
use crate::{Result, Shape, TensorType};

/// The extents of `[N, C, …]`.
#[derive(Clone, Copy)]
pub(crate) struct ChannelShape {
    pub(crate) n: usize,
    pub(crate) c: usize,
    /// The elements of a channel of one example.
    pub(crate) s: usize,
}

impl ChannelShape {
    fn new(x: Shape) -> Result<Self, String> {
        let [n, c, rest @ ..] = x.dims() else { return Err(format!("the input must be [N, C, …], it is {x}")) };
        if x.elements() == 0 {
            return Err(format!("{x} has no elements (an empty batch?)"));
        }
        Ok(Self { n: *n, c: *c, s: rest.iter().product() })
    }

    pub(crate) fn of(x: Shape) -> Self {
        Self::new(x).expect("checked when recorded")
    }

    /// The elements of a channel.
    pub(crate) fn len(&self) -> usize {
        self.n * self.s
    }
}

/// The error if an operand has another type than it must.
fn expect(x: &[TensorType], shapes: &[(&str, Shape)]) -> Result<(), String> {
    for (ty, (what, shape)) in x.iter().zip(shapes) {
        if ty.shape != *shape || ty.dtype != x[0].dtype || !ty.dtype.is_float() {
            return Err(format!("the {what} must be {}{shape}, it is {ty}", x[0].dtype));
        }
    }
    Ok(())
}

/// Lines of images in bf16, or of vectors, whose channels lie in rows.
fn bf16(x: TensorType, operands: &'static [usize], caps: &Caps) -> Option<Bf16> {
    let innermost = if x.shape.rank() == 2 { Innermost::Last } else { Innermost::Channels };
    // Rows of more than one element are along the last axis.
    let has_lines = innermost.format(x.shape).is_some() && x.shape[1] > 1;
    (caps.bf16 && has_lines).then_some(Bf16::new(innermost, operands, Stores::Full))
}
