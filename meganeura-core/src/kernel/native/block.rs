//! Products of matrices that are in the caches already, in the order in which they are read, for kernels that prepare
//! their operands themselves. `gemm` would pack each operand once more.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::prefetch::prefetch_line;
use super::{Accumulate, Apart, Places};

/// `c[i,j] = Σₖ a[i,k]·b[k,j]`, or added to `c`. Neighbouring columns of `c` are adjacent, and of `b` but for `Lines`.
///
/// The elements `X` of `a` and `b`, and `Y` of `c`, are floats, or words of bytes: see [`bytes`](super::bytes).
pub(crate) struct Block<'a, R = Apart, A = Apart, B = Apart, X = f32, Y = f32> {
    /// Rows, columns, and terms of each sum.
    pub(crate) extents: [usize; 3],
    pub(crate) a: &'a [X],
    /// The places of the rows of `a`, and of the terms in a row.
    pub(crate) a_rows: R,
    pub(crate) a_terms: A,
    pub(crate) b: &'a [X],
    /// The places of the terms in `b`.
    pub(crate) b_terms: B,
    pub(crate) c: &'a mut [Y],
    /// The distance of neighbouring rows of `c`.
    pub(crate) c_stride: usize,
    pub(crate) accumulate: Accumulate,
}

impl Block<'_> {
    /// The widest vector there is. If the number of columns is no multiple of it, rows of `b` and `c` go on to the next
    /// one, and unspecified numbers are written there.
    pub(crate) const COLUMNS: usize = 16;

    /// Terms that are summed before they are added to `c`: rounding errors grow with their number and that of the
    /// parts, not of all terms, and columns of so many terms stay in the L1 cache.
    pub(crate) const TERMS: usize = 128;

    /// Rows of a tile of sums: with two vectors each, and those of `b`, they fit in 32 registers.
    pub(crate) const ROWS: usize = 12;
}

/// The arithmetic of products in vectors of one width.
pub(crate) trait Lanes: Copy {
    /// The elements of `a` and `b`, and of `c`.
    type X: Copy;
    type Y;
    /// A vector of `b`, and one of sums.
    type Columns: Copy;
    type Sums: Copy;
    /// Columns of a vector, at most [`Block::COLUMNS`].
    const COLUMNS: usize;
    /// Rows of a tile whose sums stay in registers, with two vectors each: at most [`Block::ROWS`].
    const ROWS: usize;

    fn zeros(self) -> Self::Sums;
    /// Adds the products of one element of `a` with a vector of `b`.
    fn add_products(self, a: Self::X, b: Self::Columns, sums: Self::Sums) -> Self::Sums;
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// # Safety
    ///
    /// A vector can be read there.
    unsafe fn columns(self, b: *const Self::X) -> Self::Columns;
    /// # Safety
    ///
    /// A vector can be read there.
    unsafe fn load(self, c: *const Self::Y) -> Self::Sums;
    /// # Safety
    ///
    /// A vector can be written there.
    unsafe fn store(self, sums: Self::Sums, c: *mut Self::Y);
}

/// Floats in the vectors of a processor.
#[derive(Clone, Copy)]
pub(super) struct Floats<S>(pub(super) S);

impl<S: Simd> Lanes for Floats<S> {
    type X = f32;
    type Y = f32;
    type Columns = S::f32s;
    type Sums = S::f32s;
    const COLUMNS: usize = S::F32_LANES;
    const ROWS: usize = if S::REGISTER_COUNT >= 32 { Block::ROWS } else { Block::ROWS / 2 };

    #[inline(always)]
    fn zeros(self) -> S::f32s {
        self.0.splat_f32s(0.0)
    }
    #[inline(always)]
    fn add_products(self, a: f32, b: S::f32s, sums: S::f32s) -> S::f32s {
        self.0.mul_add_e_f32s(self.0.splat_f32s(a), b, sums)
    }
    #[inline(always)]
    fn add(self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.add_f32s(a, b)
    }
    #[inline(always)]
    unsafe fn columns(self, b: *const f32) -> S::f32s {
        // SAFETY: the caller's promise; vectors have no alignment here.
        unsafe { b.cast::<S::f32s>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load(self, c: *const f32) -> S::f32s {
        // SAFETY: as above.
        unsafe { self.columns(c) }
    }
    #[inline(always)]
    unsafe fn store(self, sums: S::f32s, c: *mut f32) {
        // SAFETY: as above.
        unsafe { c.cast::<S::f32s>().write_unaligned(sums) }
    }
}

impl<R: Places, A: Places, B: Places> Block<'_, R, A, B> {
    /// Computes the product with the widest vectors of this processor. The order of each sum depends on the number of
    /// its terms alone.
    ///
    /// # Panics
    ///
    /// If an operand is shorter than its extents, with columns in multiples of [`Block::COLUMNS`].
    pub(crate) fn multiply(self, arch: pulp::Arch) {
        if self.has_elements() {
            arch.dispatch(self);
        }
    }
}

impl<R: Places, A: Places, B: Places> WithSimd for Block<'_, R, A, B> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.multiply_in(Floats(simd), ());
    }
}

/// What becomes of sums once they have all their terms.
pub(crate) trait Then<L: Lanes>: Copy {
    /// `false` if they stay in `c`.
    const STORES: bool;
    /// What all rows of a tile need.
    type Tile: Copy;

    /// Adds some terms to tiles of `M` rows and `N` vectors: see [`Block::tiles`].
    #[inline(always)]
    fn compute<R: Places, A: Places, B: Places, const M: usize, const N: usize>(
        self,
        lanes: L,
        block: &mut Block<'_, R, A, B, L::X, L::Y>,
        tiles: &Tiles,
    ) {
        block.tiles::<L, Self, M, N>(lanes, tiles, self);
    }

    /// `true` if the sums of a tile are stored at once.
    fn stores_tiles(self) -> bool {
        false
    }

    /// A tile whose first row and column these are. Fetches what is stored next: rows of a result are often far apart,
    /// and in no cache.
    ///
    /// # Safety
    ///
    /// The rows and columns are of the product.
    unsafe fn tile<const M: usize, const N: usize>(self, lanes: L, row: usize, column: usize) -> Self::Tile;

    /// Stores neighbouring vectors of a row.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn store<const N: usize>(self, lanes: L, tile: Self::Tile, row: usize, sums: &[L::Sums; N]);

    /// Stores a tile whose first row and column these are.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn store_tile<const N: usize>(self, lanes: L, row: usize, column: usize, sums: &mut [[L::Sums; N]]);
}

impl<L: Lanes> Then<L> for () {
    const STORES: bool = false;
    type Tile = ();

    #[inline(always)]
    unsafe fn tile<const M: usize, const N: usize>(self, _: L, _: usize, _: usize) {}

    #[inline(always)]
    unsafe fn store<const N: usize>(self, _: L, (): (), _: usize, _: &[L::Sums; N]) {}

    #[inline(always)]
    unsafe fn store_tile<const N: usize>(self, _: L, _: usize, _: usize, _: &mut [[L::Sums; N]]) {}
}

/// Tiles of as many rows each, and some terms of their sums.
#[derive(Clone)]
pub(crate) struct Tiles {
    first_row: usize,
    /// The tiles above each other.
    count: usize,
    columns: Range<usize>,
    terms: Range<usize>,
}

/// Elements from a load to the place that is fetched meanwhile.
const AHEAD: usize = 1024;

impl<R: Places, A: Places, B: Places, X: Copy, Y> Block<'_, R, A, B, X, Y> {
    /// `false` if there is nothing to compute.
    ///
    /// # Panics
    ///
    /// If an operand is shorter than its extents, with columns in multiples of [`Block::COLUMNS`].
    pub(super) fn has_elements(&self) -> bool {
        let [m, n, k] = self.extents;
        if m == 0 || n == 0 {
            return false;
        }
        let n = n.next_multiple_of(Block::COLUMNS);
        assert!((m - 1) * self.c_stride + n <= self.c.len(), "the result has its place");
        if k > 0 {
            assert!(self.a_rows.furthest(m) + self.a_terms.furthest(k) < self.a.len(), "rows lie in their slice");
            let last = self.b_terms.column(n - Block::COLUMNS) + Block::COLUMNS;
            assert!(self.b_terms.furthest(k) + last <= self.b.len(), "columns lie in their slice");
        }
        true
    }

    /// The product, after [`has_elements`](Self::has_elements).
    #[inline(always)]
    pub(super) fn multiply_in<L: Lanes<X = X, Y = Y>, T: Then<L>>(mut self, lanes: L, then: T) {
        let [m, n, k] = self.extents;
        // Tiles have nearly equal numbers of rows: one of a row or two could not hide the latency of additions.
        let tiles = m.div_ceil(if R::FEWER_ROWS || A::FEWER_ROWS { L::ROWS * 5 / 6 } else { L::ROWS });
        let (least, taller) = (m / tiles, m % tiles);
        // Whole pairs of vectors, and what is left.
        let wide = n.div_ceil(L::COLUMNS) / 2 * 2 * L::COLUMNS;
        // For tiles of one size, each number of `a` and `b` comes into the caches once, and `c` once for every part of
        // the terms.
        for first in (0..k.max(1)).step_by(Block::TERMS) {
            let terms = first..k.min(first + Block::TERMS);
            for (first_row, count, rows) in [(0, taller, least + 1), (taller * (least + 1), tiles - taller, least)] {
                let tiles = Tiles { first_row, count, columns: 0..wide, terms: terms.clone() };
                if count > 0 && wide > 0 {
                    self.rows::<L, T, 2>(lanes, rows, &tiles, then);
                }
                if count > 0 && wide < n {
                    self.rows::<L, T, 1>(lanes, rows, &Tiles { columns: wide..n, ..tiles }, then);
                }
            }
        }
    }

    /// Adds some terms to tiles of so many rows and `N` vectors of columns.
    #[inline(always)]
    fn rows<L: Lanes<X = X, Y = Y>, T: Then<L>, const N: usize>(
        &mut self,
        lanes: L,
        rows: usize,
        tiles: &Tiles,
        then: T,
    ) {
        macro_rules! each {
            ($($rows:literal)+) => {
                match rows {
                    $($rows => then.compute::<R, A, B, $rows, N>(lanes, self, tiles),)+
                    _ => unreachable!("a tile has at most {} rows", Block::ROWS),
                }
            };
        }
        each!(1 2 3 4 5 6 7 8 9 10 11 12);
    }

    /// Adds some terms to tiles of `M` rows and `N` vectors. What they read of `b` is in the cache for all that are
    /// above each other.
    #[inline(always)]
    pub(super) fn tiles<L: Lanes<X = X, Y = Y>, T: Then<L>, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        tiles: &Tiles,
        then: T,
    ) {
        for column in tiles.columns.clone().step_by(N * L::COLUMNS) {
            for tile in 0..tiles.count {
                self.tile::<L, T, M, N>(lanes, tiles.first_row + tile * M, column, &tiles.terms, then);
            }
        }
    }

    /// A tile of `M` rows and `N` vectors, all of whose sums stay in registers.
    #[inline(always)]
    fn tile<L: Lanes<X = X, Y = Y>, T: Then<L>, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        row: usize,
        column: usize,
        terms: &Range<usize>,
        then: T,
    ) {
        let accumulate = if terms.start > 0 { Accumulate::Yes } else { self.accumulate };
        // Columns that a single tile reads are often in no cache, and vectors of several pages follow each other.
        let is_read_once = self.extents[0] == M && !B::IS_IN_ORDER;
        let mut sums = [[lanes.zeros(); N]; M];
        let stores = T::STORES && terms.end == self.extents[2];
        // SAFETY: `has_elements` checked that all rows, terms and columns of the extents lie inside the slices; this
        // tile's lie inside the extents.
        unsafe {
            let mut b = [self.b.as_ptr(); N];
            b.iter_mut().enumerate().for_each(|(j, b)| *b = b.add(self.b_terms.column(column + j * L::COLUMNS)));
            let mut a = [self.a.as_ptr(); M];
            a.iter_mut().enumerate().for_each(|(i, a)| *a = a.add(self.a_rows.at(row + i)));
            for term in terms.clone() {
                let (place, of_a) = (self.b_terms.at(term), self.a_terms.at(term));
                let mut columns = [lanes.columns(b[0].add(place)); N];
                for (&b, columns) in b.iter().zip(&mut columns) {
                    let b = b.add(place);
                    if is_read_once {
                        prefetch_line(b.wrapping_add(AHEAD));
                    }
                    *columns = lanes.columns(b);
                }
                for (&a, sums) in a.iter().zip(&mut sums) {
                    let a = *a.add(of_a);
                    for (sum, &columns) in sums.iter_mut().zip(&columns) {
                        *sum = lanes.add_products(a, columns, *sum);
                    }
                }
            }
            if accumulate == Accumulate::Yes {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = lanes.add(lanes.load(self.place::<L>(row + i, column, j)), *sum);
                    }
                }
            }
            if stores && then.stores_tiles() {
                // Another copy, since these sums leave the registers.
                let mut sums = sums;
                then.store_tile(lanes, row, column, &mut sums);
                return;
            }
            if stores {
                let tile = then.tile::<M, N>(lanes, row, column);
                // Sums stay in registers only if the compiler knows their places.
                macro_rules! rows {
                    ($($i:literal)+) => {
                        $(if $i < M {
                            then.store(lanes, tile, row + $i, &sums[$i]);
                        })+
                    };
                }
                rows!(0 1 2 3 4 5 6 7 8 9 10 11);
                return;
            }
            for (i, sums) in sums.iter().enumerate() {
                for (j, &sum) in sums.iter().enumerate() {
                    lanes.store(sum, self.place::<L>(row + i, column, j));
                }
            }
        }
    }

    /// The place in `c` of a vector of a tile.
    #[inline(always)]
    fn place<L: Lanes<X = X, Y = Y>>(&mut self, row: usize, column: usize, vector: usize) -> *mut Y {
        self.c.as_mut_ptr().wrapping_add(row * self.c_stride + column + vector * L::COLUMNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers, so that every sum is exact.
    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 7 % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn is_the_product_for_all_tiles_and_strides() {
        for [m, n, k] in [[1, 16, 1], [5, 48, 3], [12, 32, 9], [13, 64, 4], [31, 16, 17], [3, 32, 0], [14, 48, 300]] {
            for a_strides in [[k.max(1), 1], [1, m + 2]] {
                let (a, b) = (numbers(m * k.max(1) + (m + 2) * k), numbers((n + 5) * k.max(1)));
                let before = numbers((n + 3) * m);
                for accumulate in [Accumulate::Yes, Accumulate::No] {
                    let mut c = before.clone();
                    let block = Block {
                        extents: [m, n, k],
                        a: &a,
                        a_rows: Apart(a_strides[0]),
                        a_terms: Apart(a_strides[1]),
                        b: &b,
                        b_terms: Apart(n + 5),
                        c: &mut c,
                        c_stride: n + 3,
                        accumulate,
                    };
                    block.multiply(pulp::Arch::new());
                    for (place, (&found, &before)) in c.iter().zip(&before).enumerate() {
                        let (i, j) = (place / (n + 3), place % (n + 3));
                        let terms = (0..k).map(|k| a[i * a_strides[0] + k * a_strides[1]] * b[k * (n + 5) + j.min(n)]);
                        let sum: f32 = terms.sum();
                        let wanted = match accumulate {
                            _ if j >= n => before,
                            Accumulate::Yes => before + sum,
                            Accumulate::No => sum,
                        };
                        assert_eq!(found, wanted, "{m}×{n}×{k} at {i}, {j}");
                    }
                }
            }
        }
    }
}
