// The unit of a kernel's work: an element, or a line of bf16. Operands are bound as arrays of Held; `value` turns a
// Held into a Value.
//
// Defines: FORMAT  full: a value is one f32; lines: a line of eight bf16

#if FORMAT == lines
#include "shared/bf16"
#include "shared/float"

alias Held = vec4<u32>;
/// The columns are the first and the last four of a line.
alias Value = mat2x4<f32>;
/// Elements of a value.
const WIDTH: u32 = 8u;

fn value(held: Held) -> Value {
    let line = eight_of(held);
    return Value(line.first, line.second);
}

fn plus(x: Value, y: f32) -> Value {
    return Value(x[0] + y, x[1] + y);
}

fn divided(x: Value, by: f32) -> Value {
    return Value(x[0] / by, x[1] / by);
}

/// The value if `there`, else zeros.
fn where_true(x: Value, there: bool) -> Value {
    return Value(select(vec4<f32>(), x[0], there), select(vec4<f32>(), x[1], there));
}

/// The value with `filler` in the place of all elements from `count` on.
fn filled(x: Value, count: u32, filler: f32) -> Value {
    let first = select(vec4(filler), x[0], vec4(0u, 1u, 2u, 3u) < vec4(count));
    return Value(first, select(vec4(filler), x[1], vec4(4u, 5u, 6u, 7u) < vec4(count)));
}

/// The largest element; NaN if any is.
fn largest_of(x: Value) -> f32 {
    var largest = x[0][0];
#for E in 4
    largest = m_max(largest, m_max(x[0][${E}], x[1][${E}]));
#endfor
    return largest;
}

fn total(x: Value) -> f32 {
    let four = x[0] + x[1];
    return (four.x + four.y) + (four.z + four.w);
}

fn total_of_products(x: Value, y: Value) -> f32 {
    return dot(x[0], y[0]) + dot(x[1], y[1]);
}
#else
alias Held = f32;
alias Value = f32;
const WIDTH: u32 = 1u;

fn value(held: Held) -> Value {
    return held;
}

fn plus(x: Value, y: f32) -> Value {
    return x + y;
}

fn divided(x: Value, by: f32) -> Value {
    return x / by;
}

fn where_true(x: Value, there: bool) -> Value {
    return select(0.0, x, there);
}

fn total(x: Value) -> f32 {
    return x;
}

fn total_of_products(x: Value, y: Value) -> f32 {
    return x * y;
}
#endif
