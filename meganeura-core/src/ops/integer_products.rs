//! Products of bytes, as quantised models have them: sums of `i32`, which wrap around, of differences to zero points.
//! Bytes are whole floats. Products of matrices and convolutions share what is here: the native kernels' last step, and
//! the launches.

use pulp::{Simd, WithSimd};

use crate::kernel::gemm::{LAUNCH, sum_parts, time_of_sums};
use crate::kernel::launch::{Binding, Caps, Define, Launch, Variant, Workgroups, define};
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

/// A tile of results that a workgroup computes; see `shaders/wgsl/integer_products.wgsl`. The times are those of a step
/// on an H200, in nanoseconds.
struct Tile {
    name: &'static str,
    /// The variant's name where the reduction is cut.
    split: &'static str,
    /// Rows and columns.
    side: usize,
    /// The time of a workgroup that is alone on its multiprocessor.
    alone: f64,
    /// The time of each of many that share one.
    among: f64,
}

const LARGE: Tile = Tile { name: "tile 64", split: "tile 64, split", side: 64, alone: 600.0, among: 450.0 };
const SMALL: Tile = Tile { name: "tile 32", split: "tile 32, split", side: 32, alone: 450.0, among: 140.0 };

/// Terms of a step.
const STEP: usize = 16;
/// Terms whose sum a float holds exactly.
const EXACT: usize = 256;
/// The fewest terms of a part.
const LEAST: usize = 64;

impl Tile {
    /// Tiles down and across.
    fn grid(&self, [_, rows, columns, _]: [usize; 4]) -> [usize; 2] {
        [rows, columns].map(|extent| extent.div_ceil(self.side))
    }

    /// Workgroups for one part of the reduction.
    fn tiles(&self, extents: [usize; 4]) -> usize {
        extents[0] * self.grid(extents).iter().product::<usize>()
    }

    fn workgroups(&self, extents: [usize; 4], parts: usize) -> Workgroups {
        let part = part(extents, parts);
        Workgroups::new(parts * self.tiles(extents), (self.side / 4).pow(2))
            .with_memory(&[4 * STEP * (self.side + 4); 2])
            .looping(part.div_ceil(STEP) * (STEP + 2) + 2 * part.div_ceil(EXACT) + 2)
    }

    /// An estimate of the time of so many parts on an H200, in nanoseconds. Start and end take as long as three steps.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn time(&self, extents: [usize; 4], parts: usize, caps: &Caps) -> f64 {
        let each = (parts * self.tiles(extents)).div_ceil(caps.multiprocessors.enough(1));
        let step = self.alone.max(self.among * each as f64);
        let products = step * (part(extents, parts).div_ceil(STEP) + 3) as f64;
        products + if parts == 1 { 0.0 } else { time_of_sums(parts, elements(extents), caps) + LAUNCH }
    }

    /// The number of parts, from two on, that takes the least time; none if sums are too short.
    fn parts(&self, extents: [usize; 4], caps: &Caps) -> Option<usize> {
        // More than sixteen workgroups for each multiprocessor take memory without keeping it busier.
        let enough = (caps.multiprocessors.enough(16) / self.tiles(extents)).max(2);
        let filled = |&parts: &usize| (parts - 1) * part(extents, parts) < extents[3];
        let timed = |parts| (self.time(extents, parts, caps), parts);
        let parts = (2..=enough.min(extents[3] / LEAST)).filter(filled).map(timed);
        parts.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, parts)| parts)
    }
}

fn elements([batch, rows, columns, _]: [usize; 4]) -> usize {
    batch * rows * columns
}

/// Terms of each part but perhaps the last, in whole steps.
fn part([.., depth]: [usize; 4], parts: usize) -> usize {
    depth.div_ceil(parts).next_multiple_of(STEP)
}

/// An estimate of the time with an invocation for each result, as that of [`Tile::time`].
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn time_of_invocations(extents: [usize; 4], caps: &Caps) -> f64 {
    let each = elements(extents).div_ceil(caps.multiprocessors.enough(1));
    extents[3] as f64 * (0.2 * each as f64).max(40.0)
}

impl Products {
    /// Variants by their estimated times.
    pub(crate) fn variants(self, caps: &Caps) -> Vec<Variant> {
        let Self { form, extents, defines, operands } = self;
        let [batch, rows, columns, depth] = extents;
        let all = [defines, define![FORM: form, BATCH: batch, ROWS: rows, COLUMNS: columns, DEPTH: depth]].concat();
        let launch = |more: Vec<Define>, workgroups: Workgroups| {
            Launch::new("integer_products", [all.clone(), more].concat(), (operands, 1), workgroups)
        };
        let each = Workgroups::of_elements(elements(extents)).looping(depth + depth.div_ceil(EXACT));
        let each = launch(define![BY: "invocation", SUMS: "whole"], each).stores_through_epilogue();
        let mut timed = vec![(time_of_invocations(extents, caps), Variant::simple("invocation", each))];
        for tile in [LARGE, SMALL] {
            if !caps.tiles || !tile.workgroups(extents, 1).fit(caps) {
                continue;
            }
            for parts in [Some(1), tile.parts(extents, caps)].into_iter().flatten() {
                let ([down, across], workgroups) = (tile.grid(extents), tile.workgroups(extents, parts));
                let mut more = define![
                    BY: "tile", SIDE: tile.side, LOADS: 4 * tile.side / workgroups.invocations, TILES_M: down,
                    TILES_N: across, PARTS: parts, PART: part(extents, parts),
                ];
                let variant = if parts == 1 {
                    more.extend(define![SUMS: "whole"]);
                    Variant::simple(tile.name, launch(more, workgroups).stores_through_epilogue())
                } else {
                    more.extend(define![SUMS: "parts", SUMS_AT: operands]);
                    let mut launch = launch(more, workgroups);
                    launch.bindings[operands] = Binding::Scratch(0);
                    let mut sum = sum_parts(parts, elements(extents), 0);
                    sum.defines.extend(define![INTEGERS: 1]);
                    Variant { name: tile.split, launches: vec![launch, sum], scratch: vec![parts * elements(extents)] }
                };
                timed.push((tile.time(extents, parts, caps), variant));
            }
        }
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed.into_iter().map(|(_, variant)| variant).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variants(extents: [usize; 4], caps: &Caps) -> Vec<Variant> {
        Products { form: "conv", extents, defines: Vec::new(), operands: 5 }.variants(caps)
    }

    #[test]
    fn few_results_of_long_sums_are_cut() {
        let best = |extents| variants(extents, &Caps::DISCRETE)[0].name;
        // Layers of ResNet-18, from the last to the first, and its classifier.
        assert!(best([1, 512, 49, 4608]).ends_with("split"));
        assert!(best([1, 256, 196, 2304]).ends_with("split"));
        assert!(best([1, 1, 1000, 512]).ends_with("split"));
        assert!(best([1, 64, 12_544, 147]).starts_with("tile"));
        // Products of many results need no parts, and those of a few terms no tile.
        assert_eq!(best([1, 4096, 4096, 4096]), "tile 64");
        assert_eq!(best([1, 10, 20, 8]), "invocation");
    }

    #[test]
    fn every_part_has_terms_and_every_result_a_tile() {
        let all = [[1, 512, 49, 4608], [3, 65, 33, 129], [2, 33, 31, 529], [1, 5, 3, 1000], [4, 1, 1, 70_000]];
        for (extents, caps) in
            all.into_iter().flat_map(|extents| [(extents, Caps::DISCRETE), (extents, Caps::SOFTWARE)])
        {
            for Variant { name, launches, scratch } in variants(extents, &caps) {
                let of = |define| launches[0].defines.iter().find(|(name, _)| *name == define).map(|(_, value)| value);
                let number = |define| of(define).map_or(1, |value| value.parse::<usize>().expect("a number"));
                if name == "invocation" {
                    continue;
                }
                let ([parts, part, side], [batch, rows, columns, depth]) =
                    (["PARTS", "PART", "SIDE"].map(number), extents);
                assert!((parts - 1) * part < depth && depth <= parts * part && part.is_multiple_of(STEP), "{name}");
                assert!(number("TILES_M") * side >= rows && number("TILES_N") * side >= columns, "{name}");
                let workgroups = parts * batch * number("TILES_M") * number("TILES_N");
                assert_eq!(launches[0].workgroups.count, workgroups, "{name}");
                assert_eq!(name.ends_with("split"), parts > 1, "{name}");
                assert_eq!(
                    scratch,
                    if parts > 1 { vec![parts * batch * rows * columns] } else { Vec::new() },
                    "{name}"
                );
            }
        }
    }
}
