//! How attention is launched on a GPU.

use super::{Attention, Geometry};
use crate::kernel::gemm::strides;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, define, literal, tree};
use crate::kernel::offset::offset;

/// Terms of a product that go through workgroup memory together.
const STEP: usize = 16;

/// Rows of a tile, with the name of the variant.
const TILES: [(&str, usize); 2] = [("tile 64", 64), ("tile 32", 32)];

/// Bytes of workgroup memory that the kernels take with tiles of so many rows.
fn memory(tile: usize) -> usize {
    let pitch = tile / 4 + 1;
    16 * pitch * (2 * STEP + tile) + tile * tile
}

/// The tiles that a device has room for, the best one first: large ones where they fill it.
fn tiles(g: Geometry, caps: &Caps) -> Vec<(&'static str, usize)> {
    let mut tiles: Vec<_> = TILES.into_iter().filter(|(_, tile)| memory(*tile) <= caps.workgroup_memory).collect();
    if g.l.min(g.s) <= 32 {
        tiles.reverse();
    }
    tiles
}

impl Attention {
    fn defines(
        &self,
        g: Geometry,
        tile: usize,
        x: [&Argument; 3],
        bias: Option<&Argument>,
    ) -> Vec<(&'static str, String)> {
        let Geometry { batch, l, s, d, e } = g;
        let mut defines = define![WG: (tile / 4) * (tile / 4), TILE: tile, BATCH: batch, L: l, S: s, D: d, E: e];
        defines.extend(define![SCALE: literal(self.scale.0), CAUSAL: u32::from(self.causal)]);
        defines.push(("BIAS", u32::from(bias.is_some()).to_string()));
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

/// A bound on the iterations of an invocation for so many tiles, each with products of these depths, and weighted sums of so many.
fn loops(tiles: usize, tile: usize, depths: &[usize], sums: usize) -> usize {
    let loads = 4 * 64 / tile + 1;
    let products: usize = depths.iter().map(|depth| depth.div_ceil(STEP) * (loads + STEP + 3) + 1).sum();
    let weighted = sums * ((tile / STEP) * (loads + STEP + 3) + 8);
    let softmax = 4 * (6 + tile / 4 + 2) + 8;
    tiles.saturating_mul(products + weighted + softmax).saturating_add(4 * (tile / 4 + 8) + tree(tile))
}

pub(super) fn forward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = Geometry::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let variant = |(name, tile): (&'static str, usize)| {
        let mut defines = op.defines(g, tile, [&x[0], &x[1], &x[2]], x.get(3));
        defines.push(("SPREAD_AT", x.len().to_string()));
        let workgroups = g.batch.saturating_mul(g.l.div_ceil(tile)).saturating_mul(g.e.div_ceil(tile));
        let launch = Launch::new("attention", defines, (x.len(), 2), workgroups);
        let launch = launch.loops(loops(g.s.div_ceil(tile), tile, &[g.d], 1));
        Variant::simple(name, launch.stores_through_epilogue())
    };
    tiles(g, caps).into_iter().map(variant).collect()
}

pub(super) fn backward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = Geometry::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let inputs: Vec<_> = (0..x.len()).map(Binding::Input).collect();
    let variant = |(name, tile): (&'static str, usize)| {
        let launch = |of: &str, rows: usize, columns: usize, width: usize, results: &[usize]| {
            let mut defines = op.defines(g, tile, [&x[0], &x[1], &x[2]], x.get(6));
            defines.extend(define![OF: of, RESULT_AT: x.len(), SECOND_AT: x.len() + 1]);
            if results.len() == 1 {
                defines.pop();
            }
            let workgroups = g.batch.saturating_mul(rows.div_ceil(tile)).saturating_mul(width.div_ceil(tile));
            let launch = Launch::new("attention_grad", defines, (x.len(), 0), workgroups);
            let bindings = [&inputs[..], &results.iter().copied().map(Binding::Output).collect::<Vec<_>>()].concat();
            let launch = launch.loops(loops(columns.div_ceil(tile), tile, &[g.d, g.e], results.len()));
            Launch { bindings, ..launch }
        };
        let of_keys = launch("keys", g.s, g.l, g.d.max(g.e), &[1, 2]);
        let of_queries = launch("queries", g.l, g.s, g.d, &[0]);
        Variant { name, launches: vec![of_keys, of_queries], scratch: Vec::new() }
    };
    tiles(g, caps).into_iter().map(variant).collect()
}
