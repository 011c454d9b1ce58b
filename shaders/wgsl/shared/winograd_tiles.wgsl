// The tiles of 4×4 outputs that Winograd's algorithm cuts N images of P×Q into.
//
// Defines: N, P, Q

const N: u32 = ${N};
const P: u32 = ${P};
const Q: u32 = ${Q};
const TILES_P: u32 = (P + 3u) / 4u;
const TILES_Q: u32 = (Q + 3u) / 4u;
const TILES: u32 = N * TILES_P * TILES_Q;
