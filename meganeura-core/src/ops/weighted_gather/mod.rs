//! Weighted sums of gathered columns: interpolation between pixels at computed places.
//!
//! `Σ w[n,t,k]·x[n,c,index[n,t,k]]·dy[n,c,k]` is linear in each of `x`, `w` and `dy`. The three operations are its
//! gradients with respect to `dy`, `x` and `w`, so the gradients of each are among the others.

mod native;
#[cfg(feature = "onnx")]
mod onnx;

#[cfg(feature = "onnx")]
use super::form::{Form, Operand, Results};
use super::segments::Segments;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::{DType, Result, Shape, TensorType};

/// Weighted sums of `T` columns of `x` each: `y[n,c,k] = Σ_t w[n,t,k]·x[n,c,index[n,t,k]]`. A column past the end is 0.
///
/// Shapes: `x [N,C,R]`, `index u32 [N,T,K]`, `w [N,T,K]` → `y [N,C,K]`.
/// Gradient: `dx` by [`WeightedGatherGradInput`], `dw` by [`WeightedGatherGradWeight`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WeightedGather;

/// `dx` of [`WeightedGather`]: `dx[n,c,r] = Σ w[n,t,k]·dy[n,c,k]` over the `t` and `k` with `index[n,t,k] = r`, in a
/// fixed order.
///
/// Shapes: `index u32 [N,T,K]`, `w [N,T,K]`, `dy [N,C,K]` → `dx [N,C,R]`.
/// Gradient: of `w` by [`WeightedGatherGradWeight`], of `dy` by [`WeightedGather`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WeightedGatherGradInput {
    /// `R`
    pub(crate) columns: usize,
}

/// `dw` of [`WeightedGather`]: `dw[n,t,k] = Σ_c x[n,c,index[n,t,k]]·dy[n,c,k]`. A column past the end is 0.
///
/// Shapes: `x [N,C,R]`, `index u32 [N,T,K]`, `dy [N,C,K]` → `dw [N,T,K]`.
/// Gradient: of `x` by [`WeightedGatherGradInput`], of `dy` by [`WeightedGather`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WeightedGatherGradWeight;

/// The extents of all three.
#[derive(Clone, Copy, Debug)]
struct Extents {
    n: usize,
    c: usize,
    r: usize,
    t: usize,
    k: usize,
}

impl Extents {
    /// The elements of image `n` in `[N,T,K]`.
    fn of_image<T>(self, n: usize, x: &[T]) -> &[T] {
        &x[n * self.t * self.k..][..self.t * self.k]
    }

    /// Those of `x [N,C,R]` and `index [N,T,K]`.
    fn new(x: Shape, index: Shape) -> Self {
        Self { n: x[0], c: x[1], r: x[2], t: index[1], k: index[2] }
    }
}

/// The types of the operands of one of the three, checked: `indexed` are those of `index`, `[N,T,K]`, `along` are
/// `[N,C,·]`.
fn check(indexed: &[&TensorType], along: &[&TensorType]) -> Result<(), String> {
    let [index, weights @ ..] = indexed else { unreachable!("all have indices") };
    if index.dtype != DType::U32 {
        return Err(format!("needs integers as indices, from `Tensor::indices` or `to_index`, not {index}"));
    }
    if let Some(odd) = weights.iter().chain(along).find(|ty| !ty.dtype.is_float()) {
        return Err(format!("needs floats, one operand holds {}", odd.dtype));
    }
    if let Some(odd) = weights.iter().find(|ty| ty.shape != index.shape) {
        return Err(format!("needs a weight for each of the indices {}, not {odd}", index.shape));
    }
    if index.shape.rank() != 3 || along.iter().any(|ty| ty.shape.rank() != 3 || ty.shape[0] != index.shape[0]) {
        return Err(format!(
            "needs indices [N, T, K] and values [N, C, R], not {} and {}",
            index.shape, along[0].shape
        ));
    }
    Ok(())
}

impl Primitive for WeightedGather {
    fn name(&self) -> &'static str {
        "weighted_gather"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x, index, w] = x else { return Err(format!("takes three operands, not {}", x.len())) };
        check(&[index, w], &[x])?;
        Ok(vec![x.with_shape(x.shape.with(2, index.shape[2]))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[Operand], y: &[TensorType], to: &mut Form) -> Option<Results> {
        Self::form(x, y[0], to)
    }
}

impl Kernel for WeightedGather {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = Extents::new(x[0].layout().shape(), x[1].layout().shape());
        native::forward(g, x[0].floats(), x[1].contiguous_indices(), x[2].floats(), y[0].floats(), scratch);
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = Extents::new(x[0].ty.shape, x[1].ty.shape);
        let elements = y[0].shape.elements();
        let defines = define![N: elements, CHANNELS: g.c, COLUMNS: g.r, TAPS: g.t, COUNT: g.k];
        let workgroups = Workgroups::of_elements(elements).looping(g.t.saturating_add(1));
        let launch = Launch::new(self.name(), defines, (3, 1), workgroups);
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}

impl Primitive for WeightedGatherGradInput {
    fn name(&self) -> &'static str {
        "weighted_gather_grad_input"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [index, w, dy] = x else { return Err(format!("takes three operands, not {}", x.len())) };
        check(&[index, w], &[dy])?;
        if dy.shape[2] != index.shape[2] || self.columns == 0 {
            return Err(format!("needs indices [N, T, K] and a cotangent [N, C, K], not {} and {dy}", index.shape));
        }
        Ok(vec![dy.with_shape(dy.shape.with(2, self.columns))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[Operand], y: &[TensorType], to: &mut Form) -> Option<Results> {
        self.form(x, y[0], to)
    }
}

/// Channels of an invocation of `weighted_gather_grad_input`: it compares each index once for all of them.
const ABREAST: usize = 8;

impl Kernel for WeightedGatherGradInput {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let shape = x[2].layout().shape();
        let g = Extents::new(shape.with(2, self.columns), x[0].layout().shape());
        native::grad_input(g, x[0].contiguous_indices(), x[1].floats(), x[2].floats(), y[0].floats(), scratch);
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = Extents::new(y[0].shape, x[0].ty.shape);
        let abreast = g.c.min(ABREAST);
        let (blocks, examined) = (g.c.div_ceil(abreast), g.t.saturating_mul(g.k));
        let invocations = g.n.saturating_mul(blocks).saturating_mul(g.r);
        let of = |name, segments: Segments| {
            let mut defines = segments.shape();
            defines.extend(define![N: invocations, CHANNELS: g.c, ABREAST: abreast, BLOCKS: blocks]);
            defines.extend(define![COLUMNS: g.r, TAPS: g.t, COUNT: g.k]);
            // Each index that matches enters a loop over the channels, and so do the sums.
            let of_channels = (abreast + 1) * 2;
            let loops = segments.loops(examined, 1, of_channels).saturating_add(of_channels);
            let workgroups = segments.workgroups(invocations, 1, loops, 1);
            Variant::simple(name, Launch::new(self.name(), defines, (3, 1), workgroups).stores_through_epilogue())
        };
        let (serial, shared) = (of("serial", Segments::SERIAL), of("shared", Segments::whole(256)));
        if examined > 256 && invocations < 1 << 16 { vec![shared, serial] } else { vec![serial, shared] }
    }
}

impl Primitive for WeightedGatherGradWeight {
    fn name(&self) -> &'static str {
        "weighted_gather_grad_weight"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x, index, dy] = x else { return Err(format!("takes three operands, not {}", x.len())) };
        check(&[index], &[x, dy])?;
        if dy.shape != x.shape.with(2, index.shape[2]) {
            return Err(format!("needs a cotangent {}, not {dy}", x.shape.with(2, index.shape[2])));
        }
        Ok(vec![x.with_shape(index.shape)])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[Operand], y: &[TensorType], to: &mut Form) -> Option<Results> {
        Self::form(x, y[0], to)
    }
}

/// Channels whose terms `weighted_gather_grad_weight` adds up in one chain.
const RUN: usize = 64;

impl Kernel for WeightedGatherGradWeight {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = Extents::new(x[0].layout().shape(), x[1].layout().shape());
        native::grad_weight(g, x[0].floats(), x[1].contiguous_indices(), x[2].floats(), y[0].floats(), scratch);
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let g = Extents::new(x[0].ty.shape, x[1].ty.shape);
        let elements = y[0].shape.elements();
        let defines = define![N: elements, CHANNELS: g.c, RUN: RUN, COLUMNS: g.r, TAPS: g.t, COUNT: g.k];
        let workgroups = Workgroups::of_elements(elements).looping(g.c.saturating_add(2 * g.c.div_ceil(RUN) + 1));
        let launch = Launch::new(self.name(), defines, (3, 1), workgroups);
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}
