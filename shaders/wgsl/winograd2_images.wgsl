// Images in Winograd's frequencies for matrix units: v[f,t,c] for each of 16 frequencies f, tile t of 2×2 pixels and channel c: BᵀdB of the
// inputs of a tile of outputs, or A dy Aᵀ of a tile of cotangents. Packed as shared/packed says, in lines of eight tiles: LINE_Q beside
// each other, LINE_P rows of them, of LINE_N images.
//
// Bindings: x[N,C,H,W] → v[16,LINES,C,8], the exponents of the powers e[⌈LINES/4⌉,⌈C/32⌉]. An invocation transforms a line of a channel;
// ⌈LINES/4⌉·⌈C/32⌉ workgroups of 128.
//
// Defines: N, C   C a multiple of 8
//          H, W   the planes of x
//          FORM   input or cotangent
//          PH, PW zeros before the planes, none before cotangents
//          LINE_N, LINE_P, LINE_Q       whose product is 8
//          LINES_N, LINES_P, LINES_Q how many such lines there are of images, down and across; some tiles may lie past the end
//          HEIGHT, WIDTH  the pixels that a line reads of an image
//          ELEM   neighbours that are read at once, 1 or 4: a divisor of W; 1 where LINES_Q > 1
//          VECS   reads of a row: W/ELEM, or WIDTH where LINES_Q > 1

#include "shared/grid"
#include "shared/packed"
#include "shared/reduce"
#include "shared/winograd2"

const WG: u32 = 128u;
const N: u32 = ${N};
const C: u32 = ${C};
const H: u32 = ${H};
const W: u32 = ${W};
const PH: u32 = ${PH};
const PW: u32 = ${PW};
const LINE_N: u32 = ${LINE_N};
const LINE_P: u32 = ${LINE_P};
const LINE_Q: u32 = ${LINE_Q};
const LINES_P: u32 = ${LINES_P};
const LINES_Q: u32 = ${LINES_Q};
const LINES: u32 = ${LINES_N}u * LINES_P * LINES_Q;
const HEIGHT: u32 = ${HEIGHT};
const WIDTH: u32 = ${WIDTH};
const ELEM: u32 = ${ELEM};
const BLOCKS_C: u32 = (C + BLOCK - 1u) / BLOCK;
/// Where the first element of a row goes that is read.
const FIRST: u32 = select(0u, PW, LINES_Q == 1u);

#if ELEM == 4
alias Elements = vec4<f32>;
#else
alias Elements = array<f32, 1>;
#endif

@group(0) @binding(0) var<storage, read> x: array<Elements>;
@group(0) @binding(1) var<storage, read_write> v: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> exponents_of: array<i32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= (LINES + 3u) / 4u * BLOCKS_C {
        return;
    }
    let line = index / BLOCKS_C * 4u + lane / BLOCK;
    let c = index % BLOCKS_C * BLOCK + lane % BLOCK;
    let n0 = line / (LINES_P * LINES_Q) * LINE_N;
    // Negative numbers are large ones.
    let row0 = line / LINES_Q % LINES_P * 2u * LINE_P - PH;
    let column0 = line % LINES_Q * 2u * LINE_Q + FIRST - PW;

    // The pixels that are not read are zeros.
    var area: array<f32, LINE_N * HEIGHT * WIDTH>;
    var peak = 0.0;
#for S in LINE_N
#for R in HEIGHT
#for V in VECS
    let there_${S}_${R}_${V} =
        n0 + ${S}u < N && c < C && row0 + ${R}u < H && column0 + ${V}u * ELEM < W;
    let at_${S}_${R}_${V} = (((n0 + ${S}u) * C + c) * H + row0 + ${R}u) * W + column0 + ${V}u * ELEM;
    let x_${S}_${R}_${V} = x[select(0u, at_${S}_${R}_${V} / ELEM, there_${S}_${R}_${V})];
#for E in ELEM
    let e_${S}_${R}_${V}_${E} = select(0.0, x_${S}_${R}_${V}[${E}], there_${S}_${R}_${V});
    peak = max(peak, finite_magnitudes(vec4(e_${S}_${R}_${V}_${E})).x);
    area[(${S}u * HEIGHT + ${R}u) * WIDTH + FIRST + ${V}u * ELEM + ${E}u] = e_${S}_${R}_${V}_${E};
#endfor
#endfor
#endfor
#endfor
    // A frequency is the sum of four elements.
    let exponent = exponent_for(workgroup_max(lane, peak), 2);
    let scale = powers(vec2(exponent)).x;
    if lane == 0u {
        exponents_of[index] = exponent;
    }
    if line >= LINES || c >= C {
        return;
    }

    var of_line: array<vec4<u32>, 16>;
    // Of the tile before: two at a time are rounded.
    var before: array<vec4<f32>, 4>;
    var columns: array<vec4<f32>, WIDTH>;
#for S in LINE_N
#for D in LINE_P
#for J in WIDTH
    {
        const AT: u32 = (${S}u * HEIGHT + 2u * ${D}u) * WIDTH + ${J}u;
#if FORM == input
        columns[${J}] = scale * of_input(area[AT], area[AT + WIDTH], area[AT + 2u * WIDTH], area[AT + 3u * WIDTH]);
#else
        columns[${J}] = scale * of_output(area[AT], area[AT + WIDTH]);
#endif
    }
#endfor
#for B in LINE_Q
#for I in 4
    {
        const TILE: u32 = (${S}u * LINE_P + ${D}u) * LINE_Q + ${B}u;
#if FORM == input
        let row = of_input(
            columns[2u * ${B}u][${I}],
            columns[2u * ${B}u + 1u][${I}],
            columns[2u * ${B}u + 2u][${I}],
            columns[2u * ${B}u + 3u][${I}],
        );
#else
        let row = of_output(columns[2u * ${B}u][${I}], columns[2u * ${B}u + 1u][${I}]);
#endif
        if TILE % 2u == 0u {
            before[${I}] = row;
        } else {
#for J in 4
            of_line[4u * ${I}u + ${J}u][TILE / 2u] = pack2x16float(vec2(before[${I}][${J}], row[${J}]));
#endfor
        }
    }
#endfor
#endfor
#endfor
#endfor
#for F in 16
    v[(${F}u * LINES + line) * C + c] = of_line[${F}];
#endfor
}
