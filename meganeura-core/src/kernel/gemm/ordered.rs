//! Variants of `matmul_fragments`: products on matrix units of operands that are first put into the order in which the
//! units take them; see `shaders/wgsl/order_fragments.wgsl`.

use super::bf16::Lines;
use super::{GROUPED_ROWS, Product, sum_parts_by_lines};
use crate::kernel::fragments::Fragments;
use crate::kernel::launch::{Binding, Caps, LINE, Launch, Variant, Workgroups, define};
use crate::kernel::offset::offset;

/// Rows, or columns, of a block of fragments: those of a subgroup.
const BLOCK: usize = 64;
/// Terms of a fragment.
const SIDE: usize = 16;
/// Terms of an iteration.
const STEP: usize = 2 * SIDE;
/// Terms of an operand that a workgroup orders.
const ORDERED: usize = 64;
/// The tile of a workgroup.
const TILE: Fragments = Fragments { subgroups: [2, 2], each: [4, 4] };
/// The most bytes of both ordered operands.
const MOST_BYTES: usize = 1 << 28;

/// `true` if a device can run these variants.
fn fits(caps: &Caps) -> bool {
    let memory = 16 * TILE.fours_of_rows();
    caps.matrix
        && caps.bf16_units
        && caps.fragments
        && caps.subgroup == (32, 32)
        && TILE.invocations(caps) <= caps.workgroup_size
        && memory <= caps.workgroup_memory
}

impl Product {
    /// Variants that order both operands, each with an estimate of its time in microseconds on an H200.
    pub(super) fn in_fragments(&self, operands: [&Lines; 2], caps: &Caps) -> Vec<(f64, Variant)> {
        let bytes = self.ordered().iter().fold(0, |sum: usize, &of| sum.saturating_add(16 * of));
        if !fits(caps) || bytes > MOST_BYTES {
            return Vec::new();
        }
        let is_filled = |parts: &usize| (parts - 1) * self.part_in_fragments(*parts) < self.terms();
        let most = caps.multiprocessors.enough(4) / self.tiles_in_fragments();
        let cuts = (2..=most.clamp(1, (self.k / 512).clamp(1, 64))).filter(is_filled);
        let time = |parts: usize| self.time_in_fragments(parts, caps);
        let cut = cuts.min_by(|a, b| time(*a).total_cmp(&time(*b)));
        cut.into_iter()
            .chain([1])
            .map(|parts| (time(parts), self.variant_in_fragments(operands, parts, caps)))
            .collect()
    }

    /// Blocks of rows, and of columns.
    fn blocks(&self) -> [usize; 2] {
        [self.m, self.n].map(|extent| extent.div_ceil(BLOCK))
    }

    /// Terms in whole iterations.
    fn terms(&self) -> usize {
        self.k.next_multiple_of(STEP)
    }

    /// The lines of each ordered operand.
    fn ordered(&self) -> [usize; 2] {
        self.blocks().map(|blocks| self.batch * blocks * BLOCK * self.terms() / LINE)
    }

    fn tiles_in_fragments(&self) -> usize {
        let [rows, columns] = TILE.extent();
        self.batch * self.m.div_ceil(rows) * self.n.div_ceil(columns)
    }

    /// Terms of each part but perhaps the last.
    fn part_in_fragments(&self, parts: usize) -> usize {
        self.k.div_ceil(parts).next_multiple_of(STEP)
    }

    /// The figures are fitted to products of transformers, as those of `matmul_bf16` (2026-11-28). An operand that the
    /// cache does not hold comes from memory.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn time_in_fragments(&self, parts: usize, caps: &Caps) -> f64 {
        let ordering = |lines: usize| {
            let megabytes = 16e-6 * lines as f64;
            2.5 + megabytes * if megabytes < 24.0 { 0.3 } else { 0.5 }
        };
        let each = (parts * self.tiles_in_fragments()).div_ceil(caps.multiprocessors.count);
        let steps = (self.part_in_fragments(parts) / STEP) as f64;
        let in_turns = (each - each % 2) as f64 * 0.334 + (each % 2) as f64 * 0.61;
        let sums = |parts: usize| (4 * parts * self.batch * self.m * self.n) as f64 / 4.5e6;
        let added = if parts == 1 { 0.0 } else { 3.0 + sums(parts + 1) };
        let product = 4.0 + steps * in_turns + 1.3 * each as f64 + added;
        // Two more launches, and more memory, should save a twentieth at least.
        1.05 * (self.ordered().map(ordering).iter().sum::<f64>() + product)
    }

    /// The launch that orders an operand.
    fn order(&self, at: usize, lines: &Lines, caps: &Caps) -> Launch {
        let steps = self.terms().div_ceil(ORDERED);
        let blocks = self.blocks()[at];
        let workgroups = Workgroups::new(self.batch * blocks * steps, TILE.invocations(caps))
            .with_memory(&[16 * BLOCK * (ORDERED / LINE + 1)]);
        let mut defines = define![
            BATCH: self.batch, EXTENT: [self.m, self.n][at], DEPTH: self.k, SIDE: ["left", "right"][at],
            ALONG: if lines.across { "across" } else { "k" }, PITCH: lines.pitch, FORMAT: lines.format(),
            BLOCKS: blocks, FRAGMENTS: self.terms() / SIDE, STEPS: steps,
        ];
        defines.push(("X_BATCH", offset(&lines.batch, "b")));
        let mut launch = Launch::new("order_fragments", defines, (0, 0), workgroups).on_bf16_units(caps);
        launch.bindings = vec![Binding::Input(at), Binding::Scratch(at)];
        launch
    }

    fn variant_in_fragments(&self, operands: [&Lines; 2], parts: usize, caps: &Caps) -> Variant {
        let &Self { batch, m, n, .. } = self;
        let part = self.part_in_fragments(parts);
        let [rows, columns] = TILE.extent();
        let [blocks_m, blocks_n] = self.blocks();
        let places = TILE.fours_of_rows();
        let workgroups = Workgroups::new(parts * self.tiles_in_fragments(), TILE.invocations(caps))
            .with_memory(&[16 * places])
            .looping(part / STEP + 1);
        // Rows of the result are padded to whole lines.
        let row = n.next_multiple_of(LINE);
        let [down, across] = TILE.each;
        let defines = define![
            BATCH: batch, M: m, N: n, K: self.terms() / SIDE, Y_PITCH: row, BLOCKS_M: blocks_m, BLOCKS_N: blocks_n,
            TILES_M: m.div_ceil(rows), TILES_N: n.div_ceil(columns), PARTS: parts, PART_K: part / SIDE,
            SN: TILE.subgroups[1], FM: down, FN: across, EACH: (32 * across).div_ceil(caps.subgroup.1),
            SUBGROUP: caps.subgroup.1, PLACES: places, LINES: 1, GROUP: GROUPED_ROWS / rows,
        ];
        let mut launch = Launch::new("matmul_fragments", defines, (0, 1), workgroups).on_bf16_units(caps);
        launch.bindings.splice(0..0, [Binding::Scratch(0), Binding::Scratch(1)]);
        let mut launches: Vec<_> = (0..2).map(|at| self.order(at, operands[at], caps)).collect();
        // Floats of lines.
        let mut scratch = self.ordered().map(|lines| 4 * lines).to_vec();
        if parts == 1 {
            launch.defines.extend(define![SUMS: "whole"]);
            launches.push(launch.stores_through_epilogue().by_lines());
            return Variant { name: "fragments", launches, scratch };
        }
        launch.bindings.pop();
        launch.defines.extend(define![SUMS: "parts", SUMS_AT: launch.bindings.len()]);
        launch.bindings.push(Binding::Scratch(2));
        let elements = batch * m * row;
        launches.extend([launch, sum_parts_by_lines(parts, elements, 2)]);
        scratch.push(parts * elements);
        Variant { name: "fragments, split", launches, scratch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::gemm::Operands;
    use crate::kernel::launch::{Argument, Format};
    use crate::{DType, Layout, Shape, TensorType};

    const CAPS: Caps = Caps { matrix: true, bf16: true, bf16_units: true, fragments: true, ..Caps::DISCRETE };

    /// The variants of a product, best first, among them those of `matmul_bf16`.
    fn ways([m, k, n]: [usize; 3], transposed: [bool; 2], caps: &Caps) -> Vec<Variant> {
        let lines = |[rows, columns]: [usize; 2], at: usize| {
            let strides = if transposed[at] { [1, rows] } else { [columns, 1] };
            let layout = Layout::strided(Shape::from([rows, columns]), &strides);
            let ty = TensorType::new(DType::F32, Shape::from([rows, columns]));
            Lines::new(&Argument { ty, layout, format: Format::Bf16 }, at == 0).expect("it lies in lines")
        };
        let product = Product { batch: 1, m, n, k, operands: Operands::Mixed, beside: true };
        product.of_bf16([&lines([m, k], 0), &lines([k, n], 1)], caps)
    }

    fn has(ways: &[Variant]) -> bool {
        ways.iter().any(|way| way.name.starts_with("fragments"))
    }

    /// Ordering pays where both operands are small beside the product, as measured on an H200.
    #[test]
    fn operands_are_ordered_where_it_pays() {
        let (none, second, first) = ([false; 2], [false, true], [true, false]);
        let table = [
            ([4096, 4096, 4096], none, true),
            ([8192, 768, 3072], none, true),
            ([8192, 768, 2304], none, true),
            ([8192, 768, 50_304], none, true),
            ([8192, 3072, 768], none, false),
            ([768, 8192, 3072], first, false),
            ([384, 12_544, 1536], first, false),
            ([8192, 768, 3072], second, true),
            ([512, 512, 512], none, false),
        ];
        for (product, transposed, is_best) in table {
            let ways = ways(product, transposed, &CAPS);
            assert_eq!(
                has(&ways[..1]),
                is_best,
                "{product:?}: {:?}",
                ways.iter().map(|way| way.name).collect::<Vec<_>>()
            );
            assert!(has(&ways), "{product:?}");
        }
        // 824 MB of logits.
        assert!(!has(&ways([8192, 50_304, 768], second, &CAPS)));
    }

    #[test]
    fn devices_without_elements_of_fragments_order_nothing() {
        for caps in [
            Caps { fragments: false, ..CAPS },
            Caps { bf16_units: false, fragments: false, ..CAPS },
            Caps { subgroup: (64, 64), ..CAPS },
            Caps { workgroup_memory: 16 << 10, ..CAPS },
        ] {
            assert!(!has(&ways([4096, 4096, 4096], [false; 2], &caps)));
        }
    }

    #[test]
    fn parts_are_whole_iterations_and_have_terms() {
        for product in [[64, 520, 64], [200, 5000, 72], [512, 8200, 136], [256, 65_544, 8]] {
            for way in ways(product, [false; 2], &CAPS).iter().filter(|way| way.name.starts_with("fragments")) {
                let number = |launch: usize, name: &str| -> usize {
                    let define = way.launches[launch].defines.iter().find(|(known, _)| *known == name);
                    define.expect("it is there").1.parse().expect("a number")
                };
                let [parts, part, all] = ["PARTS", "PART_K", "K"].map(|name| number(2, name));
                assert!(part.is_multiple_of(2) && all.is_multiple_of(2), "{way:?}");
                assert!((parts - 1) * part < all && parts * part >= all, "{way:?}");
                for (at, extent) in [(0, product[0]), (1, product[2])] {
                    assert_eq!(number(at, "FRAGMENTS"), all);
                    assert_eq!(way.scratch[at], extent.next_multiple_of(64) * 16 * all / 2, "{way:?}");
                }
            }
        }
    }
}
