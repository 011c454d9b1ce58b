// Gradient of `conv2d` with respect to its weight:
// dw[o,c,i,j] = Σ_{n,p,q} x[n, g·C/G + c, p·SH + i·DH − PH, q·SW + j·DW − PW] · dy[n,o,p,q], where o belongs to group g.
//
// Bindings: x[N,C,H,W], dy[N,O,P,Q] → dw[O,C/G,KH,KW]. One workgroup computes an element of dw, in a tree over n, p and q;
// O·C/G·KH·KW workgroups.
//
// Defines: those of `conv2d`; WG is a power of two

#include "shared/epilogue"
#include "shared/grid"
#include "shared/conv2d"
#include "shared/reduce"

const WG: u32 = ${WG};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= O * GROUP_C * KH * KW {
        return;
    }
    let j = index % KW;
    let i = index / KW % KH;
    let o = index / (GROUP_C * KH * KW);
    let c = o / GROUP_O * GROUP_C + index / (KH * KW) % GROUP_C;

    var sum = 0.0;
    for (var pixel = lane; pixel < N * P * Q; pixel += WG) {
        let q = pixel % Q;
        let p = pixel / Q % P;
        let n = pixel / (P * Q);
        let row = input_row(p, i);
        let column = input_column(q, j);
        if row >= 0 && column >= 0 {
            let x_at = ((n * CHANNELS + c) * H + u32(row)) * W + u32(column);
            let dy_at = ((n * O + o) * P + p) * Q + q;
            sum += x[x_at] * dy[dy_at];
        }
    }
    let result = workgroup_sum(lane, sum);
    if lane == 0u {
        store(index, result);
    }
}
