// Gradient of `conv2d` with respect to its input: dx[n,c,h,v] = Σ_{o,i,j} dy[n,o,p,q] · w[o, c mod C/G, i, j], summed over the
// output channels o of c's group and the taps i, j for which outputs p, q exist: p·SH + i·DH − PH = h, q·SW + j·DW − PW = v.
//
// Bindings: dy[N,O,P,Q], w[O,C/G,KH,KW] → dx[N,C,H,W]. One invocation computes an element of dx; ⌈N·C·H·W/WG⌉ workgroups.
//
// Defines: those of `conv2d`

#include "shared/epilogue"
#include "shared/grid"
#include "shared/conv2d"

const WG: u32 = ${WG};

@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= N * CHANNELS * H * W {
        return;
    }
    let column = index % W;
    let row = index / W % H;
    let c = index / (H * W) % CHANNELS;
    let n = index / (CHANNELS * H * W);
    let first_o = c / GROUP_C * GROUP_O;

    var sum = 0.0;
    for (var i = 0u; i < KH; i++) {
        let p = output_row(row, i);
        if p < 0 {
            continue;
        }
        for (var j = 0u; j < KW; j++) {
            let q = output_column(column, j);
            if q < 0 {
                continue;
            }
            for (var o = first_o; o < first_o + GROUP_O; o++) {
                let dy_at = ((n * O + o) * P + u32(p)) * Q + u32(q);
                let w_at = ((o * GROUP_C + c % GROUP_C) * KH + i) * KW + j;
                sum += dy[dy_at] * w[w_at];
            }
        }
    }
    store(index, sum);
}
