//! Connectionist temporal classification: the likelihood of a label sequence that is not aligned with its input.

mod native;

use rayon::prelude::*;

use self::native::Example;
use super::segments::Segments;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Binding, Caps, Define, Launch, Variant, Workgroups, define, tree};
use crate::kernel::native::{OutView, Real, Scratch, View, parallel};
use crate::{DType, Result, Shape, TensorType};

/// The logarithm of an impossible event: far below any other, but finite, so that sums and differences stay finite.
pub(crate) const LEAST: f64 = -1e30;

/// `−ln p(targets | x)` of each example: the sum `p = Σ_path Π_t e^x[t, n, path[t]]` over all paths through T steps
/// that yield the targets once repeated classes are merged and blanks are removed.
///
/// A path goes through `L = 2S + 1` states: each label, and a blank before, between and after labels. It stays in a
/// state, goes on to the next, or skips a blank between two different labels. So
/// `α[t,s] = e^x[t,s]·(α[t−1,s] + α[t−1,s−1] + α[t−1,s−2])`, computed in logarithms. Rows are stored relative to the
/// largest number of the previous row, so their precision does not depend on T.
///
/// Shapes: `x [T,N,C]`, targets `u32 [N,S]`, lengths of inputs and of targets `u32 [N]` → losses `[N]`, and for the
/// gradient `ln α [N,T,L]`.
/// Gradient: `dx[t,n,c] = −dℓ[n]·γ[t,n,c]`, where γ is the share of the paths that are at class c at step t,
/// [`CtcGrad`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ctc {
    pub(crate) blank: u32,
    pub(crate) zero_infinity: bool,
}

/// `dx` of [`Ctc`], from `γ ∝ α·β/eˣ`, where β is α from the other end.
///
/// Shapes: those of [`Ctc`]'s operands, `ln α [N,T,L]`, `dℓ [N]` → `dx [T,N,C]`; 0 past an example's length. Gradient:
/// records the loss step by step (`recorded.rs`) and differentiates that twice. `x` and `dℓ` get cotangents; `ln α` is
/// a function of `x` and gets none. NaN where the gradient is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CtcGrad {
    pub(crate) forward: Ctc,
}

/// The extents of a problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CtcShape {
    pub(crate) steps: usize,
    pub(crate) examples: usize,
    pub(crate) classes: usize,
    pub(crate) labels: usize,
}

impl CtcShape {
    fn new(x: &[TensorType]) -> Result<Self, String> {
        let ([steps, examples, classes], true) = (x[0].shape.dims(), x[0].dtype.is_float()) else {
            return Err(format!("the log-probabilities must be floats [T, N, classes], they are {}", x[0]));
        };
        let labels = match x[1].shape.dims() {
            [n, labels] if n == examples && x[1].dtype == DType::U32 => *labels,
            _ => {
                return Err(format!(
                    "the targets must be integers [{examples}, S] for log-probabilities {}, they are {}",
                    x[0], x[1]
                ));
            }
        };
        let lengths = TensorType::new(DType::U32, Shape::from([*examples]));
        if let Some(other) = x[2..4].iter().find(|ty| **ty != lengths) {
            return Err(format!("the lengths of inputs and of targets must be {lengths}, one is {other}"));
        }
        let geometry = Self { steps: *steps, examples: *examples, classes: *classes, labels };
        // Shaders compute indices in 32 bits.
        let states = labels.checked_mul(2).and_then(|states| states.checked_add(1));
        let elements = states.and_then(|states| states.checked_mul(*steps)?.checked_mul(*examples));
        match elements {
            Some(elements) if elements <= 1 << 31 => Ok(geometry),
            _ => Err(format!("{steps} steps · {examples} examples · (2 · {labels} labels + 1) exceed 2³¹")),
        }
    }

    pub(crate) fn of(x: &[TensorType]) -> Self {
        Self::new(x).unwrap_or_else(|message| unreachable!("checked when it was recorded: {message}"))
    }

    pub(crate) fn states(self) -> usize {
        2 * self.labels + 1
    }

    /// The number of elements of an example's `ln α`.
    fn rows(self) -> usize {
        self.steps * self.states()
    }

    /// The number of invocations that share the states of an example.
    fn lanes(self, caps: &Caps) -> usize {
        let most = if caps.workgroup_size >= 256 { 256 } else { 64 };
        self.states().next_power_of_two().clamp(32, most)
    }

    fn defines(self, blank: u32, lanes: usize) -> Vec<Define> {
        let extents = define![
            STEPS: self.steps, EXAMPLES: self.examples, CLASSES: self.classes, LABELS: self.labels, BLANK: blank,
        ];
        [Segments::whole(lanes).shape(), extents].concat()
    }

    /// The workgroups of a recursion, one for each example.
    fn recursions(self, lanes: usize) -> Workgroups {
        Segments::whole(lanes).workgroups(self.examples, 1, self.loops(lanes), 1)
    }

    /// The iterations of the recursion over all steps: its own, those over the states, and those that find the largest.
    fn loops(self, lanes: usize) -> usize {
        let each = self.states().div_ceil(lanes).saturating_add(2 + tree(lanes));
        each.saturating_mul(self.steps).saturating_add(1)
    }
}

fn types<T>(x: &[View<'_, T>], float: DType) -> Vec<TensorType> {
    let ty = |(k, x): (usize, &View<'_, T>)| {
        TensorType::new(if (1..4).contains(&k) { DType::U32 } else { float }, x.layout().shape())
    };
    x.iter().enumerate().map(ty).collect()
}

impl Primitive for Ctc {
    fn name(&self) -> &'static str {
        "ctc"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let geometry = CtcShape::new(x)?;
        if self.blank as usize >= geometry.classes {
            return Err(format!("the blank is class {} of {}", self.blank, geometry.classes));
        }
        let alphas = Shape::from([geometry.examples, geometry.steps, geometry.states()]);
        Ok(vec![x[0].with_shape(Shape::from([geometry.examples])), x[0].with_shape(alphas)])
    }
}

impl Kernel for Ctc {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let g = CtcShape::of(&types(x, T::DTYPE));
        let [losses, alphas] = y else { unreachable!("two results") };
        let losses = losses.floats().par_iter_mut();
        losses.zip(alphas.floats().par_chunks_mut(g.rows())).enumerate().for_each(|(n, (loss, alphas))| {
            let example = Example::new(x, g, self.blank, n);
            *loss = match -example.recursion(alphas, false) {
                loss if self.zero_infinity && loss == -T::NEG_INFINITY => T::ZERO,
                loss => loss,
            };
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let g = CtcShape::of(&x.iter().map(|x| x.ty).collect::<Vec<_>>());
        let lanes = g.lanes(caps);
        let mut defines = g.defines(self.blank, lanes);
        defines.extend(define![FROM: "start", ZERO_INFINITY: self.zero_infinity]);
        let launch = Launch::new(self.name(), defines, (4, 2), g.recursions(lanes));
        vec![Variant::simple("example", launch.stores_through_epilogue())]
    }
}

impl Primitive for CtcGrad {
    fn name(&self) -> &'static str {
        "ctc_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let results = self.forward.outputs(x)?;
        if x[4] != results[1] || x[5] != results[0] {
            return Err(format!("needs {} and {}, not {} and {}", results[1], results[0], x[4], x[5]));
        }
        Ok(vec![x[0]])
    }
}

impl Kernel for CtcGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = CtcShape::of(&types(x, T::DTYPE));
        let Some(mut betas) = scratch.borrow::<T>(g.examples * g.rows()) else { return };
        let (alphas, dloss) = (x[4].floats(), x[5].floats());
        parallel(&mut betas, g.rows(), &|first, betas| {
            let example = Example::new(x, g, self.forward.blank, first / g.rows());
            example.recursion(betas, true);
            example.shares(&alphas[first..][..betas.len()], betas, self.forward.zero_infinity);
        });
        let shares = &*betas;
        parallel(y[0].floats(), g.classes, &|first, dx| {
            let row = first / g.classes;
            let (t, n) = (row / g.examples, row % g.examples);
            let shares = &shares[n * g.rows() + t * g.states()..][..g.states()];
            Example::new(x, g, self.forward.blank, n).gradient(t, shares, dloss[n], dx);
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let g = CtcShape::of(&x.iter().map(|x| x.ty).collect::<Vec<_>>());
        let (lanes, &Ctc { blank, zero_infinity }) = (g.lanes(caps), &self.forward);
        let mut defines = g.defines(blank, lanes);
        defines.extend(define![FROM: "end"]);
        let mut betas = Launch::new("ctc", defines, (4, 0), g.recursions(lanes));
        betas.bindings.push(Binding::Scratch(0));
        // Twice over the states, with three reductions in total, then over the labels for each of its classes.
        let states = g.states().div_ceil(lanes).saturating_add(3 + tree(lanes)).saturating_mul(3);
        let classes = g.classes.div_ceil(lanes).saturating_mul(g.labels.saturating_add(3));
        let mut defines = g.defines(blank, lanes);
        defines.extend(define![ZERO_INFINITY: zero_infinity]);
        let rows = g.steps.saturating_mul(g.examples);
        let workgroups = Segments::whole(lanes).workgroups(rows, 1, states.saturating_add(classes), 1);
        let mut grad = Launch::new(self.name(), defines, (6, 1), workgroups);
        grad = grad.stores_through_epilogue();
        grad.bindings.push(Binding::Scratch(0));
        let scratch = vec![g.examples.saturating_mul(g.rows())];
        vec![Variant { name: "example", launches: vec![betas, grad], scratch }]
    }
}
