// What a kernel that computes with elements, or with lines of halves, loads and stores. Operands are bound as arrays of Held, which
// `value` makes a Value of.
//
// Defines: FORMAT  full: by elements, through shared/epilogue; lines: by lines, through shared/epilogue_lines

#if FORMAT == lines
#include "shared/epilogue_lines"

alias Held = vec4<u32>;
/// The columns are the halves of a line.
alias Value = mat2x4<f32>;

fn value(held: Held) -> Value {
    let line = eight_of(held);
    return Value(line.first, line.second);
}

fn divided(x: Value, by: f32) -> Value {
    return Value(x[0] / by, x[1] / by);
}

fn store_value(at: u32, x: Value) {
    store_line(8u * at, Eight(x[0], x[1]));
}
#else
#include "shared/epilogue"

alias Held = f32;
alias Value = f32;

fn value(held: Held) -> Value {
    return held;
}

fn divided(x: Value, by: f32) -> Value {
    return x / by;
}

fn store_value(at: u32, x: Value) {
    store(at, x);
}
#endif
