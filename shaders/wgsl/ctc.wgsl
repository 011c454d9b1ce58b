// Connectionist temporal classification: ln α of every step and state, and the loss; or ln β, which is the same from
// the other end.
//
//     α[t,s] = e^x[t,class(s)]·(α[t−1,s] + α[t−1,s−1] + α[t−1,s−2]),  α[0,s] = e^x[0,class(s)] for s < 2, else 0
//
// x are log-probabilities. The states are the labels, with a blank before, between and after them: 2·LABELS + 1. Where
// state s−2 is a blank or the same label as s, its term is left out.
//
// Each row is shifted, so that its numbers stay small: rows[t,s] = ln α[t,s] − Σ_{u<t} max_s rows[u,s]. Here `scale`
// and `part` sum up the shifts. LEAST stands for ln 0.
//
// Bindings: x[STEPS,EXAMPLES,CLASSES], targets[EXAMPLES,LABELS] (u32), input_lengths and target_lengths[EXAMPLES] (u32)
// → rows[EXAMPLES,STEPS,2·LABELS + 1], and FROM start loss[EXAMPLES] by its epilogue. A workgroup computes an example,
// step by step; EXAMPLES workgroups.
//
// Defines: those of shared/segments, where LANES is WG, and of shared/ctc
//          FROM    start, for α and the loss; or end, for β
//          ZERO_INFINITY   FROM start: `true` if the loss of a target without a path is 0

#if FROM == start
#include "shared/epilogue"
#endif
#include "shared/ctc"
#include "shared/grid"
#include "shared/segment_folds"

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> input_lengths: array<u32>;
@group(0) @binding(3) var<storage, read> target_lengths: array<u32>;
@group(0) @binding(4) var<storage, read_write> rows: array<f32>;

/// The state that is number `q` from the beginning of paths.
fn place(example: Example, q: u32) -> u32 {
#if FROM == start
    return q;
#else
    return states_of(example) - 1u - q;
#endif
}

/// The step of x at step `step` of the recursion. Steps past the example's end come last, in their order.
fn step_of(example: Example, step: u32) -> u32 {
#if FROM == start
    return step;
#else
    return select(example.steps - 1u - step, step, step >= example.steps);
#endif
}

fn row_of(example: Example, step: u32) -> u32 {
    return (example.n * STEPS + step_of(example, step)) * STATES;
}

/// ln(eᵃ + eᵇ + eᶜ)
fn log_sum(a: f32, b: f32, c: f32) -> f32 {
    let peak = m_max(m_max(a, b), c);
    if is_impossible(peak) {
        return LEAST;
    }
    return peak + log(exp(a - peak) + exp(b - peak) + exp(c - peak));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let n = workgroup_index(workgroup, workgroups);
    if n >= EXAMPLES {
        return;
    }
    let example = example_of(n);
    let states = states_of(example);
    var shift = 0.0;
    // The sum of the shifts is in parts, so that chains of additions are short.
    var scale = 0.0;
    var part = 0.0;
    for (var step = 0u; step < STEPS; step += 1u) {
        let is_over = step >= example.steps;
        let row = row_of(example, step);
        var largest = LEAST;
        for (var q = lane; q < STATES; q += WG) {
            if is_over || q >= states {
                rows[row + q] = LEAST;
                continue;
            }
            let s = place(example, q);
            var reached = select(LEAST, 0.0, q < 2u);
            if step > 0u {
                let before = row_of(example, step - 1u);
                var steps = vec3(rows[before + s] - shift, LEAST, LEAST);
                if q >= 1u {
                    steps.y = rows[before + place(example, q - 1u)] - shift;
                }
                if q >= 2u && q % 2u == 1u && class_of(n, s) != class_of(n, place(example, q - 2u)) {
                    steps.z = rows[before + place(example, q - 2u)] - shift;
                }
                reached = log_sum(steps.x, steps.y, steps.z);
            }
            var value = reached + emission(example, step_of(example, step), s);
            if is_impossible(value) {
                value = LEAST;
            }
            rows[row + s] = value;
            largest = m_max(largest, value);
        }
        // All invocations reach the barrier, also at steps past the example's end.
        storageBarrier();
        let peak = segment_max(lane, largest);
        shift = select(peak, 0.0, is_impossible(peak));
        if step + 1u < example.steps {
            part += shift;
            if step % 32u == 31u {
                scale += part;
                part = 0.0;
            }
        }
    }
#if FROM == start
    if lane == 0u {
        var infinite = 0x7f800000u;
        let infinity = select(bitcast<f32>(infinite), 0.0, ${ZERO_INFINITY});
        var loss = select(0.0, infinity, example.labels > 0u);
        if example.steps > 0u {
            let last = row_of(example, example.steps - 1u) + states - 1u;
            var before = LEAST;
            if states > 1u {
                before = rows[last - 1u];
            }
            let total = log_sum(rows[last], before, LEAST);
            loss = select(-(scale + part + total), infinity, is_impossible(total));
        }
        store(n, select(loss, quiet_nan(), example.is_broken));
    }
#endif
}
