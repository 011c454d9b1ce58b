//! The launches of attention on a GPU.

use super::{Attention, AttentionShape, FEW};
use crate::kernel::gemm::{element, reads_fours, strides};
use crate::kernel::launch::{Argument, Binding, Caps, Define, Kind, Launch, Variant, Workgroups, define, literal};
use crate::kernel::offset::offset;

/// The parameters of the attention kernels: the tiles of scores that a workgroup holds, and the chunks that their
/// operands pass in.
#[derive(Clone, Copy)]
struct ScoreTiling {
    name: &'static str,
    /// The number of a tile's rows, and of its columns.
    rows: usize,
    columns: usize,
    /// Groups of four rows, and of four columns, that an invocation computes.
    height: usize,
    width: usize,
    /// Groups of four features in each row of a chunk for scores.
    depth: usize,
    /// Groups of four features of a result. In the tables below, an upper bound; [`sorted`] sets the number.
    fours: usize,
    /// `true` if inner loops are unrolled over a whole chunk, otherwise over at most two groups of four. Unrolling pays
    /// off only in long attentions, where two workgroups share a multiprocessor.
    unrolled: bool,
    /// The time of a workgroup that has a multiprocessor to itself, relative to its share of a full one.
    alone: f64,
    /// The time of a product, relative to that of "tile 64".
    cost: f64,
}

const TILE_64: ScoreTiling = ScoreTiling {
    name: "tile 64",
    rows: 64,
    columns: 64,
    height: 2,
    width: 1,
    depth: 8,
    fours: 16,
    unrolled: false,
    alone: 1.3,
    cost: 1.0,
};

const TILE_32: ScoreTiling =
    ScoreTiling { name: "tile 32", rows: 32, columns: 32, height: 1, alone: 2.6, cost: 1.06, ..TILE_64 };

/// The forward kernel keeps a maximum and a sum for each row, so an invocation has few rows and many columns.
const FORWARD: [ScoreTiling; 5] = {
    let tile_64 = ScoreTiling { height: 1, width: 2, ..TILE_64 };
    // All features of wide heads in one part.
    let of_128 = ScoreTiling { name: "tile 64 of 128", depth: 4, fours: 32, ..tile_64 };
    [
        of_128.unrolled("tile 64 of 128, unrolled"),
        of_128,
        tile_64.unrolled("tile 64, unrolled"),
        tile_64,
        ScoreTiling { cost: 1.15, ..TILE_32 },
    ]
};

/// Unlike the forward kernel, this one keeps no state per row, so an invocation takes more rows.
const WEIGHTS: [ScoreTiling; 3] = [
    ScoreTiling { name: "tile 128", rows: 128, width: 2, depth: 4, alone: 2.0, cost: 0.95, ..TILE_64 },
    TILE_64,
    TILE_32,
];

/// The tile, its slopes and the results must fit in registers.
const GRADIENT: [ScoreTiling; 3] = [TILE_64.unrolled("tile 64, unrolled"), TILE_64, TILE_32];

impl ScoreTiling {
    const fn unrolled(self, name: &'static str) -> Self {
        Self { name, unrolled: true, alone: 1.7, cost: 0.94, ..self }
    }

    /// Fours of workgroup memory: for chunks of rows and of columns, or weights and their operands, or shares of sums.
    /// One of NVIDIA's multiprocessors has 48 KB, enough for two workgroups; registers allow no more than that either.
    fn memory(self) -> usize {
        let of_columns = groups(self.columns, self.depth).max(groups(self.terms(), self.fours));
        let chunks = self.column_chunk() + of_columns;
        if self.shares_sums() { chunks.max(groups(self.rows, self.side())) } else { chunks }
    }

    /// The place in workgroup memory of the chunk of columns, after that of rows.
    fn column_chunk(self) -> usize {
        groups(self.rows, self.depth)
    }

    /// The most fours of a chunk that an invocation loads.
    fn loads(self) -> usize {
        (self.rows * self.depth).max(self.terms() * self.fours).div_ceil(self.workgroup_size())
    }

    fn workgroup_size(self) -> usize {
        self.rows * self.side() / (4 * self.height)
    }

    /// The number of workgroups for so many rows and parts of each batch entry.
    fn count(self, batch: usize, rows: usize, parts: usize) -> usize {
        batch.saturating_mul(rows.div_ceil(self.rows)).saturating_mul(parts)
    }

    /// Those workgroups, and the defines of their number.
    fn workgroups(self, batch: usize, rows: usize, parts: usize, loops: usize) -> (Workgroups, Vec<Define>) {
        let workgroups = Workgroups::new(self.count(batch, rows, parts), self.workgroup_size())
            .with_memory(&[16 * self.memory()])
            .looping(loops);
        (workgroups, define![BATCH: batch, BLOCKS: rows.div_ceil(self.rows), PARTS: parts])
    }

    /// Invocations along the columns of a tile.
    fn side(self) -> usize {
        self.columns / (4 * self.width)
    }

    /// `true` if several invocations sum the same features, each over some of the columns.
    fn shares_sums(self) -> bool {
        self.fours < self.side()
    }

    /// Columns of a tile that a weighted sum adds at a time.
    fn terms(self) -> usize {
        (4 * self.depth).min(self.columns / 2)
    }

    /// Invocations that share the same features of a result, each of which sums over its share of the columns.
    fn shares(self) -> usize {
        self.side() * self.each() / self.fours
    }

    /// The groups of four that an iteration of a loop over any of these counts adds.
    fn unroll(self, counts: &[usize], caps: &Caps) -> usize {
        // Drivers that compile for the CPU take long to compile unrolled loops.
        let most = match caps.kind {
            Kind::Software => 1,
            _ if self.unrolled => self.depth,
            _ => 2,
        };
        counts.iter().fold(most, |most, count| most.min(1 << count.trailing_zeros()))
    }

    /// Groups of four columns of a chunk that an invocation weights.
    fn weighted(self) -> usize {
        self.terms() / 4 * self.fours / (self.side() * self.each())
    }

    /// Groups of four features in an invocation's part of a result.
    fn each(self) -> usize {
        (self.fours / self.side()).max(1)
    }

    /// The features of a part of a result.
    fn features(self) -> usize {
        4 * self.fours
    }

    /// The number of parts of a result with this number of features.
    fn parts(self, features: usize) -> usize {
        features.div_ceil(self.features())
    }

    /// An upper bound on the iterations of an invocation: in each tile of columns, the products over these features,
    /// and `sums` weighted sums.
    fn loops(self, columns: usize, features: &[usize], sums: usize) -> usize {
        let products: usize =
            features.iter().map(|&features| features.div_ceil(4 * self.depth) * (self.depth + 2) + 1).sum();
        let weighted = self.columns / self.terms() * (self.terms() / 4 + 1) + 1;
        let tile = products + sums * weighted + self.side() + 2;
        columns.div_ceil(self.columns).saturating_mul(tile).saturating_add(3 * (self.side() + 1))
    }

    /// An estimate of a launch's relative time. Each workgroup computes products over so many features with these
    /// columns. The figures are fitted to attentions of 64 to 4096 queries on an H200 (2026-11-26).
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn time(self, workgroups: usize, columns: usize, features: usize, causal: bool, caps: &Caps) -> f64 {
        let rounds = workgroups.div_ceil(caps.multiprocessors.enough(1)) as f64;
        // Half of the tiles of a causal attention are hidden.
        let visible = columns.next_multiple_of(self.columns) / if causal { 2 } else { 1 };
        // Loading the instructions of unrolled loops takes as long as some columns do.
        let columns = visible + if self.unrolled { 20 } else { 0 };
        let each = (self.rows * features) as f64 * columns as f64;
        rounds.max(self.alone) * each * self.cost
    }
}

/// Fours of workgroup memory of rows of `pitch` fours, with one four of padding after each group of four rows.
fn groups(rows: usize, pitch: usize) -> usize {
    rows / 4 * (4 * pitch + 1)
}

/// Those of `tilings` that fit on a device, sorted by the estimated time; with few queries or keys, the smallest first.
fn sorted(
    tilings: &[ScoreTiling],
    g: AttentionShape,
    caps: &Caps,
    time: impl Fn(ScoreTiling) -> f64,
) -> Vec<ScoreTiling> {
    let fours = g.d.max(g.e).div_ceil(4).next_power_of_two();
    let tilings = tilings.iter().copied().filter(|tiling| tiling.fours <= fours.max(TILE_64.fours));
    let tilings = tilings.map(|tiling| ScoreTiling { fours: fours.clamp(4, tiling.fours), ..tiling });
    // Narrow heads fit in shallow chunks, which lavapipe compiles in about half the time. On an H200, heads of 8 and 16
    // features take 6 to 45 % longer with them. Invocations that sum the same features need at least one group of four
    // columns each.
    let depth = |tiling: ScoreTiling| match caps.kind {
        Kind::Software => fours.max(tiling.side().div_ceil(tiling.fours)).min(tiling.depth),
        _ => tiling.depth,
    };
    let tilings = tilings.map(|tiling| ScoreTiling { depth: depth(tiling), ..tiling });
    let tilings = tilings.filter(|tiling| !tiling.unrolled || caps.kind != Kind::Software);
    let mut tilings: Vec<_> = tilings.filter(|tiling| 16 * tiling.memory() <= caps.workgroup_memory).collect();
    tilings.sort_by(|a, b| time(*a).total_cmp(&time(*b)));
    if g.l.min(g.s) <= FEW {
        tilings.sort_by_key(|tiling| tiling.rows);
    }
    tilings
}

/// 1 if each multiprocessor gets at most two workgroups, which it runs at once; else 0.
fn paired(workgroups: usize, caps: &Caps) -> u32 {
    u32::from(workgroups <= caps.multiprocessors.enough(2))
}

impl Attention {
    fn defines(
        &self,
        g: AttentionShape,
        tiling: ScoreTiling,
        x: [&Argument; 3],
        bias: Option<&Argument>,
        caps: &Caps,
    ) -> Vec<Define> {
        let AttentionShape { l, s, d, e, .. } = g;
        let mut defines = define![
            DEPTH: tiling.depth, ROWS: tiling.rows, TILE: tiling.columns, SIDE: tiling.side(), TERMS: tiling.terms(),
            FOURS: tiling.fours, EACH: tiling.each(), SHARES: tiling.shares(), LOADS: tiling.loads(),
            MEMORY: tiling.memory(), COLUMN_CHUNK: tiling.column_chunk(),
            HEIGHT: tiling.height, WIDTH: tiling.width, ROWS_EACH: 4 * tiling.height,
            UNROLL: tiling.unroll(&[d.div_ceil(4), e.div_ceil(4)], caps),
            UNROLL_WEIGHTED: tiling.unroll(&[tiling.weighted()], caps), UNROLLED: u32::from(tiling.unrolled),
            SHARED_SUMS: u32::from(tiling.shares_sums()),
            L: l, S: s, D: d, E: e, SCALE: literal(self.scale.0), CAUSAL: u32::from(self.causal),
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
        for (names, x) in names.into_iter().zip(x.into_iter().chain(bias)) {
            let is_of_keys = ["K_BATCH", "V_BATCH"].contains(&names[0]);
            defines.extend(places(names, x, &if is_of_keys { g.keys_of("b") } else { "b".into() }));
        }
        defines
    }
}

/// The defines of an operand's places: of batch entry `b`, and the strides of its matrices.
fn places([begin, row, column]: [&'static str; 3], x: &Argument, b: &str) -> [Define; 3] {
    let (batch, [rows, columns]) = strides(&x.layout);
    [(begin, offset(&batch, b)), (row, rows.to_string()), (column, columns.to_string())]
}

pub(super) fn forward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let g = AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims());
    let variant = |tiling: ScoreTiling| {
        let mut defines = op.defines(g, tiling, [&x[0], &x[1], &x[2]], x.get(3), caps);
        let loops = tiling.loops(g.s, &[g.d], 1);
        let (workgroups, numbers) = tiling.workgroups(g.batch, g.l, tiling.parts(g.e), loops);
        defines.extend(numbers);
        defines.extend(define![LSE_AT: x.len(), PAIRED: paired(workgroups.count, caps)]);
        let launch = Launch::new("attention", defines, (x.len(), 2), workgroups);
        Variant::simple(tiling.name, launch.stores_through_epilogue())
    };
    let count = |tiling: ScoreTiling| tiling.count(g.batch, g.l, tiling.parts(g.e));
    let time = |tiling: ScoreTiling| tiling.time(count(tiling), g.s, g.d + tiling.features(), op.causal, caps);
    sorted(&FORWARD, g, caps, time).into_iter().map(variant).collect()
}

/// The operands of an attention's gradient as bindings: queries, keys, values, lse, delta, dy and a bias. If they
/// and two results are too many for a device, a launch joins lse and delta first.
struct Gradient<'a> {
    op: &'a Attention,
    g: AttentionShape,
    x: &'a [Argument],
    caps: &'a Caps,
    is_joined: bool,
    inputs: Vec<Binding>,
}

impl<'a> Gradient<'a> {
    fn new(op: &'a Attention, x: &'a [Argument], caps: &'a Caps) -> Self {
        let is_joined = x.len() + 2 > caps.bindings;
        let mut inputs: Vec<_> = (0..x.len()).map(Binding::Input).collect();
        if is_joined {
            inputs.splice(3..5, [Binding::Scratch(0)]);
        }
        Self { op, g: AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims()), x, caps, is_joined, inputs }
    }

    /// A launch that computes one or two results.
    fn launch(
        &self,
        kernel: &'static str,
        tiling: ScoreTiling,
        defines: Vec<Define>,
        (workgroups, numbers): (Workgroups, Vec<Define>),
        results: &[usize],
    ) -> Launch {
        let x = self.x;
        let dy_at = self.inputs.iter().position(|binding| *binding == Binding::Input(5)).expect("it is bound");
        let mut all = self.op.defines(self.g, tiling, [&x[0], &x[1], &x[2]], x.get(6), self.caps);
        all.extend(define![
            DY_ELEM: element(reads_fours(&x[5].layout, 1)), JOINED: u32::from(self.is_joined), DY_AT: dy_at,
            RESULT_AT: self.inputs.len(), PAIRED: paired(workgroups.count, self.caps),
        ]);
        all.extend(places(["DY_BATCH", "DY_ROW", "DY_COL"], &x[5], "b"));
        if x.len() > 6 {
            all.extend(define![BIAS_AT: dy_at + 1]);
        }
        if results.len() == 2 {
            all.extend(define![SECOND_AT: self.inputs.len() + 1]);
        }
        all.extend(defines.into_iter().chain(numbers));
        let bindings = [&self.inputs[..], &results.iter().copied().map(Binding::Output).collect::<Vec<_>>()].concat();
        let launch = Launch { bindings, ..Launch::new(kernel, all, (x.len(), 0), workgroups) };
        if results == [0] { launch.stores_through_epilogue() } else { launch }
    }

    fn variant(&self, name: &'static str, launches: Vec<Launch>) -> Variant {
        let mut variant = Variant { name, launches, scratch: Vec::new() };
        if self.is_joined {
            let rows = self.g.batch.saturating_mul(self.g.l);
            let mut join = Launch::new("attention_join", define![ROWS: rows], (0, 0), Workgroups::of_elements(rows));
            join.bindings = vec![Binding::Input(3), Binding::Input(4), Binding::Scratch(0)];
            variant.launches.insert(0, join);
            variant.scratch.push(rows.saturating_mul(3));
        }
        variant
    }
}

/// The launches of [`AttentionWeights`](super::AttentionWeights).
pub(super) fn weights(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let gradient = Gradient::new(op, x, caps);
    let g = gradient.g;
    let parts = |tiling: ScoreTiling| g.s.div_ceil(tiling.columns);
    let variant = |tiling: ScoreTiling| {
        let defines = define![RESULT_ELEM: element(g.s.is_multiple_of(4))];
        let loops = tiling.loops(1, &[g.d, g.e], 0);
        let workgroups = tiling.workgroups(g.batch, g.l, parts(tiling), loops);
        let launch = gradient.launch("attention_weights", tiling, defines, workgroups, &[0, 1]);
        gradient.variant(tiling.name, vec![launch])
    };
    let time = |tiling: ScoreTiling| tiling.time(tiling.count(g.batch, g.l, parts(tiling)), 1, g.d + g.e, false, caps);
    sorted(&WEIGHTS, g, caps, time).into_iter().map(variant).collect()
}

/// The launches of [`AttentionGrad`](super::AttentionGrad).
pub(super) fn backward(op: &Attention, x: &[Argument], caps: &Caps) -> Vec<Variant> {
    let gradient = Gradient::new(op, x, caps);
    let g = gradient.g;
    let (of_keys, of_queries) = ((g.s, g.l, g.d.max(g.e)), (g.l, g.s, g.d));
    let entries = |results: usize| if results == 2 { g.batch / g.group } else { g.batch };
    let variant = |tiling: ScoreTiling| {
        let launch = |of: &str, operands: [&str; 4], (rows, columns, width), results: &[usize]| {
            let [row_of_score, column_of_score, row_of_slope, column_of_slope] = operands;
            let entries = entries(results.len());
            let heads = g.batch / entries;
            let defines = define![
                OF: of, GROUP: heads, ROW_OF_SCORE: row_of_score, COLUMN_OF_SCORE: column_of_score, ROW_OF_SLOPE: row_of_slope,
                COLUMN_OF_SLOPE: column_of_slope,
            ];
            let loops = tiling.loops(columns, &[g.d, g.e], results.len()).saturating_mul(heads);
            let workgroups = tiling.workgroups(entries, rows, tiling.parts(width), loops);
            gradient.launch("attention_grad", tiling, defines, workgroups, results)
        };
        let keys = launch("keys", ["k", "q", "v", "dy"], of_keys, &[1, 2]);
        let queries = launch("queries", ["q", "k", "dy", "v"], of_queries, &[0]);
        gradient.variant(tiling.name, vec![keys, queries])
    };
    let time = |tiling: ScoreTiling| {
        let of = |(rows, columns, width): (usize, usize, usize), results: usize| {
            let features = g.d + g.e + results * tiling.features();
            let (entries, columns) = (entries(results), columns * (g.batch / entries(results)));
            tiling.time(tiling.count(entries, rows, tiling.parts(width)), columns, features, op.causal, caps)
        };
        of(of_keys, 2) + of(of_queries, 1)
    };
    sorted(&GRADIENT, g, caps, time).into_iter().map(variant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Exact;
    use crate::{DType, Shape, TensorType};

    /// The first variants of an attention of heads `[length, features]`, and of its gradient.
    fn best([heads, length, features]: [usize; 3], causal: bool, caps: &Caps) -> [&'static str; 2] {
        let of = |dims: &[usize]| Argument::contiguous(TensorType::new(DType::F32, Shape::new(dims)));
        let heads_of = |width| of(&[heads, length, width]);
        let q = heads_of(features);
        let x = [q, q, q, heads_of(2), of(&[heads, length]), q];
        let op = Attention { scale: Exact(1.0), causal };
        [forward(&op, &x[..3], caps)[0].name, backward(&op, &x, caps)[0].name]
    }

    #[test]
    fn loops_are_unrolled_in_long_attentions_that_fill_a_gpu() {
        let of = |shape| [false, true].map(|causal| best(shape, causal, &Caps::DISCRETE));
        let (short, unrolled) = (["tile 64"; 2], ["tile 64, unrolled"; 2]);
        assert_eq!(of([8, 512, 64]), [short, short]);
        assert_eq!(of([128, 128, 64]), [short, short]);
        assert_eq!(of([32, 512, 64]), [unrolled, short]);
        assert_eq!(of([64, 512, 64]), [unrolled, short]);
        assert_eq!(of([32, 1024, 64]), [unrolled, unrolled]);
        assert_eq!(of([8, 4096, 64]), [unrolled, unrolled]);
        assert_eq!(of([8, 4096, 128]).map(|[forward, _]| forward), ["tile 64 of 128, unrolled"; 2]);
    }

    #[test]
    fn narrow_heads_have_shallow_chunks_on_a_software_driver() {
        for features in 1..=130 {
            let g = AttentionShape { batch: 1, group: 1, l: 100, s: 100, d: features, e: features };
            for tiling in [&FORWARD[..], &WEIGHTS, &GRADIENT].concat() {
                for tiling in sorted(&[tiling], g, &Caps::SOFTWARE, |_| 0.0) {
                    let fours = features.div_ceil(4).next_power_of_two();
                    assert!(tiling.weighted() > 0, "{features} features, {}", tiling.name);
                    assert!(tiling.depth <= fours.max(4), "{features} features, {}", tiling.name);
                }
            }
        }
    }

    #[test]
    fn nothing_is_unrolled_for_a_software_driver() {
        assert_eq!(best([8, 4096, 64], false, &Caps::SOFTWARE), ["tile 64"; 2]);
    }
}
