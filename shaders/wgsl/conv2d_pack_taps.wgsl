// Packs the weights of a convolution for `conv2d_taps`: u[g,d,t,k,m] for group g, plane d of the kernel, tap t of its
// window, row m, and channel k, over which the kernel sums. FORM forward: m is the output and k the input channel. FORM
// grad_input: k is the output channel, and rows are the input channels of every phase. There, tap t of phase a of an
// axis is weight (BASE + a − STEP·t)/D, or zero if there is none. Planes are in reverse order.
//
// Weights are rounded to f16. One power of two scales a block: eight k of ROWS rows, with all their taps in a plane.
// With BF16_UNITS, weights are rounded to bf16 and not scaled.
//
// Bindings: w[O,C/G,W_KD,W_KH,W_KW] → u[G,W_KD,TAPS,K,M], and without BF16_UNITS the inverse powers
// powers_of[G,W_KD,⌈M/ROWS⌉,K/8]. A workgroup packs a block; G·W_KD·⌈M/ROWS⌉·K/8 workgroups.
//
// Defines: WG, G
//          TAPS, KW  taps of the window, and of a row of it
//          ROWS  a multiple of 16
//          BLOCKS ⌈M/ROWS⌉; COUNT: 8·TAPS·ROWS, elements of a block
//          PITCH the pitch of taps in workgroup memory, ROWS at least
//          LOADS ⌈8·TAPS·ROWS/WG⌉, elements that an invocation loads
//          M, K  multiples of 8; for channels beyond those of w, u is zero
//          W_O, W_C, W_KD, W_KH, W_KW   extents of a group's weight
//          FORM  forward; or grad_input, with PHASES_P, PHASES_Q, BASE_P, BASE_Q, STEP_P, STEP_Q, DH, DW
//          BF16_UNITS   see shared/units

#if BF16_UNITS
#include "shared/bf16"
#else
enable f16;

#include "shared/units"
#endif
#include "shared/reduce"
#include "shared/grid"

const WG: u32 = ${WG};
const G: u32 = ${G};
const TAPS: u32 = ${TAPS};
const ROWS: u32 = ${ROWS};
const M: u32 = ${M};
const K: u32 = ${K};
const W_O: u32 = ${W_O};
const W_C: u32 = ${W_C};
const W_KD: u32 = ${W_KD};
const W_KH: u32 = ${W_KH};
const W_KW: u32 = ${W_KW};
const BLOCKS: u32 = ${BLOCKS};
const COUNT: u32 = ${COUNT};
const PITCH: u32 = ${PITCH};

@group(0) @binding(0) var<storage, read> w: array<f32>;
#if BF16_UNITS
@group(0) @binding(1) var<storage, read_write> u: array<vec2<u32>>;

var<workgroup> block: array<f32, 8u * TAPS * PITCH>;
#else
@group(0) @binding(1) var<storage, read_write> u: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> powers_of: array<f32>;

var<workgroup> block: array<f16, 8u * TAPS * PITCH>;
#endif

/// The row, k and tap of element `at` of a block, in the order of memory.
fn element(at: u32) -> vec3<u32> {
#if FORM == forward
    return vec3(at / (8u * TAPS), at / TAPS % 8u, at % TAPS);
#else
    return vec3(at / TAPS % ROWS, at / (ROWS * TAPS), at % TAPS);
#endif
}

const WEIGHTS: u32 = G * W_O * W_C * W_KD * W_KH * W_KW;

/// The place of the weight of row m, channel k and a tap of a plane; past the last weight if there is none.
fn place(group: u32, depth: u32, m: u32, k: u32, tap: u32) -> u32 {
#if FORM == forward
    let there = m < W_O && k < W_C;
    let at = (((group * W_O + m) * W_C + k) * W_KD + depth) * TAPS + tap;
#else
    const ROWS_OF_PHASE: u32 = M / (${PHASES_P} * ${PHASES_Q});
    let phase = m / ROWS_OF_PHASE;
    let c = m % ROWS_OF_PHASE;
    // A negative number wraps to a large one. Its remainder may be 0, but then its tap is past the weight's last.
    let down = ${BASE_P} + phase / ${PHASES_Q} - ${STEP_P} * (tap / ${KW});
    let across = ${BASE_Q} + phase % ${PHASES_Q} - ${STEP_Q} * (tap % ${KW});
    let is_tap = down % ${DH} == 0u && across % ${DW} == 0u && down / ${DH} < W_KH && across / ${DW} < W_KW;
    let there = m < M && c < W_C && k < W_O && is_tap;
    let plane = ((group * W_O + k) * W_C + c) * W_KD + W_KD - 1u - depth;
    let at = (plane * W_KH + down / ${DH}) * W_KW + across / ${DW};
#endif
    return select(WEIGHTS, at, there);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= G * W_KD * BLOCKS * (K / 8u) {
        return;
    }
    let k0 = index % (K / 8u) * 8u;
    let m0 = index / (K / 8u) % BLOCKS * ROWS;
    let depth = index / (K / 8u * BLOCKS) % W_KD;
    let group = index / (K / 8u * BLOCKS * W_KD);
#for L in LOADS
    let at_${L} = element(lane + ${L}u * WG);
    let place_${L} = place(group, depth, m0 + at_${L}.x, k0 + at_${L}.y, at_${L}.z);
    let there_${L} = place_${L} < WEIGHTS;
    let w_${L} = select(0.0, w[select(0u, place_${L}, there_${L})], there_${L});
#endfor
#if BF16_UNITS
#for L in LOADS
    if lane + ${L}u * WG < COUNT {
        block[(at_${L}.y * TAPS + at_${L}.z) * PITCH + at_${L}.x] = w_${L};
    }
#endfor
#else
    var peak = vec4<f32>();
#for L in LOADS
    peak.x = max(peak.x, finite_magnitudes(vec4(w_${L})).x);
#endfor
    let exponents = exponents_for(vec2(workgroup_max(lane, peak.x)), 0);
    let scale = powers(exponents).x;
#for L in LOADS
    if lane + ${L}u * WG < COUNT {
        block[(at_${L}.y * TAPS + at_${L}.z) * PITCH + at_${L}.x] = f16(w_${L} * scale);
    }
#endfor
#endif
    workgroupBarrier();
    for (var at = lane; at < COUNT / 4u; at += WG) {
        let m = at % (ROWS / 4u) * 4u;
        let k = at / (ROWS / 4u) % 8u;
        let tap = at / (ROWS / 4u * 8u);
        if m0 + m < M {
            let at_block = (k * TAPS + tap) * PITCH + m;
            let four = vec4(block[at_block], block[at_block + 1u], block[at_block + 2u], block[at_block + 3u]);
            let to = ((((group * W_KD + depth) * TAPS + tap) * K + k0 + k) * M + m0 + m) / 4u;
#if BF16_UNITS
            let bf16 = bf16_of(four);
            u[to] = bf16.xz | (bf16.yw << vec2(16u));
#else
            u[to] = four;
#endif
        }
    }
#if !BF16_UNITS
    if lane == 0u {
        powers_of[index] = powers(-exponents).x;
    }
#endif
}
