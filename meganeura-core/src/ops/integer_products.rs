//! Products of bytes, as quantised models have them: sums of `i32`, which wrap around, of differences to zero points.
//! Bytes are whole floats. Products of matrices and convolutions share what is here: the native kernels' last step, and
//! the launches.

use pulp::{Simd, WithSimd};

use crate::kernel::launch::{Caps, Define, Launch, Variant, Workgroups, define};
use crate::kernel::native::{Finish, OutView, Real, Run, Shared};
use crate::{DType, TensorType};

/// The bytes that an operand holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bytes {
    /// −128 to 127.
    Signed,
    /// 0 to 255.
    Unsigned,
}

impl Bytes {
    /// The least of them.
    pub(crate) fn least(self) -> i16 {
        match self {
            Self::Signed => -128,
            Self::Unsigned => 0,
        }
    }

    /// What is subtracted from a number for the signed byte that stands for it.
    pub(crate) fn middle(self) -> i16 {
        self.least() + 128
    }
}

/// A whole float as an integer.
#[expect(clippy::cast_possible_truncation, reason = "bytes and zero points")]
pub(crate) fn whole<T: Real>(x: T) -> i32 {
    x.to_f64() as i32
}

/// Checks that operands are floats of one type, and a result one that sums can have.
pub(crate) fn expect_types(floats: &[TensorType], result: DType) -> Result<(), String> {
    let dtype = floats[0].dtype;
    if let Some(odd) = floats.iter().find(|x| x.dtype != dtype || !x.dtype.is_float()) {
        return Err(format!("needs bytes as floats of one type, not {dtype} and {}", odd.dtype));
    }
    if result != DType::I32 && result != dtype {
        return Err(format!("sums of i32 become {dtype}, not {result}"));
    }
    Ok(())
}

/// What is added to the sums of a row: `constant + of_sums·s[j] + of_zeros·z[j]`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Row {
    pub(crate) constant: i32,
    /// The factor of the sums of columns.
    pub(crate) of_sums: i32,
    /// The factor of the zero points of columns.
    pub(crate) of_zeros: i32,
}

/// The numbers of each column that [`Row`]s multiply; empty where all factors are 0.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub(crate) sums: &'a [i32],
    pub(crate) zeros: &'a [i32],
}

impl Row {
    /// The finished sums of a row.
    #[inline(always)]
    fn finished(self, columns: Columns<'_>, sums: &mut [i32]) {
        let Self { constant, of_sums, of_zeros } = self;
        for (factor, numbers) in [(of_sums, columns.sums), (of_zeros, columns.zeros)] {
            if factor != 0 {
                sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum = sum.wrapping_add(x.wrapping_mul(factor)));
            }
        }
        sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(constant));
    }
}

/// Sums of products, row by row.
pub(crate) struct Panel<'a> {
    /// Rows of so many places each, of which the first `columns` are sums.
    pub(crate) sums: &'a mut [i32],
    pub(crate) stride: usize,
    pub(crate) columns: usize,
    pub(crate) rows: &'a [Row],
    pub(crate) of_columns: Columns<'a>,
}

/// Where sums go: to integers, or to floats by the elementwise work on them.
pub(crate) enum Destination<'a, T> {
    Sums(Shared<'a, i32>),
    Floats(Shared<'a, T>, &'a dyn Finish<T>),
}

impl<'a, T: Real> Destination<'a, T> {
    pub(crate) fn new(y: &'a mut OutView<'_, T>, finish: &'a dyn Finish<T>) -> Self {
        match y {
            OutView::Int(y) => Self::Sums(Shared::new(y)),
            y => Self::Floats(Shared::new(y.floats()), finish),
        }
    }

    /// Stores a panel, with memory for as many floats.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes any of these elements.
    pub(crate) unsafe fn store(&self, mut panel: Panel<'_>, values: &mut [T], runs: &mut dyn Iterator<Item = Run>) {
        let floats = match self {
            Self::Sums(_) => &mut [],
            Self::Floats(..) => &mut *values,
        };
        pulp::Arch::new().dispatch(Finished { panel: &mut panel, floats });
        match self {
            Self::Sums(y) => runs.for_each(|Run { first, at, len }| {
                // SAFETY: the caller's promise.
                unsafe { y.write(first, &panel.sums[at..][..len]) };
            }),
            // SAFETY: the caller's promise.
            Self::Floats(y, finish) => unsafe { finish.store(values, runs, y) },
        }
    }
}

/// The finished sums of a panel, and the floats that they become, if there is memory for them.
struct Finished<'a, 'b, T> {
    panel: &'a mut Panel<'b>,
    floats: &'a mut [T],
}

impl<T: Real> WithSimd for Finished<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { panel: Panel { sums, stride, columns, rows, of_columns }, floats } = self;
        for (at, (sums, row)) in sums.chunks_exact_mut(*stride).zip(*rows).enumerate() {
            let sums = &mut sums[..*columns];
            row.finished(*of_columns, sums);
            if let Some(floats) = floats.get_mut(at * *stride..) {
                floats.iter_mut().zip(sums).for_each(|(value, &mut sum)| *value = T::from_i32(sum));
            }
        }
    }
}

/// Extents of the products, and how the kernel of GPUs reads their factors.
pub(crate) struct Products {
    pub(crate) form: &'static str,
    /// Products, rows, columns and terms.
    pub(crate) extents: [usize; 4],
    pub(crate) defines: Vec<Define>,
    pub(crate) operands: usize,
}

impl Products {
    /// Tiles come first unless they would be mostly empty.
    pub(crate) fn variants(self, y: &[TensorType], caps: &Caps) -> Vec<Variant> {
        const SIDE: usize = 64;
        const STEP: usize = 16;
        let Self { form, extents: [batch, rows, columns, depth], defines, operands } = self;
        let result = if y[0].dtype == DType::I32 { DType::I32 } else { DType::F32 };
        let all =
            [defines, define![FORM: form, RESULT: result, BATCH: batch, ROWS: rows, COLUMNS: columns, DEPTH: depth]]
                .concat();
        let launch = |more: Vec<Define>, workgroups: Workgroups| {
            let defines = [all.clone(), more].concat();
            Launch::new("integer_products", defines, (operands, 1), workgroups).stores_through_epilogue()
        };
        let each = Workgroups::of_elements(batch * rows * columns).looping(depth + depth.div_ceil(256));
        let each = Variant::simple("invocation", launch(define![BY: "invocation"], each));
        let [down, across] = [rows, columns].map(|extent| extent.div_ceil(SIDE));
        let tiles = Workgroups::new(batch * down * across, 256)
            .with_memory(&[4 * STEP * (SIDE + 4); 2])
            .looping(depth.div_ceil(STEP) * (STEP + 8) + depth.div_ceil(256) + 24);
        if !caps.tiles || !tiles.fit(caps) {
            return vec![each];
        }
        let tiles = launch(define![BY: "tile", TILES_M: down, TILES_N: across], tiles);
        let tiles = Variant::simple("tile", tiles);
        if rows.min(columns) >= 8 && rows * columns >= 512 { vec![tiles, each] } else { vec![each, tiles] }
    }
}
