//! Batched matrix multiplication.

use super::terms::{Terms, Tree};
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::gemm::{self, Choice, Cut, Lines, Operands, Product, strides};
use crate::kernel::launch::{Argument, Binding, Caps, Format, Kind, LINE, Variant, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{Error, ErrorKind, Result, Shape, TensorType};

/// Matrix product of each pair: `y[b,i,j] = Σ a[b,i,k] · b[b,k,j]`
///
/// Shapes: `a [B…,M,K]`, `b [B…,K,N]` → `y [B…,M,N]`. Operands may have any strides, so a transposed or broadcast
/// operand costs no copy.
/// Gradient: `da = dy·bᵀ`, `db = aᵀ·dy`. For a transposed operand it is the transpose of a product, `db = (dyᵀ·a)ᵀ`, so
/// that the gradient of the original matrix is contiguous.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Matmul;

/// The number of products, and `M`, `K` and `N` of each.
struct Geometry {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
}

impl Geometry {
    fn new(a: &[usize], b: &[usize]) -> Self {
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([a, b], Some(dy)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let da = if a.is_transposed() { b.matmul(&dy.t()).t() } else { dy.matmul(&b.t()) };
        let db = if b.is_transposed() { dy.t().matmul(a).t() } else { a.t().matmul(dy) };
        Ok(vec![Some(da), Some(db)])
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

    #[cfg(feature = "testing")]
    fn special() -> &'static [super::case::Special] {
        &[super::case::Special::Product]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let case = |a: &[usize], b: &[usize]| Case::new(Self).input(a).input(b).tolerance(1e-5).naive(naive);
        vec![
            case(&[1, 1], &[1, 1]),
            case(&[2, 3], &[3, 4]),
            case(&[17, 33], &[33, 65]),
            case(&[64, 16], &[16, 64]),
            case(&[1, 300], &[300, 2]),
            case(&[3, 5, 7], &[3, 7, 2]),
            case(&[2, 3, 4, 5], &[2, 3, 5, 6]),
            // more than one tile of every size, with and without fours
            case(&[131, 40], &[40, 133]),
            case(&[132, 68], &[68, 136]),
            // and a reduction that is split into parts, the last one shorter
            case(&[2, 36, 1000], &[2, 1000, 40]),
            // eights, whole tiles
            case(&[136, 72], &[72, 152]),
            case(&[128, 40], &[40, 256]),
            // magnitudes outside the range of f16
            case(&[34, 40], &[40, 35]).scale(1e-10),
            Case::recorded("matmul", &[&[9, 40], &[40, 35]], |x| x[0].scale(1e5).matmul(&x[1].scale(1e5)).scale(1e-10)),
            // blocks of the reduction of different magnitude: scales that were found in the first do not fit the others
            Case::recorded("matmul", &[&[70, 64], &[64, 72]], |x| growing(x, [0.0, 1e-9, 1e6, 1.0])),
            Case::recorded("matmul", &[&[70, 64], &[64, 72]], |x| growing(x, [1e-9, 1e6, 0.0, 1.0])),
            Case::recorded("matmul", &[&[72, 64], &[64, 136]], |x| growing(x, [0.0, 1e-9, 1e6, 1.0])),
            Case::recorded("matmul", &[&[136, 64], &[72, 64]], |x| x[0].matmul(&x[1].t())),
            Case::recorded("matmul", &[&[136, 72]], |x| x[0].matmul(&x[0].t())),
            Case::recorded("matmul", &[&[64, 136], &[64, 72]], |x| x[0].t().matmul(&x[1])),
            Case::recorded("matmul", &[&[132, 36], &[140, 36]], |x| x[0].matmul(&x[1].t())),
            Case::recorded("matmul", &[&[44, 132], &[44, 68]], |x| x[0].t().matmul(&x[1])),
            Case::recorded("matmul", &[&[5, 7], &[6, 7]], |x| x[0].matmul(&x[1].t())),
            Case::recorded("matmul", &[&[7, 5], &[7, 6]], |x| x[0].t().matmul(&x[1])),
            Case::recorded("matmul", &[&[3, 2, 4], &[4, 5]], |x| x[0].matmul(&x[1])),
            Case::recorded("matmul", &[&[2, 1, 3, 4], &[3, 4, 2]], |x| x[0].matmul(&x[1])),
            Case::recorded("matmul", &[&[4, 4]], |x| x[0].slice(0, 1..3).matmul(&x[0].slice(1, 0..3))),
        ]
    }
}

/// A product whose left operand has these magnitudes along the reduction, in order.
#[cfg(feature = "testing")]
fn growing(x: &[Var], magnitudes: [f64; 4]) -> Var {
    let left = magnitudes.map(|magnitude| x[0].scale(magnitude));
    Var::concat(&left.each_ref(), 1).matmul(&Var::concat(&[&x[1]; 4], 0)).scale(1e-6)
}

/// Three loops.
#[cfg(feature = "testing")]
fn naive(x: &[super::case::Array]) -> Vec<super::case::Array> {
    let Geometry { batch, m, k, n } = Geometry::new(x[0].shape.dims(), x[1].shape.dims());
    let mut y = Vec::with_capacity(batch * m * n);
    for (b, i, j) in triples(batch, m, n) {
        y.push((0..k).map(|l| x[0].data[(b * m + i) * k + l] * x[1].data[(b * k + l) * n + j]).sum());
    }
    let rank = x[0].shape.rank();
    vec![super::case::Array { shape: x[0].shape.with(rank - 1, n), data: y }]
}

/// All triples below the bounds, the last index fastest.
#[cfg(feature = "testing")]
fn triples(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
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

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let Geometry { batch, m, k, n } = Geometry::new(x[0].shape.dims(), x[1].shape.dims());
        // For smaller products, converting the operands takes longer than reading bf16 saves.
        let wanted = m.min(n).min(k) >= 256 && batch.saturating_mul(m).saturating_mul(n).saturating_mul(k) >= 1 << 27;
        let fits = gemm::multiplies_bf16(caps) && n.is_multiple_of(LINE) && m > 0 && n > 0 && k > 0;
        let bf16 = Bf16 { innermost: Innermost::Last, operands: &[0, 1], stores: Stores::Lines, wanted };
        fits.then_some(bf16)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (a, b) = (x[0], x[1]);
        let Geometry { batch, m, k, n } = Geometry::new(a.dims(), b.dims());
        let (a_batch, [a_row, a_col]) = strides(a.layout());
        let (b_batch, [b_row, b_col]) = strides(b.layout());
        let y = y[0].floats();
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
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let (a, b) = (&x[0].layout, &x[1].layout);
        let Geometry { batch, m, k, n } = Geometry::new(a.shape().dims(), b.shape().dims());
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

impl Var {
    /// The matrix product over the last two axes: `y[…, i, j] = Σ_k x[…, i, k]·other[…, k, j]`
    ///
    /// Shapes: `x […, M, K]`, `other […, K, N]` → `y […, M, N]`; leading axes broadcast as in NumPy. Operands with
    /// fewer than two axes or with different `K` are an error. Transposing an operand with [`Var::t`] costs nothing.
    #[doc(alias("mm", "bmm"))]
    #[must_use]
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Self {
        let (a, b) = (self.shape(), other.shape());
        if a.rank() < 2 || b.rank() < 2 || (a.rank() == 2 && b.rank() == 2) {
            return self.record(Matmul, &[self, other]);
        }
        let (a_batch, b_batch) = (&a.dims()[..a.rank() - 2], &b.dims()[..b.rank() - 2]);
        let Some(batch) = Shape::new(a_batch).broadcast(&Shape::new(b_batch)) else {
            let message = format!("the batch extents {a_batch:?} and {b_batch:?} do not broadcast");
            let error = Error::new(ErrorKind::Shape, message).in_op("matmul");
            let error = error.operand(self.ty(), self.path()).operand(other.ty(), other.path());
            return self.fail(error.at(std::panic::Location::caller()));
        };
        let with_batch = |var: &Self| {
            let shape = var.shape();
            let dims = [batch.dims(), &shape.dims()[shape.rank() - 2..]].concat();
            var.expand(Shape::new(&dims))
        };
        self.record(Matmul, &[&with_batch(self), &with_batch(other)])
    }
}
