// 2-D convolution: y[n,o,p,q] = Σ_{c,i,j} x[n, g·C/G + c, p·SH + i·DH − PH, q·SW + j·DW − PW] · w[o,c,i,j], where output channel
// o belongs to group g = ⌊o·G/O⌋ and x is zero outside its planes.
//
// Bindings: x[N,C,H,W], w[O,C/G,KH,KW] → y[N,O,P,Q]. One invocation computes an element of y; ⌈N·O·P·Q/WG⌉ workgroups.
//
// Defines: WG, N, C, H, W, O, P, Q, G
//          KH, KW taps; SH, SW stride; PH, PW padding; DH, DW dilation

#include "shared/epilogue"
#include "shared/grid"
#include "shared/conv2d"

const WG: u32 = ${WG};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= N * O * P * Q {
        return;
    }
    let q = index % Q;
    let p = index / Q % P;
    let o = index / (P * Q) % O;
    let n = index / (O * P * Q);
    let first_c = o / GROUP_O * GROUP_C;

    var sum = 0.0;
    for (var i = 0u; i < KH; i++) {
        let row = input_row(p, i);
        if row < 0 {
            continue;
        }
        for (var j = 0u; j < KW; j++) {
            let column = input_column(q, j);
            if column < 0 {
                continue;
            }
            for (var c = 0u; c < GROUP_C; c++) {
                let x_at = ((n * CHANNELS + first_c + c) * H + u32(row)) * W + u32(column);
                let w_at = ((o * GROUP_C + c) * KH + i) * KW + j;
                sum += x[x_at] * w[w_at];
            }
        }
    }
    store(index, sum);
}
