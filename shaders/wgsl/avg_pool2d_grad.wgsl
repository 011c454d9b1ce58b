// Gradient of `avg_pool2d`: dx[n,h,w] = Σ dy[n,p,q] / (number of elements that output averages) over the outputs p, q whose
// windows cover h, w.
//
// Bindings: dy[N,P,Q] → dx[N,H,W]. One invocation computes an element of dx; ⌈N·H·W/WG⌉ workgroups.
//
// Defines: those of `avg_pool2d`

#include "shared/epilogue"
#include "shared/grid"
#include "shared/avg_pool2d"

const WG: u32 = ${WG};

@group(0) @binding(0) var<storage, read> dy: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let input = workgroup_index(workgroup, workgroups) * WG + lane;
    if input >= N * H * W {
        return;
    }
    let column = input % W;
    let row = input / W % H;
    let n = input / (H * W);

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
            let at = (n * P + u32(p)) * Q + u32(q);
            sum += dy[at] / averaged(u32(p), u32(q));
        }
    }
    store(input, sum);
}
