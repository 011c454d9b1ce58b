//! Batched matrix multiplication.

use super::matmul_weights::Weights;
use super::terms::{Terms, Tree};
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
#[cfg(feature = "onnx")]
use crate::Shape;
use crate::kernel::gemm::{self, Choice, Cut, Lines, Operands, Product, strides};
use crate::kernel::launch::{Argument, Binding, Caps, Format, Kind, LINE, Variant, define};
use crate::kernel::native::{self, Finish, OutView, Plain, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Result, TensorType};

/// Matrix product of each pair: `y[b,i,j] = Σ a[b,i,k] · b[b,k,j]`
///
/// Shapes: `a [B…,M,K]`, `b [B…,K,N]` → `y [B…,M,N]`. Operands may have any strides, so a transposed or broadcast
/// operand costs no copy.
/// Gradient: `da = dy·bᵀ`, `db = aᵀ·dy`. For a transposed operand it is the transpose of a product, `db = (dyᵀ·a)ᵀ`, so
/// that the gradient of the original matrix is contiguous.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Matmul;

/// The number of products, and `M`, `K` and `N` of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulShape {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
}

impl MatmulShape {
    pub(crate) fn new(a: &[usize], b: &[usize]) -> Self {
        let rank = a.len();
        let batch = a[..rank - 2].iter().product();
        Self { batch, m: a[rank - 2], k: a[rank - 1], n: b[rank - 1] }
    }
}

impl Primitive for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [a, b] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        if a.dtype != b.dtype || !a.dtype.is_float() {
            return Err(format!("needs floats of one type, not {} and {}", a.dtype, b.dtype));
        }
        let rank = a.shape.rank();
        if rank < 2 || b.shape.rank() < 2 {
            return Err("needs operands of at least 2 axes".into());
        }
        let (a_dims, b_dims) = (a.shape.dims(), b.shape.dims());
        let (a_inner, b_inner) = (a_dims[rank - 1], b_dims[b_dims.len() - 2]);
        if a_inner != b_inner {
            return Err(format!("the inner extents differ: the rows have {a_inner} elements, the columns {b_inner}"));
        }
        if a_dims[..rank - 2] != b_dims[..b_dims.len() - 2] {
            return Err("the batch extents do not broadcast".into());
        }
        Ok(vec![a.with_shape(a.shape.with(rank - 1, b_dims[rank - 1]))])
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let k = x[0].shape[x[0].shape.rank() - 1];
        y[0].shape.elements() as u64 * k as u64
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Leading axes broadcast.
        let narrow = |x: &form::Operand| {
            let (from, rank) = (x.narrow.1, x.ty.shape.rank());
            from.rank() >= 2 && from.dims()[from.rank() - 2..] == x.ty.shape.dims()[rank - 2..]
        };
        let leading = |shape: Shape| Shape::new(&shape.dims()[..shape.rank() - 2]);
        let fits = x.iter().all(narrow)
            && leading(x[0].narrow.1).broadcast(&leading(x[1].narrow.1)) == Some(leading(y[0].shape));
        let operands = [0, 1].map(|k: usize| if fits { x[k].narrow.0 } else { x[k].value });
        form::only(to.node("MatMul", &operands, Vec::new()))
    }
}

/// `true` if a few invocations for each result are faster than tiles, because loading a tile takes longer than it
/// saves. The bounds were measured on an H200, with 1 to 1,024 rows (2026-11-27). Where columns of the second operand
/// are adjacent, neighbouring invocations load neighbours.
fn is_small(product: Product, columns_are_adjacent: bool) -> bool {
    let Product { batch, m, n, k, .. } = product;
    let results = batch.saturating_mul(m).saturating_mul(n);
    let most = if columns_are_adjacent { 1 << 15 } else { 1 << 14 };
    results <= most && results * k <= most << 7
}

impl Kernel for Matmul {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn stores_from_registers(&self) -> bool {
        true
    }

    fn bf16(&self, x: &[TensorType], y: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let MatmulShape { batch, m, k, n } = MatmulShape::new(x[0].shape.dims(), x[1].shape.dims());
        let product = |n| Product { batch, m, n, k, operands: Operands::Mixed, beside: true };
        // For products that are smaller, or that multiply too little with each element, converting the operands takes
        // longer than reading bf16 saves.
        let products = batch.saturating_mul(m).saturating_mul(n).saturating_mul(k);
        let wanted = k >= 32 && m.saturating_mul(n) >= 128 * m.saturating_add(n) && products >= 1 << 27;
        let stores = match Format::of_rows(n) {
            Some(Format::PaddedRows(_)) => !is_small(product(n), true) && Format::has_rows(y[0].shape, n),
            _ => n.is_multiple_of(LINE),
        };
        let fits = gemm::multiplies_bf16(caps) && stores && m > 0 && n > 0 && k > 0;
        let bf16 = Bf16 { turned: true, wanted, ..Bf16::new(Innermost::Last, &[0, 1], Stores::Lines) };
        fits.then_some(bf16)
    }

    fn finishes(&self) -> bool {
        true
    }

    /// Factors are not prepared there, and an update that ran inside of a weight's gradient would not be in place.
    fn finishes_in_training(&self) -> bool {
        false
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        self.cpu_finishing(x, y, &Plain, scratch);
    }

    fn cpu_finishing<T: Real>(
        &self,
        x: &[View<'_, T>],
        y: &mut [OutView<'_, T>],
        finish: &dyn Finish<T>,
        scratch: &Scratch,
    ) {
        let (a, b, y) = (x[0], x[1], y[0].floats());
        let shape @ MatmulShape { batch, m, k, n } = MatmulShape::new(a.dims(), b.dims());
        let (a_batch, [a_row, a_col]) = strides(a.layout());
        let (b_batch, [b_row, b_col]) = strides(b.layout());
        if let (Some(a), Some(b), Some(finish)) =
            (T::singles(a.floats()), T::singles(b.floats()), T::single_finish(finish))
            && let Some(weights) = Weights::prepared(&shape, b, (&b_batch, [b_row, b_col]), scratch)
        {
            let y = T::singles_mut(y).expect("all are of one type");
            return weights.multiply(a, (&a_batch, [a_row, a_col]), y, finish, scratch);
        }
        let product = |i: usize, y: &mut [T], threads| {
            let a = native::Matrix::new(&a.floats()[a_batch.at(i)..], (m, k), (a_row, a_col));
            let b = native::Matrix::new(&b.floats()[b_batch.at(i)..], (k, n), (b_row, b_col));
            native::gemm(a, b, y, native::Accumulate::No, threads);
        };
        if batch == 1 {
            product(0, y, native::Threads::All);
        } else {
            native::parallel(y, native::grain(k).div_ceil(m * n) * m * n, &|first, part| {
                for (i, y) in part.chunks_exact_mut(m * n).enumerate() {
                    product(first / (m * n) + i, y, native::Threads::One);
                }
            });
        }
        native::finish_all(y, finish);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let (a, b) = (&x[0].layout, &x[1].layout);
        let MatmulShape { batch, m, k, n } = MatmulShape::new(a.shape().dims(), b.shape().dims());
        let operands = match gemm::lie_across([a, b]) {
            [true, true] => Operands::Across,
            [false, false] => Operands::Along,
            _ => Operands::Mixed,
        };
        let product = Product { batch, m, n, k, operands, beside: true };
        if x.iter().any(|x| x.format != Format::Full) {
            let [a, b] = [Lines::new(&x[0], true), Lines::new(&x[1], false)].map(|x| x.expect("they lie in lines"));
            return product.of_bf16([&a, &b], caps);
        }
        let read = [(Binding::Input(0), a), (Binding::Input(1), b)];
        let mut defines = gemm::operands([a, b]);
        defines.extend(define![BATCH: batch, M: m, N: n, K: k]);
        let sums = Terms { kernel: "matmul_dot", defines, bindings: (2, 1), results: batch * m * n, extent: [1, k] };
        if !caps.tiles {
            return sums.variants(Format::Full, "each");
        }
        let tiled = |choice: Choice| choice.variant(product, |sums| choice.strided(product, read, sums));
        let mut variants: Vec<_> = product.choices(caps, Cut::Added).into_iter().map(tiled).collect();
        if is_small(product, gemm::lie_across([a, b])[1]) {
            let first = caps.kind != Kind::Software || product.is_not_worth_tiles(caps);
            let at = if first { 0 } else { variants.len() };
            variants.splice(at..at, sums.clone().by_few(caps));
        }
        let few = m * n <= 256 && k >= 256;
        let tree = Variant::simple("dot", sums.by_workgroups(Tree::of(k)));
        variants.insert(if few { 0 } else { variants.len() }, tree);
        variants
    }
}
