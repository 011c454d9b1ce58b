//! Matrix products, through the `gemm` crates.

use gemm_common::Parallelism;

use super::Real;

/// A product of the `gemm` crate for one element type: `m, n, k`; destination, its column and row strides, whether it
/// is added to; left operand and its column and row strides; right operand likewise; factors of both terms;
/// conjugations.
pub type Product<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix of `(rows, columns)` elements, with the strides of a row and of a column.
    ///
    /// # Panics
    ///
    /// If the last element is outside the slice.
    pub(crate) fn new(data: &'a [T], (rows, columns): (usize, usize), strides: (usize, usize)) -> Self {
        let (row_stride, column_stride) = strides;
        assert!((rows - 1) * row_stride + (columns - 1) * column_stride < data.len(), "a matrix lies inside its slice");
        Self { data, rows, columns, row_stride, column_stride }
    }
}

/// The effect of a product on the elements of its destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accumulate {
    Yes,
    No,
}

/// The threads that a product may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    All,
    One,
}

/// `y = a·b` or `y += a·b`, with `y` row by row.
pub(crate) fn gemm<T: Real>(a: Matrix<'_, T>, b: Matrix<'_, T>, y: &mut [T], accumulate: Accumulate, threads: Threads) {
    assert_eq!(a.columns, b.rows, "inner extents agree");
    assert_eq!(y.len(), a.rows * b.columns, "the result has its place");
    let small = a.rows * b.columns * a.columns < 64 * 64 * 64;
    let parallelism = if threads == Threads::One || small { Parallelism::None } else { Parallelism::Rayon(0) };
    let stride = |s: usize| isize::try_from(s).expect("slices are shorter than isize::MAX");
    // The microkernels want results by columns, so this computes `yᵀ = bᵀ·aᵀ`. SAFETY: `Matrix::new` checked that every
    // element of `a` and `b` lies inside its slice, `y` has exactly the result's elements, and `&mut` keeps it apart
    // from the operands.
    unsafe {
        T::product()(
            b.columns,
            a.rows,
            a.columns,
            y.as_mut_ptr(),
            stride(b.columns),
            1,
            accumulate == Accumulate::Yes,
            b.data.as_ptr(),
            stride(b.row_stride),
            stride(b.column_stride),
            a.data.as_ptr(),
            stride(a.row_stride),
            stride(a.column_stride),
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}
