// y[row] = weights[labels[row]], or 0 where the label is ignored. A label past the end gives NaN.
//
// Bindings: weights[CLASSES], labels[ROWS] (u32) → y[ROWS]. One invocation computes a row; ⌈ROWS/WG⌉ workgroups.
//
// Defines: WG; ROWS, CLASSES; IGNORED `true` if a row is ignored, an expression of `label: u32`

#include "shared/elements"
#include "shared/epilogue"
#include "shared/float"

const ELEMENTS: u32 = ${ROWS};
const CLASSES: u32 = ${CLASSES};

@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> labels: array<u32>;

fn compute(row: u32) {
    let label = labels[row];
    var weight = quiet_nan();
    if label < CLASSES {
        weight = weights[label];
    }
    store(row, select(weight, 0.0, ${IGNORED}));
}
