// 2-D max pooling: y[n,p,q] = max over taps i, j of x[n, p·SH + i·DH − PH, q·SW + j·DW − PW], and index[n,p,q] = h·W + w of the
// winner inside its plane. The first of equals wins, and the first NaN wins over all. Padding acts as −∞; an output that sees
// nothing but padding is −∞, its index u32::MAX.
//
// Bindings: x[N,H,W] → y[N,P,Q], index[N,P,Q] (u32). One invocation computes an output; ⌈N·P·Q/WG⌉ workgroups.
//
// Defines: WG, H, W, P, Q
//          N number of planes, batch times channels
//          KH, KW taps; SH, SW stride; PH, PW padding; DH, DW dilation

#include "shared/epilogue"
#include "shared/grid"
#include "shared/float"
#include "shared/window"

const WG: u32 = ${WG};
const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> index: array<u32>;

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

    var best = negative_infinity();
    var winner = NONE;
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
            let at = u32(row) * W + u32(column);
            let value = x[n * H * W + at];
            if winner == NONE || (!is_nan(best) && (is_nan(value) || value > best)) {
                best = value;
                winner = at;
            }
        }
    }
    store(output, best);
    index[output] = winner;
}
