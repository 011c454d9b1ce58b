//! Matrix products of bytes.

use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::integer_products::{Bytes, Columns, Destination, Panel, Products, Row, expect_types, whole};
use super::matmul::MatmulShape;
use super::{Kernel, Primitive};
use crate::host::HostBuffer;
use crate::kernel::gemm::{operands, strides};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, Accumulate, Apart, BYTES, Block, Finish, OutView, Plain, Real, Run, Scratch, View};
use crate::kernel::offset::offset;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Layout, Result, TensorType};

/// Matrix product of bytes with zero points: `y[b,i,j] = Σ (a[b,i,k] − za[b,i])·(b[b,k,j] − zb[b,j])`, sums of `i32`
/// that wrap around.
///
/// Shapes: `a [B…,M,K]`, `b [B…,K,N]`, `za [B…,M,1]`, `zb [B…,1,N]`, whole floats → `y [B…,M,N]`, `i32` or rounded to
/// floats. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MatmulInteger {
    pub(crate) bytes: [Bytes; 2],
    pub(crate) result: DType,
}

impl Primitive for MatmulInteger {
    fn name(&self) -> &'static str {
        "matmul_integer"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [a, b, za, zb] = x else { return Err(format!("takes four operands, not {}", x.len())) };
        expect_types(x, self.result)?;
        let rank = a.shape.rank();
        if rank < 2 || b.shape.rank() != rank {
            return Err("needs operands of one number of axes, at least 2".into());
        }
        let (m, k, n) = (a.shape[rank - 2], a.shape[rank - 1], b.shape[rank - 1]);
        if b.shape != a.shape.with(rank - 2, k).with(rank - 1, n) {
            return Err(format!(
                "the inner extents, or those before the last two, differ: {} and {}",
                a.shape, b.shape
            ));
        }
        let [rows, columns] = [a.shape.with(rank - 1, 1), b.shape.with(rank - 2, 1)];
        if za.shape != rows || zb.shape != columns {
            return Err(format!(
                "the zero points must be {rows} and {columns}, they are {} and {}",
                za.shape, zb.shape
            ));
        }
        Ok(vec![TensorType::new(self.result, a.shape.with(rank - 2, m).with(rank - 1, n))])
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let k = x[0].shape[x[0].shape.rank() - 1];
        y[0].shape.elements() as u64 * k as u64
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        // Of integers of 32 bits: operators of bytes have zero points of other shapes, and fewer readers.
        let difference = |to: &mut Form, x: &form::Operand, zero: &form::Operand| {
            let difference = to.node("Sub", &[x.value, zero.value], Vec::new());
            to.cast(difference, DType::I32)
        };
        let (a, b) = (difference(to, &x[0], &x[2]), difference(to, &x[1], &x[3]));
        let sums = to.node("MatMul", &[a, b], Vec::new());
        form::only(if self.result == DType::I32 { sums } else { to.cast(sums, y[0].dtype) })
    }
}

/// The most rows and columns of a result that are computed at a time.
const ROWS: usize = 4 * Block::ROWS;
const COLUMNS: usize = 256;

/// The first factor as words: for each row of all products the quads of its terms, then the sum of its bytes.
fn pack_rows<T: Real>(a: &View<'_, T>, bytes: Bytes, to: &mut [f32]) {
    let (batches, [row, term]) = strides(a.layout());
    let [m, k] = *a.dims().last_chunk().expect("matrices");
    let len = k.div_ceil(BYTES) + 1;
    let arch = pulp::Arch::new();
    native::parallel(to, native::grain(k) * len, &|first, to| {
        for (line, to) in (first / len..).zip(to.chunks_exact_mut(len)) {
            let x = &a.floats()[batches.at(line / m) + line % m * row..];
            let (words, sum) = bytemuck::cast_slice_mut(to).split_at_mut(len - 1);
            arch.dispatch(PackRow { x, term, count: k, middle: bytes.middle(), words, sum: &mut sum[0] });
        }
    });
}

/// A row as words, in the form that `pulp` needs.
struct PackRow<'a, T> {
    x: &'a [T],
    /// The distance of neighbouring terms, and their number.
    term: usize,
    count: usize,
    /// What is subtracted for signed bytes.
    middle: i16,
    words: &'a mut [u32],
    sum: &'a mut u32,
}

impl<T: Real> WithSimd for PackRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, term, count, middle, words, sum } = self;
        let (bytes, rest) = bytemuck::cast_slice_mut::<u32, u8>(words).split_at_mut(count);
        rest.fill(0);
        match T::singles(x) {
            Some(x) if term == 1 => {
                // 1.5·2²³: the sum has the number in its lowest bits. A conversion would check its range.
                let shift = 12_582_912.0 - f32::from(middle);
                bytes.iter_mut().zip(x).for_each(|(to, &x)| *to = (x + shift).to_bits().to_le_bytes()[0]);
            }
            _ => {
                let byte = |x: T| (whole(x) - i32::from(middle)).to_le_bytes()[0];
                bytes.iter_mut().zip(x.iter().step_by(term)).for_each(|(to, &x)| *to = byte(x));
            }
        }
        let total: i32 = bytes.iter().map(|&byte| i32::from(byte.cast_signed())).sum();
        *sum = total.cast_unsigned();
    }
}

/// The second factor as words: for each batch `[quad of terms, column]`, then the sums of its columns.
struct Factor {
    quads: usize,
    columns: usize,
}

impl Factor {
    fn new(k: usize, n: usize) -> Self {
        Self { quads: k.div_ceil(BYTES), columns: n.next_multiple_of(Block::COLUMNS) }
    }

    /// Words of a batch.
    fn len(&self) -> usize {
        (self.quads + 1) * self.columns
    }

    /// Writes some batches of a factor.
    fn pack<T: Real>(&self, b: &View<'_, T>, bytes: Bytes, batches: &Layout, to: &mut [f32]) {
        let (x, (_, [row, column])) = (b.floats(), strides(b.layout()));
        let [k, n] = *b.dims().last_chunk().expect("matrices");
        native::parallel(to, self.len(), &|first, to| {
            let x = &x[batches.at(first / self.len())..];
            let to: &mut [u32] = bytemuck::cast_slice_mut(to);
            let (all, sums) = to.split_at_mut(self.quads * self.columns);
            sums.fill(0);
            for (quad, to) in all.chunks_exact_mut(self.columns).enumerate() {
                to.fill(0);
                for (at, term) in (quad * BYTES..k.min((quad + 1) * BYTES)).enumerate() {
                    for (j, to) in to[..n].iter_mut().enumerate() {
                        let byte =
                            (whole(x[term * row + j * column]) - i32::from(bytes.least())).cast_unsigned() & 0xff;
                        *to |= byte << (8 * at);
                        sums[j] += byte;
                    }
                }
            }
        });
    }
}

impl Kernel for MatmulInteger {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn finishes(&self) -> bool {
        self.result.is_float()
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
        let (a, b, [of_a, of_b]) = (x[0], x[1], self.bytes);
        let MatmulShape { batch, m, k, n } = MatmulShape::new(a.dims(), b.dims());
        let (b_batch, _) = strides(b.layout());
        let factor = Factor::new(k, n);
        let apart = if b_batch.strides().iter().all(|&stride| stride == 0) { 1 } else { batch };
        let prepared: Option<Arc<HostBuffer>> =
            scratch.prepared::<f32>(1, apart * factor.len(), |to| factor.pack(&b, of_b, &b_batch, to));
        let mut packed = None;
        let columns: &[u32] = bytemuck::cast_slice(match &prepared {
            Some(prepared) => f32::slice(prepared),
            None => {
                let Some(mut memory) = scratch.borrow::<f32>(apart * factor.len()) else { return };
                factor.pack(&b, of_b, &b_batch, &mut memory);
                packed.insert(memory)
            }
        });
        let line = factor.quads + 1;
        let Some(mut lines) = scratch.borrow::<f32>(batch * m * line) else { return };
        pack_rows(&a, of_a, &mut lines);
        let lines: &[u32] = bytemuck::cast_slice(&lines);
        let zero = |x: &View<'_, T>, at: usize, less: i16| whole(x.floats()[x.layout().at(at)]) - i32::from(less);
        let (zeros_of_a, zeros_of_b) = (x[2], x[3]);
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "sums wrap around")]
        let terms = k as i32;
        let destination = Destination::new(&mut y[0], finish);
        // Products of few rows are divided along columns, for threads.
        let row_tasks = batch * m.div_ceil(ROWS);
        let wanted = n.div_ceil((2 * rayon::current_num_threads()).div_ceil(row_tasks));
        let panel = wanted.next_multiple_of(2 * Block::COLUMNS).min(COLUMNS).min(factor.columns);
        let (panels, rows) = (n.div_ceil(panel), ROWS.min(m));
        let memory =
            || ([rows * panel, panel].map(|len| scratch.borrow::<f32>(len)), scratch.borrow::<T>(rows * panel));
        native::tasks(row_tasks * panels, rows * panel * factor.quads, &memory, &|task, memory| {
            let ([Some(sums), Some(zeros)], Some(values)) = memory else { return };
            let (task, first) = (task / panels, task % panels * panel);
            let (product, top) = (task / m.div_ceil(ROWS), task % m.div_ceil(ROWS) * ROWS);
            let (rows, count) = (ROWS.min(m - top), panel.min(n - first));
            let lines = &lines[(product * m + top) * line..][..rows * line];
            let b = &columns[if apart == 1 { 0 } else { product } * factor.len()..][..factor.len()];
            let (b, of_columns) = b.split_at(factor.quads * factor.columns);
            let zeros: &mut [i32] = &mut bytemuck::cast_slice_mut(zeros)[..count];
            for (to, j) in zeros.iter_mut().zip(product * n + first..) {
                *to = zero(&zeros_of_b, j, of_b.least());
            }
            let row = |(line, i): (&[u32], usize)| {
                let zero = zero(&zeros_of_a, i, of_a.middle());
                let of_zeros = terms.wrapping_mul(zero).wrapping_sub(line[factor.quads].cast_signed());
                Row { constant: 0, of_sums: -zero, of_zeros }
            };
            let corrections: Vec<_> = lines.chunks_exact(line).zip(product * m + top..).map(row).collect();
            let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
            let block = Block {
                extents: [rows, count, factor.quads],
                a: lines,
                a_rows: Apart(line),
                a_terms: Apart(1),
                b: &b[first..],
                b_terms: Apart(factor.columns),
                c: sums,
                c_stride: panel,
                accumulate: Accumulate::No,
            };
            block.multiply_bytes(pulp::Arch::new());
            let of_row = |r| Run { first: (product * m + top + r) * n + first, at: r * panel, len: count };
            let of_columns = Columns { sums: bytemuck::cast_slice(&of_columns[first..][..count]), zeros };
            let panel = Panel { sums, stride: panel, columns: count, rows: &corrections, of_columns };
            // SAFETY: this part of the result belongs to this task alone.
            unsafe { destination.store(panel, values, &mut (0..rows).map(of_row)) };
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let (a, b) = (&x[0].layout, &x[1].layout);
        let MatmulShape { batch, m, k, n } = MatmulShape::new(a.shape().dims(), b.shape().dims());
        let mut defines = operands([a, b]);
        defines.extend([("A_ZERO", offset(&x[2].layout, "i")), ("B_ZERO", offset(&x[3].layout, "i"))]);
        Products { form: "matmul", extents: [batch, m, n, k], defines, operands: 4 }.variants(caps)
    }
}
