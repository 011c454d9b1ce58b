// How operands are packed in f16 for matrix units: in lines of eight, u[·,X/8,Y,8], and in blocks of 32×32, each scaled by a power of two of
// its own, whose exponent is kept, e[⌈X/32⌉,⌈Y/32⌉]. Products bring the blocks of a tile to one power, which seldom is any work:
// exponents are multiples of eight, so that blocks of one tensor mostly have the same. What f16 loses is 2³⁰ times smaller than the
// largest element of a tile.

#include "shared/powers"

const BLOCK: u32 = 32u;

/// The exponent of a block of zeros, which any power suits.
const NOTHING: i32 = 127;

/// The exponent for a block of this largest magnitude, with room for sums of 2^room of them.
fn exponent_for(peak: f32, room: i32) -> i32 {
    return select(exponents_for(vec2(peak), room).x & ~7, NOTHING, peak == 0.0);
}
