// Gradient of `cross_entropy`: dx[c] = dloss·(exp(x[c] − peak)/mass − (1 − SMOOTH)·[c = label] − SMOOTH/CLASSES). A
// label past the end gives NaN for its whole row, an ignored label 0.
//
// Bindings: labels[ROWS,INNER] (u32), peak, mass, x[ROWS,CLASSES,INNER] and dloss[ROWS,INNER] → dx[ROWS,CLASSES,INNER]
// by its epilogue, perhaps in the place of x; dloss is loaded through shared/prologue. One invocation computes a line,
// or else EACH elements, WG apart, of the LEN·INNER of a block; ⌈ROWS·TAKE/WG⌉ workgroups.
//
// Defines: WG; ROWS, CLASSES, INNER; SMOOTH a literal
//          IGNORED  `true` if a row is ignored, an expression of `label: u32`
//          FORMAT   that of shared/values; with lines, INNER is 1
//          LEN      elements or lines of a row
//          EACH     1 with lines
//          TAKE     invocations for a block: LEN·INNER with EACH 1, or else whole workgroups
//          X        the name of x: x, or that of the result

#include "shared/elements"
#include "shared/float"
#include "shared/prologue"
#include "shared/values"

const ROWS: u32 = ${ROWS};
const CLASSES: u32 = ${CLASSES};
const INNER: u32 = ${INNER};
const LEN: u32 = ${LEN};
const SMOOTH: f32 = ${SMOOTH};
const TAKE: u32 = ${TAKE};
const BLOCK: u32 = LEN * INNER;
const ELEMENTS: u32 = ROWS * TAKE;

@group(0) @binding(0) var<storage, read> labels: array<u32>;
@group(0) @binding(1) var<storage, read> peak: array<f32>;
@group(0) @binding(2) var<storage, read> mass: array<f32>;
#if X == x
@group(0) @binding(3) var<storage, read> x: array<Held>;
#endif

/// What a class is expected to have, its label or not.
fn expected(is_label: bool, is_known: bool) -> f32 {
    var expected = SMOOTH / f32(CLASSES);
    if is_label {
        expected += 1.0 - SMOOTH;
    }
    return select(quiet_nan(), expected, is_known);
}

#if FORMAT == lines
fn compute(index: u32) {
    let row = index / LEN;
    let l = index % LEN;
    let label = labels[row];
    let is_known = label < CLASSES;
    let logits = value(${X}[index]);
    let other = vec4(expected(false, is_known));
    let own = vec4(expected(true, is_known));
    let first = select(other, own, vec4(8u * l) + vec4(0u, 1u, 2u, 3u) == vec4(label));
    let second = select(other, own, vec4(8u * l) + vec4(4u, 5u, 6u, 7u) == vec4(label));
    let below = divided(Value(exp(logits[0] - peak[row]), exp(logits[1] - peak[row])), mass[row]);
    let dx = load(row) * Value(below[0] - first, below[1] - second);
    store_value(index, where_true(dx, !(${IGNORED})));
}
#else
fn compute(index: u32) {
    let block = index / TAKE;
    let of_block = index % TAKE;
    let first = of_block / WG * (${EACH}u * WG) + of_block % WG;
#for E in EACH
    let at_${E} = min(first + ${E}u * WG, BLOCK - 1u);
    let row_${E} = block * INNER + at_${E} % INNER;
    let label_${E} = labels[row_${E}];
    let is_known_${E} = label_${E} < CLASSES;
    let logit_${E} = value(${X}[block * BLOCK + at_${E}]);
    let below_${E} = exp(logit_${E} - peak[row_${E}]) / mass[row_${E}];
    let dx_${E} = load(row_${E}) * (below_${E} - expected(at_${E} / INNER == label_${E}, is_known_${E}));
#endfor
#for E in EACH
    if first + ${E}u * WG < BLOCK {
        let label = label_${E};
        store_value(block * BLOCK + at_${E}, where_true(dx_${E}, !(${IGNORED})));
    }
#endfor
}
#endif
