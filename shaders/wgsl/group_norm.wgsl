// Group normalisation: y = (x − mean)·rstd·gamma + beta, with mean and rstd = 1/√(variance + EPS) over a sample's group
// of C/G channels and S positions. LANES invocations hold a group, or a part of it, in registers, HOLD elements each,
// so that it is read once.
//
// The mean is the sum of two numbers, high + low. `high` is the mean rounded to f32. Where the mean is much larger than
// the standard deviation, it lacks the digits that matter. `low`, the mean of x − high, has them: these differences are
// exact near `high`.
//
// `high` is the first element plus the mean difference from it. Where the mean is much larger than the standard
// deviation, these differences are small, and `high` is off by half a unit in its last place. Where the first element
// is an outlier, `high` is off by a few units in the outlier's last place. That is little compared with the standard
// deviation, to which the outlier belongs, and `low` makes up for it.
//
// Squares are summed about `high`: Σ(x − mean)² = Σ(x − high)² − low·Σ(x − high). The difference cancels a bit or two
// at most. In the worst case, all numbers are whole steps from `high`, and the mean is up to half a step from it. Then
// the numbers vary by at least as much.
//
// Bindings: x[N,C,S], gamma[C], beta[C] → y[N,C,S] by its epilogue, mean[N,G,2], rstd[N,G] (TO result). Or x →
// parts[N,G,PARTS,4] (TO scratch; see `group_norm_apply`). Part p has the elements from p·PART on, PART at most. Its
// four numbers are its high and low, its sum of squares about the mean, and 0. ⌈N·G·PARTS·LANES/WG⌉ workgroups.
//
// Defines: WG; LANES see shared/totals; HOLD·LANES ≥ PART
//          TO      result or scratch
//          N, C, S, G; EPS a literal
//          PART, PARTS elements of a part, and parts of a group; LEN and 1 where TO is result
//          UNITS   parts of all groups, N·G·PARTS
//          FULL    the first FULL of an invocation's HOLD elements lie in every part, whatever the invocation
//          ALIGNED 1 where LANES divides S, else 0
//          FORMAT  that of shared/value; with lines, S, PART, LEN and HOLD count lines, and TO is result

#include "shared/grid"
#include "shared/mean"
#include "shared/totals"
#if TO == result
#include "shared/values"
#else
#include "shared/value"
#endif

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const EPS: f32 = ${EPS};
const PART: u32 = ${PART};
const PARTS: u32 = ${PARTS};
const FULL: u32 = ${FULL};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;
const UNITS: u32 = ${UNITS};

@group(0) @binding(0) var<storage, read> x: array<Held>;
#if TO == result
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> beta: array<f32>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;
#else
@group(0) @binding(1) var<storage, read_write> parts: array<vec4<f32>>;
#endif

/// The channel, within the group, of element r of the group, which is number k of those that its invocation holds.
fn channel(k: u32, r: u32) -> u32 {
#if ALIGNED == 1
    return k * LANES / S;
#else
    return r / S;
#endif
}

/// The total of an invocation's partial sums. All additions to a sum after an outlier round in the same direction. With
/// eight sums, these are few.
fn sum_of_eight(s: array<vec2<f32>, 8>) -> vec2<f32> {
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * (WG / LANES);
    if first >= UNITS {
        return;
    }
    // Invocations without a part must still reach the barriers: they repeat the last part.
    let own = first + lane / LANES;
    let unit = min(own, UNITS - 1u);
    let member = lane % LANES;
    let group = unit / PARTS;
    let begin = group * LEN + unit % PARTS * PART;
    let count = min(PART, LEN - unit % PARTS * PART);

    let held_x = value(x[begin]);
#if FORMAT == lines
    let first_x = held_x[0].x;
#else
    let first_x = held_x;
#endif
#for K in HOLD
    let r_${K} = member + ${K}u * LANES;
    let in_${K} = (${K}u < FULL) | (r_${K} < count);
    let x_${K} = value(x[begin + select(0u, r_${K}, in_${K})]);
#endfor
    var sums: array<vec2<f32>, 8>;
#for K in HOLD
    sums[${K}u % 8u].x += total(where_true(plus(x_${K}, -first_x), in_${K}));
#endfor
    let high = first_x + segment_total(lane, sum_of_eight(sums)).x / f32(count * WIDTH);

    sums = array<vec2<f32>, 8>();
#for K in HOLD
    let d_${K} = where_true(plus(x_${K}, -high), in_${K});
    sums[${K}u % 8u] += vec2(total(d_${K}), total_of_products(d_${K}, d_${K}));
#endfor
    let both = segment_total(lane, sum_of_eight(sums));
    let low = both.x / f32(count * WIDTH);
    let squares = squares_about_mean(both, low);

#if TO == scratch
    if member == 0u && own < UNITS {
        parts[unit] = vec4(high, low, squares, 0.0);
    }
#else
    let scale = reciprocal_deviation(squares / f32(count * WIDTH), EPS);
    if own >= UNITS {
        return;
    }
    let first_c = group % G * GROUP_C;
#for K in HOLD
    if in_${K} {
        let c = first_c + channel(${K}u, r_${K});
        store_value(begin + r_${K}, plus(plus(d_${K}, -low) * scale * gamma[c], beta[c]));
    }
#endfor
    if member == 0u {
        mean[group] = vec2(high, low);
        rstd[group] = scale;
    }
#endif
}
