// Gradient of `cross_entropy`: dx[c] = dloss·(exp(x[c] − peak)/mass − (1 − SMOOTH)·[c = label] − SMOOTH/CLASSES). A
// label past the end gives NaN for its whole row, an ignored label 0.
//
// Bindings: x[ROWS,CLASSES,INNER], labels[ROWS,INNER] (u32), peak, mass and dloss[ROWS,INNER] → dx[ROWS,CLASSES,INNER];
// dloss is loaded through shared/prologue. One invocation computes an element; ⌈ROWS·CLASSES·INNER/WG⌉ workgroups.
//
// Defines: WG; ROWS, CLASSES, INNER; SMOOTH a literal
//          IGNORED  `true` if a row is ignored, an expression of `label: u32`

#include "shared/elements"
#include "shared/epilogue"
#include "shared/float"
#include "shared/prologue"

const ROWS: u32 = ${ROWS};
const CLASSES: u32 = ${CLASSES};
const INNER: u32 = ${INNER};
const SMOOTH: f32 = ${SMOOTH};
const ELEMENTS: u32 = ROWS * CLASSES * INNER;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> labels: array<u32>;
@group(0) @binding(2) var<storage, read> peak: array<f32>;
@group(0) @binding(3) var<storage, read> mass: array<f32>;

fn compute(index: u32) {
    let row = index / (CLASSES * INNER) * INNER + index % INNER;
    let c = index / INNER % CLASSES;
    let label = labels[row];

    var expected = SMOOTH / f32(CLASSES);
    if c == label {
        expected += 1.0 - SMOOTH;
    }
    if label >= CLASSES {
        expected = quiet_nan();
    }
    let dx = load(row) * (exp(x[index] - peak[row]) / mass[row] - expected);
    store(index, select(dx, 0.0, ${IGNORED}));
}
