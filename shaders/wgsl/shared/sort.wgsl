// What sorting by parts shares: LEN elements of each line, INNER lines side by side.

#include "shared/float"

const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

/// Where element `k` of a line is.
fn place(line: u32, k: u32) -> u32 {
    return (line / INNER * LEN + k) * INNER + line % INNER;
}

/// An integer that is ordered as the numbers are to be: NaN counts as the largest, zeros of both signs as equal.
fn key_of(value: f32) -> u32 {
    let bits = select(bitcast<u32>(value), 0u, is_zero(value));
    let ordered = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    let key = select(ordered, 0xffffffffu, is_nan(value));
#if DESCENDING == 1
    return ~key;
#else
    return key;
#endif
}
