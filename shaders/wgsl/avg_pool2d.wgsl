// 2-D average pooling: y[n,p,q] = mean over taps i, j of x[n, p·SH + i·DH − PH, q·SW + j·DW − PW]. INCLUDE_PAD 1: padding counts,
// as zeros. INCLUDE_PAD 0: only what lies inside counts; an output that sees nothing but padding is 0.
//
// Bindings: x[N,H,W] → y[N,P,Q]. One invocation computes an output; ⌈N·P·Q/WG⌉ workgroups.
//
// Defines: those of `max_pool2d`, and INCLUDE_PAD

#include "shared/epilogue"
#include "shared/grid"
#include "shared/window"

const WG: u32 = ${WG};

@group(0) @binding(0) var<storage, read> x: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let output = workgroup_index(workgroup, workgroups) * WG + lane;
    if output >= N * P * Q {
        return;
    }
    let q = output % Q;
    let p = output / Q % P;
    let n = output / (P * Q);

    var sum = 0.0;
    var inside = 0u;
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
            sum += x[(n * H + u32(row)) * W + u32(column)];
            inside += 1u;
        }
    }
#if INCLUDE_PAD == 1
    store(output, sum / (f32(KH) * f32(KW)));
#else
    store(output, sum / f32(max(inside, 1u)));
#endif
}
