// The tiles of 4×4 outputs that Winograd's algorithm cuts N images of P×Q into.
//
// Defines: N, P, Q
//          TILES_P, TILES_Q, TILES   tiles of an image down and across, and of all images

const N: u32 = ${N};
const P: u32 = ${P};
const Q: u32 = ${Q};
const TILES_P: u32 = ${TILES_P};
const TILES_Q: u32 = ${TILES_Q};
const TILES: u32 = ${TILES};
