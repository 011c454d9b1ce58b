//! The launches of attention on matrix units, of operands in lines of bf16; see `shaders/wgsl/attention_bf16.wgsl`.

use super::{Attention, AttentionShape};
use crate::kernel::fragments::{Fragments, pitch};
use crate::kernel::gemm::strides;
use crate::kernel::launch::{
    Argument, Binding, Caps, Define, Format, LINE, Launch, Variant, Workgroups, define, literal,
};
use crate::kernel::offset::offset;
use crate::ops::{Bf16, Innermost, Stores};

/// Rows, and columns, of a fragment.
const SIDE: usize = 16;

/// The subgroups of a workgroup.
const SUBGROUPS: Fragments = Fragments { subgroups: [4, 1], each: [1, 1] };

/// The most features of a head.
const WIDEST: usize = 256;

/// The most features of a head that one subgroup holds.
const ALONE: usize = 128;

/// The tiles of the kernels of attention on matrix units.
///
/// An invocation has 255 registers. It holds 4 of a fragment of operands, 8 of a fragment of sums, and 4 of a line that
/// is loaded ahead. With `d` and `e` fragments of features in a subgroup's share, it needs
///
/// * in the forward pass, for each strip `4d` for queries, `8e` for results, 8 for each fragment of scores, and 16 for
///   the peak and the mass of its rows; 24 for a new peak; and 4 for an operand;
/// * in the gradient of queries, for each strip `4d + 4e` for queries and cotangents, `8d` for results, 24 for
///   the statistics of its rows, and 16 for a score and its slope; and 4 for an operand;
/// * in that of keys and values, for each strip `4d + 4e` for both, `8d + 8e` for results, and 20 for a weight, its
///   operand and its slope; and 4 for an operand;
///
/// and [`ADDRESSES`] besides. Two strips make better use of each operand that is read from workgroup memory.
///
/// | features | forward | gradient of queries | of keys |
/// |---|---|---|---|
/// | 64 | 2 strips against 64 columns, ahead: 252 | 2 against 64: 228 | 2 against 64: 252 |
/// | 128 | 1 against 32, ahead: 188 | 1 against 32, ahead: 220 | 1 against 32: 232 |
/// | 256, by two | 1 against 16, ahead: 180 | 1 against 16, ahead: 220 | 1 against 16: 232 |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct StripTiling {
    name: &'static str,
    /// Subgroups that share the features of the same rows.
    share: usize,
    /// Fragments down of each subgroup.
    strips: usize,
    /// Columns of a tile of scores.
    tile: usize,
}

/// The kernels, each with tiles of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pass {
    Forward,
    OfQueries,
    OfKeys,
}

/// Registers for addresses and counters.
const ADDRESSES: usize = 16;

/// The best come first, apart from those with too few workgroups, or too large ones.
const TILINGS: [StripTiling; 6] = [
    StripTiling { name: "units 128", share: 1, strips: 2, tile: 64 },
    StripTiling { name: "units 64", share: 1, strips: 1, tile: 64 },
    StripTiling { name: "units 128×32", share: 1, strips: 2, tile: 32 },
    StripTiling { name: "units 64×32", share: 1, strips: 1, tile: 32 },
    StripTiling { name: "units 32×32", share: 2, strips: 1, tile: 32 },
    StripTiling { name: "units 32×16", share: 2, strips: 1, tile: 16 },
];

impl StripTiling {
    /// Rows of a strip of all subgroups.
    fn team_rows(self) -> usize {
        SIDE * SUBGROUPS.count() / self.share
    }

    fn rows(self) -> usize {
        self.team_rows() * self.strips
    }

    /// Fragments of so many features: as many for each that shares them.
    fn fragments(self, features: usize) -> usize {
        features.div_ceil(SIDE).next_multiple_of(self.share)
    }

    /// The lines of a tile of so many fragments that an invocation loads.
    fn loads(self, fragments: usize, caps: &Caps) -> usize {
        (2 * fragments * self.tile).div_ceil(SUBGROUPS.invocations(caps))
    }

    /// The registers of an invocation, which may load a tile ahead.
    fn registers(self, pass: Pass, g: AttentionShape, ahead: bool, caps: &Caps) -> usize {
        let fragments = [g.d, g.e].map(|features| self.fragments(features));
        let [d, e] = fragments.map(|fragments| fragments / self.share);
        let [of_d, of_e] = fragments.map(|fragments| if ahead { 4 * self.loads(fragments, caps) } else { 0 });
        let (strip, all) = match pass {
            Pass::Forward => (4 * d + 8 * e + 8 * self.tile / SIDE + 16, 24 + of_d.max(of_e)),
            Pass::OfQueries => (12 * d + 4 * e + 40, of_d + of_e),
            Pass::OfKeys => (12 * d + 12 * e + 20, of_d + of_e),
        };
        self.strips * strip + all + 4 + ADDRESSES
    }

    /// `true` if an invocation's numbers fit in its registers.
    fn fits(self, pass: Pass, g: AttentionShape, ahead: bool, caps: &Caps) -> bool {
        self.registers(pass, g, ahead, caps) <= 255
    }

    /// The workgroups for so many rows of each of `entries` batch entries, and the defines of all kernels.
    fn workgroups(self, pass: Pass, g: AttentionShape, caps: &Caps) -> (Workgroups, Vec<Define>) {
        let (entries, rows, columns) = match pass {
            Pass::Forward | Pass::OfQueries => (g.batch, g.l, g.s),
            Pass::OfKeys => (g.batch / g.group, g.s, g.l.saturating_mul(g.group)),
        };
        let [of_d, of_e] = [g.d, g.e].map(|features| self.fragments(features));
        let [pitch_d, pitch_e] = [of_d, of_e].map(|fragments| pitch(SIDE * fragments));
        let invocations = SUBGROUPS.invocations(caps);
        let second = self.tile * pitch_d;
        let fours = second + self.tile * pitch_e;
        let blocks = rows.div_ceil(self.rows());
        // Halves of scores, and then of slopes.
        let slots = if self.share > 1 { self.tile / SIDE } else { 1 };
        let of_sums = slots * SUBGROUPS.fours_of_sums(1);
        let statistics = if pass == Pass::OfKeys { 16 * self.tile } else { 0 };
        let workgroups = Workgroups::new(entries.saturating_mul(blocks), invocations)
            .with_memory(&[8 * fours, 16 * of_sums, statistics])
            .looping(columns.div_ceil(self.tile).saturating_add(2 * g.group));
        let is_whole = |fragments: usize| u32::from((2 * fragments * self.tile).is_multiple_of(invocations));
        let defines = define![
            SHARE: self.share, TEAM_ROWS: self.team_rows(), STRIPS: self.strips, TILE: self.tile,
            FT: self.tile / SIDE, FD: of_d, FE: of_e, OWN_D: of_d / self.share, OWN_E: of_e / self.share,
            PITCH_D: pitch_d, PITCH_E: pitch_e, FOURS: fours, SECOND: second, ROUNDS: self.rows() / self.tile,
            LOADS_D: self.loads(of_d, caps), LOADS_E: self.loads(of_e, caps), WHOLE_D: is_whole(of_d),
            WHOLE_E: is_whole(of_e),
            EACH: 32usize.div_ceil(caps.subgroup.1), BATCH: entries, BLOCKS: blocks, SUBGROUP: caps.subgroup.1,
            PITCH_SUMS: crate::kernel::fragments::PITCH_SUMS, SLOTS: slots, FOURS_OF_SUMS: of_sums,
        ];
        (workgroups, defines)
    }
}

/// `true` if this attention's scores fit in the registers of matrix units.
pub fn fits_in_registers(g: AttentionShape) -> bool {
    let fits = |features: usize| features.is_multiple_of(LINE) && (1..=WIDEST).contains(&features);
    fits(g.d) && fits(g.e) && g.batch * g.l > 0 && g.s > 0
}

/// The operands that the kernels read in lines, and their results.
pub(super) fn bf16(g: AttentionShape, operands: &'static [usize], others: bool, caps: &Caps) -> Option<Bf16> {
    let form = Bf16 { others, wanted: true, ..Bf16::new(Innermost::Last, operands, Stores::Lines) };
    let can = caps.bf16 && caps.bf16_units && caps.fragments && caps.subgroup == (32, 32);
    (can && fits_in_registers(g)).then_some(form)
}

impl Attention {
    /// The defines of operands: `q`, `k`, `v` and a bias.
    fn unit_defines(&self, g: AttentionShape, x: [&Argument; 3], bias: Option<&Argument>) -> Vec<Define> {
        let AttentionShape { l, s, d, e, .. } = g;
        let mut defines = define![
            L: l, S: s, D: d, E: e, SCALE: literal(self.scale.0), CAUSAL: u32::from(self.causal),
            BIAS: u32::from(bias.is_some()), SCALED: u32::from(bias.is_some() || self.scale.0 <= 0.0),
        ];
        let names = [
            ["Q_BATCH", "Q_ROW", "Q_FORMAT", "Q_ELEM"],
            ["K_BATCH", "K_ROW", "K_FORMAT", "K_ELEM"],
            ["V_BATCH", "V_ROW", "V_FORMAT", "V_ELEM"],
        ];
        for (names, x) in names.into_iter().zip(x) {
            let heads = if names[0] == "Q_BATCH" { "b".into() } else { g.keys_of("b") };
            defines.extend(lines(names, x, &heads));
        }
        if let Some(bias) = bias {
            let (batch, [row, column]) = strides(&bias.layout);
            defines.push(("BIAS_BATCH", offset(&batch, "b")));
            defines.extend(define![BIAS_ROW: row, BIAS_COL: column]);
        }
        defines
    }
}

/// The defines of an operand in lines.
fn lines([begin, row, format, element]: [&'static str; 4], x: &Argument, head: &str) -> Vec<Define> {
    debug_assert_eq!(x.layout.strides().last(), Some(&1), "the format pass says so");
    let (batch, [pitch, _]) = strides(&x.layout);
    let is_full = x.format == Format::Full;
    let (name, elements) = if is_full { ("full", "vec4<f32>") } else { ("bf16", "vec4<u32>") };
    vec![(begin, offset(&batch, head)), (row, pitch.to_string()), (format, name.into()), (element, elements.into())]
}

/// The tilings of a kernel that fit on a device, best first.
fn tilings(pass: Pass, g: AttentionShape, caps: &Caps) -> Vec<StripTiling> {
    let mut tilings = TILINGS.to_vec();
    tilings.retain(|tiling| {
        (tiling.share > 1) == (g.d.max(g.e) > ALONE) && tiling.fits(pass, g, pass == Pass::Forward, caps)
    });
    let workgroups = |tiling: &StripTiling| tiling.workgroups(pass, g, caps).0;
    tilings.retain(|tiling| workgroups(tiling).fit(caps));
    let is_filled = |tiling: &StripTiling| workgroups(tiling).count >= caps.multiprocessors.enough(2);
    let shares = |tiling: &StripTiling| workgroups(tiling).memory <= caps.multiprocessors.memory_of(2);
    tilings.sort_by_key(|tiling| (!shares(tiling), !is_filled(tiling) && tiling.strips > 1, usize::MAX - tiling.tile));
    tilings
}

pub(super) fn forward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let variant = |tiling: StripTiling| {
        let (workgroups, mut defines) = tiling.workgroups(Pass::Forward, g, caps);
        defines.extend(op.unit_defines(g, [&x[0], &x[1], &x[2]], x.get(3)));
        defines.extend(define![LSE_AT: x.len()]);
        let launch = Launch::new("attention_bf16", defines, (x.len(), 2), workgroups).on_bf16_units(caps);
        Variant::simple(tiling.name, launch.stores_through_epilogue().by_lines())
    };
    tilings(Pass::Forward, g, caps).into_iter().map(variant).collect()
}

/// The launches of [`AttentionGrad`](super::AttentionGrad).
pub(super) fn backward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let launch = |pass: Pass, tiling: StripTiling| {
        let (workgroups, mut defines) = tiling.workgroups(pass, g, caps);
        defines.extend(op.unit_defines(g, [&x[0], &x[1], &x[2]], x.get(6)));
        defines.extend(lines(["DY_BATCH", "DY_ROW", "DY_FORMAT", "DY_ELEM"], &x[5], "b"));
        let (of, outputs) = if pass == Pass::OfKeys { ("keys", &[1, 2][..]) } else { ("queries", &[0][..]) };
        defines.extend(define![OF: of, AHEAD: u32::from(tiling.fits(pass, g, true, caps))]);
        if pass == Pass::OfKeys {
            defines.extend(define![DK_AT: x.len(), DV_AT: x.len() + 1, GROUP: g.group]);
        }
        let mut launch = Launch::new("attention_grad_bf16", defines, (x.len(), 0), workgroups).on_bf16_units(caps);
        launch.bindings.extend(outputs.iter().copied().map(Binding::Output));
        if pass == Pass::OfKeys { launch } else { launch.stores_through_epilogue().by_lines() }
    };
    let [of_keys, of_queries] = [Pass::OfKeys, Pass::OfQueries].map(|pass| tilings(pass, g, caps));
    let (Some(&keys), Some(&queries)) = (of_keys.first(), of_queries.first()) else { return Vec::new() };
    let variant = |name, keys, queries| {
        let launches = vec![launch(Pass::OfKeys, keys), launch(Pass::OfQueries, queries)];
        Variant { name, launches, scratch: Vec::new() }
    };
    let mut variants = vec![variant(queries.name, keys, queries)];
    for tiling in TILINGS.into_iter().filter(|tiling| *tiling != queries) {
        let [is_of_keys, is_of_queries] = [&of_keys, &of_queries].map(|tilings| tilings.contains(&tiling));
        if is_of_keys || is_of_queries {
            let keys = if is_of_keys { tiling } else { keys };
            variants.push(variant(tiling.name, keys, if is_of_queries { tiling } else { queries }));
        }
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_registers_and_two_workgroups_share_a_multiprocessor() {
        let caps = Caps { matrix: true, bf16: true, bf16_units: true, fragments: true, ..Caps::DISCRETE };
        // The best tiling of each kernel, whether it loads ahead, and its registers.
        let best = |features: usize| {
            let g = AttentionShape { batch: 96, group: 1, l: 1024, s: 1024, d: features, e: features };
            [Pass::Forward, Pass::OfQueries, Pass::OfKeys].map(|pass| {
                let tiling = tilings(pass, g, &caps)[0];
                let ahead = tiling.fits(pass, g, true, &caps);
                let memory = tiling.workgroups(pass, g, &caps).0.memory;
                assert!(memory <= caps.multiprocessors.memory_of(2), "{features} {pass:?}: {memory}");
                (tiling.name, ahead, tiling.registers(pass, g, ahead, &caps))
            })
        };
        assert_eq!(best(64), [("units 128", true, 252), ("units 128", false, 228), ("units 128", false, 252)]);
        assert_eq!(best(128), [("units 64×32", true, 188), ("units 64×32", true, 220), ("units 64×32", false, 232)]);
        assert_eq!(best(256), [("units 32×16", true, 180), ("units 32×16", true, 220), ("units 32×16", false, 232)]);
    }

    #[test]
    fn every_width_has_a_tiling() {
        let caps = Caps { matrix: true, bf16: true, bf16_units: true, fragments: true, ..Caps::DISCRETE };
        for (d, e) in (1..=32).flat_map(|d| (1..=32).map(move |e| (8 * d, 8 * e))) {
            let g = AttentionShape { batch: 2, group: 2, l: 20, s: 30, d, e };
            assert!(fits_in_registers(g));
            for pass in [Pass::Forward, Pass::OfQueries, Pass::OfKeys] {
                assert!(!tilings(pass, g, &caps).is_empty(), "{d} {e} {pass:?}");
            }
        }
    }
}
