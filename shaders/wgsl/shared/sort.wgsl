// The order of elements, for kernels that sort lines of LEN elements, INNER of which are interleaved.
//
// Defines: KEYS        numbers or indices, the type of the elements
//          LEN, INNER
//          DESCENDING  1 for descending order, else 0

#include "shared/order"

#if KEYS == numbers
alias Element = f32;
#else
alias Element = u32;
#endif

const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

/// The place of element `k` of a line.
fn place(line: u32, k: u32) -> u32 {
    return (line / INNER * LEN + k) * INNER + line % INNER;
}

/// A key whose order, as an integer, is that of the numbers, or with DESCENDING the reverse. NaN counts as the largest
/// number, and zeros of both signs are equal.
fn key_of(value: Element) -> u32 {
#if KEYS == numbers
    let key = select(order_of(value), 0xffffffffu, is_nan(value));
#else
    let key = value;
#endif
#if DESCENDING == 1
    return ~key;
#else
    return key;
#endif
}
