// Geometry of a 2-D convolution: x[N,C,H,W] and w[O,C/G,KH,KW] give y[N,O,P,Q].

#include "shared/window"

const CHANNELS: u32 = ${C};
const O: u32 = ${O};
/// Channels of a group, in and out.
const GROUP_C: u32 = CHANNELS / ${G};
const GROUP_O: u32 = O / ${G};
