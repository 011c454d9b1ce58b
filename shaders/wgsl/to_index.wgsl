// y[i] = ⌊x[IN_OFFSET(i)]⌋: numbers as indices. u32::MAX where x is NaN, negative, or at least 2³².
//
// Bindings: x → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N         number of elements
//          FROM      f32, i32, or i64: two words, the lower one first
//          IN_OFFSET the source of element i, an expression of `i: u32`

#include "shared/elements"
#if FROM == f32
#include "shared/float"
#endif

const ELEMENTS: u32 = ${N};

#if FROM == i64
@group(0) @binding(0) var<storage, read> x: array<vec2<u32>>;
#else
@group(0) @binding(0) var<storage, read> x: array<${FROM}>;
#endif
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn compute(i: u32) {
    let value = x[${IN_OFFSET}];
#if FROM == f32
    // By the sign bit, because a device may flush small numbers to 0.
    let is_positive = is_zero(value) || bitcast<u32>(value) < 0x80000000u;
    let fits = !is_nan(value) && is_positive && value <= 4294967040.0;
    y[i] = select(0xffffffffu, u32(select(0.0, value, fits)), fits);
#elif FROM == i32
    y[i] = select(bitcast<u32>(value), 0xffffffffu, value < 0);
#else
    y[i] = select(value.x, 0xffffffffu, value.y != 0u);
#endif
}
