// The order of elements, for kernels that sort lines of LEN elements, INNER of which are interleaved.
//
// Defines: ELEMENT     see shared/element
//          LEN, INNER
//          KEPT        how many of each line's sorted elements the result has
//          DESCENDING  1 for descending order, else 0

#include "shared/element"

const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};
const KEPT: u32 = ${KEPT};

/// The place of element `k` of a line.
fn place(line: u32, k: u32) -> u32 {
    return (line / INNER * LEN + k) * INNER + line % INNER;
}

/// The place of element `k` of a line in a result that keeps the first KEPT of each.
fn place_kept(line: u32, k: u32) -> u32 {
    return (line / INNER * KEPT + k) * INNER + line % INNER;
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
