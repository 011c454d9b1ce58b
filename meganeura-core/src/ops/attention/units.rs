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

/// Rows of a strip of all subgroups.
const STRIP: usize = 64;

/// The most features that fit in registers.
const WIDEST: usize = 128;

/// The parameters of the kernels of attention on matrix units.
#[derive(Clone, Copy)]
struct StripTiling {
    name: &'static str,
    /// Strips of 64 rows that a workgroup computes.
    strips: usize,
    /// Columns of a tile of scores.
    tile: usize,
}

const TALL: StripTiling = StripTiling { name: "units 128", strips: 2, tile: 64 };
const TALL_32: StripTiling = StripTiling { name: "units 128×32", strips: 2, tile: 32 };
const LOW: StripTiling = StripTiling { name: "units 64", strips: 1, tile: 64 };
/// For many features: two workgroups of smaller tiles share a multiprocessor.
const WIDE: StripTiling = StripTiling { name: "units 64×32", strips: 1, tile: 32 };

/// The subgroups of a workgroup, each with one fragment down of each strip.
const SUBGROUPS: Fragments = Fragments { subgroups: [4, 1], each: [1, 1] };

impl StripTiling {
    fn rows(self) -> usize {
        STRIP * self.strips
    }

    /// The workgroups for so many rows of each batch entry, and the defines of all kernels.
    fn workgroups(self, g: AttentionShape, rows: usize, columns: usize, caps: &Caps) -> (Workgroups, Vec<Define>) {
        let [of_d, of_e] = [g.d, g.e].map(|features| features.div_ceil(SIDE));
        let [pitch_d, pitch_e] = [of_d, of_e].map(|fragments| pitch(SIDE * fragments));
        let invocations = SUBGROUPS.invocations(caps);
        let second = self.tile * pitch_d;
        let fours = second + self.tile * pitch_e;
        let blocks = rows.div_ceil(self.rows());
        let workgroups = Workgroups::new(g.batch.saturating_mul(blocks), invocations)
            .with_memory(&[8 * fours, 16 * SUBGROUPS.fours_of_sums(1)])
            .looping(columns.div_ceil(self.tile) + 2);
        let loads = |fragments: usize| 2 * fragments * self.tile / invocations;
        let defines = define![
            STRIPS: self.strips, TILE: self.tile, FT: self.tile / SIDE, FD: of_d, FE: of_e, PITCH_D: pitch_d,
            PITCH_E: pitch_e, FOURS: fours, SECOND: second, ROUNDS: self.rows() / self.tile, LOADS_D: loads(of_d),
            LOADS_E: loads(of_e), EACH: 32usize.div_ceil(caps.subgroup.1), BLOCKS: blocks,
            SUBGROUP: caps.subgroup.1, PITCH_SUMS: crate::kernel::fragments::PITCH_SUMS,
            FOURS_OF_SUMS: SUBGROUPS.fours_of_sums(1),
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
        let AttentionShape { batch, l, s, d, e } = g;
        let mut defines = define![
            BATCH: batch, L: l, S: s, D: d, E: e, SCALE: literal(self.scale.0), CAUSAL: u32::from(self.causal),
            BIAS: u32::from(bias.is_some()), SCALED: u32::from(bias.is_some() || self.scale.0 <= 0.0),
        ];
        let names = [
            ["Q_BATCH", "Q_ROW", "Q_FORMAT", "Q_ELEM"],
            ["K_BATCH", "K_ROW", "K_FORMAT", "K_ELEM"],
            ["V_BATCH", "V_ROW", "V_FORMAT", "V_ELEM"],
        ];
        for (names, x) in names.into_iter().zip(x) {
            defines.extend(lines(names, x));
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
fn lines([begin, row, format, element]: [&'static str; 4], x: &Argument) -> Vec<Define> {
    debug_assert_eq!(x.layout.strides().last(), Some(&1), "the format pass says so");
    let (batch, [pitch, _]) = strides(&x.layout);
    let is_full = x.format == Format::Full;
    let (name, elements) = if is_full { ("full", "vec4<f32>") } else { ("bf16", "vec4<u32>") };
    vec![(begin, offset(&batch, "b")), (row, pitch.to_string()), (format, name.into()), (element, elements.into())]
}

/// The tilings that fit on a device, best first.
fn tilings(g: AttentionShape, rows: usize, caps: &Caps) -> Vec<StripTiling> {
    let mut tilings = vec![TALL, LOW, TALL_32, WIDE];
    // More strips take too many registers with more features.
    tilings.retain(|tiling| tiling.strips == 1 || g.d.max(g.e) <= 64);
    // Invocations load whole lines of a tile.
    let is_whole = |tiling: &StripTiling, features: usize| {
        (2 * features.div_ceil(SIDE) * tiling.tile).is_multiple_of(SUBGROUPS.invocations(caps))
    };
    tilings.retain(|tiling| is_whole(tiling, g.d) && is_whole(tiling, g.e));
    tilings.retain(|tiling| tiling.workgroups(g, rows, g.s, caps).0.fit(caps));
    let is_filled =
        |tiling: &StripTiling| tiling.workgroups(g, rows, g.s, caps).0.count >= caps.multiprocessors.enough(2);
    let shares =
        |tiling: &StripTiling| tiling.workgroups(g, rows, g.s, caps).0.memory <= caps.multiprocessors.memory_of(2);
    tilings.sort_by_key(|tiling| (!shares(tiling), !is_filled(tiling) && tiling.strips > 1, usize::MAX - tiling.tile));
    tilings
}

pub(super) fn forward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let variant = |tiling: StripTiling| {
        let (workgroups, mut defines) = tiling.workgroups(g, g.l, g.s, caps);
        defines.extend(op.unit_defines(g, [&x[0], &x[1], &x[2]], x.get(3)));
        defines.extend(define![LSE_AT: x.len()]);
        let launch = Launch::new("attention_bf16", defines, (x.len(), 2), workgroups).on_bf16_units(caps);
        Variant::simple(tiling.name, launch.stores_through_epilogue().by_lines())
    };
    tilings(g, g.l, caps).into_iter().map(variant).collect()
}

/// The launches of [`AttentionGrad`](super::AttentionGrad).
pub(super) fn backward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let variant = |tiling: StripTiling| {
        let launch = |of: &str, rows, columns, outputs: &[usize]| {
            let (workgroups, mut defines) = tiling.workgroups(g, rows, columns, caps);
            defines.extend(op.unit_defines(g, [&x[0], &x[1], &x[2]], x.get(6)));
            defines.extend(lines(["DY_BATCH", "DY_ROW", "DY_FORMAT", "DY_ELEM"], &x[5]));
            defines.extend(define![OF: of]);
            let is_of_keys = outputs.len() == 2;
            if is_of_keys {
                defines.extend(define![DK_AT: x.len(), DV_AT: x.len() + 1]);
            }
            // The statistics of a tile of queries.
            let workgroups = if is_of_keys { workgroups.with_memory(&[16 * tiling.tile]) } else { workgroups };
            let mut launch = Launch::new("attention_grad_bf16", defines, (x.len(), 0), workgroups).on_bf16_units(caps);
            launch.bindings.extend(outputs.iter().copied().map(Binding::Output));
            if is_of_keys { launch } else { launch.stores_through_epilogue().by_lines() }
        };
        let launches = vec![launch("keys", g.s, g.l, &[1, 2]), launch("queries", g.l, g.s, &[0])];
        Variant { name: tiling.name, launches, scratch: Vec::new() }
    };
    let low = tilings(g, g.l.min(g.s), caps).into_iter().filter(|tiling| tiling.strips == 1);
    low.map(variant).collect()
}
