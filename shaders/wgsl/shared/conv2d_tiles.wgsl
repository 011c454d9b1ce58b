// The tiles of outputs that an invocation computes in a convolution of few channels, along both axes. The outputs of a
// tile are EVERY apart, so that they share inputs whatever the dilation is, and read ROWS or COLUMNS positions that are
// STEP apart. Tap i of output k reads position v where UP · v + PHASE = APART · k + WIDE · i.
//
// Defines: H, W, P, Q, KH, KW  extents of the image that is read, of the result, and of the kernel
//          for each axis, as computed by the host: TILE_P, EVERY_P, TILES_P, STEP_P, ROWS, FROM_P, UP_P, PHASE_P,
//          APART_P, WIDE_P, RATIO_P, UNDER_P; and those of Q, with COLUMNS

const H: u32 = ${H};
const W: u32 = ${W};
const P: u32 = ${P};
const Q: u32 = ${Q};
const KH: u32 = ${KH};
const KW: u32 = ${KW};
const TILE_P: u32 = ${TILE_P};
const TILE_Q: u32 = ${TILE_Q};
const EVERY_P: u32 = ${EVERY_P};
const EVERY_Q: u32 = ${EVERY_Q};
const TILES_P: u32 = ${TILES_P};
const TILES_Q: u32 = ${TILES_Q};
const STEP_P: u32 = ${STEP_P};
const STEP_Q: u32 = ${STEP_Q};
const ROWS: u32 = ${ROWS};
const COLUMNS: u32 = ${COLUMNS};
const UP_P: u32 = ${UP_P};
const UP_Q: u32 = ${UP_Q};
const PHASE_P: u32 = ${PHASE_P};
const PHASE_Q: u32 = ${PHASE_Q};
const APART_P: u32 = ${APART_P};
const APART_Q: u32 = ${APART_Q};
const WIDE_P: u32 = ${WIDE_P};
const WIDE_Q: u32 = ${WIDE_Q};

/// The first row and column of a tile.
fn first_of(tile_p: u32, tile_q: u32) -> vec2<u32> {
    let row = tile_p / EVERY_P * (EVERY_P * TILE_P) + tile_p % EVERY_P;
    return vec2(row, tile_q / EVERY_Q * (EVERY_Q * TILE_Q) + tile_q % EVERY_Q);
}

/// The first row and column that a tile reads, from its own first ones. It may lie before the image, modulo 2³².
fn first_read(first: vec2<u32>) -> vec2<u32> {
    return vec2(first.x * ${RATIO_P}u / ${UNDER_P}u - ${FROM_P}u, first.y * ${RATIO_Q}u / ${UNDER_Q}u - ${FROM_Q}u);
}
