// `max_pool2d` of large windows: a workgroup looks for the winner of one.
//
// Bindings: x[N,H,W] → y[N,P,Q], index[N,P,Q] (u32). N·P·Q workgroups.
//
// Defines: those of `max_pool2d`; WG is a power of two
//          EACH  elements that an invocation looks at in a row, so that loads need not wait for one another

#include "shared/epilogue"
#include "shared/grid"
#include "shared/float"
#include "shared/window"

const WG: u32 = ${WG};
const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> index: array<u32>;

/// An element, and its place in its plane; NONE if there is none.
struct Winner {
    value: f32,
    place: u32,
}

var<workgroup> winners: array<Winner, WG>;

/// The winner of two: what is NaN, else what is larger, of two equals the first in the plane.
fn winner_of(a: Winner, b: Winner) -> Winner {
    if a.place == NONE || b.place == NONE {
        if a.place == NONE {
            return b;
        }
        return a;
    }
    let a_nan = is_nan(a.value);
    let b_nan = is_nan(b.value);
    var b_wins = b.place < a.place;
    if a_nan || b_nan {
        b_wins = b_nan && (b_wins || !a_nan);
    } else if a.value != b.value {
        b_wins = b.value > a.value;
    }
    if b_wins {
        return b;
    }
    return a;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let output = workgroup_index(workgroup, workgroups);
    if output >= N * P * Q {
        return;
    }
    let q = output % Q;
    let p = output / Q % P;
    let n = output / (P * Q);
    let rows = rows_inside(p);
    let columns = columns_inside(q);
    let first = (p * SH + rows.x * DH - PH) * W + q * SW + columns.x * DW - PW;
    let count = rows.y * columns.y;

    var winner = Winner(negative_infinity(), NONE);
    for (var t = lane; t < count; t += ${EACH}u * WG) {
        // The last may be looked at again.
#for E in EACH
        let t_${E} = min(t + ${E}u * WG, count - 1u);
        let place_${E} = first + t_${E} / columns.y * DH * W + t_${E} % columns.y * DW;
        let value_${E} = x[n * H * W + place_${E}];
#endfor
#for E in EACH
        winner = winner_of(winner, Winner(value_${E}, place_${E}));
#endfor
    }
    winners[lane] = winner;
    for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            winners[lane] = winner_of(winners[lane], winners[lane + stride]);
        }
    }
    if lane == 0u {
        store(output, winners[0].value);
        index[output] = winners[0].place;
    }
}
