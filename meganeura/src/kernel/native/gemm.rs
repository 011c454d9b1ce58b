//! Matrix products, through the `gemm` crate.

use super::Real;

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
    /// `(rows, columns)` with elements `(row, column)` strides apart.
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

/// Whether a product is added to what is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accumulate {
    Yes,
    No,
}

/// How many threads a product may use.
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
    let parallelism =
        if threads == Threads::One || small { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(0) };
    let stride = |s: usize| isize::try_from(s).expect("slices are shorter than isize::MAX");
    // SAFETY: `Matrix::new` checked that every element of `a` and `b` lies inside its slice, `y` has exactly the result's
    // elements, and `&mut` keeps it apart from the operands.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            y.as_mut_ptr(),
            1,
            stride(b.columns),
            accumulate == Accumulate::Yes,
            a.data.as_ptr(),
            stride(a.column_stride),
            stride(a.row_stride),
            b.data.as_ptr(),
            stride(b.column_stride),
            stride(b.row_stride),
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}
