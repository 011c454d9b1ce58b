//! The products of a step of a recurrent layer on the CPU. In single precision, the weight is put into the order in
//! which they read it before the first step, and what follows a part of a product is done while it is in the cache.

use std::ops::Range;
use std::sync::Arc;

use super::RecurrentFormula;
use crate::host::HostBuffer;
use crate::kernel::native::{
    self, Accumulate, Apart, Block, Borrowed, Matrix, Real, STRIP, Scratch, Shared, Strips, Threads, parallel, tasks,
};

/// Rows of a task: whole tiles.
const ROWS: usize = 3 * Block::ROWS;

/// Multiply-adds that take as long as what follows for one unit.
const COST: usize = 100;

/// The fewest steps for which a weight that may differ in the next run is worth another order.
const STEPS: usize = 4;

/// What the products of a layer are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Factor {
    /// States, with the weight of each gate transposed: sums for each gate.
    States,
    /// Cotangents of the gates' sums, with the weight: cotangents of states.
    Cotangents,
}

/// A part of a step's results: some rows, and the units of a strip.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) units: Range<usize>,
}

/// The sums of a part, of each gate or of none.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a, T> {
    numbers: &'a [T],
    row: usize,
    gate: usize,
}

impl<'a, T> Sums<'a, T> {
    /// The sums of a row and a gate of the part, from a unit on.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, gate: usize, unit: usize) -> &'a [T] {
        &self.numbers[row * self.row + gate * self.gate + unit..]
    }
}

/// The order of the weight: as it is, or `[strip of units, gate, term, column]`, with zeros for units that are missing
/// in the last strip.
enum Order<'a> {
    AsItIs,
    Kept(Arc<HostBuffer>),
    Own(Borrowed<'a, f32>),
}

/// The products of all steps.
pub(super) struct Products<'a, T> {
    factor: Factor,
    formula: RecurrentFormula,
    weight: &'a [T],
    n: usize,
    h: usize,
    order: Order<'a>,
    /// The sums of a step.
    sums: Borrowed<'a, T>,
}

impl<'a, T: Real> Products<'a, T> {
    /// `None` if there is no memory for them.
    pub(super) fn new(
        (factor, formula): (Factor, RecurrentFormula),
        [t, n, h]: [usize; 3],
        weight: &'a [T],
        scratch: &'a Scratch,
    ) -> Option<Self> {
        let gates = formula.gates();
        let order = match T::singles(weight) {
            Some(singles) => Order::new(factor, [t, gates, h], singles, scratch)?,
            None => Order::AsItIs,
        };
        let blocks = if factor == Factor::States { gates } else { 1 };
        let sums = scratch.zeros(n * blocks * h.next_multiple_of(STRIP))?;
        Some(Self { factor, formula, weight, n, h, order, sums })
    }

    /// Multiplies rows of `a`, or leaves the sums zero before the first product, and runs `then` for each part.
    pub(super) fn step(&mut self, a: Option<&[T]>, then: &(dyn Fn(&Part, Sums<'_, T>) + Sync)) {
        let Self { factor, formula, weight, n, h, ref order, ref mut sums } = *self;
        let blocks = if factor == Factor::States { formula.gates() } else { 1 };
        let parts = n.div_ceil(ROWS);
        let part = |task: usize| {
            let (strip, at) = (task / parts, task % parts);
            Part { rows: n * at / parts..n * (at + 1) / parts, units: strip * STRIP..h.min((strip + 1) * STRIP) }
        };
        let count = h.div_ceil(STRIP) * parts;
        let of_part = |terms: usize| n.div_ceil(parts) * STRIP * (blocks * terms + COST);
        let Some(strips) = order.strips() else {
            if let Some(a) = a {
                multiply(factor, formula, [n, h], a, weight, sums);
            }
            return tasks(count, of_part(0), &|| (), &|task, ()| {
                let part = part(task);
                let numbers = &sums[part.rows.start * blocks * h + part.units.start..];
                then(&part, Sums { numbers, row: blocks * h, gate: h });
            });
        };
        let (apart, terms) = (blocks * STRIP, if factor == Factor::States { h } else { formula.gates() * h });
        let sums = Shared::new(sums);
        tasks(count, of_part(if a.is_some() { terms } else { 0 }), &|| (), &|task, ()| {
            let part = part(task);
            let first = (task / parts * n + part.rows.start) * apart;
            // SAFETY: the sums of these rows and units belong to this task alone.
            let numbers = unsafe { sums.part(first, part.rows.len() * apart) };
            if let (Some(a), Some(sums)) = (a.and_then(T::singles), T::singles_mut(numbers)) {
                multiply_strip((factor, formula), h, a, strips, &part, sums);
            }
            then(&part, Sums { numbers, row: apart, gate: STRIP });
        });
    }
}

impl<'a> Order<'a> {
    /// The best order; `None` if there is no memory for it.
    fn new(factor: Factor, [t, gates, h]: [usize; 3], weight: &[f32], scratch: &'a Scratch) -> Option<Self> {
        // Sums in strips have another order of terms.
        if t < STEPS && scratch.is_exact() {
            return Some(Self::AsItIs);
        }
        let len = gates * h * h.next_multiple_of(STRIP);
        let write = |to: &mut [f32]| write_strips(factor, [gates, h], weight, to);
        if let Some(kept) = scratch.prepared::<f32>(super::WEIGHT, len, write) {
            return Some(Self::Kept(kept));
        }
        if t < STEPS {
            return Some(Self::AsItIs);
        }
        let mut own = scratch.borrow(len)?;
        write(&mut own);
        Some(Self::Own(own))
    }

    fn strips(&self) -> Option<&[f32]> {
        match self {
            Self::AsItIs => None,
            Self::Kept(numbers) => Some(f32::slice(numbers)),
            Self::Own(numbers) => Some(numbers),
        }
    }
}

/// The sums of a part.
fn multiply_strip(
    (factor, formula): (Factor, RecurrentFormula),
    h: usize,
    a: &[f32],
    strips: &[f32],
    part: &Part,
    sums: &mut [f32],
) {
    let (gates, arch) = (formula.gates(), pulp::Arch::new());
    let strip = &strips[part.units.start * gates * h..][..gates * h * STRIP];
    // Terms from one place on, in rows that are so far apart, times those from term `first` on.
    let mut multiply = |from: usize, apart: usize, first: usize, [columns, terms]: [usize; 2], accumulate| {
        let block = Block {
            extents: [part.rows.len(), columns, terms],
            a: &a[part.rows.start * apart + from..],
            a_rows: Apart(apart),
            a_terms: Apart(1),
            b: &strip[first * STRIP..],
            b_terms: Strips { terms },
            c: &mut *sums,
            c_stride: columns.next_multiple_of(STRIP),
            accumulate,
        };
        block.multiply(arch);
    };
    match factor {
        Factor::States if gates == 1 => multiply(0, h, 0, [part.units.len(), h], Accumulate::No),
        Factor::States => multiply(0, h, 0, [gates * STRIP, h], Accumulate::No),
        Factor::Cotangents => {
            for (at, (block, first, gates)) in cotangents(formula).enumerate() {
                let accumulate = if at == 0 { Accumulate::No } else { Accumulate::Yes };
                let extents = [part.units.len(), gates * h];
                multiply(block * h, formula.blocks() * h, first * h, extents, accumulate);
            }
        }
    }
}

/// The blocks of cotangents that gates multiply: the first of neighbouring blocks and gates, and their number.
fn cotangents(formula: RecurrentFormula) -> impl Iterator<Item = (usize, usize, usize)> {
    let parts = match formula {
        // The third block belongs to `x₂`.
        RecurrentFormula::Gru => [(0, 0, 2), (3, 2, 1)],
        _ => [(0, 0, formula.gates()), (0, 0, 0)],
    };
    parts.into_iter().filter(|&(.., gates)| gates > 0)
}

/// Writes the weight in strips.
fn write_strips(factor: Factor, [gates, h]: [usize; 2], weight: &[f32], to: &mut [f32]) {
    let len = h * STRIP;
    parallel(to, len, &|at, strip| {
        let (first, gate) = (at / len / gates * STRIP, at / len % gates);
        let weight = &weight[gate * h * h..][..h * h];
        let (x, apart) = match factor {
            Factor::States => (&weight[first * h..], [1, h]),
            Factor::Cotangents => (&weight[first..], [h, 1]),
        };
        Strips::fill(strip, STRIP.min(h - first), x, apart);
    });
}

/// The sums of all rows and units, with the weight as it is.
fn multiply<T: Real>(
    factor: Factor,
    formula: RecurrentFormula,
    [n, h]: [usize; 2],
    a: &[T],
    weight: &[T],
    sums: &mut [T],
) {
    let (gates, width) = (formula.gates(), formula.blocks() * h);
    if factor == Factor::States {
        let (a, b) = (Matrix::new(a, (n, h), (h, 1)), Matrix::new(weight, (h, gates * h), (1, h)));
        return native::gemm(a, b, &mut sums[..n * gates * h], Accumulate::No, Threads::All);
    }
    for (at, (block, first, gates)) in cotangents(formula).enumerate() {
        let a = Matrix::new(&a[block * h..], (n, gates * h), (width, 1));
        let b = Matrix::new(&weight[first * h * h..], (gates * h, h), (h, 1));
        let accumulate = if at == 0 { Accumulate::No } else { Accumulate::Yes };
        native::gemm(a, b, &mut sums[..n * h], accumulate, Threads::All);
    }
}
