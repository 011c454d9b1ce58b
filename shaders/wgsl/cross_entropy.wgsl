// Cross-entropy of a row of logits and its label, with label smoothing:
// loss = lse − ((1 − SMOOTH)·x[label] + SMOOTH/CLASSES·Σ_c x[c]), lse = ln Σ_c exp(x[c]).
// Computed on x − max: the weights of x sum to one, and what is subtracted cancels. A label past the end gives NaN.
//
// Bindings: x[ROWS,CLASSES,INNER], labels[ROWS,INNER] (u32) → loss[ROWS,INNER], lse[ROWS,INNER]. One workgroup computes a loss;
// ROWS·INNER workgroups.
//
// Defines: WG a power of two; ROWS, CLASSES, INNER; SMOOTH a literal

#include "shared/epilogue"
#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const CLASSES: u32 = ${CLASSES};
const INNER: u32 = ${INNER};
const SMOOTH: f32 = ${SMOOTH};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> labels: array<u32>;
@group(0) @binding(2) var<storage, read_write> lse: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = workgroup_index(workgroup, workgroups);
    if row >= ROWS * INNER {
        return;
    }
    let base = row / INNER * CLASSES * INNER + row % INNER;

    var largest = x[base];
    for (var c = lane; c < CLASSES; c += WG) {
        largest = m_max(largest, x[base + c * INNER]);
    }
    let shift = workgroup_max(lane, largest);

    var sum_exp = 0.0;
    var sum = 0.0;
    for (var c = lane; c < CLASSES; c += WG) {
        let value = x[base + c * INNER] - shift;
        sum_exp += exp(value);
        sum += value;
    }
    let log_sum = log(workgroup_sum(lane, sum_exp));
    let total = workgroup_sum(lane, sum);

    if lane == 0u {
        let label = labels[row];
        var target_mean = quiet_nan();
        if label < CLASSES {
            target_mean = x[base + label * INNER] - shift;
            // Without smoothing, a class ruled out by −∞ must not turn the loss into 0·∞.
            if SMOOTH > 0.0 {
                target_mean = (1.0 - SMOOTH) * target_mean + SMOOTH / f32(CLASSES) * total;
            }
        }
        store(row, log_sum - target_mean);
        lse[row] = shift + log_sum;
    }
}
