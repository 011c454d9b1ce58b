// The tiles of a product whose operands come in lines of eight, along the reduction or across it, as A_ALONG and B_ALONG say.

const LINES_A: u32 = BM * BK / 8u;
// Lines of a tile beside each other, and the distance of the next in groups of four, 16 bytes more than they have elements, so that
// neighbours lie in different banks.
#if A_ALONG == k
const BESIDE_A: u32 = BM;
const PITCH_A: u32 = BK / 4u + 2u;
#else
const BESIDE_A: u32 = BK;
const PITCH_A: u32 = BM / 4u + 2u;
#endif
#if B_ALONG == k
const BESIDE_B: u32 = BN;
const PITCH_B: u32 = BK / 4u + 2u;
#else
const BESIDE_B: u32 = BK;
const PITCH_B: u32 = BN / 4u + 2u;
#endif

var<workgroup> tile_a: array<vec4<f16>, BESIDE_A * PITCH_A>;
var<workgroup> tile_b: array<vec4<f16>, BESIDE_B * PITCH_B>;
