// Gradient of `group_norm` with respect to its parameters: dgamma[c] = Σ_{n,s} dy·z and dbeta[c] = Σ_{n,s} dy, with
// z = (x − mean)·rstd the normalised input.
//
// Bindings: x[N,C,S], mean[N,G], rstd[N,G], dy[N,C,S] → dgamma[C], dbeta[C]. One workgroup computes a channel; C workgroups.
//
// Defines: WG a power of two; N, C, S, G

#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const GROUP_C: u32 = C / G;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> mean: array<f32>;
@group(0) @binding(2) var<storage, read> rstd: array<f32>;
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> dgamma: array<f32>;
@group(0) @binding(5) var<storage, read_write> dbeta: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let c = workgroup_index(workgroup, workgroups);
    if c >= C {
        return;
    }

    var sum_gamma = 0.0;
    var sum_beta = 0.0;
    for (var r = lane; r < N * S; r += WG) {
        let n = r / S;
        let at = (n * C + c) * S + r % S;
        let group = n * G + c / GROUP_C;
        sum_gamma += dy[at] * ((x[at] - mean[group]) * rstd[group]);
        sum_beta += dy[at];
    }
    let total_gamma = workgroup_sum(lane, sum_gamma);
    let total_beta = workgroup_sum(lane, sum_beta);
    if lane == 0u {
        dgamma[c] = total_gamma;
        dbeta[c] = total_beta;
    }
}
