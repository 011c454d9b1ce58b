// `conv2d_grad_weight` on matrix units, of images in bf16. A workgroup computes BO output by BC input channels of the
// gradient, for KH rows of taps of a plane of the kernel at once. The sum runs over the tiles of pixels of
// shared/conv2d_tile. A fragment of inputs serves every row of taps that reads it. An input that is not finite spreads
// to all taps of its channel, because a tile that extends past the outputs multiplies it by zeros.
//
// Bindings: x[N,IN_D,H,W,C], dy[N,OUT_D,P,Q,O] in bf16 → parts[PARTS,TAPS_OF_ALL,G,ROWS,COLUMNS], where ROWS and
// COLUMNS are a group's channels, rounded up to whole tiles. Workgroups: G·PARTS·(ROWS/BO)·(COLUMNS/BC).
//
// Defines: those of shared/conv2d and shared/conv2d_tile; O/G and C/G are multiples of 8. KH and PH are those of the
//          rows of taps that are computed
//          TAPS_OF_ALL, FIRST   number of taps of the gradient; number of the first tap that is computed
//          PLANE_OF_TAPS   with VOLUMES, the plane of the kernel
//          WG, BO, BC   invocations; output and input channels of a workgroup
//          TILES_O, TILES_C, ROWS, COLUMNS   the number of BO, and of BC, channels in a group; its channels, rounded
//                   up to whole tiles
//          SN       subgroups along input channels
//          FM, FN   fragments of 16×16 of each subgroup along output and input channels
//          OUTPUTS  outputs of a tile
//          ACROSS, FRAGMENTS_OF_ROW   fragments of a row of outputs, TILE_Q·IMAGES/16; those of all images
//          PITCH_X, PITCH_DY, FOURS_X, FOURS_DY   of workgroup memory, in fours: the distance of pixels, and the size
//                   of a tile's inputs and cotangents
//          SUBGROUP and others   see shared/fit; TURNS is 2 at most
//          LOADS_X, LOADS_DY   lines of a tile that an invocation loads, at most
//          PARTS    parts that the tiles are divided into, at most as many as there are tiles
//          BF16_UNITS   see shared/units

// Subgroups check their sums in turns. All invocations of a subgroup do so together, which naga cannot know.
diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

#include "shared/conv2d_tile"
#include "shared/fit"

const SN: u32 = ${SN};
const WG: u32 = ${WG};
const BO: u32 = ${BO};
const BC: u32 = ${BC};
const TILES_O: u32 = ${TILES_O};
const TILES_C: u32 = ${TILES_C};
const PARTS: u32 = ${PARTS};
const ROWS: u32 = ${ROWS};
const COLUMNS: u32 = ${COLUMNS};

const OUTPUTS: u32 = ${OUTPUTS};

const PITCH_X: u32 = ${PITCH_X};
const PITCH_DY: u32 = ${PITCH_DY};

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> dy: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> parts: array<f32>;

var<workgroup> tile_x: array<Four, ${FOURS_X}>;
var<workgroup> tile_dy: array<Four, ${FOURS_DY}>;

/// Eight channels of a pixel; and `true` if there is such a pixel. `words_of` selects as late as possible, so that
/// nothing waits for the load before.
struct Line {
    words: vec4<u32>,
    there: bool,
}

fn words_of(line: Line) -> vec4<u32> {
    return select(vec4<u32>(), line.words, line.there);
}

/// Line number `at` of the inputs of tile t.
fn load_x(t: u32, at: u32, group: u32, c0: u32) -> Line {
    let line = line_at(at, INPUTS, BC / 8u);
    let c = c0 + line.y * 8u;
    let pixel = input_at(first_of(t), input_pixel(line.x).at);
#if VOLUMES
    let plane = plane_read(pixel.x % OUT_D, ${PLANE_OF_TAPS});
#else
    let plane = 0u;
#endif
    let there = line.x < INPUTS && c < GROUP_C && is_input(pixel) && plane < IN_D;
    let place = line_of_input(pixel) + plane * (H * W * CHANNELS) + group * GROUP_C + c;
    return Line(x[select(0u, place / 8u, there)], there);
}

/// Line number `at` of the cotangents of tile t.
fn load_dy(t: u32, at: u32, group: u32, o0: u32) -> Line {
    let line = line_at(at, OUTPUTS, BO / 8u);
    let o = o0 + line.y * 8u;
    let image = line.x / (IMAGES * TILE_Q * TILE_P) * IMAGES + line.x % IMAGES;
    let in_tile = vec3(image, line.x / (IMAGES * TILE_Q) % TILE_P, line.x / IMAGES % TILE_Q);
    let pixel = output_at(first_of(t) + in_tile);
    let there = line.x < OUTPUTS && o < GROUP_O && pixel.x < N * OUT_D && pixel.y < P && pixel.z < Q;
    return Line(dy[select(0u, (((pixel.x * P + pixel.y) * Q + pixel.z) * O + group * GROUP_O + o) / 8u, there)], there);
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
    if index >= ${G} * PARTS * TILES_O * TILES_C {
        return;
    }
    let c0 = index % TILES_C * BC;
    let o0 = index / TILES_C % TILES_O * BO;
    let part = index / (TILES_C * TILES_O) % PARTS;
    let group = index / (TILES_C * TILES_O * PARTS);
    let begin = part * TILES / PARTS;
    let end = (part + 1u) * TILES / PARTS;
    let subgroup = lane / SUBGROUP;
    let begin_sums = subgroup / TURNS * 16u * PITCH_SUMS;
    let fragment_c = subgroup % SN * ${FN};
    let fragment_o = subgroup / SN * ${FM};
    // The places in workgroup memory of the lines that the invocation loads.
#for L in LOADS_X
    let line_x_${L} = line_at(lane + ${L}u * WG, INPUTS, BC / 8u);
    let is_x_${L} = line_x_${L}.x < INPUTS;
    let to_x_${L} = input_pixel(line_x_${L}.x).place * PITCH_X + line_x_${L}.y * 2u;
#endfor
#for L in LOADS_DY
    let line_dy_${L} = line_at(lane + ${L}u * WG, OUTPUTS, BO / 8u);
    let is_dy_${L} = line_dy_${L}.x < OUTPUTS;
    let to_dy_${L} = line_dy_${L}.x * PITCH_DY + line_dy_${L}.y * 2u;
#endfor
#for D in KH
#for S in KW
#for I in FM
#for K in FN
    var sum_${D}_${S}_${I}_${K}: coop_mat16x16<f32, C>;
#endfor
#endfor
#endfor
#endfor
    var exponents: vec2<i32>;
    for (var attempt = 0u; attempt < ATTEMPTS; attempt += 1u) {
#for L in LOADS_X
        var x_${L} = load_x(begin, lane + ${L}u * WG, group, c0);
#endfor
#for L in LOADS_DY
        var dy_${L} = load_dy(begin, lane + ${L}u * WG, group, o0);
#endfor
        // Zeros for the padding. The first loads are in flight meanwhile.
        for (var at = lane; at < ${FOURS_X}; at += WG) {
            tile_x[at] = Four();
        }
        // The first attempt takes the peaks of the first tile, the second attempt those of all tiles.
        var held = vec2<f32>();
#if !BF16_UNITS
        for (var t = begin; t < select(end, begin + 1u, attempt == 0u); t += 1u) {
            for (var at = lane; at < (INPUTS + 7u) / 8u * BC; at += WG) {
                held.x = max(held.x, finite_magnitude(words_of(load_x(t, at, group, c0))));
            }
            for (var at = lane; at < OUTPUTS * (BO / 8u); at += WG) {
                held.y = max(held.y, finite_magnitude(words_of(load_dy(t, at, group, o0))));
            }
        }
#endif
        exponents = exponents_of_all(lane, held, select(0, ROOM, attempt == 0u));
        let scale = powers(exponents);
#for D in KH
#for S in KW
#for I in FM
#for K in FN
        sum_${D}_${S}_${I}_${K} = coop_mat16x16<f32, C>();
#endfor
#endfor
#endfor
#endfor
        for (var t = begin; t < end; t += 1u) {
#for L in LOADS_X
            if is_x_${L} {
                tile_x[to_x_${L}] = first_four(words_of(x_${L}), scale.x);
                tile_x[to_x_${L} + 1u] = last_four(words_of(x_${L}), scale.x);
            }
#endfor
#for L in LOADS_DY
            if is_dy_${L} {
                tile_dy[to_dy_${L}] = first_four(words_of(dy_${L}), scale.y);
                tile_dy[to_dy_${L} + 1u] = last_four(words_of(dy_${L}), scale.y);
            }
#endfor
            workgroupBarrier();
            // The last tile is loaded twice: loads without a condition can be scheduled where they cost least.
            let next = min(t + 1u, end - 1u);
#for L in LOADS_X
            x_${L} = load_x(next, lane + ${L}u * WG, group, c0);
#endfor
#for L in LOADS_DY
            dy_${L} = load_dy(next, lane + ${L}u * WG, group, o0);
#endfor
            for (var row = 0u; row < ${FRAGMENTS_OF_ROW}; row += 1u) {
                let block = row / ${ACROSS};
                let across = row % ${ACROSS};
#for R in TILE_P
#for I in FM
                // Places are variables, because naga's SPIR-V writer rejects them inside the calls.
                let at_a_${R}_${I} = ((block * TILE_P + ${R}u) * TILE_Q * IMAGES + across * 16u) * PITCH_DY + 4u * (fragment_o + ${I}u);
                let a_${R}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_dy[at_a_${R}_${I}], PITCH_DY);
#endfor
#endfor
#for J in HALO_P
#for S in KW
#for K in FN
                let at_b_${J}_${S}_${K} = fragment_of_inputs(block, ${J}u, ${S}u, across * 16u) * PITCH_X + 4u * (fragment_c + ${K}u);
                let b_${J}_${S}_${K} = coopLoadT<coop_mat16x16<f16, B>>(&tile_x[at_b_${J}_${S}_${K}], PITCH_X);
#endfor
#endfor
#for R in TILE_P
#for D in KH
#if J == R * STRIDE_P + D * DH
#for S in KW
#for I in FM
#for K in FN
                sum_${D}_${S}_${I}_${K} = coopMultiplyAdd(a_${R}_${I}, b_${J}_${S}_${K}, sum_${D}_${S}_${I}_${K});
#endfor
#endfor
#endfor
#endif
#endfor
#endfor
#endfor
            }
            workgroupBarrier();
        }
        var total = coop_mat16x16<f32, C>();
#for D in KH
#for S in KW
#for I in FM
#for K in FN
        total = total + sum_${D}_${S}_${I}_${K};
#endfor
#endfor
#endfor
#endfor
#insert check_fit()
        if fit || attempt + 1u == ATTEMPTS {
            break;
        }
    }
    // The smaller power first, so that no product overflows unless the result does.
    let inverse = powers(-exponents);
    let back = vec2(min(inverse.x, inverse.y), max(inverse.x, inverse.y));
#for D in KH
#for S in KW
#for I in FM
#for K in FN
    let o_${D}_${S}_${I}_${K} = ((part * ${TAPS_OF_ALL} + ${FIRST} + ${D}u * KW + ${S}u) * ${G} + group) * ROWS + o0 + (fragment_o + ${I}u) * 16u;
    let to_${D}_${S}_${I}_${K} = o_${D}_${S}_${I}_${K} * COLUMNS + c0 + (fragment_c + ${K}u) * 16u;
    let scaled_${D}_${S}_${I}_${K} = sum_${D}_${S}_${I}_${K} * back.x * back.y;
    coopStoreT(scaled_${D}_${S}_${I}_${K}, &parts[to_${D}_${S}_${I}_${K}], COLUMNS);
#endfor
#endfor
#endfor
#endfor
}
