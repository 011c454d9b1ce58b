// Max pooling, of an image: y[n,p,q] = max over taps i, j of x[n, p·SH + i·DH − PH, q·SW + j·DW − PW], and index[n,p,q]
// = h·W + w, the place of the winner in its channel. Of volumes, the window has planes, too. The first of equal
// elements wins, and the first NaN wins over all. Padding acts as −∞. An output that sees only padding is −∞, and its
// index is u32::MAX.
//
// Bindings: x[N,IN_D,H,W] → y[N,OUT_D,P,Q] by its epilogue, index[N,OUT_D,P,Q] (u32); or in lines x[N,IN_D,H,W,SIDE] →
// y[N,OUT_D,P,Q,SIDE], index[N,CHANNELS,OUT_D,P,Q]. BY invocation: each invocation computes an output, or a line of
// eight; ⌈N·OUT_D·P·Q·SIDE/WG⌉ workgroups. BY workgroup: each workgroup computes an output, in a tree; as many
// workgroups as outputs.
//
// Defines: those of shared/pool and shared/values; BY workgroup, FORMAT is full
//          CHANNELS  of images in lines, whose last line may have fewer than eight
//          BY    invocation or workgroup
//          WG    BY workgroup: a power of two
//          EACH  BY workgroup: elements that an invocation loads at once, so that loads need not wait for one another

#include "shared/grid"
#include "shared/float"
#include "shared/pool"
#include "shared/values"

const WG: u32 = ${WG};
const NONE: u32 = 0xffffffffu;
#if FORMAT == lines
const CHANNELS: u32 = ${CHANNELS};
#endif

@group(0) @binding(0) var<storage, read> x: array<Held>;
@group(0) @binding(1) var<storage, read_write> index: array<u32>;

#if BY == invocation
/// `true` if `x` wins over the best of the elements before it.
fn wins(x: f32, best: f32, winner: u32) -> bool {
    return winner == NONE || (!is_nan(best) && (is_nan(x) || x > best));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = workgroup_index(workgroup, workgroups) * WG + lane;
    if number >= N * OUTPUTS * SIDE {
        return;
    }
    let side = number % SIDE;
    let output = output_of(number / SIDE);
    let n = number / (SIDE * OUTPUTS);
    let planes = planes_inside(output.x);
    let rows = rows_inside(output.y);
    let columns = columns_inside(output.z);
    let first = first_pixel(output, vec3(planes.x, rows.x, columns.x));

#if FORMAT == lines
    var best = Value(vec4(negative_infinity()), vec4(negative_infinity()));
    var winners = array<vec4<u32>, 2>(vec4(NONE), vec4(NONE));
#else
    var best = negative_infinity();
    var winner = NONE;
#endif
    for (var i = 0u; i < planes.y * rows.y; i++) {
        for (var j = 0u; j < columns.y; j++) {
            let place = first + row_of_window(i, rows.y) + j * DW;
            let x = value(x[(n * INPUTS + place) * SIDE + side]);
#if FORMAT == lines
#for V in 2
#for K in 4
            if wins(x[${V}][${K}], best[${V}][${K}], winners[${V}][${K}]) {
                best[${V}][${K}] = x[${V}][${K}];
                winners[${V}][${K}] = place;
            }
#endfor
#endfor
#else
            if wins(x, best, winner) {
                best = x;
                winner = place;
            }
#endif
        }
    }
    store_value(number, best);
#if FORMAT == lines
    let channel = n * CHANNELS + side * 8u;
#for V in 2
#for K in 4
    if side * 8u + 4u * ${V}u + ${K}u < CHANNELS {
        index[(channel + 4u * ${V}u + ${K}u) * OUTPUTS + number / SIDE % OUTPUTS] = winners[${V}][${K}];
    }
#endfor
#endfor
#else
    index[number] = winner;
#endif
}
#else
/// An element, and its place in its channel; NONE if there is none.
struct Winner {
    value: f32,
    place: u32,
}

var<workgroup> winners: array<Winner, WG>;

/// The winner of two: NaN, else the larger, and of two equals the one that is first in the channel.
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
    let number = workgroup_index(workgroup, workgroups);
    if number >= N * OUTPUTS {
        return;
    }
    let output = output_of(number);
    let n = number / OUTPUTS;
    let planes = planes_inside(output.x);
    let rows = rows_inside(output.y);
    let columns = columns_inside(output.z);
    let first = first_pixel(output, vec3(planes.x, rows.x, columns.x));
    let count = planes.y * rows.y * columns.y;

    var winner = Winner(negative_infinity(), NONE);
    for (var t = lane; t < count; t += ${EACH}u * WG) {
        // Past the end, the last element is compared again.
#for E in EACH
        let t_${E} = min(t + ${E}u * WG, count - 1u);
        let place_${E} = first + row_of_window(t_${E} / columns.y, rows.y) + t_${E} % columns.y * DW;
        let value_${E} = x[n * INPUTS + place_${E}];
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
        store(number, winners[0].value);
        index[number] = winners[0].place;
    }
}
#endif
