// Tiles of pixels for convolutions on matrix units. A tile is TILE_P×TILE_Q outputs of TILE_N images, which are planes
// of the result where it has volumes. A workgroup keeps the inputs that a tile reads, with the halo, in workgroup
// memory. A fragment is sixteen outputs of a row. Narrower rows interleave IMAGES images: each pixel is followed by the
// same pixel of the next image. Columns of inputs that are a stride apart are adjacent in workgroup memory, so a tap
// shifts a fragment by a distance, whatever the stride.
//
// Defines: those of shared/conv2d; PW is less than the columns that a tile reads
//          IMAGES   1, 2, 4, 8 or 16
//          TILE_P, TILE_Q, TILE_N   TILE_Q is a multiple of 16/IMAGES, TILE_N of IMAGES
//          TILES_P, TILES_Q, TILES  tiles of an image down and across, and all tiles
//          STRIDE_P, STRIDE_Q   the strides between loaded rows and columns: SH, or 1 where KH is 1, since a single tap
//                   reads every SH-th row alone and no other row is loaded; likewise across
//          HALO_P   rows that a tile reads, (TILE_P − 1)·STRIDE_P + (KH − 1)·DH + 1
//          FIRST_COLUMN, INSIDE   the first column that is loaded, and the number of columns. With one tile across,
//                   columns of padding are not
//          INPUTS   inputs that are loaded, TILE_N·HALO_P·INSIDE
//          PLANE    columns with the same remainder by STRIDE_Q
//          FOLD     defined where images are single rows: a tile's row p are the outputs from p·FOLD on. H, P, KH and
//                   SH are 1, and TILE_Q is FOLD

#include "shared/conv2d"

const IMAGES: u32 = ${IMAGES};
const TILE_P: u32 = ${TILE_P};
const TILE_Q: u32 = ${TILE_Q};
const TILE_N: u32 = ${TILE_N};
const TILES_P: u32 = ${TILES_P};
const TILES_Q: u32 = ${TILES_Q};
const TILES: u32 = ${TILES};

const STRIDE_P: u32 = ${STRIDE_P};
const STRIDE_Q: u32 = ${STRIDE_Q};
/// The distances in the image between neighbouring loaded rows, and columns.
const STEP_P: u32 = SH / STRIDE_P;
const STEP_Q: u32 = SW / STRIDE_Q;

const HALO_P: u32 = ${HALO_P};
const FIRST: u32 = ${FIRST_COLUMN};
const INSIDE: u32 = ${INSIDE};
const INPUTS: u32 = ${INPUTS};
const PLANE: u32 = ${PLANE};

/// The pixel of line number `at`, and which of the pixel's `eights` lines that is. `eights` is even. Eight invocations
/// load two adjacent lines (a 32-byte sector) of four pixels, every other one. Their stores hit different banks if the
/// pixel pitch is an odd multiple of 16 bytes. Some lines are past the last pixel.
fn line_at(at: u32, pixels: u32, eights: u32) -> vec2<u32> {
    let turn = at / 8u;
    let pairs = eights / 2u;
    let pixel = turn / eights * 8u + at / 2u % 4u * 2u + turn / pairs % 2u;
    return vec2(pixel, turn % pairs * 2u + at % 2u);
}

/// An input of a tile: its image, row and column, and its place in workgroup memory.
struct Pixel {
    at: vec3<u32>,
    place: u32,
}

fn input_pixel(pixel: u32) -> Pixel {
    let block = pixel / (IMAGES * INSIDE * HALO_P);
    let row = pixel / (IMAGES * INSIDE) % HALO_P;
    let column = FIRST + pixel / IMAGES % INSIDE;
    let turn = pixel % IMAGES;
    let place = (((block * HALO_P + row) * STRIDE_Q + column % STRIDE_Q) * PLANE + column / STRIDE_Q) * IMAGES + turn;
    return Pixel(vec3(block * IMAGES + turn, row * STEP_P, column * STEP_Q), place);
}

/// The place in workgroup memory of a fragment's first input, for block `block` of IMAGES images, row `row` of the
/// tile's inputs and tap `s` of a row. The fragment's first output is number `first` of its row.
fn fragment_of_inputs(block: u32, row: u32, s: u32, first: u32) -> u32 {
    return (((block * HALO_P + row) * STRIDE_Q + s * DW % STRIDE_Q) * PLANE + s * DW / STRIDE_Q) * IMAGES + first;
}

/// The image, row and column of the first output of tile t.
fn first_of(t: u32) -> vec3<u32> {
    return vec3(t / (TILES_P * TILES_Q) * TILE_N, t / TILES_Q % TILES_P * TILE_P, t % TILES_Q * TILE_Q);
}

/// The image of the result, row and column of input `pixel` of the tile whose first output is `first`. It may lie
/// outside the image: negative numbers wrap to large ones.
fn input_at(first: vec3<u32>, pixel: vec3<u32>) -> vec3<u32> {
#if FOLD
    return vec3(first.x + pixel.x, 0u, (first.y + pixel.y) * (${FOLD}u * SW) - PW + pixel.z);
#else
    return first * vec3(1u, SH, SW) - vec3(0u, PH, PW) + pixel;
#endif
}

/// The image, row and column of the output at this image, row and column of the tiles.
fn output_at(at: vec3<u32>) -> vec3<u32> {
#if FOLD
    return vec3(at.x, 0u, at.y * ${FOLD}u + at.z);
#else
    return at;
#endif
}

fn is_input(at: vec3<u32>) -> bool {
    return at.x < N * OUT_D && at.y < H && at.z < W;
}

/// The place of an input's first channel, in the first plane of its volume.
fn line_of_input(at: vec3<u32>) -> u32 {
    return ((at.x / OUT_D * IN_D * H + at.y) * W + at.z) * CHANNELS;
}
