//! What callers see of operations: the methods of [`Var`], the gradient rules, and the cases of the tests.
//!
//! A file has the name of the file in [`ops`](crate::ops) that holds the operation's types and kernels. The other files
//! hold functions known from NumPy and PyTorch, which are written with these methods and get their gradients from them.
//! Axes are counted from the first, or below 0 from the end, and must exist: an axis out of range is an error that
//! names it and the shape.
//!
//! | file | functions that are written with others |
//! |---|---|
//! | `arrange.rs` | `stack`, `split`, `chunk`, `squeeze`, `unsqueeze`, `transpose`, `at`, `roll`, `tile`, `repeat_interleave`, `diagonal` |
//! | `conv_transpose2d.rs` | `conv_transpose1d`, `conv_transpose2d`, `conv_transpose3d` |
//! | `grid_sample.rs`, `padding.rs` | `grid_sample`; `pad_with` |
//! | `pick.rs` | `index_select`, `one_hot`, `masked_fill`, `tril`, `triu` |
//! | `pool/mod.rs` | adaptive pooling over one, two or three axes, for layers |
//! | `norm.rs` | `norm`, `norm_over`, `variance`, `std` |
//! | `numeric.rs` | `logsumexp`, `cumprod`, `prod`, `trapezoid`, `cumulative_trapezoid`, `all`, `any`, `random_normal` |
//! | `einsum.rs` | `einsum` |
//!
//! A [`Tensor`](crate::Tensor) has them all through [`Tensor::map`](crate::Tensor::map).

mod arg_reduce;
mod arrange;
mod attention;
mod axis;
mod cast;
mod channels;
mod collective;
mod concat;
mod conv2d;
mod conv_transpose2d;
mod cross_entropy;
mod ctc;
mod cumsum;
mod custom;
mod einsum;
mod embedding;
mod flip;
mod gather;
mod grid_sample;
mod group_norm;
mod integer;
mod integer_products;
mod iota;
mod label_weights;
mod logcumsumexp;
mod map;
mod matmul;
mod norm;
mod numeric;
mod pad;
mod padding;
mod pick;
mod pointwise;
mod pool;
mod random;
mod ranges;
mod recurrent;
mod reduce;
mod resample;
mod scan;
mod softmax;
mod sort;
mod view;
mod vjp;
mod weighted_gather;

#[cfg(feature = "testing")]
pub mod case;

pub use attention::{AttentionOptions, Mask};
pub use axis::Axis;
pub(crate) use cast::named;
pub(crate) use collective::all_sum;
pub use collective::{all_mean, record_collective};
pub use custom::CustomOp;
pub use grid_sample::{GridSampleMode, GridSampleOptions, GridSamplePadding};
pub(crate) use norm::Scale;
pub use padding::Padding;
pub use pointwise::Operand;
pub use ranges::{AxisRange, Ranges};
pub use recurrent::RecurrentOptions;
pub(crate) use vjp::{Vjp, rule};

use crate::{ErrorKind, Var};

impl Var {
    /// This value, poisoned, if it has no such axis.
    #[track_caller]
    fn without_axis(&self, op: &'static str, axis: usize) -> Option<Self> {
        let rank = self.shape().rank();
        // Not within a closure, which would give its own line to the error.
        if axis < rank {
            return None;
        }
        Some(self.refuse(op, ErrorKind::Shape, format!("axis {axis} is out of range: the shape has {rank} axes")))
    }

    /// This value, poisoned, because it has no axis of this number, which counts from the end.
    #[track_caller]
    fn refuse_axis(&self, op: &'static str, axis: isize) -> Self {
        let message = format!("axis {axis} is out of range: the shape has {} axes", self.shape().rank());
        self.refuse(op, ErrorKind::Shape, message)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, ErrorKind, Result, Tape, Tensor, Var};

    fn input(tape: &Tape, shape: &[usize]) -> Result<Var> {
        Ok(tape.input(&Tensor::randn(&tape.device(), crate::Shape::new(shape), 1)?))
    }

    #[test]
    fn misfits_are_errors_that_say_why() -> Result<()> {
        let tape = Tape::new(&Device::cpu());
        let (x, y) = (input(&tape, &[2, 3])?, input(&tape, &[2, 4])?);
        let index = tape.input(&Tensor::indices(&tape.device(), [2, 1], &[0, 3])?);
        for (result, expected) in [
            (x.topk(4, 1).0, "topk: the 4 largest of axis 1, which has 3 elements"),
            (x.topk(0, 1).0, "topk: the 0 largest"),
            (x.topk(1, 2).0, "argsort: axis 2 is out of range: the shape has 2 axes"),
            (x.sort(5, true).0, "argsort: axis 5"),
            (x.cumsum(2), "cumsum: axis 2"),
            (x.logcumsumexp(2), "logcumsumexp: axis 2"),
            (x.cumprod(2), "cumprod: axis 2"),
            (x.trapezoid_with(2, 0.5), "trapezoid: axis 2"),
            (x.cumulative_trapezoid(2), "cumulative_trapezoid: axis 2"),
            (x.slice(1, 0..1).cumulative_trapezoid(1), "cumulative_trapezoid: axis 1 of [2, 1] has one point"),
            (x.argmax(2), "axis 2 is out of range: the shape has 2 axes"),
            (x.flip(&[0, 0]), "flip: axis 0 is named twice"),
            (x.roll(1, 2), "roll: axis 2"),
            (x.squeeze(0), "squeeze: axis 0 of [2, 3], which is not one of extent 1"),
            (x.unsqueeze(3), "unsqueeze: a new axis 3 in [2, 3]"),
            (x.transpose(0, 2), "transpose: axis 2"),
            (x.at((0, 1, 2)), "at: 3 ranges for the 2 axes of [2, 3]"),
            (x.at((.., 1..4)), "slice: 1..4 is not within axis 1, of extent 3"),
            (x.at(2), "slice: 2..3 is not within axis 0, of extent 2"),
            (x.softmax(-3), "softmax: axis -3 is out of range: the shape has 2 axes"),
            (x.sum_over(&[0, -3]), "sum: axis -3 is out of range: the shape has 2 axes"),
            (x.sort(-3, true).1, "sort: axis -3"),
            (x.split(&[1, 1], -3).swap_remove(1), "split: axis -3"),
            (x.unsqueeze(-4), "unsqueeze: axis -4"),
            (Var::stack(&[&x, &x], -4), "stack: axis -4"),
            (x.at((.., -4)), "at: -4 is not within axis 1, of extent 3"),
            (x.at((.., -5..-1)), "at: -5 is not within axis 1, of extent 3"),
            (x.at((.., ..-3)), "slice: the range of axis 1 is empty"),
            (x.chunk(0, 0).swap_remove(0), "chunk: 0 parts"),
            (x.split(&[2, 2], 1).swap_remove(1), "split: parts of [2, 2] elements do not make up axis 1"),
            (x.tile(&[2]), "tile: [2] does not say how often"),
            (x.repeat_interleave(0, 0), "repeat_interleave: 0 times"),
            (x.repeat_interleave(usize::MAX, 1), "repeat_interleave: 18446744073709551615 times the 3 elements"),
            (x.diagonal(), "diagonal: the last two axes must be equal, the shape is [2, 3]"),
            (x.tril(0).sum().tril(0), "tril: needs at least two axes, the shape is []"),
            (x.norm_over(&[0], -1.0), "norm: p must be at least 0, it is -1"),
            (x.masked_fill(&y, 0.0), "masked_fill: a mask [2, 4] does not broadcast to [2, 3]"),
            (x.gather(1, &index), "gather: index 3 is past the end, axis 1 has 3 elements"),
            (x.scatter_add(1, &index, &y), "scatter_add: index 3 is past the end"),
            (x.index_select(1, &index), "index_select: takes one index for each slice"),
            (Var::stack(&[&x, &y], 0), "stack: shapes [2, 3] and [2, 4]"),
            (Var::einsum("ij,jk->ik", &[&x, &y]), "einsum: j has extents 3 and 2 in \"ij,jk->ik\""),
            (Var::einsum("ij->k", &[&x]), "einsum: the result names 'k', no operand does"),
            (Var::einsum("i1", &[&x]), "einsum: axes are named by letters, not by '1'"),
            (Var::einsum("i,j", &[&x]), "einsum: 2 operands are named, 1 are given"),
            (x.attention(&y, &y, None), "attention: needs q [.., L, D]"),
        ] {
            let error = result.error().unwrap_or_else(|| panic!("no error, expected {expected}"));
            assert!(error.to_string().contains(expected), "{error}, expected {expected}");
            assert!(matches!(error.kind(), ErrorKind::Shape | ErrorKind::Argument), "{error:?}");
        }
        Ok(())
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "the ends count from the end")]
    fn axes_below_0_count_from_the_end() -> Result<()> {
        let tape = Tape::new(&Device::cpu());
        let x = input(&tape, &[2, 3, 4])?;
        let rows = tape.input(&Tensor::indices(&tape.device(), [2], &[1, 0])?);
        let index = tape.input(&Tensor::indices(&tape.device(), [2, 3, 1], &[0, 3, 2, 1, 0, 1])?);
        for (negative, positive) in [
            (x.softmax(-1), x.softmax(2)),
            (x.log_softmax(-2), x.log_softmax(1)),
            (x.sum_over(&[-1, 0]), x.sum_over(&[2, 0])),
            (x.mean_keep(&[-2]), x.mean_keep(&[1])),
            (x.max_over(&[-3]), x.max_over(&[0])),
            (x.std_over(&[-1], 1), x.std_over(&[2], 1)),
            (x.variance_over(&[-1], 0), x.variance_over(&[2], 0)),
            (x.norm_over(&[-1], 2.0), x.norm_over(&[2], 2.0)),
            (x.logsumexp(&[-1]), x.logsumexp(&[2])),
            (x.prod_over(&[-1]), x.prod_over(&[2])),
            (x.permute(&[0, -1, -2]), x.permute(&[0, 2, 1])),
            (x.transpose(-1, 0), x.transpose(2, 0)),
            (x.flip(&[-1]), x.flip(&[2])),
            (x.roll(1, -2), x.roll(1, 1)),
            (x.cumsum(-1), x.cumsum(2)),
            (x.cumprod(-1), x.cumprod(2)),
            (x.logcumsumexp(-1), x.logcumsumexp(2)),
            (x.trapezoid(-1), x.trapezoid(2)),
            (x.cumulative_trapezoid_with(-1, 0.5), x.cumulative_trapezoid_with(2, 0.5)),
            (x.sort(-1, false).0, x.sort(2, false).0),
            (x.topk(2, -2).0, x.topk(2, 1).0),
            (x.gather(-1, &index), x.gather(2, &index)),
            (x.index_select(-3, &rows), x.index_select(0, &rows)),
            (x.repeat_interleave(2, -1), x.repeat_interleave(2, 2)),
            (x.split(&[1, 3], -1).swap_remove(1), x.split(&[1, 3], 2).swap_remove(1)),
            (x.chunk(2, -1).swap_remove(0), x.chunk(2, 2).swap_remove(0)),
            (x.slice(-1, 1..3), x.slice(2, 1..3)),
            (x.unsqueeze(-1), x.unsqueeze(3)),
            (x.unsqueeze(-4), x.unsqueeze(0)),
            (x.unsqueeze(-1).squeeze(-1), x.clone()),
            (Var::concat(&[&x, &x], -1), Var::concat(&[&x, &x], 2)),
            (Var::stack(&[&x, &x], -1), Var::stack(&[&x, &x], 3)),
            (x.at((.., .., -1)), x.at((.., .., 3))),
            (x.at((-2.., 1..-1, ..=-2)), x.at((.., 1..2, ..3))),
            (x.at((0, .., -3..=-1)), x.at((0, .., 1..4))),
        ] {
            assert_eq!(negative.shape(), positive.shape());
            assert_eq!(negative.to_vec()?, positive.to_vec()?);
        }
        assert_eq!(x.argmax(-1).to_tensor()?.to_u32_vec()?, x.argmax(2).to_tensor()?.to_u32_vec()?);
        assert_eq!(x.to_tensor()?.argmax(-2)?.to_u32_vec()?, (-&x).argmin(1).to_tensor()?.to_u32_vec()?);
        Ok(())
    }

    #[test]
    fn edges_of_the_definitions() -> Result<()> {
        let tape = Tape::new(&Device::cpu());
        let of =
            |data: &[f32]| Ok::<_, crate::Error>(tape.input(&Tensor::from_slice(&tape.device(), [data.len()], data)?));
        let x = of(&[2.0, f32::NAN, -1.0, 2.0])?;
        // NaN sorts as the largest; of equal elements, the first wins.
        assert_eq!(x.argmax(0).to_tensor()?.to_u32_vec()?, [1]);
        assert_eq!(x.argsort(0, false).to_tensor()?.to_u32_vec()?, [2, 0, 3, 1]);
        assert_eq!(x.argsort(0, true).to_tensor()?.to_u32_vec()?, [1, 0, 3, 2]);
        let y = of(&[0.0, -0.0, 0.0])?;
        assert_eq!(y.argsort(0, true).to_tensor()?.to_u32_vec()?, [0, 1, 2]);
        assert_eq!((y.any().item()?, y.all().item()?, x.all().item()?), (0.0, 0.0, 1.0));
        // The gradient of a norm of 0 is 0.
        let grads = tape.backward(&y.norm())?;
        assert_eq!(grads.of(&y).expect("it depends on it").to_vec()?, [0.0; 3]);
        let none = of(&[f32::NEG_INFINITY; 2])?;
        assert_eq!(none.logsumexp(&[0]).item()?, f32::NEG_INFINITY);
        assert_eq!(of(&[1.0, f32::INFINITY])?.logsumexp(&[0]).item()?, f32::INFINITY);
        assert_eq!(of(&[0.5, 1.5, 2.5, -0.5])?.round().to_vec()?, [0.0, 2.0, 2.0, -0.0]);
        let index = of(&[-1.0, 0.5, 5e9, f32::NAN])?.to_index().to_tensor()?;
        assert_eq!(index.to_u32_vec()?, [u32::MAX, 0, u32::MAX, u32::MAX]);
        // Nothing lies between a point and itself.
        let point = of(&[f32::NAN])?;
        let integral = point.trapezoid_with(0, 2.0);
        let grads = tape.backward(&integral)?;
        assert_eq!((integral.item()?, grads.of(&point).expect("it depends on it").item()?), (0.0, 0.0));
        // If several sources go to one element, the last wins.
        let index = tape.input(&Tensor::indices(&tape.device(), [3], &[1, 1, 0])?);
        let scattered = of(&[7.0, 8.0, 9.0])?.scatter(0, &index, &of(&[1.0, 2.0, 3.0])?);
        assert_eq!(scattered.to_vec()?, [3.0, 2.0, 9.0]);
        Ok(())
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() -> Result<()> {
        let tape = Tape::with_seed(&Device::cpu(), 5);
        let x = tape.input(&Tensor::zeros(&tape.device(), [40_000])?).random_normal();
        // Four standard errors: 1/√40,000 of the mean, √2/√40,000 of the variance.
        assert!(x.mean().item()?.abs() < 0.02);
        assert!((x.variance(0).item()? - 1.0).abs() < 0.03);
        Ok(())
    }
}
