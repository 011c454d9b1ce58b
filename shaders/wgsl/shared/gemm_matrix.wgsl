// The product of shared/gemm on matrix units: operands are rounded to f16 on their way through workgroup memory, and summed in f32.
// Each subgroup computes FM×FN fragments of 16×16.
//
// f16 holds 6e-8 to 65,504. Therefore the operands are scaled by powers of two that bring their largest elements near 2¹⁴, and the
// sums are scaled back. `peaks` holds maxima of the operands' magnitudes, PEAKS of each, which the kernel `peaks` found.
//
// BM = 16·FM·SM, BN = 16·FN·SN; SM·SN subgroups.
//
// Defines: SM, SN         subgroups down and across a tile
//          FM, FN         fragments of each, down and across
//          STEPS          BK/16
//          HALVES         1 or 2: steps that workgroup memory holds; with 2 one is multiplied while the next is stored
//          SUBGROUP       invocations of a subgroup
//          LOADS          blocks that an invocation loads, (BM + BN)·BK/(16·SUBGROUP·SM·SN)

const SM: u32 = ${SM};
const SN: u32 = ${SN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const BK: u32 = 16u * ${STEPS};
const HALVES: u32 = ${HALVES};
const ROUND: u32 = HALVES * BK;
const SUBGROUP: u32 = ${SUBGROUP};
const WG: u32 = SUBGROUP * SM * SN;
const BM: u32 = 16u * FM * SM;
const BN: u32 = 16u * FN * SN;
// The distance of one k from the next: 16 bytes more than the tile, so that neighbours along k lie in different banks.
const PITCH_A: u32 = LINES_A + 2u;
const PITCH_B: u32 = LINES_B + 2u;
/// Distance of the rows of a fragment's sums.
const PITCH: u32 = 20u;
/// Maxima of each operand.
const PEAKS: u32 = 512u;

@group(0) @binding(2) var<storage, read> peaks: array<f32>;

var<workgroup> tile_a: array<vec4<f16>, HALVES * BK * PITCH_A>;
var<workgroup> tile_b: array<vec4<f16>, HALVES * BK * PITCH_B>;
/// The largest magnitudes that each invocation knows of.
var<workgroup> lane_peaks: array<vec2<f32>, WG>;
/// The sums of a fragment of each subgroup.
var<workgroup> sums: array<f32, SM * SN * 16u * PITCH>;

fn put(half: u32, at: u32, block: mat4x4<f32>, scale: vec2<f32>) {
    if at < BLOCKS_A {
        let place = place_a(at);
        let line = (half * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = vec4<f16>(block[${C}] * scale.x);
#endfor
        return;
    }
    let place = place_b(at - BLOCKS_A);
    let line = (half * BK + 4u * place.y) * PITCH_B + place.x;
#for C in 4
    tile_b[line + ${C}u * PITCH_B] = vec4<f16>(block[${C}] * scale.y);
#endfor
}

/// Powers of two for both operands.
fn scales(lane: u32) -> vec2<f32> {
    var peak = vec2<f32>();
    for (var at = lane; at < PEAKS; at += WG) {
        peak = max(peak, vec2(peaks[at], peaks[PEAKS + at]));
    }
    lane_peaks[lane] = peak;
    for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            lane_peaks[lane] = max(lane_peaks[lane], lane_peaks[lane + stride]);
        }
    }
    workgroupBarrier();
    return vec2(scale_for(lane_peaks[0].x), scale_for(lane_peaks[0].y));
}

/// The power of two that brings a magnitude to 2¹⁴ or above, below 2¹⁵.
fn scale_for(peak: f32) -> f32 {
    let exponent = i32(bitcast<u32>(peak) >> 23u) - 127;
    return bitcast<f32>(u32(clamp(14 - exponent, -100, 100) + 127) << 23u);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // Not `workgroup_index`: matrix units want control flow that naga knows to be uniform.
    let tile = workgroup.x + workgroup.y * workgroups.x;
    if tile >= BATCH * PARTS * TILES_M * TILES_N {
        return;
    }
    let batch = tile / (PARTS * TILES_M * TILES_N);
    let part = tile / (TILES_M * TILES_N) % PARTS;
    let row0 = tile / TILES_N % TILES_M * BM;
    let column0 = tile % TILES_N * BN;
    let subgroup = lane / SUBGROUP;
    let x = subgroup % SN * FN;
    let y = subgroup / SN * FM;
    let scale = scales(lane);

#for I in FM
#for J in FN
    var sum_${I}_${J}: coop_mat16x16<f32, C>;
#endfor
#endfor
    let begin = part * PART_K;
    let end = min(begin + PART_K, DEPTH);

#for L in LOADS
    put(0u, lane + ${L}u * WG, fetch(batch, row0, column0, begin, end, lane + ${L}u * WG), scale);
#endfor
    workgroupBarrier();
    for (var k0 = begin; k0 < end; k0 += HALVES * BK) {
#for H in HALVES
        let more_${H} = k0 + ${H}u * BK + BK < begin + PART_K;
#for L in LOADS
        var next_${H}_${L}: mat4x4<f32>;
#endfor
        if more_${H} {
#for L in LOADS
            next_${H}_${L} = fetch(batch, row0, column0, k0 + ${H}u * BK + BK, end, lane + ${L}u * WG);
#endfor
        }
#for U in STEPS
        // Named, because naga's SPIR-V writer does not take them inside of the calls.
#for I in FM
        let at_a_${H}_${U}_${I} = (${H}u * BK + ${U}u * 16u) * PITCH_A + 4u * (y + ${I}u);
        let a_${H}_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${H}_${U}_${I}], PITCH_A);
#endfor
#for J in FN
        let at_b_${H}_${U}_${J} = (${H}u * BK + ${U}u * 16u) * PITCH_B + 4u * (x + ${J}u);
        let b_${H}_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${H}_${U}_${J}], PITCH_B);
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${H}_${U}_${I}, b_${H}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
#if HALVES == 1
        workgroupBarrier();
#endif
        if more_${H} {
#for L in LOADS
            put((${H}u + 1u) % HALVES, lane + ${L}u * WG, next_${H}_${L}, scale);
#endfor
        }
        workgroupBarrier();
#endfor
    }

    let begin_sums = subgroup * 16u * PITCH;
    let member = lane % SUBGROUP;
#for I in FM
#for J in FN
    workgroupBarrier();
    coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH);
    workgroupBarrier();
    for (var e = member; e < 64u; e += SUBGROUP) {
        let row = row0 + (y + ${I}u) * 16u + e / 4u;
        if is_row(row) {
            let at = begin_sums + e / 4u * PITCH + e % 4u * 4u;
            let four = vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
            finish(batch, part, row, column0 + (x + ${J}u) * 16u + e % 4u * 4u, four / scale.x / scale.y);
        }
    }
#endfor
#endfor
}
