// Gradient of `group_norm`: dx = rstd·(t − ⟨t⟩ − z·⟨t·z⟩), where z = (x − mean)·rstd is the normalised input, t =
// dy·gamma, and ⟨·⟩ the mean over the group. Also Σ dy·z and Σ dy of each channel, over several samples or a part of
// one; `group_norm_grad_sums` adds those up.
//
// Bindings: x[N,C,S], gamma[C], mean[N,G,2], rstd[N,G], dy[N,C,S] → sums[⌈N/ROWS⌉·PIECES,2,C]; and dx[N,C,S] by its
// epilogue (TO result), or parts[N,G,BLOCKS,2], Σ t and Σ t·z of each block (TO scratch; see `group_norm_grad_apply`).
// dy is loaded through shared/prologue, each element once.
//
// A block is CH channels of a group, or one of the PIECES of PIECE elements into which a channel is cut. LANES
// invocations hold a channel of it in registers, HOLD elements each. So the sums of a channel are those of a segment,
// and the group's are those of its channels, weighted by gamma. Where TO is result, a block is a group, and an
// invocation takes ROWS samples, one after the other. ⌈⌈N/ROWS⌉·G·BLOCKS·CH·LANES/WG⌉ workgroups.
//
// Defines: WG       a multiple of BLOCK, which is CH·LANES
//          LANES    see shared/totals; FOLDS: partial sums of a block with many channels; HOLD·LANES ≥ PIECE
//          TO       result or scratch
//          N, C, S, G, CH, ROWS
//          PIECE, PIECES   S and 1 where CH is not 1
//          BLOCKS, UNITS   blocks of a group, and of all: ⌈N/ROWS⌉·G·BLOCKS
//          FULL     the first FULL of an invocation's HOLD elements lie in every piece of every block, whatever the
//                   invocation
//          FORMAT   that of shared/value; with lines, S, PIECE and HOLD count lines, dy comes through
//                   shared/prologue_lines, and TO is result

#include "shared/grid"
#include "shared/mean"
#include "shared/totals"
#if TO == result
#include "shared/values"
#else
#include "shared/value"
#endif

#if FORMAT == lines
#include "shared/prologue_lines"

fn load_value(at: u32) -> Value {
    let line = load_line(8u * at);
    return Value(line.first, line.second);
}
#else
#include "shared/prologue"

fn load_value(at: u32) -> Value {
    return load(at);
}
#endif

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const CH: u32 = ${CH};
const PIECE: u32 = ${PIECE};
const PIECES: u32 = ${PIECES};
const ROWS: u32 = ${ROWS};
const FULL: u32 = ${FULL};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;
const BLOCK: u32 = ${BLOCK};
const BLOCKS: u32 = ${BLOCKS};
const UNITS: u32 = ${UNITS};

@group(0) @binding(0) var<storage, read> x: array<Held>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> mean: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;
#if TO == scratch
@group(0) @binding(5) var<storage, read_write> parts: array<vec2<f32>>;
#endif

/// `begin + r`: the place of element r of a piece that begins at `begin`. If S is a power of two, so is PIECE, and
/// `begin | r` is the same. The OR lets the compiler see that i / S is constant over a channel, and hoist the operands
/// that `load` looks up by channel.
fn element(begin: u32, r: u32) -> u32 {
    if (S & (S - 1u)) == 0u {
        return begin | r;
    }
    return begin + r;
}

const FOLDS: u32 = ${FOLDS};

var<workgroup> channels: array<vec2<f32>, WG / LANES>;
var<workgroup> folds: array<vec2<f32>, WG / BLOCK * FOLDS>;

/// The sum of `value` over the channels of a block. All LANES invocations of a channel pass the same value.
fn block_total(lane: u32, value: vec2<f32>) -> vec2<f32> {
    if CH == 1u {
        return value;
    }
    if LANES == 1u {
        // With LANES 1, no barrier has come since the channels were last read.
        workgroupBarrier();
    }
    if lane % LANES == 0u {
        channels[lane / LANES] = value;
    }
    workgroupBarrier();
    let block = lane / BLOCK;
    var total = vec2<f32>();
    if CH <= 2u * FOLDS {
        for (var j = 0u; j < CH; j++) {
            total += channels[block * CH + j];
        }
        return total;
    }
    if lane % BLOCK < FOLDS {
        for (var j = lane % BLOCK; j < CH; j += FOLDS) {
            total += channels[block * CH + j];
        }
        folds[block * FOLDS + lane % BLOCK] = total;
    }
    workgroupBarrier();
    total = vec2<f32>();
    for (var j = 0u; j < FOLDS; j++) {
        total += folds[block * FOLDS + j];
    }
    return total;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * (WG / BLOCK);
    if first >= UNITS {
        return;
    }
    // Invocations without a block must still reach the barriers: they repeat the last block.
    let own = first + lane / BLOCK;
    let unit = min(own, UNITS - 1u);
    let member = lane % LANES;
    let block = unit % BLOCKS;
    let g = unit / BLOCKS % G;
    let part = unit / BLOCKS / G;
    let piece = block % PIECES;
    let place = block / PIECES * CH + lane % BLOCK / LANES;
    let is_channel = place < GROUP_C;
    let c = g * GROUP_C + min(place, GROUP_C - 1u);
    let weight = gamma[c];
    let count = select(0u, min(PIECE, S - piece * PIECE), is_channel);

    var sum = vec2<f32>();
    for (var row = 0u; row < ROWS; row++) {
        let sample = min(part * ROWS + row, N - 1u);
        let is_sample = part * ROWS + row < N;
        let group = sample * G + g;
        let begin = (sample * C + c) * S + piece * PIECE;
        let centre = mean[group];
        let scale = rstd[group];
#for K in HOLD
        let r_${K} = member + ${K}u * LANES;
        let in_${K} = (${K}u < FULL) | (r_${K} < count);
        let at_${K} = element(begin, select(0u, r_${K}, in_${K}));
        let x_${K} = value(x[at_${K}]);
        let d_${K} = where_true(load_value(at_${K}), in_${K});
#endfor
        var own_sum = vec2<f32>();
#for K in HOLD
        let z_${K} = plus(plus(x_${K}, -centre.x), -centre.y) * scale;
        own_sum += vec2(total(d_${K}), total_of_products(d_${K}, z_${K}));
#endfor
        let channel_sum = segment_total(lane, own_sum);
        sum += select(vec2<f32>(), channel_sum, is_sample);
        let group_sum = block_total(lane, weight * channel_sum);
#if TO == scratch
        if lane % BLOCK == 0u && own < UNITS {
            parts[unit] = group_sum;
        }
#else
        let mean_t = group_sum.x / f32(LEN * WIDTH);
        let mean_tz = group_sum.y / f32(LEN * WIDTH);
        if is_sample && own < UNITS {
#for K in HOLD
            if in_${K} {
                store_value(at_${K}, (plus(d_${K} * weight, -mean_t) - z_${K} * mean_tz) * scale);
            }
#endfor
        }
#endif
    }
    if member == 0u && is_channel && own < UNITS {
        let place_of_sums = (part * PIECES + piece) * 2u * C + c;
        sums[place_of_sums] = sum.y;
        sums[place_of_sums + C] = sum.x;
    }
}
