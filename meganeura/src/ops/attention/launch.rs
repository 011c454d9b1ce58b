//! The launches of attention on a GPU.

use super::{Attention, Geometry};
use crate::kernel::gemm::{element, reads_fours, strides};
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, define, literal};
use crate::kernel::offset::offset;

/// Groups of four features in each row of a chunk for scores.
const DEPTH: usize = 8;

/// The tile of scores that a workgroup holds at a time.
#[derive(Clone, Copy)]
struct Tiling {
    name: &'static str,
    /// The number of its rows, and of its columns.
    tile: usize,
    /// Groups of four rows that an invocation computes.
    height: usize,
    /// Groups of four features of a result.
    fours: usize,
}

/// The name, tile and height of each tiling, the fastest for large attentions first.
const TILINGS: [(&str, usize, usize); 2] = [("tile 64", 64, 2), ("tile 32", 32, 1)];

impl Tiling {
    /// Bytes of workgroup memory. One of NVIDIA's multiprocessors has 48 KB, enough for two workgroups; registers allow
    /// no more than that either.
    fn memory(self) -> usize {
        2 * 16 * (self.tile / 4) * (4 * DEPTH + 1)
    }

    fn workgroup_size(self) -> usize {
        self.tile * self.tile / (16 * self.height)
    }

    /// Groups of four features in an invocation's part of a result.
    fn each(self) -> usize {
        (4 * self.fours / self.tile).max(1)
    }

    /// The number of parts of a result with this number of features.
    fn parts(self, features: usize) -> usize {
        features.div_ceil(4 * self.fours)
    }

    /// An upper bound on the iterations of an invocation: in each tile of columns, the products over these features,
    /// and `sums` weighted sums.
    fn loops(self, columns: usize, features: &[usize], sums: usize) -> usize {
        let products: usize = features.iter().map(|&features| features.div_ceil(4 * DEPTH) * (DEPTH + 2) + 1).sum();
        let weighted = 2 * (self.tile / 8 + 1) + 1;
        let tile = products + sums * weighted + self.tile / 4 + 2;
        columns.div_ceil(self.tile).saturating_mul(tile).saturating_add(3 * (self.tile / 4 + 1))
    }
}

/// The tilings that fit on a device, the best one first: the largest, unless there are few queries or keys.
fn tilings(g: Geometry, caps: &Caps) -> Vec<Tiling> {
    let fours = g.d.max(g.e).div_ceil(4).next_power_of_two().clamp(4, 16);
    let tilings = TILINGS.into_iter().map(|(name, tile, height)| Tiling { name, tile, height, fours });
    let mut tilings: Vec<_> = tilings.filter(|tiling| tiling.memory() <= caps.workgroup_memory).collect();
    if g.l.min(g.s) <= 32 {
        tilings.reverse();
    }
    tilings
}

impl Attention {
    fn defines(
        &self,
        g: Geometry,
        tiling: Tiling,
        x: [&Argument; 3],
        bias: Option<&Argument>,
    ) -> Vec<(&'static str, String)> {
        let Geometry { batch, l, s, d, e } = g;
        let mut defines = define![
            WG: tiling.workgroup_size(), DEPTH: DEPTH, TILE: tiling.tile, FOURS: tiling.fours,
            LOADS: tiling.tile * DEPTH / tiling.workgroup_size(), EACH: tiling.each(), HEIGHT: tiling.height,
            ROWS_EACH: 4 * tiling.height, UNROLL: if [d, e].iter().all(|x| x.div_ceil(4) % 2 == 0) { 2 } else { 1 },
            SHARED_SUMS: u32::from(tiling.fours < tiling.tile / 4),
            BATCH: batch, L: l, S: s, D: d, E: e, SCALE: literal(self.scale.0), CAUSAL: u32::from(self.causal),
            BIAS: u32::from(bias.is_some()),
            Q_ELEM: element(reads_fours(&x[0].layout, 1)),
            K_ELEM: element(reads_fours(&x[1].layout, 1)),
            V_ELEM: element(reads_fours(&x[2].layout, 1)),
        ];
        let names = [
            ["Q_BATCH", "Q_ROW", "Q_COL"],
            ["K_BATCH", "K_ROW", "K_COL"],
            ["V_BATCH", "V_ROW", "V_COL"],
            ["BIAS_BATCH", "BIAS_ROW", "BIAS_COL"],
        ];
        for ([begin, row, column], x) in names.into_iter().zip(x.into_iter().chain(bias)) {
            let (batch, [rows, columns]) = strides(&x.layout);
            defines.extend([(begin, offset(&batch, "b")), (row, rows.to_string()), (column, columns.to_string())]);
        }
        defines
    }
}

pub(super) fn forward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = Geometry::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let variant = |tiling: Tiling| {
        let mut defines = op.defines(g, tiling, [&x[0], &x[1], &x[2]], x.get(3));
        defines.push(("SPREAD_AT", x.len().to_string()));
        let workgroups = g.batch.saturating_mul(g.l.div_ceil(tiling.tile)).saturating_mul(tiling.parts(g.e));
        let launch = Launch::new("attention", defines, (x.len(), 2), workgroups);
        Variant::simple(tiling.name, launch.loops(tiling.loops(g.s, &[g.d], 1)).stores_through_epilogue())
    };
    tilings(g, caps).into_iter().map(variant).collect()
}

pub(super) fn backward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = Geometry::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    // Queries, keys, values, spread, drift, dy, a bias, and two results: nine buffers. If fewer can be bound, a launch
    // joins spread and drift first.
    let is_joined = x.len() + 2 > caps.bindings;
    let mut inputs: Vec<_> = (0..x.len()).map(Binding::Input).collect();
    if is_joined {
        inputs.splice(3..5, [Binding::Scratch(0)]);
    }
    let dy_at = inputs.iter().position(|binding| *binding == Binding::Input(5)).expect("it is bound");
    let rows = g.batch.saturating_mul(g.l);
    let variant = |tiling: Tiling| {
        let launch = |of: &str, operands: [&str; 4], rows: usize, columns: usize, width: usize, results: &[usize]| {
            let mut defines = op.defines(g, tiling, [&x[0], &x[1], &x[2]], x.get(6));
            let [row_of_score, column_of_score, row_of_slope, column_of_slope] = operands;
            defines.extend(define![
                OF: of, ROW_OF_SCORE: row_of_score, COLUMN_OF_SCORE: column_of_score, ROW_OF_SLOPE: row_of_slope,
                COLUMN_OF_SLOPE: column_of_slope, DY_ELEM: element(g.e.is_multiple_of(4)), JOINED: u32::from(is_joined),
                DY_AT: dy_at, RESULT_AT: inputs.len(),
            ]);
            if x.len() > 6 {
                defines.extend(define![BIAS_AT: dy_at + 1]);
            }
            if results.len() == 2 {
                defines.extend(define![SECOND_AT: inputs.len() + 1]);
            }
            let workgroups = g.batch.saturating_mul(rows.div_ceil(tiling.tile)).saturating_mul(tiling.parts(width));
            let launch = Launch::new("attention_grad", defines, (x.len(), 0), workgroups);
            let bindings = [&inputs[..], &results.iter().copied().map(Binding::Output).collect::<Vec<_>>()].concat();
            let launch = launch.loops(tiling.loops(columns, &[g.d, g.e], results.len()));
            Launch { bindings, ..launch }
        };
        let of_keys = launch("keys", ["k", "q", "v", "dy"], g.s, g.l, g.d.max(g.e), &[1, 2]);
        let of_queries = launch("queries", ["q", "k", "dy", "v"], g.l, g.s, g.d, &[0]);
        let mut variant = Variant { name: tiling.name, launches: vec![of_keys, of_queries], scratch: Vec::new() };
        if is_joined {
            let mut join = Launch::new("attention_join", define![WG: 64, ROWS: rows], (0, 0), rows.div_ceil(64));
            join.bindings = vec![Binding::Input(3), Binding::Input(4), Binding::Scratch(0)];
            variant.launches.insert(0, join);
            variant.scratch.push(rows.saturating_mul(3));
        }
        variant
    };
    tilings(g, caps).into_iter().map(variant).collect()
}
