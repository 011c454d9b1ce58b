// Gradient of `ctc`: dx[t,n,c] = −dloss[n]·γ[t,n,c], where γ is the probability, given the target, that a path is at
// class c at step t: the sum of α·β/eˣ over the states of that class, divided by the sum over all states.
//
// Bindings: x[STEPS,EXAMPLES,CLASSES], targets[EXAMPLES,LABELS] (u32), input_lengths and target_lengths[EXAMPLES]
// (u32), alphas[EXAMPLES,STEPS,2·LABELS + 1] as `ctc` writes them, dloss[EXAMPLES], betas as alphas →
// dx[STEPS,EXAMPLES,CLASSES] by its epilogue. A workgroup computes an example at one step; STEPS·EXAMPLES workgroups.
//
// Defines: those of `ctc`, without FROM

#include "shared/ctc"
#include "shared/epilogue"
#include "shared/grid"
#include "shared/segment_folds"

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> targets: array<u32>;
@group(0) @binding(2) var<storage, read> input_lengths: array<u32>;
@group(0) @binding(3) var<storage, read> target_lengths: array<u32>;
@group(0) @binding(4) var<storage, read> alphas: array<f32>;
@group(0) @binding(5) var<storage, read> dloss: array<f32>;
@group(0) @binding(6) var<storage, read> betas: array<f32>;

/// The log-probability of all paths through a state at step t, up to a constant of the step.
fn paths_through(example: Example, t: u32, state: u32) -> f32 {
    let at = (example.n * STEPS + t) * STATES + state;
    return alphas[at] + betas[at] - emission(example, t, state);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = workgroup_index(workgroup, workgroups);
    if row >= STEPS * EXAMPLES {
        return;
    }
    let t = row / EXAMPLES;
    let example = example_of(row % EXAMPLES);
    let states = states_of(example);
    // Past the example's end there are no paths.
    let is_over = t >= example.steps;

    var largest = LEAST;
    for (var s = lane; s < states; s += WG) {
        largest = m_max(largest, paths_through(example, t, s));
    }
    let peak = segment_max(lane, largest);
    var own = 0.0;
    var own_blanks = 0.0;
    for (var s = lane; s < states; s += WG) {
        let share = exp(paths_through(example, t, s) - peak);
        own += share;
        own_blanks += select(0.0, share, s % 2u == 0u);
    }
    let sum = segment_sum(lane, own);
    let blanks = segment_sum(lane, own_blanks);

    let is_none = is_over || (is_impossible(peak) && ${ZERO_INFINITY});
    let is_unknown = example.is_broken || is_nan(peak) || is_impossible(peak);
    let factor = -dloss[example.n] / sum;
    for (var c = lane; c < CLASSES; c += WG) {
        var shares = select(0.0, blanks, c == BLANK);
        for (var k = 0u; k < example.labels; k += 1u) {
            if targets[example.n * LABELS + k] == c {
                shares += exp(paths_through(example, t, 2u * k + 1u) - peak);
            }
        }
        let dx = select(select(factor * shares, quiet_nan(), is_unknown), 0.0, is_none);
        store(row * CLASSES + c, select(dx, quiet_nan(), example.is_broken));
    }
}
