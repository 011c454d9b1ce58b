// `conv2d` on matrix units, of images in bf16; see shared/conv2d_tile. A workgroup computes BO output channels of a
// tile of pixels, in steps of BK input channels and one column of KH taps. A fragment of inputs serves every output row
// whose taps read it. Of volumes, a block of BK channels is of one plane of the kernel, and blocks of the first plane
// come first.
//
// The gradient of the input is also a convolution. With a stride, the pixels of its result fall into PHASES_P·PHASES_Q
// phases. These become channels of one pixel, which the store scatters.
//
// Bindings: x[N,IN_D,H,W,C] in bf16, and from `conv2d_pack_taps` w[G,KD,KH·KW,C/G,O/G] and, without BF16_UNITS,
// w_powers[G,KD,⌈O/G/BO⌉,C/G/8] → y[N,OUT_D,RESULT_P,RESULT_Q,O/PHASES] by its epilogue (SUMS whole), or to
// parts[PARTS,N,OUT_D,RESULT_P,RESULT_Q,O/PHASES] (SUMS parts). Workgroups: G·PARTS·⌈O/G/BO⌉·TILES.
//
// Defines: those of shared/conv2d and shared/conv2d_tile; O/G and C/G are multiples of 8, TILE_Q is 16/IMAGES
//          WG, BO, BK   invocations; output channels of a workgroup, and input channels of a step
//          TILES_O, BLOCKS   the number of BO channels in a group, and of BK channels
//          SN       subgroups along output channels
//          FM, FN   fragments of 16×16 of each subgroup along pixels and output channels: FM divides TILE_P
//          STEPS    BK/16
//          PITCH_X, PITCH_W, FOURS_X, FOURS_W   of workgroup memory, in fours: the distance of pixels, and of the input
//                   channels of weights; the size of a tile's inputs, and of a step's weights
//          LINES_W  lines of a step's weights, KH·BK·BO/8
//          ROWS_READ  rows of inputs that a subgroup reads, (FM − 1)·STRIDE_P + (KH − 1)·DH + 1
//          LOADS_X, LOADS_W   lines that an invocation loads at most: of BK channels of inputs, of a step's weights
//          PHASES_P, PHASES_Q, RESULT_P, RESULT_Q
//                   Output channels are grouped by phase: the first O/G/PHASES channels of a group are of phase 0, the
//                   next of phase 1, and so on. Output (p, q) in a channel of phase a·PHASES_Q + b is pixel
//                   (p·PHASES_P + a, q·PHASES_Q + b) of the result, if there is such a pixel.
//          PARTS    parts that the blocks of BK channels, of all planes of the kernel, are divided into, at most as
//                   many as there are such blocks
//          TURNS and others   see shared/fit
//          EACH     lines of a fragment that an invocation stores, ⌈32/SUBGROUP⌉
//          SUMS, SUMS_AT, LINES   see shared/product; LINES is defined
//          BF16_UNITS   see shared/units

// Subgroups store their sums in turns. All invocations of a subgroup do so together, which naga cannot know.
diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

#include "shared/conv2d_tile"
#include "shared/product"
#include "shared/fit"

const SN: u32 = ${SN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const WG: u32 = ${WG};
const BO: u32 = ${BO};
const BK: u32 = ${BK};
const TILES_O: u32 = ${TILES_O};
const BLOCKS: u32 = ${BLOCKS};
const PARTS: u32 = ${PARTS};
const PHASES_P: u32 = ${PHASES_P};
const PHASES_Q: u32 = ${PHASES_Q};
const RESULT_P: u32 = ${RESULT_P};
const RESULT_Q: u32 = ${RESULT_Q};
/// Channels of a group in the result, a multiple of 8.
const GROUP_RESULT: u32 = GROUP_O / (PHASES_P * PHASES_Q);
const RESULT: u32 = N * OUT_D * RESULT_P * RESULT_Q * ${G} * GROUP_RESULT;

const PITCH_X: u32 = ${PITCH_X};
const PITCH_W: u32 = ${PITCH_W};

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
#if !BF16_UNITS
@group(0) @binding(2) var<storage, read> w_powers: array<f32>;
#endif

var<workgroup> tile_x: array<Four, ${FOURS_X}>;
var<workgroup> tile_w: array<Four, ${FOURS_W}>;

/// `true` if the group has channel c. The last block may go past its end.
fn in_group(c: u32) -> bool {
    return GROUP_C % BK == 0u || c < GROUP_C;
}

/// The block of channels that a block is of, and the plane of the kernel.
fn block_of_plane(block: u32) -> vec2<u32> {
#if VOLUMES
    return vec2(block % BLOCKS, block / BLOCKS);
#else
    return vec2(block, 0u);
#endif
}

/// Channels c to c + 7 of a block, for plane z of the result. In the first block, they lie at `at`.
fn load_x(at: u32, z: u32, block: u32, c: u32) -> vec4<u32> {
    let its = block_of_plane(block);
#if VOLUMES
    let plane = plane_read(z, its.y);
    let there = in_group(its.x * BK + c) && plane < IN_D;
    let place = at + plane * (H * W * CHANNELS / 8u) + its.x * (BK / 8u);
#else
    let there = in_group(its.x * BK + c);
    let place = at + its.x * (BK / 8u);
#endif
    return select(vec4<u32>(), x[select(0u, place, there)], there);
}

/// The weights of input channel c of a block and column s of taps. Those of the first lie at `at`.
fn load_w(at: u32, s: u32, block: u32, c: u32) -> vec4<u32> {
    let its = block_of_plane(block);
    let there = in_group(its.x * BK + c);
#if VOLUMES
    let place = at + ((its.y * (KH * KW) + s) * GROUP_C + its.x * BK) * (GROUP_O / 8u);
#else
    let place = at + (s * GROUP_C + its.x * BK) * (GROUP_O / 8u);
#endif
    return select(vec4<u32>(), w[select(0u, place, there)], there);
}

/// The power that scales channels c to c + 7 of a block for the weights of output channels from o0 on.
fn power_of(group: u32, o0: u32, block: u32, c: u32) -> f32 {
#if BF16_UNITS
    return 1.0;
#else
    let its = block_of_plane(block);
    let row = (group * KD + its.y) * TILES_O + o0 / BO;
    return w_powers[(row * GROUP_C + min(its.x * BK + c, GROUP_C - 8u)) / 8u];
#endif
}

/// The product of two powers, kept finite so that zeros stay zeros.
fn factor(scale: f32, power: f32) -> f32 {
    return min(scale * power, 1e38);
}

/// The row and column in the result of channel o of an output (image, row, column).
fn pixel_of(at: vec3<u32>, o: u32) -> vec2<u32> {
    let phase = o / GROUP_RESULT;
    return at.yz * vec2(PHASES_P, PHASES_Q) + vec2(phase / PHASES_Q, phase % PHASES_Q);
}

fn is_result(at: vec3<u32>, o: u32) -> bool {
    let pixel = pixel_of(at, o);
    return at.x < N * OUT_D && at.y < P && at.z < Q && pixel.x < RESULT_P && pixel.y < RESULT_Q && o < GROUP_O;
}

/// The place of channels o to o + 7 of an output.
fn result_line(group: u32, at: vec3<u32>, o: u32) -> u32 {
    let pixel = pixel_of(at, o);
    let place = (at.x * RESULT_P + pixel.x) * RESULT_Q + pixel.y;
    return (place * ${G} + group) * GROUP_RESULT + o % GROUP_RESULT;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    // Not `workgroup_index`: matrix units require control flow that naga knows to be uniform.
    let lane = invocation % WG;
    let index = workgroup.x + workgroup.y * workgroups.x;
    if index >= ${G} * PARTS * TILES_O * TILES {
        return;
    }
    let first = first_of(index % TILES);
    let o0 = index / TILES % TILES_O * BO;
    let part = index / (TILES * TILES_O) % PARTS;
    let group = index / (TILES * TILES_O * PARTS);
    let begin = part * (KD * BLOCKS) / PARTS;
    let end = (part + 1u) * (KD * BLOCKS) / PARTS;
    let subgroup = lane / SUBGROUP;
    let fragment_o = subgroup % SN * FN;
    // The subgroup's rows of outputs are adjacent, in one block of images.
    let block_m = subgroup / SN * FM / TILE_P;
    let row_m = subgroup / SN * FM % TILE_P;
    let inputs = fragment_of_inputs(block_m, row_m * STRIDE_P, 0u, 0u);
    let begin_sums = subgroup / TURNS * 16u * PITCH_SUMS;
    var held = 0.0;
    // For each line that the invocation loads: its place in memory in the first block of channels, and its destination.
#for L in LOADS_X
    let line_x_${L} = line_at(lane + ${L}u * WG, INPUTS, BK / 8u);
    let pixel_x_${L} = input_pixel(line_x_${L}.x);
    let c_x_${L} = line_x_${L}.y * 8u;
    let at_x_${L} = input_at(first, pixel_x_${L}.at);
    let is_x_${L} = line_x_${L}.x < INPUTS && is_input(at_x_${L});
    let from_x_${L} = select(0u, (line_of_input(at_x_${L}) + group * GROUP_C + c_x_${L}) / 8u, is_x_${L});
    let z_x_${L} = at_x_${L}.x % OUT_D;
    let to_x_${L} = pixel_x_${L}.place * PITCH_X + line_x_${L}.y * 2u;
    var x_${L} = load_x(from_x_${L}, z_x_${L}, begin, c_x_${L});
    var power_${L} = power_of(group, o0, begin, c_x_${L});
    held = max(held, select(0.0, finite_magnitude(x_${L}) * power_${L}, is_x_${L}));
#endfor
#for L in LOADS_W
    // The line's eight output channels, its input channel, and the row of its tap.
    let line_w_${L} = lane + ${L}u * WG;
    let o_w_${L} = o0 + line_w_${L} % (BO / 8u) * 8u;
    let c_w_${L} = line_w_${L} / (BO / 8u) % BK;
    let tap_w_${L} = group * TAPS + line_w_${L} / (BO / 8u * BK) * KW;
    let is_w_${L} = line_w_${L} < ${LINES_W} && o_w_${L} < GROUP_O;
    let from_w_${L} = select(0u, ((tap_w_${L} * GROUP_C + c_w_${L}) * GROUP_O + o_w_${L}) / 8u, is_w_${L});
    let to_w_${L} = line_w_${L} / (BO / 8u) * PITCH_W + line_w_${L} % (BO / 8u) * 2u;
    var w_${L} = load_w(from_w_${L}, 0u, begin, c_w_${L});
#endfor
    // Zeros where no line is stored. The first loads are in flight meanwhile.
    for (var at = lane; at < ${FOURS_X}; at += WG) {
        tile_x[at] = Four();
    }
    for (var at = lane; at < ${FOURS_W}; at += WG) {
        tile_w[at] = Four();
    }
#for I in FM
#for J in FN
    var sum_${I}_${J}: coop_mat16x16<f32, C>;
#endfor
#endfor
    // Only inputs need a power: the packed weights fit f16 as they are.
    var exponents = exponents_of_all(lane, vec2(held), ROOM);
    for (var attempt = 0u; attempt < ATTEMPTS; attempt += 1u) {
        let scale = powers(exponents).x;
#for I in FM
#for J in FN
        sum_${I}_${J} = coop_mat16x16<f32, C>();
#endfor
#endfor
#for L in LOADS_X
        if is_x_${L} {
            tile_x[to_x_${L}] = first_four(x_${L}, factor(scale, power_${L}));
            tile_x[to_x_${L} + 1u] = last_four(x_${L}, factor(scale, power_${L}));
        }
#endfor
#for L in LOADS_W
        if is_w_${L} {
            tile_w[to_w_${L}] = four_of(w_${L}.xy);
            tile_w[to_w_${L} + 1u] = four_of(w_${L}.zw);
        }
#endfor
        workgroupBarrier();
        for (var block = begin; block < end; block += 1u) {
            // The last block is loaded twice: loads without a condition can be scheduled where they cost least.
            let next = min(block + 1u, end - 1u);
            for (var s = 0u; s < KW; s += 1u) {
                // The next step: its column of taps, and its block.
                let next_s = (s + 1u) % KW;
                let next_w = select(block, next, next_s == 0u);
#for L in LOADS_W
                w_${L} = load_w(from_w_${L}, next_s, next_w, c_w_${L});
#endfor
                if next_s == 0u {
#for L in LOADS_X
                    x_${L} = load_x(from_x_${L}, z_x_${L}, next, c_x_${L});
                    power_${L} = power_of(group, o0, next, c_x_${L});
#endfor
                }
                for (var u = 0u; u < ${STEPS}; u += 1u) {
                    // Places are variables, because naga's SPIR-V writer rejects them inside the calls.
#for D in KH
#for J in FN
                    let at_w_${D}_${J} = (${D}u * BK + u * 16u) * PITCH_W + 4u * (fragment_o + ${J}u);
                    let w_${D}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_w[at_w_${D}_${J}], PITCH_W);
#endfor
#endfor
#for R in ROWS_READ
                    let at_x_${R} = (inputs + fragment_of_inputs(0u, ${R}u, s, 0u)) * PITCH_X + u * 4u;
                    let x_${R} = coopLoadT<coop_mat16x16<f16, A>>(&tile_x[at_x_${R}], PITCH_X);
#for D in KH
#for I in FM
#if R == I * STRIDE_P + D * DH
#for J in FN
                    sum_${I}_${J} = coopMultiplyAdd(x_${R}, w_${D}_${J}, sum_${I}_${J});
#endfor
#endif
#endfor
#endfor
#endfor
                }
                workgroupBarrier();
                if next_s == 0u {
#for L in LOADS_X
                    if is_x_${L} {
                        tile_x[to_x_${L}] = first_four(x_${L}, factor(scale, power_${L}));
                        tile_x[to_x_${L} + 1u] = last_four(x_${L}, factor(scale, power_${L}));
                    }
#endfor
                }
#for L in LOADS_W
                if is_w_${L} {
                    tile_w[to_w_${L}] = four_of(w_${L}.xy);
                    tile_w[to_w_${L} + 1u] = four_of(w_${L}.zw);
                }
#endfor
                workgroupBarrier();
            }
        }
        var total = coop_mat16x16<f32, C>();
#for I in FM
#for J in FN
        total = total + sum_${I}_${J};
#endfor
#endfor
#insert check_fit()
        if fit || attempt + 1u == ATTEMPTS {
            break;
        }
        for (var block = begin; block < end; block += 1u) {
#for L in LOADS_X
            x_${L} = load_x(from_x_${L}, z_x_${L}, block, c_x_${L});
            power_${L} = power_of(group, o0, block, c_x_${L});
            held = max(held, select(0.0, finite_magnitude(x_${L}) * power_${L}, is_x_${L}));
#endfor
        }
        exponents = exponents_of_all(lane, vec2(held), 0);
#for L in LOADS_X
        x_${L} = load_x(from_x_${L}, z_x_${L}, begin, c_x_${L});
        power_${L} = power_of(group, o0, begin, c_x_${L});
#endfor
#for L in LOADS_W
        w_${L} = load_w(from_w_${L}, 0u, begin, c_w_${L});
#endfor
    }
    let back = powers(-exponents).x;
    // Sums go through workgroup memory, a fragment of each subgroup at a time. For all fragments of a row, the operands
    // of merged work are read first. Sixteen invocations take the first eight channels, sixteen the others. Eight that
    // read neighbouring pixels read different banks.
    let member = lane % SUBGROUP;
    for (var turn = 0u; turn < TURNS; turn += 1u) {
        let is_turn = subgroup % TURNS == turn;
#for I in FM
#for J in FN
#for E in EACH
            let place_${I}_${J}_${E} = ${E}u * SUBGROUP + member;
            let pixel_${I}_${J}_${E} = place_${I}_${J}_${E} % 16u;
            let n_${I}_${J}_${E} = first.x + block_m * IMAGES + pixel_${I}_${J}_${E} % IMAGES;
            let q_${I}_${J}_${E} = first.z + pixel_${I}_${J}_${E} / IMAGES;
            let at_${I}_${J}_${E} = output_at(vec3(n_${I}_${J}_${E}, first.y + row_m + ${I}u, q_${I}_${J}_${E}));
            let o_${I}_${J}_${E} = o0 + (fragment_o + ${J}u) * 16u + place_${I}_${J}_${E} / 16u * 8u;
            let there_${I}_${J}_${E} = place_${I}_${J}_${E} < 32u && is_result(at_${I}_${J}_${E}, o_${I}_${J}_${E});
            let to_${I}_${J}_${E} = part * RESULT + result_line(group, at_${I}_${J}_${E}, o_${I}_${J}_${E});
            let epilogue_${I}_${J}_${E} = epilogue(select(0u, to_${I}_${J}_${E}, there_${I}_${J}_${E}));
#endfor
#endfor
#for J in FN
            workgroupBarrier();
            if is_turn {
                coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH_SUMS);
            }
            workgroupBarrier();
#for E in EACH
            if is_turn && there_${I}_${J}_${E} {
                let at = begin_sums + place_${I}_${J}_${E} % 16u * PITCH_SUMS + place_${I}_${J}_${E} / 16u * 2u;
                finish(epilogue_${I}_${J}_${E}, Eight(sums[at] * back, sums[at + 1u] * back));
            }
#endfor
#endfor
#endfor
    }
}
