// Group normalisation: y = (x − mean)·rstd·gamma + beta, with mean and rstd = 1/√(variance + EPS) over a sample's group of C/G
// channels and S positions. The variance is the mean of the centred squares: a second pass, but E[x²] − E[x]² cancels.
//
// Bindings: x[N,C,S], gamma[C], beta[C] → y[N,C,S], mean[N,G], rstd[N,G]. One workgroup normalises a group of a sample;
// N·G workgroups.
//
// Defines: WG a power of two; N, C, S, G; EPS a literal

#include "shared/epilogue"
#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const EPS: f32 = ${EPS};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> beta: array<f32>;
@group(0) @binding(3) var<storage, read_write> mean: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = workgroup_index(workgroup, workgroups);
    if group >= N * G {
        return;
    }
    let base = group * LEN;

    var sum = 0.0;
    for (var r = lane; r < LEN; r += WG) {
        sum += x[base + r];
    }
    let centre = workgroup_sum(lane, sum) / f32(LEN);

    var squares = 0.0;
    for (var r = lane; r < LEN; r += WG) {
        let d = x[base + r] - centre;
        squares += d * d;
    }
    let scale = 1.0 / sqrt(workgroup_sum(lane, squares) / f32(LEN) + EPS);

    let first_c = group % G * GROUP_C;
    for (var r = lane; r < LEN; r += WG) {
        let c = first_c + r / S;
        store(base + r, (x[base + r] - centre) * scale * gamma[c] + beta[c]);
    }
    if lane == 0u {
        mean[group] = centre;
        rstd[group] = scale;
    }
}
