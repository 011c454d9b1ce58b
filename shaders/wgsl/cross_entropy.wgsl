// Cross-entropy of a row of logits and its label, with label smoothing: loss = ln Σ_c exp(x[c]) − ((1 −
// SMOOTH)·x[label] + SMOOTH/CLASSES·Σ_c x[c]). It is computed from x − peak with peak = max x, which does not change
// the loss, because the weights of x sum to one. A label past the end gives NaN, an ignored label 0. The gradient needs
// the peak, and the mass Σ_c exp(x[c] − peak), which is NaN where the peak is not finite.
//
// Bindings: x[ROWS,CLASSES,INNER], labels[ROWS,INNER] (u32), and with PARTS > 1 the peaks, masses and drifts of the
// parts from `softmax_parts` → loss[ROWS,INNER], peak and mass likewise. A segment of LANES invocations computes a
// loss; ⌈ROWS·INNER·LANES/WG⌉ workgroups.
//
// Defines: WG, LANES powers of two; ACROSS 0 or 1, see shared/segments; ROWS, CLASSES, INNER; SMOOTH a literal
//          IGNORED       `true` if a row is ignored, an expression of `label: u32`
//          PARTS, CHUNK  the parts that a row was split into: (PARTS − 1)·CHUNK < CLASSES ≤ PARTS·CHUNK
//          FORMAT        that of shared/value; with lines, INNER and PARTS are 1
//          LEN           elements or lines of a row
//          TAIL          with lines, the elements in the last line of a row; others there are padding

#include "shared/epilogue"
#include "shared/grid"
#include "shared/row_statistics"
#include "shared/value"

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const CLASSES: u32 = ${CLASSES};
const INNER: u32 = ${INNER};
const LEN: u32 = ${LEN};
const SMOOTH: f32 = ${SMOOTH};
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};

@group(0) @binding(0) var<storage, read> x: array<Held>;
@group(0) @binding(1) var<storage, read> labels: array<u32>;
#if PARTS == 1
@group(0) @binding(2) var<storage, read_write> peak: array<f32>;
@group(0) @binding(3) var<storage, read_write> mass: array<f32>;
#else
@group(0) @binding(2) var<storage, read> part_peak: array<f32>;
@group(0) @binding(3) var<storage, read> part_mass: array<f32>;
@group(0) @binding(4) var<storage, read> part_drift: array<f32>;
@group(0) @binding(5) var<storage, read_write> peak: array<f32>;
@group(0) @binding(6) var<storage, read_write> mass: array<f32>;
#endif

#if FORMAT == lines
/// The logit of a class.
fn element(row: u32, c: u32) -> f32 {
    return bf16_at(x[row * LEN + c / 8u][c % 8u / 2u], c);
}

/// The elements of line l that are no padding.
fn count(l: u32) -> u32 {
    return select(8u, ${TAIL}u, l + 1u == LEN);
}

/// A line of a row; in the place of padding −∞, whose weight is 0.
fn line_at(row: u32, l: u32) -> Value {
    return filled(value(x[row * LEN + l]), count(l), negative_infinity());
}

fn largest_at(row: u32, l: u32) -> f32 {
    return largest_of(line_at(row, l));
}

fn sums_at(row: u32, l: u32, peak: f32) -> vec2<f32> {
    let below = plus(line_at(row, l), -peak);
    return vec2(total(Value(exp(below[0]), exp(below[1]))), total(filled(below, count(l), 0.0)));
}
#else
/// The logit of a class.
fn element(row: u32, c: u32) -> f32 {
    return value(x[(row / INNER * CLASSES + c) * INNER + row % INNER]);
}

fn largest_at(row: u32, c: u32) -> f32 {
    return element(row, c);
}

fn sums_at(row: u32, c: u32, peak: f32) -> vec2<f32> {
    let below = element(row, c) - peak;
    return vec2(exp(below), below);
}
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * SEGMENTS;
    if first >= ROWS * INNER {
        return;
    }
    let wanted = first + segment_of(lane);
    // Invocations without a row must still reach the barriers: they repeat the last row, and store nothing.
    let row = min(wanted, ROWS * INNER - 1u);
    let member = member_of(lane);

#if PARTS == 1
    let shift = row_peak(row, 0u, LEN, lane);
    let sums = row_sums(row, 0u, LEN, lane, shift);
#else
    var largest = part_peak[row];
    for (var p = member; p < PARTS; p += LANES) {
        largest = m_max(largest, part_peak[p * ROWS * INNER + row]);
    }
    let shift = segment_max(lane, largest);

    var sums = vec2<f32>();
    for (var p = member; p < PARTS; p += LANES) {
        let at = p * ROWS * INNER + row;
        let below = part_peak[at] - shift;
        let drift = part_drift[at] + f32(min(CHUNK, CLASSES - p * CHUNK)) * below;
        sums += vec2(part_mass[at] * exp(below), drift);
    }
#endif
    let total_exp = segment_sum(lane, sums.x);
    let total = segment_sum(lane, sums.y);

    if wanted == row && member == 0u {
        let label = labels[row];
        var target_mean = quiet_nan();
        if label < CLASSES {
            target_mean = element(row, label) - shift;
            // Without smoothing, a logit of −∞ in another class must not turn the loss into 0·∞.
            if SMOOTH > 0.0 {
                target_mean = (1.0 - SMOOTH) * target_mean + SMOOTH / f32(CLASSES) * total;
            }
        }
        // The peak is tested, because a compiler may replace x − x by 0 for any x.
        let none = !is_finite(shift);
        let loss = select(log(total_exp) - target_mean, quiet_nan(), none);
        store(row, select(loss, 0.0, ${IGNORED}));
        peak[row] = shift;
        mass[row] = select(total_exp, quiet_nan(), none);
    }
}
