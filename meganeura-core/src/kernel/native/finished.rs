//! Sums of products that are finished while they are in registers: the elementwise work of [`Affine`], without
//! branches. With an activation, the sums of a tile are finished in one function, which is compiled once: its code
//! would be too large for every tile.

use pulp::{MemMask, Simd, WithSimd, bytemuck};

use super::block::{Block, Floats, Then, Tiles};
use super::prefetch::prefetch_line;
use super::windows::in_line;
use super::{Activation, Affine, Bound, NONE, Number, Places, Shared};

const NO_BOUNDS: [f32; 3] = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY];

/// What the numbers of the form belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    OfRows,
    OfColumns,
}

/// A product that is part of a result, with elementwise work on it. Its columns may lie in lines with `GAPS` between
/// them.
#[derive(Clone, Copy)]
pub(crate) struct Finished<'a, const GAPS: bool = false> {
    pub(super) numbers: Numbers,
    /// `m`, `f` and `s`, so far apart for neighbouring rows or columns.
    values: [(&'a [f32], usize); 3],
    residual: Option<&'a [f32]>,
    /// What is at most the first of these is the second, and what is more than the third is that.
    bounds: [f32; 3],
    activation: Option<&'a Activation<f32>>,
    y: &'a Shared<'a, f32>,
    /// The numbers of the first element in the result, and of its row or column among those that have values.
    first: usize,
    begin: usize,
    /// The distance of neighbouring rows in the result.
    apart: usize,
    columns: usize,
    lines: Option<Gaps>,
}

/// Columns in lines with gaps between them, which are no part of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gaps {
    /// The place of the first column; the first line begins at place 0.
    pub(crate) first: usize,
    /// The columns of a line, at least [`Block::COLUMNS`], and the places from one line to the next.
    pub(crate) len: usize,
    pub(crate) apart: usize,
}

/// Neighbouring elements of a vector that are adjacent in the result: their place after that of the row's first
/// element, counted from where the vector's first would be, and which they are.
type Piece<S> = (usize, MemMask<<S as Simd>::m32s>);

/// The pieces of each vector of a tile's rows, and their numbers if they are of columns.
type Columns<S> = ([[Piece<S>; 2]; 2], [[<S as Simd>::f32s; 3]; 2]);

impl<'a> Finished<'a> {
    /// Rows that are parts of channels, for images with so many channels of so many elements. `None` if the work has
    /// other numbers than those of channels, or other parts.
    pub(crate) fn rows(
        affine: &'a Affine<'_, f32>,
        [channels, inner]: [usize; 2],
        y: &'a Shared<'a, f32>,
    ) -> Option<Self> {
        let is_alike = affine.channels == NONE;
        let fits = is_alike || affine.channels[0].is_multiple_of(channels) && affine.channels[1] == inner;
        let values = affine.numbers.each_ref().map(|number| match number {
            Number::One(value) => (std::slice::from_ref(value), 0),
            &Number::Channels(data, step) => (data, step),
        });
        (fits && has_vectors(affine)).then(|| Self::new(affine, Numbers::OfRows, values, inner, y))
    }

    /// Parts of matrices with so many columns. `None` if the work has other numbers than those of columns.
    pub(crate) fn columns(affine: &'a Affine<'_, f32>, columns: usize, y: &'a Shared<'a, f32>) -> Option<Self> {
        let fits = affine.channels == NONE || affine.channels == [columns, 1];
        let values = affine.columns()?;
        (fits && has_vectors(affine)).then(|| Self::new(affine, Numbers::OfColumns, values, columns, y))
    }

    fn new(
        affine: &'a Affine<'_, f32>,
        numbers: Numbers,
        values: [(&'a [f32], usize); 3],
        apart: usize,
        y: &'a Shared<'a, f32>,
    ) -> Self {
        let bounds = match affine.bound {
            Bound::None => NO_BOUNDS,
            // Of zeros, -0 becomes 0.
            Bound::Relu => [0.0, 0.0, f32::INFINITY],
            Bound::Clamp(low, high) => [low.next_down(), low, high],
        };
        Self {
            numbers,
            values,
            residual: affine.residual,
            bounds,
            activation: affine.activation.as_ref(),
            y,
            first: 0,
            begin: 0,
            apart,
            columns: 0,
            lines: None,
        }
    }

    /// The product with so many columns whose first element is number `first` of the result.
    pub(crate) fn at(self, affine: &Affine<'_, f32>, first: usize, columns: usize) -> Self {
        let begin = match self.numbers {
            Numbers::OfRows => first / self.apart % affine.channels[0],
            Numbers::OfColumns => first % self.apart,
        };
        Self { first, begin, columns, ..self }
    }

    /// The same product in lines with gaps, if there are any; its first element is that of the first line then.
    pub(crate) fn in_lines(self, lines: Option<Gaps>) -> Finished<'a, true> {
        let Self { numbers, values, residual, bounds, activation, y, first, begin, apart, columns, .. } = self;
        Finished { numbers, values, residual, bounds, activation, y, first, begin, apart, columns, lines }
    }
}

impl<const GAPS: bool> Finished<'_, GAPS> {
    /// # Panics
    ///
    /// If an element of a product with these extents does not lie in the result, or has no numbers.
    pub(super) fn expect_all(&self, rows: usize, columns: usize) {
        let of_row = self.lines.map_or(columns, |lines| lines.place(columns - 1) + 1);
        let end = self.first + (rows - 1) * self.apart + of_row;
        assert!(
            self.lines.is_none_or(|lines| lines.len >= Block::COLUMNS && lines.apart >= lines.len),
            "lines are long"
        );
        assert!(columns == self.columns && end <= self.y.len(), "rows lie in the result");
        assert!(self.residual.is_none_or(|r| end <= r.len()), "there is a residual for each element");
        let last = self.begin + if self.numbers == Numbers::OfRows { rows } else { columns } - 1;
        assert!(self.values.iter().all(|&(data, step)| last * step < data.len()), "there are numbers for all");
    }

    /// The place of a row in the result.
    #[inline(always)]
    fn place(&self, row: usize) -> usize {
        self.first + row * self.apart
    }

    /// Fetches the places behind the vectors of some rows.
    #[inline(always)]
    fn fetch<S: Simd>(&self, row: usize, rows: usize, behind: usize) {
        let mut place = self.y.as_ptr().wrapping_add(self.place(row) + behind);
        for _ in 0..rows {
            prefetch_line(place);
            prefetch_line(place.wrapping_add(S::F32_LANES));
            place = place.wrapping_add(self.apart);
        }
    }

    /// The elements of a vector that are of the product.
    #[inline(always)]
    fn pieces<S: Simd>(&self, simd: S, column: usize) -> [Piece<S>; 2] {
        let rest = self.columns - column;
        let Some(Gaps { first, len, apart }) = self.lines.filter(|_| GAPS) else {
            return [(column, in_line(simd, 0, rest)); 2];
        };
        let (line, at) = ((first + column) / apart, (first + column) % apart);
        let of_line = |line: usize, at: isize| {
            let end = at.saturating_add_unsigned(rest).max(0).cast_unsigned();
            ((line * len).wrapping_add_signed(at), in_line(simd, at, end.min(len)))
        };
        [of_line(line, at.cast_signed()), of_line(line + 1, at.cast_signed() - apart.cast_signed())]
    }

    /// The pieces of a vector that there may be.
    #[inline(always)]
    fn in_use<S: Simd>(&self, pieces: [Piece<S>; 2]) -> impl Iterator<Item = Piece<S>> {
        pieces.into_iter().take(if GAPS && self.lines.is_some() { 2 } else { 1 })
    }

    /// What some rows of so many vectors need.
    ///
    /// # Safety
    ///
    /// The rows and columns are of the product.
    #[inline(always)]
    unsafe fn of_tile<S: Simd>(&self, simd: S, [row, column]: [usize; 2], [rows, vectors]: [usize; 2]) -> Columns<S> {
        let mut pieces = [self.pieces(simd, column); 2];
        if vectors == 2 {
            pieces[1] = self.pieces(simd, column + S::F32_LANES);
        }
        self.fetch::<S>(row, rows, pieces[vectors - 1][0].0 + S::F32_LANES);
        let mut numbers = [[simd.splat_f32s(0.0); 3]; 2];
        if self.numbers == Numbers::OfColumns {
            for j in 0..vectors {
                for (number, &(data, step)) in numbers[j].iter_mut().zip(&self.values) {
                    *number = if step == 0 {
                        simd.splat_f32s(data[0])
                    } else {
                        let from = data.as_ptr().wrapping_add(self.begin + column + j * S::F32_LANES);
                        // SAFETY: `expect_all` found numbers for each column, and neighbouring ones are adjacent.
                        unsafe { simd.mask_load_ptr_f32s(pieces[j][0].1, from) }
                    };
                }
            }
        }
        (pieces, numbers)
    }

    /// Replaces the numbers of columns by those of a row, if they are of rows.
    ///
    /// # Safety
    ///
    /// The row is of the product.
    #[inline(always)]
    unsafe fn of_row<S: Simd>(&self, simd: S, row: usize, numbers: &mut [[S::f32s; 3]; 2]) {
        if self.numbers == Numbers::OfRows {
            for (k, &(data, step)) in self.values.iter().enumerate() {
                // SAFETY: `expect_all` found numbers for each row.
                let number = simd.splat_f32s(unsafe { *data.get_unchecked((self.begin + row) * step) });
                (numbers[0][k], numbers[1][k]) = (number, number);
            }
        }
    }

    /// A vector with all but its residual, in bounds.
    #[inline(always)]
    fn bound<S: Simd>(&self, simd: S, x: S::f32s) -> S::f32s {
        let [below, low, high] = self.bounds;
        let (below, low, high) = (simd.splat_f32s(below), simd.splat_f32s(low), simd.splat_f32s(high));
        let x = simd.select_f32s(simd.greater_than_f32s(x, high), high, x);
        simd.select_f32s(simd.less_than_or_equal_f32s(x, below), low, x)
    }
}

/// `true` if the work needs no rounding, and the processor has vectors.
fn has_vectors(affine: &Affine<'_, f32>) -> bool {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    !affine.is_rounded && pulp::Arch::new().dispatch(Lanes) > 1
}

impl Gaps {
    /// The place in the result of a column, or of the next one that has a place there.
    fn place(&self, column: usize) -> usize {
        let place = self.first + column;
        place / self.apart * self.len + (place % self.apart).min(self.len - 1)
    }
}

impl<R: Places, A: Places, B: Places> Block<'_, R, A, B> {
    /// Computes the product and finishes its elements, which go to the result that they are of; `c` has memory for
    /// them meanwhile.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes any of these elements of the result.
    ///
    /// # Panics
    ///
    /// As [`multiply`](Self::multiply), or if the elements do not all lie in the result.
    pub(crate) unsafe fn multiply_finished<const GAPS: bool>(self, arch: pulp::Arch, finished: Finished<'_, GAPS>) {
        if self.has_elements() {
            let [rows, columns, _] = self.extents;
            finished.expect_all(rows, columns);
            arch.dispatch(InPlace { block: self, finished });
        }
    }
}

/// A product in the form that `pulp` needs.
struct InPlace<'a, R, A, B, const GAPS: bool> {
    block: Block<'a, R, A, B>,
    finished: Finished<'a, GAPS>,
}

impl<R: Places, A: Places, B: Places, const GAPS: bool> WithSimd for InPlace<'_, R, A, B, GAPS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // The compiler leaves out what no program runs: this code is large.
        if S::F32_LANES > 1 {
            let Self { block, finished } = self;
            block.multiply_in(Floats(simd), Stored { finished, whole: &finished });
        } else {
            unreachable!("there are vectors");
        }
    }
}

/// A product whose description each tile's code has in registers. A function that is called from there reads it in
/// memory: to put it there in every tile would be half as much code again.
#[derive(Clone, Copy)]
struct Stored<'a, const GAPS: bool> {
    finished: Finished<'a, GAPS>,
    whole: &'a Finished<'a, GAPS>,
}

/// Tiles of `M` rows and `N` vectors in the form that `pulp` needs.
struct OfRows<'a, 'b, 'c, R, A, B, const GAPS: bool, const M: usize, const N: usize> {
    block: &'a mut Block<'b, R, A, B>,
    tiles: &'a Tiles,
    then: Stored<'c, GAPS>,
}

impl<R: Places, A: Places, B: Places, const GAPS: bool, const M: usize, const N: usize> WithSimd
    for OfRows<'_, '_, '_, R, A, B, GAPS, M, N>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { block, tiles, then } = self;
        block.tiles::<Floats<S>, _, M, N>(Floats(simd), tiles, then);
    }
}

impl<S: Simd, const GAPS: bool> Then<Floats<S>> for Stored<'_, GAPS> {
    const STORES: bool = true;
    type Tile = Columns<S>;

    /// In a function of its own: one with the code of all tiles takes compilers minutes.
    #[inline(always)]
    fn compute<R: Places, A: Places, B: Places, const M: usize, const N: usize>(
        self,
        Floats(simd): Floats<S>,
        block: &mut Block<'_, R, A, B>,
        tiles: &Tiles,
    ) {
        simd.vectorize(OfRows::<R, A, B, GAPS, M, N> { block, tiles, then: self });
    }

    #[inline(always)]
    fn stores_tiles(self) -> bool {
        self.finished.activation.is_some()
    }

    #[inline(always)]
    unsafe fn tile<const M: usize, const N: usize>(
        self,
        Floats(simd): Floats<S>,
        row: usize,
        column: usize,
    ) -> Self::Tile {
        // SAFETY: the caller's promise.
        unsafe { self.finished.of_tile(simd, [row, column], [M, N]) }
    }

    #[inline(always)]
    unsafe fn store<const N: usize>(
        self,
        Floats(simd): Floats<S>,
        (pieces, mut numbers): Self::Tile,
        row: usize,
        sums: &[S::f32s; N],
    ) {
        let this = self.finished;
        // SAFETY: the caller's promise.
        unsafe { this.of_row(simd, row, &mut numbers) };
        for (j, &x) in sums.iter().enumerate() {
            let [m, f, s] = numbers[j];
            let x = simd.add_f32s(simd.mul_f32s(simd.sub_f32s(x, m), f), s);
            for (after, elements) in this.in_use::<S>(pieces[j]) {
                let (place, mut x) = (this.place(row).wrapping_add(after), x);
                // SAFETY: the caller's promise; the elements are of the result, and of nobody else. `expect_all` found
                // a residual for each.
                unsafe {
                    if let Some(r) = this.residual {
                        x = simd.add_f32s(x, simd.mask_load_ptr_f32s(elements, r.as_ptr().wrapping_add(place)));
                    }
                    simd.mask_store_ptr_f32s(elements, this.y.as_ptr().wrapping_add(place), this.bound(simd, x));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_tile<const N: usize>(
        self,
        Floats(simd): Floats<S>,
        row: usize,
        column: usize,
        sums: &mut [[S::f32s; N]],
    ) {
        if let Some(activation) = self.whole.activation {
            let sums = bytemuck::cast_slice_mut(sums.as_flattened_mut());
            simd.vectorize(Activated::<_, N> { finished: self.whole, activation, place: [row, column], sums });
        }
    }
}

/// The sums of a tile with an activation, in the form that `pulp` needs: rows of `N` vectors.
struct Activated<'a, const GAPS: bool, const N: usize> {
    finished: &'a Finished<'a, GAPS>,
    activation: &'a Activation<f32>,
    /// The first row and column, which are of the product as the others are.
    place: [usize; 2],
    sums: &'a mut [f32],
}

impl<const GAPS: bool, const N: usize> WithSimd for Activated<'_, GAPS, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { finished, activation, place: [row, column], sums } = self;
        let is_bounded = finished.bounds != NO_BOUNDS;
        let rows = S::as_mut_simd_f32s(sums).0.as_chunks_mut::<N>().0;
        // SAFETY: those who make tiles promise that they are of the product.
        let (pieces, mut numbers) = unsafe { finished.of_tile(simd, [row, column], [rows.len(), N]) };
        for (row, sums) in (row..).zip(rows) {
            // SAFETY: as above.
            unsafe { finished.of_row(simd, row, &mut numbers) };
            for j in 0..N {
                let [m, f, s] = numbers[j];
                let mut x = simd.add_f32s(simd.mul_f32s(simd.sub_f32s(sums[j], m), f), s);
                if let Some(r) = finished.residual {
                    for (after, elements) in finished.in_use::<S>(pieces[j]) {
                        let from = r.as_ptr().wrapping_add(finished.place(row).wrapping_add(after));
                        // SAFETY: `expect_all` found a residual for each element.
                        let r = unsafe { simd.mask_load_ptr_f32s(elements, from) };
                        x = simd.select_f32s(elements.mask(), simd.add_f32s(x, r), x);
                    }
                }
                sums[j] = if is_bounded { finished.bound(simd, x) } else { x };
            }
        }
        activation.run(simd, sums);
        for (row, sums) in (row..).zip(S::as_simd_f32s(sums).0.as_chunks::<N>().0) {
            for j in 0..N {
                for (after, elements) in finished.in_use::<S>(pieces[j]) {
                    let to = finished.y.as_ptr().wrapping_add(finished.place(row).wrapping_add(after));
                    // SAFETY: the elements are of the result, and of nobody else.
                    unsafe { simd.mask_store_ptr_f32s(elements, to, sums[j]) };
                }
            }
        }
    }
}
