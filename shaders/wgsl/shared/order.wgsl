// The order of numbers as integers, for kernels that compare numbers and must not lose NaN.

#include "shared/float"

/// An integer that is larger for a larger number. Zeros of both signs have the same. Not for NaN.
fn order_of(value: f32) -> u32 {
    let bits = select(bitcast<u32>(value), 0u, is_zero(value));
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
