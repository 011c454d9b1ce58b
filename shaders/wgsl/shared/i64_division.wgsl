// Division of 64-bit signed integers. Apart from the rest of their arithmetic, because it has a loop.

#include "shared/i64"

struct I64Division {
    quotient: I64,
    remainder: I64,
}

/// The quotient of two magnitudes, and what it leaves; bit by bit, unless both are words. 64 iterations at most.
fn i64_divided_magnitudes(a: vec2<u32>, b: vec2<u32>) -> I64Division {
    if a.y == 0u && b.y == 0u {
        return I64Division(I64(a.x / b.x, 0u), I64(a.x % b.x, 0u));
    }
    var quotient = I64(0u, 0u);
    var rest = vec2(0u, 0u);
    for (var step = 0u; step < 64u; step++) {
        let bit = 63u - step;
        let next = select(a.x >> (bit & 31u), a.y >> (bit & 31u), bit >= 32u) & 1u;
        // The bit that leaves `rest` counts as well.
        let overflows = rest.y >= 0x80000000u;
        rest = I64((rest.x << 1u) | next, (rest.y << 1u) | (rest.x >> 31u));
        let fits = rest.y > b.y || (rest.y == b.y && rest.x >= b.x);
        quotient = I64(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
        if overflows || fits {
            rest = i64_difference(rest, b);
            quotient.x |= 1u;
        }
    }
    return I64Division(quotient, rest);
}

/// The quotient, rounded towards 0, and what it leaves, with the sign of a. By 0: 0, and a.
fn i64_divided(a: I64, b: I64) -> I64Division {
    if all(b == vec2(0u, 0u)) {
        return I64Division(I64(0u, 0u), a);
    }
    let division = i64_divided_magnitudes(i64_magnitude(a), i64_magnitude(b));
    let is_negative = i64_is_negative(a) != i64_is_negative(b);
    return I64Division(
        select(division.quotient, i64_negated(division.quotient), is_negative),
        select(division.remainder, i64_negated(division.remainder), i64_is_negative(a)),
    );
}
