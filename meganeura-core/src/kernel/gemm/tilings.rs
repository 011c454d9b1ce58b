//! The tilings of `shared/gemm`, and the choice among them by product and device: by tables on matrix units, by an
//! estimate of the time in f32.

use super::{Choice, Cut, Operands, Product, Tiling, Units};
use crate::kernel::launch::{Caps, Kind};

/// A tiling, with a second name for cut reductions.
macro_rules! tiling {
    ($name:literal, $units:expr, $workers:expr, $blocks:expr, $depth:expr) => {
        Tiling {
            name: $name,
            split: concat!($name, ", split"),
            units: $units,
            workers: $workers,
            blocks: $blocks,
            depth: $depth,
        }
    };
}

/// 128×128: the most products for each element that is read.
const LARGE: Tiling = tiling!("tile 128", Units::Scalar { stages: 1 }, [16, 8], [2, 4], 16);
/// [`LARGE`] with one barrier a step, for a workgroup that is alone on its multiprocessor: no other runs while it
/// waits.
const LARGE_TWICE: Tiling = tiling!("tile 128 twice", Units::Scalar { stages: 2 }, [16, 8], [2, 4], 16);
/// 64×64: four times as many workgroups, and a multiprocessor has memory for five.
const MEDIUM: Tiling = tiling!("tile 64", Units::Scalar { stages: 1 }, [8, 8], [2, 2], 16);
/// [`MEDIUM`] with one barrier a step: never the fastest, but small enough for tests on drivers that compute on the
/// CPU.
const MEDIUM_TWICE: Tiling = tiling!("tile 64 twice", Units::Scalar { stages: 2 }, [8, 8], [2, 2], 16);
/// 32×32, for small matrices.
const SMALL: Tiling = tiling!("tile 32", Units::Scalar { stages: 1 }, [8, 8], [1, 1], 16);

/// 128×256 on matrix units.
const MATRIX_WIDE: Tiling = tiling!("matrix 128×256", Units::Matrix { stages: 1 }, [2, 4], [4, 4], 32);
/// 256×128, where rows are many.
const MATRIX_TALL: Tiling = tiling!("matrix 256×128", Units::Matrix { stages: 1 }, [4, 2], [4, 4], 32);
/// 128×128.
const MATRIX_LARGE: Tiling = tiling!("matrix 128", Units::Matrix { stages: 1 }, [2, 2], [4, 4], 32);
/// 128×128 by eight subgroups: more registers for operands that are gathered, and twice as many loads in flight where
/// there are few tiles.
const MATRIX_EIGHT: Tiling = tiling!("matrix 128 by 8", Units::Matrix { stages: 1 }, [2, 4], [4, 2], 32);
/// 64×256, where rows are few.
const MATRIX_FLAT: Tiling = tiling!("matrix 64×256", Units::Matrix { stages: 1 }, [1, 4], [4, 4], 32);
/// 64×128.
const MATRIX_MEDIUM: Tiling = tiling!("matrix 64×128", Units::Matrix { stages: 2 }, [2, 2], [2, 4], 32);
/// 64×64.
const MATRIX_SMALL: Tiling = tiling!("matrix 64", Units::Matrix { stages: 2 }, [2, 2], [2, 2], 32);

/// An estimate of the time of a further launch on an H200, in nanoseconds.
pub const LAUNCH: f64 = 2500.0;

/// An estimate of the time in which a result's parts are stored and read on an H200, in nanoseconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub fn time_of_sums(parts: usize, elements: usize, caps: &Caps) -> f64 {
    let each = elements.div_ceil(caps.multiprocessors.enough(1));
    (8 * parts * each) as f64 / 23.0 + 40.0 * parts as f64
}

impl Choice {
    /// The steps of a part, if the kernel can skip some of them (`SKIPS`).
    #[must_use]
    pub fn skippable(&self, product: Product) -> Option<usize> {
        let is_scalar = matches!(self.tiling.units, Units::Scalar { .. });
        is_scalar.then(|| self.tiling.part(product, self.parts).div_ceil(self.tiling.depth))
    }
}

impl Product {
    /// Choices of tiling, best first; never empty.
    #[must_use]
    pub fn choices(self, caps: &Caps, cut: Cut) -> Vec<Choice> {
        let mut choices = if caps.matrix { self.matrix_choices(caps, cut != Cut::Never) } else { Vec::new() };
        if choices.is_empty() {
            choices = self.scalar_choices(caps, cut);
        }
        choices
    }

    /// Choices in f32. The first is the fastest by [`Product::estimate`], its number of parts included.
    fn scalar_choices(self, caps: &Caps, cut: Cut) -> Vec<Choice> {
        // Each with the fewest terms that a part may have.
        let tilings = [(LARGE, 256), (LARGE_TWICE, 256), (MEDIUM, 128), (SMALL, 64)];
        // Drivers that compile for the CPU take seconds to compile unrolled loops.
        let unroll = if caps.kind == Kind::Software { 1 } else { 4 };
        let choice = |tiling, parts| Choice::new(tiling, parts, unroll, caps);
        // With fewer parts, an invocation would loop over more terms than it may.
        let fewest = |tiling: &Tiling| if cut == Cut::Never { 1 } else { self.k.div_ceil(tiling.most(unroll, caps)) };
        let cuts = |&(tiling, least): &(Tiling, usize)| {
            // More than sixteen workgroups for each multiprocessor take memory without keeping it busier.
            let enough = (caps.multiprocessors.enough(16) / tiling.tiles(self)).clamp(1, 256);
            let most = if cut == Cut::Never { 1 } else { (self.k / least).clamp(1, enough) };
            let fewest = fewest(&tiling);
            let filled = move |&parts: &usize| parts == fewest || (parts - 1) * tiling.part(self, parts) < self.k;
            (fewest..=most.max(fewest)).filter(filled).map(move |parts| choice(tiling, parts))
        };
        let fits = |choice: &Choice| choice.tiling.fits(caps);
        let timed = |choice: Choice| (self.estimate(&choice, cut, caps), choice);
        let best = tilings.iter().flat_map(cuts).filter(fits).map(timed).min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, best) = best.expect("64 invocations and 5 KB fit every device");
        let mut choices = vec![best];
        if best.parts > 1 && fewest(&best.tiling) == 1 {
            choices.push(choice(best.tiling, 1));
        }
        let rest = [MEDIUM, LARGE, MEDIUM_TWICE, LARGE_TWICE, SMALL].map(|tiling| choice(tiling, fewest(&tiling)));
        choices.extend(rest.into_iter().filter(|choice| choice.tiling != best.tiling && fits(choice)));
        if caps.kind == Kind::Software {
            // Compiling more than another size and one with two stages is not worth the time.
            let worth = |tiling| tiling == MEDIUM_TWICE || tiling == LARGE && best.tiling == MEDIUM;
            choices.retain(|choice| choice.tiling == best.tiling || worth(choice.tiling));
        }
        choices
    }

    /// An estimate of a choice's time in nanoseconds on an H200. Multiprocessors share the workgroups, and those of one
    /// take turns. The figures are fitted to products of 512³ to 4096³, to those of transformers, and to convolutions,
    /// Winograd's and others (2026-11-22 and 28). Devices of other kinds are modelled as having fewer multiprocessors
    /// of the same kind.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn estimate(self, &Choice { tiling, parts, .. }: &Choice, cut: Cut, caps: &Caps) -> f64 {
        let each = (parts * tiling.tiles(self)).div_ceil(caps.multiprocessors.enough(1));
        let many = each as f64;
        let one_by_one = match tiling {
            // Workgroups that follow each other share operands in the cache; see `GROUPED_ROWS`.
            LARGE if each > 4 && self.operands != Operands::Gathered => 89.0 * each.next_multiple_of(2) as f64,
            LARGE => 94.0 * each.next_multiple_of(2) as f64,
            LARGE_TWICE => 100.0 * many,
            MEDIUM => 22.7 * (many + 1.5),
            SMALL => 9.0 * (many + 3.0),
            _ => unreachable!("there are figures for these"),
        };
        // The time of a term, of all workgroups of a multiprocessor. Lines along the reduction are transposed on their
        // way, which takes time where no other workgroup runs meanwhile. Gathered operands take longer to arrive.
        let term = match (tiling, each, self.operands) {
            (LARGE | LARGE_TWICE, 1, Operands::Gathered) => 160.0,
            (LARGE, 1, _) => 117.0,
            (LARGE_TWICE, 1, _) => 110.0,
            (MEDIUM, 1 | 2, Operands::Gathered) => 125.0,
            (MEDIUM, 1 | 2, Operands::Along) => 68.0,
            (MEDIUM, 1 | 2, _) => 62.0,
            (SMALL, 1 | 2, Operands::Gathered) => 70.0,
            (SMALL, 1 | 2, Operands::Along) => 55.0,
            (SMALL, 1 | 2, _) => 40.0,
            (_, _, Operands::Gathered) => 1.3 * one_by_one,
            _ => one_by_one,
        };
        // Start and end take as long as 56 terms. Where parts are not whole steps, each load checks its bounds.
        let part = tiling.part(self, parts);
        let asked = if parts * part == self.k { 1.0 } else { 1.3 };
        let product = term * asked * (part + 56) as f64;
        let sums = |parts: usize| time_of_sums(parts, self.batch * self.m * self.n, caps);
        // The factor 1.03 is a price for the memory of parts.
        match cut {
            _ if parts == 1 => product,
            Cut::Never | Cut::Taken => 1.03 * (product + sums(parts - 1)),
            Cut::Added => 1.03 * (product + sums(parts) + LAUNCH),
        }
    }

    /// Choices on matrix units, for operands in f32: the largest tiling with enough tiles to keep the device busy, or
    /// else the one with the most tiles, cut into parts of 256 terms or more. Small tilings suit operands that are
    /// gathered, wide and tall ones operands that are transposed on their way. Where tiles of 128×128 would keep half
    /// of the device busy, long sums are cut in two: that loads fewer elements than smaller tiles, and more invocations
    /// share the work on the sums.
    fn matrix_choices(self, caps: &Caps, cut: bool) -> Vec<Choice> {
        let (small, busy) = (self.m.min(self.n), caps.multiprocessors.enough(1));
        // Few rows, and too few columns for many workgroups: the gradient of a narrow layer's weights.
        let long = self.operands == Operands::Gathered && small <= 64 && MATRIX_SMALL.tiles(self) < busy;
        let [first, second] = if self.m >= 256 { [MATRIX_TALL, MATRIX_WIDE] } else { [MATRIX_WIDE, MATRIX_TALL] };
        let mut order = match self.operands {
            _ if small <= 32 => [MATRIX_SMALL, MATRIX_MEDIUM, MATRIX_LARGE, MATRIX_EIGHT, MATRIX_FLAT, first, second],
            Operands::Gathered if small <= 64 && !long => {
                [MATRIX_SMALL, MATRIX_FLAT, MATRIX_MEDIUM, MATRIX_LARGE, MATRIX_EIGHT, first, second]
            }
            _ if self.n <= 64 => [MATRIX_SMALL, MATRIX_MEDIUM, MATRIX_FLAT, MATRIX_LARGE, MATRIX_EIGHT, first, second],
            _ if small <= 64 => [MATRIX_MEDIUM, MATRIX_SMALL, MATRIX_FLAT, MATRIX_LARGE, MATRIX_EIGHT, first, second],
            Operands::Gathered => [MATRIX_LARGE, MATRIX_SMALL, MATRIX_EIGHT, MATRIX_MEDIUM, MATRIX_FLAT, first, second],
            Operands::Across => [MATRIX_LARGE, MATRIX_MEDIUM, MATRIX_SMALL, first, second, MATRIX_FLAT, MATRIX_EIGHT],
            Operands::Along | Operands::Mixed => {
                [first, MATRIX_LARGE, MATRIX_MEDIUM, MATRIX_SMALL, second, MATRIX_FLAT, MATRIX_EIGHT]
            }
        }
        .to_vec();
        order.retain(|tiling| tiling.fits(caps));
        let most = || if long { order.first() } else { order.iter().max_by_key(|tiling| tiling.tiles(self)) };
        let Some(&best) = order.iter().find(|tiling| tiling.tiles(self) >= busy).or_else(most) else {
            return Vec::new();
        };
        let halved = cut && small > 64 && self.k >= 512 && self.operands != Operands::Gathered;
        let (best, of_best) = if halved && (busy / 2..busy).contains(&MATRIX_EIGHT.tiles(self)) {
            (MATRIX_EIGHT, 2)
        } else {
            // Small tiles of long sums take a few workgroups for each multiprocessor.
            let wanted = if best == MATRIX_SMALL { caps.multiprocessors.enough(4) } else { busy };
            (best, if cut { best.parts(self, wanted, 256) } else { 1 })
        };
        let choice = |tiling, parts| Choice::new(tiling, parts, 1, caps);
        let mut choices = vec![choice(best, of_best)];
        if of_best > 1 {
            choices.push(choice(best, 1));
        }
        choices.extend(order.into_iter().filter(|&tiling| tiling != best).map(|tiling| choice(tiling, 1)));
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(m: usize, n: usize, k: usize, operands: Operands, cut: Cut, caps: &Caps) -> Vec<Choice> {
        Product { batch: 1, m, n, k, operands, beside: true }.choices(caps, cut)
    }

    #[test]
    fn tilings_suit_how_many_workgroups_a_multiprocessor_gets() {
        let best = |m, n, k, operands| choices(m, n, k, operands, Cut::Added, &Caps::DISCRETE)[0].name();
        assert_eq!(best(4096, 4096, 4096, Operands::Along), "tile 128");
        assert_eq!(best(2048, 2048, 2048, Operands::Across), "tile 128");
        // 144 tiles of 128×128 would load a few multiprocessors with two tiles and most with one. 576 tiles of 64×64,
        // split in two, are about nine for each.
        assert_eq!(best(1536, 1536, 1536, Operands::Along), "tile 64, split");
        assert_eq!(best(3072, 3072, 3072, Operands::Along), "tile 64");
        // One workgroup for each multiprocessor: no other workgroup can run while it waits.
        assert_eq!(best(1024, 1024, 1024, Operands::Along), "tile 128 twice, split");
        assert_eq!(best(1024, 1024, 1024, Operands::Mixed), "tile 64");
        assert_eq!(best(512, 512, 512, Operands::Across), "tile 64, split");
        assert_eq!(best(16, 1024, 64, Operands::Along), "tile 32");
    }

    #[test]
    fn every_part_has_terms() {
        for (m, n, k) in [(8, 8, 1000), (40, 1000, 1000), (64, 147, 50_177), (64, 27, 131_072), (300, 500, 16_385)] {
            for operands in [Operands::Mixed, Operands::Gathered] {
                for choice in choices(m, n, k, operands, Cut::Added, &Caps::DISCRETE) {
                    let terms = k.div_ceil(choice.parts).next_multiple_of(choice.tiling.depth);
                    assert!((choice.parts - 1) * terms < k, "{} parts of {k} terms", choice.parts);
                }
            }
        }
    }

    #[test]
    fn no_part_is_too_long_for_a_device_that_bounds_loops() {
        for (m, n, k) in
            [(1, 1, 1 << 25), (40, 40, 70_000), (300, 200, 58_000), (64, 64, 1 << 32), (5, 1 << 20, 60_000)]
        {
            let fewest = |caps| {
                let choices = choices(m, n, k, Operands::Gathered, Cut::Added, &caps);
                let mut names: Vec<_> = choices.iter().map(Choice::name).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), choices.len(), "two variants of one name: {choices:?}");
                choices.iter().map(|choice| choice.parts).min().expect("there are some")
            };
            for choice in choices(m, n, k, Operands::Gathered, Cut::Added, &Caps::SOFTWARE) {
                let product = Product { batch: 1, m, n, k, operands: Operands::Gathered, beside: false };
                let loops = choice.tiling.loops(choice.tiling.part(product, choice.parts), choice.unroll);
                assert!(loops <= Caps::LOOPS_IN_SOFTWARE, "{choice:?} of {k} terms: {loops}");
            }
            assert!(fewest(Caps::SOFTWARE) > usize::from(k > 59_000) && fewest(Caps::DISCRETE) == 1, "{k} terms");
        }
    }

    #[test]
    fn chosen_tilings_fit_small_devices() {
        for workgroup_memory in [16 << 10, 32 << 10] {
            let caps = Caps { kind: Kind::Software, workgroup_memory, ..Caps::DISCRETE };
            for (m, n, k) in [(4, 4, 4), (70, 70, 2000), (500, 500, 500)] {
                for cut in [Cut::Never, Cut::Added] {
                    let choices = choices(m, n, k, Operands::Along, cut, &caps);
                    assert!(
                        !choices.is_empty() && choices.iter().all(|choice| choice.tiling.fits(&caps)),
                        "{choices:?}"
                    );
                    assert!(cut == Cut::Added || choices.iter().all(|choice| choice.parts == 1));
                }
            }
        }
    }
}
