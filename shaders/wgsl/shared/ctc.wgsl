// The states of a CTC example, and the log-probabilities of their classes. The kernel declares x, targets,
// input_lengths and target_lengths.
//
// Defines: WG; STEPS, EXAMPLES, CLASSES, LABELS the extents; BLANK a class

#include "shared/float"

const WG: u32 = ${WG};
const STEPS: u32 = ${STEPS};
const EXAMPLES: u32 = ${EXAMPLES};
const CLASSES: u32 = ${CLASSES};
const LABELS: u32 = ${LABELS};
const BLANK: u32 = ${BLANK};

/// States of an example with LABELS labels.
const STATES: u32 = 2u * LABELS + 1u;

/// Stands for ln 0: far below all other logarithms, but finite, so that sums and differences of it are.
const LEAST: f32 = -1e30;

struct Example {
    n: u32,
    steps: u32,
    labels: u32,
    /// `true` if a length exceeds its bound: then all results of the example are NaN.
    is_broken: bool,
}

fn example_of(n: u32) -> Example {
    let steps = input_lengths[n];
    let labels = target_lengths[n];
    return Example(n, min(steps, STEPS), min(labels, LABELS), steps > STEPS || labels > LABELS);
}

fn states_of(example: Example) -> u32 {
    return 2u * example.labels + 1u;
}

/// `true` if x stands for ln 0; `false` for NaN.
fn is_impossible(x: f32) -> bool {
    return x < 0.5 * LEAST && !is_nan(x);
}

fn class_of(n: u32, state: u32) -> u32 {
    if state % 2u == 0u {
        return BLANK;
    }
    return targets[n * LABELS + state / 2u];
}

/// The log-probability of a state's class; NaN for a label past the last class.
fn emission(example: Example, t: u32, state: u32) -> f32 {
    let c = class_of(example.n, state);
    let value = m_max(x[(t * EXAMPLES + example.n) * CLASSES + min(c, CLASSES - 1u)], LEAST);
    return select(value, quiet_nan(), example.is_broken || c >= CLASSES);
}
