// y[o,l,i] = exp(x[o,l,i] − m) / Σ_l exp(x[o,l,i] − m) with m = max over l of x[o,l,i]; LOG 1: the logarithm of that.
//
// Bindings: x[OUTER,LEN,INNER], and with PARTS > 1 the peaks and masses of the parts from `softmax_parts` →
// y[OUTER,LEN,INNER] by its epilogue. A segment of LANES invocations computes the row of one o and i, or a part of it,
// CHUNK elements long; PARTS·⌈OUTER·INNER·LANES/WG⌉ workgroups.
//
// Defines: WG, LANES powers of two; ACROSS 0 or 1, see shared/segments; OUTER, LEN, INNER; LOG 0 or 1
//          MASKED        1: the result of a row of −∞ is 0; else NaN
//          BLOCKS        workgroups for a part of all rows, ⌈OUTER·INNER/SEGMENTS⌉
//          PARTS, CHUNK  every part has an element: (PARTS − 1)·CHUNK < LEN ≤ PARTS·CHUNK
//          FORMAT        that of shared/values; with lines, LEN and CHUNK count lines, INNER and PARTS are 1, and LOG
//                        is 0
//          TAIL          with lines, the elements in the last line of a row; others there are padding

#include "shared/grid"
#include "shared/row_statistics"
#include "shared/values"

const WG: u32 = ${WG};
const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};
const ROWS: u32 = ${OUTER} * INNER;
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};
const BLOCKS: u32 = ${BLOCKS};

@group(0) @binding(0) var<storage, read> x: array<Held>;
#if PARTS != 1
@group(0) @binding(1) var<storage, read> peak: array<f32>;
@group(0) @binding(2) var<storage, read> mass: array<f32>;
#endif

fn place(row: u32, l: u32) -> u32 {
    return (row / INNER * LEN + l) * INNER + row % INNER;
}

#if FORMAT == lines
/// A line of a row; in the place of padding −∞, whose weight is 0.
fn element(row: u32, l: u32) -> Value {
    let line = value(x[place(row, l)]);
#if TAIL != 8
    return filled(line, select(8u, ${TAIL}u, l + 1u == LEN), negative_infinity());
#else
    return line;
#endif
}

fn largest_at(row: u32, l: u32) -> f32 {
    return largest_of(element(row, l));
}

fn sums_at(row: u32, l: u32, peak: f32) -> vec2<f32> {
    let x = element(row, l);
    return vec2(total(Value(exp(x[0] - peak), exp(x[1] - peak))), 0.0);
}

fn result_of(x: Value, shift: f32, total: f32) -> Value {
    return Value(exp(x[0] - shift) / total, exp(x[1] - shift) / total);
}

fn every(x: f32) -> Value {
    return Value(vec4(x), vec4(x));
}
#else
fn element(row: u32, l: u32) -> Value {
    return value(x[place(row, l)]);
}

fn largest_at(row: u32, l: u32) -> f32 {
    return element(row, l);
}

fn sums_at(row: u32, l: u32, peak: f32) -> vec2<f32> {
    return vec2(exp(element(row, l) - peak), 0.0);
}

fn result_of(x: Value, shift: f32, total: f32) -> Value {
#if LOG == 1
    return x - shift - log(total);
#else
    return exp(x - shift) / total;
#endif
}

fn every(x: f32) -> Value {
    return x;
}
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= PARTS * BLOCKS {
        return;
    }
    let wanted = index % BLOCKS * SEGMENTS + segment_of(lane);
    // Invocations without a row must still reach the barriers: they repeat the last row, and store nothing.
    let row = min(wanted, ROWS - 1u);
    let member = member_of(lane);

#if PARTS == 1
    let shift = row_peak(row, 0u, LEN, lane);
    let sum = row_sums(row, 0u, LEN, lane, shift).x;
#else
    var largest = peak[row];
    for (var p = member; p < PARTS; p += LANES) {
        largest = m_max(largest, peak[p * ROWS + row]);
    }
    let shift = segment_max(lane, largest);

    var sum = 0.0;
    for (var p = member; p < PARTS; p += LANES) {
        sum += mass[p * ROWS + row] * exp(peak[p * ROWS + row] - shift);
    }
#endif
    let total = segment_sum(lane, sum);

    if wanted != row {
        return;
    }
    // The peak is tested, because a compiler may replace x − x by 0 for any x.
    let none = !is_finite(shift);
#if MASKED == 1
    let instead = select(quiet_nan(), 0.0, bitcast<u32>(shift) == bitcast<u32>(negative_infinity()));
#else
    let instead = quiet_nan();
#endif
    let first = index / BLOCKS * CHUNK;
    for (var l = first + member; l < min(first + CHUNK, LEN); l += LANES) {
        if none {
            store_value(place(row, l), every(instead));
        } else {
            store_value(place(row, l), result_of(element(row, l), shift, total));
        }
    }
}
