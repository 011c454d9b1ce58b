// Geometry of a convolution of volumes: x[N,C,IN_D,H,W] and w[O,C/G,KD,KH,KW] give y[N,O,OUT_D,P,Q]. Of images and
// sequences, the depths are 1.
//
// The gradient of the input is also a convolution: of the cotangents, with the taps in reverse order. The stride
// becomes the distance between neighbouring pixels, UH and UW.
//
// Defines: those of shared/window and shared/planes; PH and PW may be negative, modulo 2³²
//          C, O, G
//          UH, UW  distances between neighbouring pixels of x, down and across, with zeros in between

#include "shared/window"
#include "shared/planes"

const CHANNELS: u32 = ${C};
const O: u32 = ${O};
/// Input and output channels of a group.
const GROUP_C: u32 = CHANNELS / ${G};
const GROUP_O: u32 = O / ${G};
const TAPS: u32 = KD * KH * KW;
const UH: u32 = ${UH};
const UW: u32 = ${UW};
/// Extents of x, including the zeros in between.
const SPAN_H: u32 = (H - 1u) * UH + 1u;
const SPAN_W: u32 = (W - 1u) * UW + 1u;

/// The row that tap `tap` of output row p reads; H where it reads a zero.
fn row_read(p: u32, tap: u32) -> u32 {
    let at = p * SH + tap * DH - PH;
    return select(H, at / UH, at < SPAN_H && at % UH == 0u);
}

/// The column that tap `tap` of output column q reads; W where it reads a zero.
fn column_read(q: u32, tap: u32) -> u32 {
    let at = q * SW + tap * DW - PW;
    return select(W, at / UW, at < SPAN_W && at % UW == 0u);
}
