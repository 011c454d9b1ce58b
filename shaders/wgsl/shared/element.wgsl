// An element of any type, for kernels that move, order and join elements.
//
// Defines: ELEMENT  f32, u32, i32, or i64: two words, the lower one first

#include "shared/float"
#if ELEMENT == i64
#include "shared/i64"
#elif ELEMENT == f32
#include "shared/order"
#endif

#if ELEMENT == i64
alias Element = vec2<u32>;
#else
alias Element = ${ELEMENT};
#endif

/// What stands where there is no element: NaN, or the integer farthest from the others.
fn nothing() -> Element {
#if ELEMENT == f32
    return quiet_nan();
#elif ELEMENT == u32
    return 0xffffffffu;
#elif ELEMENT == i32
    return bitcast<i32>(0x80000000u);
#else
    return vec2(0u, 0x80000000u);
#endif
}

#if ELEMENT == i64
alias Key = vec2<u32>;
#else
alias Key = u32;
#endif

/// A key that is larger, as a number without a sign, for a larger element. Zeros of both signs have the same. Not for
/// NaN.
fn key_of_element(x: Element) -> Key {
#if ELEMENT == f32
    return order_of(x);
#elif ELEMENT == u32
    return x;
#elif ELEMENT == i32
    return bitcast<u32>(x) ^ 0x80000000u;
#else
    return vec2(x.x, x.y ^ 0x80000000u);
#endif
}

/// `true` if key a is below key b.
fn is_key_below(a: Key, b: Key) -> bool {
#if ELEMENT == i64
    return a.y < b.y || (a.y == b.y && a.x < b.x);
#else
    return a < b;
#endif
}

fn is_same_key(a: Key, b: Key) -> bool {
#if ELEMENT == i64
    return all(a == b);
#else
    return a == b;
#endif
}

/// The sum; integers wrap around.
fn e_sum(a: Element, b: Element) -> Element {
#if ELEMENT == i64
    return i64_sum(a, b);
#else
    return a + b;
#endif
}

/// The larger one; NaN if either is.
fn e_max(a: Element, b: Element) -> Element {
#if ELEMENT == f32
    return m_max(a, b);
#elif ELEMENT == i64
    return select(a, b, i64_is_below(a, b));
#else
    return max(a, b);
#endif
}

/// The smaller one; NaN if either is.
fn e_min(a: Element, b: Element) -> Element {
#if ELEMENT == f32
    return m_min(a, b);
#elif ELEMENT == i64
    return select(a, b, i64_is_below(b, a));
#else
    return min(a, b);
#endif
}
