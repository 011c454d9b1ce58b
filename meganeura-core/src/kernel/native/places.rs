//! Places of the elements of a product's operands: see [`Block`](super::Block).

use super::{Block, transpose};

/// The place of each term in an operand, and of the columns of each term.
pub(crate) trait Places: Copy {
    /// `true` if a tile has a sixth fewer rows with these places.
    const FEWER_ROWS: bool;

    /// `true` if columns are read in the order in which they lie, which processors fetch by themselves.
    const IS_IN_ORDER: bool = false;

    /// The place of a column after that of its term; it grows with the column.
    #[inline(always)]
    fn column(self, column: usize) -> usize {
        column
    }

    /// # Safety
    ///
    /// There is such a term: it is one of those that [`furthest`](Self::furthest) was asked about.
    unsafe fn at(self, term: usize) -> usize;

    /// The places from term `first` on, after the place that they begin at.
    fn after(self, first: usize) -> (usize, Self);

    /// The furthest of the first `terms`.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    fn furthest(self, terms: usize) -> usize;
}

/// Neighbouring terms have one distance.
#[derive(Clone, Copy)]
pub(crate) struct Apart(pub(crate) usize);

impl Places for Apart {
    const FEWER_ROWS: bool = false;

    #[inline(always)]
    unsafe fn at(self, term: usize) -> usize {
        term * self.0
    }

    fn after(self, first: usize) -> (usize, Self) {
        (first * self.0, self)
    }

    fn furthest(self, terms: usize) -> usize {
        (terms - 1) * self.0
    }
}

impl Places for &[usize] {
    /// Compilers load the numbers of all rows at once, if nothing but registers decides, and need some for them.
    const FEWER_ROWS: bool = true;

    #[inline(always)]
    unsafe fn at(self, term: usize) -> usize {
        // SAFETY: the caller's promise. A check would end the loop over terms early, which costs registers.
        unsafe { *self.get_unchecked(term) }
    }

    fn after(self, first: usize) -> (usize, Self) {
        (0, &self[first..])
    }

    fn furthest(self, terms: usize) -> usize {
        self[..terms].iter().copied().max().unwrap_or(0)
    }
}

/// Columns in lines that are `apart`: the columns from `first` on of all that there are. Whole vectors lie in a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines<'a> {
    pub(crate) terms: &'a [usize],
    pub(crate) first: usize,
    /// The columns of a line.
    pub(crate) len: usize,
    pub(crate) apart: usize,
}

impl Places for Lines<'_> {
    const FEWER_ROWS: bool = <&[usize]>::FEWER_ROWS;

    #[inline(always)]
    fn column(self, column: usize) -> usize {
        let column = self.first + column;
        column / self.len * self.apart + column % self.len
    }

    #[inline(always)]
    unsafe fn at(self, term: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.terms.at(term) }
    }

    fn after(self, first: usize) -> (usize, Self) {
        (0, Self { terms: &self.terms[first..], ..self })
    }

    fn furthest(self, terms: usize) -> usize {
        self.terms.furthest(terms)
    }
}

/// Columns of a strip: those that a tile multiplies at a time.
pub(crate) const STRIP: usize = 2 * Block::COLUMNS;

/// Columns in strips of so many terms, one strip after the other: `[strip, term, column]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strips {
    pub(crate) terms: usize,
}

impl Strips {
    /// Writes a strip of `count` columns, with zeros for those that are missing. Terms and columns of `x` are so far
    /// apart.
    pub(crate) fn fill(strip: &mut [f32], count: usize, x: &[f32], [term, column]: [usize; 2]) {
        let terms = strip.len() / STRIP;
        if count < STRIP {
            strip.fill(0.0);
        }
        if term == 1 && column >= terms {
            return transpose(x, column, strip, STRIP, [terms, count]);
        }
        for (k, strip) in strip.chunks_exact_mut(STRIP).enumerate() {
            let x = &x[k * term..];
            match (strip.first_chunk_mut::<STRIP>(), x.first_chunk()) {
                // Without a call for each term.
                (Some(strip), Some(x)) if column == 1 && count == STRIP => *strip = *x,
                _ => strip[..count].iter_mut().enumerate().for_each(|(j, to)| *to = x[j * column]),
            }
        }
    }
}

impl Places for Strips {
    const FEWER_ROWS: bool = false;
    const IS_IN_ORDER: bool = true;

    #[inline(always)]
    fn column(self, column: usize) -> usize {
        column / STRIP * self.terms * STRIP + column % STRIP
    }

    #[inline(always)]
    unsafe fn at(self, term: usize) -> usize {
        term * STRIP
    }

    fn after(self, first: usize) -> (usize, Self) {
        (first * STRIP, self)
    }

    fn furthest(self, terms: usize) -> usize {
        (terms - 1) * STRIP
    }
}
