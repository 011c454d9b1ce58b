// y[i] = x[IN_OFFSET(i)] as another type. Integers keep their lower bits. Floats are rounded towards 0; one that is no
// integer of the type becomes the nearest one, NaN becomes 0.
//
// Bindings: x → y by its epilogue. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N            number of elements
//          FROM, RESULT the types: f32, u32, i32, or i64, two words
//          IN_OFFSET    the source of element i, an expression of `i: u32`

#include "shared/elements"
#include "shared/epilogue"
#if FROM == i64
#include "shared/i64"
#elif RESULT == i64
#include "shared/i64"
#endif
#if FROM == f32
#include "shared/float"
#endif

const ELEMENTS: u32 = ${N};

#if FROM == i64
@group(0) @binding(0) var<storage, read> x: array<vec2<u32>>;
#else
@group(0) @binding(0) var<storage, read> x: array<${FROM}>;
#endif

#if FROM == f32
/// `value` between two floats that are integers of the result's type; 0 for NaN.
fn within(value: f32, low: f32, high: f32) -> f32 {
    return select(clamp(value, low, high), 0.0, is_nan(value));
}
#endif

fn compute(i: u32) {
    let value = x[${IN_OFFSET}];
#if RESULT == f32
#if FROM == i64
    store(i, i64_to_f32(value));
#else
    store(i, f32(value));
#endif
#elif RESULT == u32
#if FROM == f32
    // The largest float below 2³², and then the largest word.
    let word = u32(within(value, 0.0, 4294967040.0));
    store(i, select(word, 0xffffffffu, value > 4294967040.0 && !is_nan(value)));
#elif FROM == i64
    store(i, value.x);
#else
    store(i, bitcast<u32>(value));
#endif
#elif RESULT == i32
#if FROM == f32
    let word = i32(within(value, -2147483648.0, 2147483520.0));
    store(i, select(word, 2147483647, value > 2147483520.0 && !is_nan(value)));
#elif FROM == i64
    store(i, bitcast<i32>(value.x));
#else
    store(i, bitcast<i32>(value));
#endif
#else
#if FROM == f32
    store(i, i64_of_f32(value));
#elif FROM == i32
    store(i, i64_of_i32(value));
#else
    store(i, vec2(value, 0u));
#endif
#endif
}
