// Tiles of scores: what the kernels of attention share. A workgroup holds TILE rows against TILE columns; each invocation has four by
// four of the elements. What products of such tiles read comes through workgroup memory, STEP terms at a time.

#include "shared/grid"
#include "shared/float"

const WG: u32 = ${WG};
const TILE: u32 = ${TILE};
const SIDE: u32 = TILE / 4u;
/// Fours from one row in workgroup memory to the next: one more than a row has, so that rows begin in other banks.
const PITCH: u32 = SIDE + 1u;
const STEP: u32 = 16u;
const BATCH: u32 = ${BATCH};
const L: u32 = ${L};
const S: u32 = ${S};
const D: u32 = ${D};
const E: u32 = ${E};

/// Of the left and the right operand, [term][row] and [term][column].
var<workgroup> left: array<vec4<f32>, STEP * PITCH>;
var<workgroup> right: array<vec4<f32>, STEP * PITCH>;
/// A tile of weights, [column][row].
var<workgroup> weights: array<vec4<f32>, TILE * PITCH>;

fn q_element(b: u32, i: u32, k: u32) -> f32 {
    let begin: u32 = ${Q_BATCH};
    let there = i < L && k < D;
    return select(0.0, q[select(0u, begin + i * ${Q_ROW}u + k * ${Q_COL}u, there)], there);
}

fn k_element(b: u32, i: u32, k: u32) -> f32 {
    let begin: u32 = ${K_BATCH};
    let there = i < S && k < D;
    return select(0.0, key[select(0u, begin + i * ${K_ROW}u + k * ${K_COL}u, there)], there);
}

fn v_element(b: u32, i: u32, k: u32) -> f32 {
    let begin: u32 = ${V_BATCH};
    let there = i < S && k < E;
    return select(0.0, value[select(0u, begin + i * ${V_ROW}u + k * ${V_COL}u, there)], there);
}

/// Whether query `i` sees key `j`; both may be past the end.
fn is_visible(i: u32, j: u32) -> bool {
#if CAUSAL == 1
    return i < L && j < S && j + L <= i + S;
#else
    return i < L && j < S;
#endif
}

/// A scaled product of a query and a key, with what is added to it.
fn score(b: u32, i: u32, j: u32, product: f32) -> f32 {
#if BIAS == 1
    let begin: u32 = ${BIAS_BATCH};
    return product * ${SCALE} + bias[begin + i * ${BIAS_ROW}u + j * ${BIAS_COL}u];
#else
    return product * ${SCALE};
#endif
}

/// Adds STEP terms of a product to a tile: of rows 4·ty and columns 4·tx and the three behind.
fn add_terms(sums: ptr<function, array<vec4<f32>, 4>>, ty: u32, tx: u32) {
    for (var k = 0u; k < STEP; k++) {
        let a = left[k * PITCH + ty];
        let b = right[k * PITCH + tx];
        (*sums)[0] = fma(vec4(a.x), b, (*sums)[0]);
        (*sums)[1] = fma(vec4(a.y), b, (*sums)[1]);
        (*sums)[2] = fma(vec4(a.z), b, (*sums)[2]);
        (*sums)[3] = fma(vec4(a.w), b, (*sums)[3]);
    }
}

/// As `add_terms`, with the weights from `first` on in the place of the left operand.
fn add_weighted(sums: ptr<function, array<vec4<f32>, 4>>, first: u32, ty: u32, tx: u32) {
    for (var k = 0u; k < STEP; k++) {
        let a = weights[(first + k) * PITCH + ty];
        let b = right[k * PITCH + tx];
        (*sums)[0] = fma(vec4(a.x), b, (*sums)[0]);
        (*sums)[1] = fma(vec4(a.y), b, (*sums)[1]);
        (*sums)[2] = fma(vec4(a.z), b, (*sums)[2]);
        (*sums)[3] = fma(vec4(a.w), b, (*sums)[3]);
    }
}

/// Puts an invocation's part of a tile where `add_weighted` reads it.
fn put_weights(tile: ptr<function, array<vec4<f32>, 4>>, ty: u32, tx: u32) {
    for (var j = 0u; j < 4u; j++) {
        weights[(tx * 4u + j) * PITCH + ty] = vec4((*tile)[0][j], (*tile)[1][j], (*tile)[2][j], (*tile)[3][j]);
    }
}
