// Gradient of `group_norm`: with respect to its input dx = rstd·(t − ⟨t⟩ − z·⟨t·z⟩), with z = (x − mean)·rstd the normalised
// input, t = dy·gamma, and ⟨·⟩ the mean over the group; and of each sample and channel dot = Σ_s dy·z and sum = Σ_s dy, whose
// sums over the samples are the gradients with respect to gamma and beta.
//
// Bindings: x[N,C,S], gamma[C], mean[N,G], rstd[N,G], dy[N,C,S] → dx[N,C,S], dot[N,C], sum[N,C]; dy is loaded through
// shared/prologue, twice each element. One workgroup computes a group of a sample, channel by channel; N·G workgroups.
//
// Defines: WG a power of two; N, C, S, G

#include "shared/epilogue"
#include "shared/grid"
#include "shared/prologue"
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
@group(0) @binding(4) var<storage, read_write> dot: array<f32>;
@group(0) @binding(5) var<storage, read_write> sum: array<f32>;

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

    var mean_t = 0.0;
    var mean_tz = 0.0;
    for (var c = 0u; c < GROUP_C; c++) {
        var part_sum = 0.0;
        var part_dot = 0.0;
        for (var at = base + c * S + lane; at < base + (c + 1u) * S; at += WG) {
            let d = load(at);
            part_sum += d;
            part_dot += d * ((x[at] - centre) * scale);
        }
        let channel_sum = workgroup_sum(lane, part_sum);
        let channel_dot = workgroup_sum(lane, part_dot);
        if lane == 0u {
            sum[group * GROUP_C + c] = channel_sum;
            dot[group * GROUP_C + c] = channel_dot;
        }
        mean_t += gamma[first_c + c] * channel_sum;
        mean_tz += gamma[first_c + c] * channel_dot;
    }
    mean_t /= f32(LEN);
    mean_tz /= f32(LEN);

    for (var r = lane; r < LEN; r += WG) {
        let t = load(base + r) * gamma[first_c + r / S];
        let z = (x[base + r] - centre) * scale;
        store(base + r, scale * (t - mean_t - z * mean_tz));
    }
}
