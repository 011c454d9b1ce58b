// Gradient of `group_norm` with respect to its input: dx = rstd·(t − ⟨t⟩ − z·⟨t·z⟩), with z = (x − mean)·rstd the normalised
// input, t = dy·gamma, and ⟨·⟩ the mean over the group.
//
// Bindings: x[N,C,S], gamma[C], mean[N,G], rstd[N,G], dy[N,C,S] → dx[N,C,S]. One workgroup computes a group of a sample;
// N·G workgroups.
//
// Defines: WG a power of two; N, C, S, G

#include "shared/epilogue"
#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> mean: array<f32>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> dy: array<f32>;

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
    let first_c = group % G * GROUP_C;
    let centre = mean[group];
    let scale = rstd[group];

    var sum_t = 0.0;
    var sum_tz = 0.0;
    for (var r = lane; r < LEN; r += WG) {
        let t = dy[base + r] * gamma[first_c + r / S];
        sum_t += t;
        sum_tz += t * ((x[base + r] - centre) * scale);
    }
    let mean_t = workgroup_sum(lane, sum_t) / f32(LEN);
    let mean_tz = workgroup_sum(lane, sum_tz) / f32(LEN);

    for (var r = lane; r < LEN; r += WG) {
        let t = dy[base + r] * gamma[first_c + r / S];
        let z = (x[base + r] - centre) * scale;
        store(base + r, scale * (t - mean_t - z * mean_tz));
    }
}
