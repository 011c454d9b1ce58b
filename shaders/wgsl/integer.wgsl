// y[i] = OP of the operands at i: arithmetic of integers, which wraps around.
//
// Bindings: the operands → y by its epilogue. One invocation writes an element; ⌈N/WG⌉ workgroups. Divisions of
// 64-bit integers and powers loop, 64 iterations at most.
//
// Defines: WG
//          N        number of elements
//          ELEMENT  i32 or i64, the type of the operands
//          RESULT   the type of y: f32 for comparisons, else ELEMENT
//          OP       the row: w_sum, w_is_less, …
//          INPUTS   number of operands
//          WHERE    defined if operand 0 is a condition, a float
//          AT_0, AT_1, AT_2  the place of element `i: u32` in each operand, an expression

#include "shared/elements"
#include "shared/epilogue"
#include "shared/float"
#if ELEMENT == i64
#include "shared/i64_division"
#endif

const ELEMENTS: u32 = ${N};

#if ELEMENT == i64
alias Integer = vec2<u32>;
const ZERO: Integer = vec2(0u, 0u);
const ONE: Integer = vec2(1u, 0u);
const ONES: Integer = vec2(0xffffffffu, 0xffffffffu);
#else
alias Integer = i32;
const ZERO: Integer = 0;
const ONE: Integer = 1;
const ONES: Integer = -1;
#endif

#if WHERE
@group(0) @binding(0) var<storage, read> x_0: array<f32>;
@group(0) @binding(1) var<storage, read> x_1: array<Integer>;
@group(0) @binding(2) var<storage, read> x_2: array<Integer>;
#else
#for K in INPUTS
@group(0) @binding(${K}) var<storage, read> x_${K}: array<Integer>;
#endfor
#endif

fn is_below(a: Integer, b: Integer) -> bool {
#if ELEMENT == i64
    return i64_is_below(a, b);
#else
    return a < b;
#endif
}

fn is_same(a: Integer, b: Integer) -> bool {
#if ELEMENT == i64
    return all(a == b);
#else
    return a == b;
#endif
}

fn w_sum(a: Integer, b: Integer) -> Integer {
#if ELEMENT == i64
    return i64_sum(a, b);
#else
    return a + b;
#endif
}

fn w_difference(a: Integer, b: Integer) -> Integer {
#if ELEMENT == i64
    return i64_difference(a, b);
#else
    return a - b;
#endif
}

fn w_product(a: Integer, b: Integer) -> Integer {
#if ELEMENT == i64
    return i64_product(a, b);
#else
    return a * b;
#endif
}

fn w_negated(a: Integer) -> Integer {
#if ELEMENT == i64
    return i64_negated(a);
#else
    // The smallest integer stays itself.
    return bitcast<i32>(0u - bitcast<u32>(a));
#endif
}

fn w_magnitude(a: Integer) -> Integer {
    return select(a, w_negated(a), is_below(a, ZERO));
}

fn w_sign(a: Integer) -> Integer {
    return select(select(ZERO, ONE, is_below(ZERO, a)), ONES, is_below(a, ZERO));
}

fn w_positive_part(a: Integer) -> Integer {
    return select(a, ZERO, is_below(a, ZERO));
}

fn w_square(a: Integer) -> Integer {
    return w_product(a, a);
}

struct Division {
    quotient: Integer,
    remainder: Integer,
}

/// The quotient, rounded towards 0, and what it leaves, with the sign of a. By 0: 0, and a.
fn divided(a: Integer, b: Integer) -> Division {
#if ELEMENT == i64
    let division = i64_divided(a, b);
    return Division(division.quotient, division.remainder);
#else
    // Magnitudes as words, because the quotient of the smallest integer by −1 is none.
    let top = bitcast<u32>(w_magnitude(a));
    let bottom = bitcast<u32>(w_magnitude(b));
    let quotient = bitcast<i32>(top / max(bottom, 1u));
    let remainder = bitcast<i32>(top % max(bottom, 1u));
    let signed = select(quotient, w_negated(quotient), (a < 0) != (b < 0));
    return Division(
        select(signed, 0, b == 0),
        select(select(remainder, w_negated(remainder), a < 0), a, b == 0),
    );
#endif
}

fn w_quotient(a: Integer, b: Integer) -> Integer {
    return divided(a, b).quotient;
}

fn w_remainder(a: Integer, b: Integer) -> Integer {
    return divided(a, b).remainder;
}

/// `true` if a quotient that was rounded towards 0 is above the exact one.
fn is_above(division: Division, b: Integer) -> bool {
    let is_whole = is_same(division.remainder, ZERO) || is_same(b, ZERO);
    return !is_whole && is_below(division.remainder, ZERO) != is_below(b, ZERO);
}

fn w_floor_quotient(a: Integer, b: Integer) -> Integer {
    let division = divided(a, b);
    return select(division.quotient, w_difference(division.quotient, ONE), is_above(division, b));
}

fn w_modulo(a: Integer, b: Integer) -> Integer {
    let division = divided(a, b);
    return select(division.remainder, w_sum(division.remainder, b), is_above(division, b));
}

fn w_smaller(a: Integer, b: Integer) -> Integer {
    return select(a, b, is_below(b, a));
}

fn w_larger(a: Integer, b: Integer) -> Integer {
    return select(a, b, is_below(a, b));
}

fn w_clamped(x: Integer, low: Integer, high: Integer) -> Integer {
    return select(select(x, high, is_below(high, x)), low, is_below(x, low));
}

fn w_and(a: Integer, b: Integer) -> Integer {
    return a & b;
}

fn w_or(a: Integer, b: Integer) -> Integer {
    return a | b;
}

fn w_xor(a: Integer, b: Integer) -> Integer {
    return a ^ b;
}

fn w_not(a: Integer) -> Integer {
    return ~a;
}

fn w_shifted_left(a: Integer, bits: Integer) -> Integer {
#if ELEMENT == i64
    return select(ZERO, i64_left(a, bits.x & 63u), bits.y == 0u && bits.x < 64u);
#else
    return select(0, a << (bitcast<u32>(bits) & 31u), bits >= 0 && bits < 32);
#endif
}

fn w_shifted_right(a: Integer, bits: Integer) -> Integer {
#if ELEMENT == i64
    let all_bits = bits.y != 0u || bits.x >= 64u;
    return i64_right(a, select(bits.x & 63u, 63u, all_bits));
#else
    let all_bits = bits < 0 || bits >= 32;
    return a >> select(bitcast<u32>(bits) & 31u, 31u, all_bits);
#endif
}

/// The power; for an exponent below 0, the number rounded towards 0.
fn w_power(a: Integer, exponent: Integer) -> Integer {
    if is_below(exponent, ZERO) {
        let is_odd = is_same(exponent & ONE, ONE);
        let of_one = select(ZERO, ONE, is_same(a, ONE));
        return select(of_one, select(ONE, ONES, is_odd), is_same(a, ONES));
    }
    var power = ONE;
    var factor = a;
    var left = exponent;
    for (var step = 0u; step < 64u && !is_same(left, ZERO); step++) {
        if is_same(left & ONE, ONE) {
            power = w_product(power, factor);
        }
        factor = w_product(factor, factor);
        left = w_shifted_right(left, ONE);
    }
    return power;
}

#if RESULT == f32
fn truth(condition: bool) -> f32 {
    return select(0.0, 1.0, condition);
}

fn w_is_equal(a: Integer, b: Integer) -> f32 {
    return truth(is_same(a, b));
}

fn w_is_unequal(a: Integer, b: Integer) -> f32 {
    return truth(!is_same(a, b));
}

fn w_is_less(a: Integer, b: Integer) -> f32 {
    return truth(is_below(a, b));
}

fn w_is_at_most(a: Integer, b: Integer) -> f32 {
    return truth(!is_below(b, a));
}

fn w_is_greater(a: Integer, b: Integer) -> f32 {
    return truth(is_below(b, a));
}

fn w_is_at_least(a: Integer, b: Integer) -> f32 {
    return truth(!is_below(a, b));
}

#else
/// a where the condition is not 0, else b.
fn w_where(condition: f32, a: Integer, b: Integer) -> Integer {
    return select(a, b, is_zero(condition));
}
#endif

fn compute(i: u32) {
#if INPUTS == 1
    store(i, ${OP}(x_0[${AT_0}]));
#elif INPUTS == 2
    store(i, ${OP}(x_0[${AT_0}], x_1[${AT_1}]));
#else
    store(i, ${OP}(x_0[${AT_0}], x_1[${AT_1}], x_2[${AT_2}]));
#endif
}
