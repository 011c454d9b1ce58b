// `conv2d` without stride as a product on matrix units; see shared/gemm_halo. A tile is TILE_P×TILE_Q pixels of TILE_N·IMAGES
// images, in fragments of sixteen: pixels beside each other of IMAGES images by turns, so that narrow images fill them, too.
//
// Bindings: x[N,H,W,C] in halves, w[G,TAPS,C/G,O/G] and powers[G,⌈O/G/BM⌉,C/G/8] from `conv2d_pack_halves`, the latter without BFLOAT → y[N,P,Q,O] by its
// epilogue, or parts[part,n,p,q,o] (SUMS parts).
//
// Defines: those of shared/gemm with UNITS halo and LINES, and of `conv2d` without WG; SH = SW = 1, O/G a multiple of 8,
//          C/G of BK, and PARTS divides C/G/BK; there is no more padding than the kernel reaches over
//          SUMS whole or parts
//          TILE_P, TILE_Q, TILE_N, IMAGES, whose product is BN; IMAGES 1, 2, 4, 8 or 16, TILE_Q a multiple of 16/IMAGES

#include "shared/conv2d_gemm"

const TILE_P: u32 = ${TILE_P};
const TILE_Q: u32 = ${TILE_Q};
const IMAGES: u32 = ${IMAGES};
const TILE_N: u32 = ${TILE_N} * IMAGES;
const TILES_P: u32 = (P + TILE_P - 1u) / TILE_P;
const TILES_Q: u32 = (Q + TILE_Q - 1u) / TILE_Q;
const TILES_IMAGES: u32 = (N + TILE_N - 1u) / TILE_N;
/// Whether tiles lie inside of the result.
const WHOLE_TILES: bool = P % TILE_P == 0u && Q % TILE_Q == 0u && N % TILE_N == 0u;

/// Rows and columns that a tile reads.
const HALO_P: u32 = TILE_P + (KH - 1u) * DH;
const HALO_Q: u32 = TILE_Q + (KW - 1u) * DW;
const HALO: u32 = TILE_N * HALO_P * HALO_Q;
/// Columns that lie inside of an image in some tile, and the first of them.
const INSIDE: u32 = select(HALO_Q, W, TILES_Q == 1u);
const FIRST: u32 = select(0u, PW, TILES_Q == 1u);
const PIXELS: u32 = TILE_N * HALO_P * INSIDE;
const BLOCK: u32 = BK / 8u * NEXT_INPUT;

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = TILES_IMAGES * TILES_P * TILES_Q * BN;
const DEPTH: u32 = GROUP_C * TAPS;
const RESULT: u32 = N * O * P * Q;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
#include "shared/conv2d_inputs"
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
#if BFLOAT
#else
@group(0) @binding(2) var<storage, read> w_powers: array<f32>;
#endif

fn load_a(group: u32, o: u32, tap: u32, c: u32) -> vec4<u32> {
    let at = select(0u, (((group * TAPS + tap) * GROUP_C + c) * GROUP_O + o) / 8u, is_row(o));
    return select(vec4<u32>(), w[at], is_row(o));
}

fn source(group: u32, tile: u32, pixel: u32, c: u32) -> Source {
    // By turns, as in workgroup memory.
    let image = pixel / (IMAGES * INSIDE * HALO_P) * IMAGES + pixel % IMAGES;
    let q = FIRST + pixel / IMAGES % INSIDE;
    let p = pixel / (IMAGES * INSIDE) % HALO_P;
    let n = tile / (TILES_P * TILES_Q) * TILE_N + image;
    // Negative numbers are large ones.
    let row = tile / TILES_Q % TILES_P * TILE_P + p - PH;
    let column = tile % TILES_Q * TILE_Q + q - PW;
    let there = n < N && row < H && column < W;
    let to = ((image / IMAGES * HALO_P + p) * HALO_Q + q) * IMAGES + image % IMAGES;
    return Source(there, input_at(n, group * GROUP_C + c, row, column), to);
}

fn load_b(at: u32) -> Line {
    return input_line(at, true);
}

fn power_b(group: u32, tile: u32, c: u32) -> f32 {
#if BFLOAT
    return 1.0;
#else
    return w_powers[((group * TILES_M + tile) * GROUP_C + c) / 8u];
#endif
}

/// Image, row and column inside of a tile of the first pixel of a fragment.
fn fragment_at(fragment: u32) -> vec3<u32> {
    let pixel = fragment * (16u / IMAGES);
    return vec3(pixel / (TILE_P * TILE_Q) * IMAGES, pixel / TILE_Q % TILE_P, pixel % TILE_Q);
}

fn origin(fragment: u32) -> u32 {
    let at = fragment_at(fragment);
    return ((at.x / IMAGES * HALO_P + at.y) * HALO_Q + at.z) * IMAGES;
}

fn shift(tap: u32) -> u32 {
    return (tap / KW * DH * HALO_Q + tap % KW * DW) * IMAGES;
}

/// Image, row and column of column j of the product.
fn pixel_at(j: u32) -> vec3<u32> {
    let tile = j / BN;
    let first = vec3(tile / (TILES_P * TILES_Q) * TILE_N, tile / TILES_Q % TILES_P * TILE_P, tile % TILES_Q * TILE_Q);
    return first + fragment_at(j / 16u % (BN / 16u)) + vec3(j % IMAGES, 0u, j % 16u / IMAGES);
}

// Columns of a fragment of one image follow each other.
const PITCH_RESULT: u32 = O;

fn result_at(group: u32, part: u32, i: u32, j: u32) -> u32 {
    let at = pixel_at(j);
    return part * RESULT + ((at.x * P + at.y) * Q + at.z) * O + group * GROUP_O + i;
}

fn has_result(j: u32) -> bool {
    let at = pixel_at(j);
    return WHOLE_TILES || (at.x < N && at.y < P && at.z < Q);
}
