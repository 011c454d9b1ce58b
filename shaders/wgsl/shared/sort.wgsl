// The order of elements, for kernels that sort lines of LEN elements, INNER of which are interleaved.
//
// Defines: ELEMENT     see shared/element
//          LEN, INNER
//          DESCENDING  1 for descending order, else 0

#include "shared/element"

const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

/// The place of element `k` of a line.
fn place(line: u32, k: u32) -> u32 {
    return (line / INNER * LEN + k) * INNER + line % INNER;
}

/// A key whose order is that of the elements, or with DESCENDING the reverse. NaN counts as the largest number, and
/// zeros of both signs are equal.
fn key_of(value: Element) -> Key {
#if ELEMENT == f32
    let key = select(key_of_element(value), 0xffffffffu, is_nan(value));
#else
    let key = key_of_element(value);
#endif
#if DESCENDING == 1
    return ~key;
#else
    return key;
#endif
}
