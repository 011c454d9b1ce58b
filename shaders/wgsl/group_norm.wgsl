// Group normalisation: y = (x − mean)·rstd·gamma + beta, with mean and rstd = 1/√(variance + EPS) over a sample's group of C/G
// channels and S positions. LANES invocations hold a group in registers, HOLD elements each, so that it is read once: E[x²] −
// E[x]² would cancel, and the mean of the centred squares needs the mean first. What the rounding of the mean left of it is found
// with the squares, and taken off as well. All is counted from the group's first element: a mean far above the spread has no room for
// the digits that matter, its distance from that element has.
//
// Bindings: x[N,C,S], gamma[C], beta[C] → y[N,C,S] by its epilogue, shift[N,G], rstd[N,G] (TO result), or of the elements from
// p·PART on, PART or as many as there are, parts[N,G,PARTS,2]: their shift, and the sum of their centred squares (TO scratch; see
// group_norm_apply). A shift is a mean less the group's first element. ⌈N·G·PARTS·LANES/WG⌉ workgroups.
//
// Defines: WG; LANES see shared/totals; HOLD·LANES ≥ PART
//          TO      result or scratch
//          N, C, S, G; EPS a literal
//          PART, PARTS the elements of a part, and the parts of a group; LEN and 1 where TO is result
//          FULL    how many of the HOLD elements of an invocation lie in every part
//          ALIGNED 1 where LANES divides S, else 0

#include "shared/grid"
#include "shared/totals"
#if TO == result
#include "shared/epilogue"
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
const UNITS: u32 = N * G * PARTS;

@group(0) @binding(0) var<storage, read> x: array<f32>;
#if TO == result
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> beta: array<f32>;
@group(0) @binding(3) var<storage, read_write> shift: array<f32>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;
#else
@group(0) @binding(1) var<storage, read_write> parts: array<vec2<f32>>;
#endif

/// The channel of element r of a group, which is element k of those that an invocation holds.
fn channel(k: u32, r: u32) -> u32 {
#if ALIGNED == 1
    return k * LANES / S;
#else
    return r / S;
#endif
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
    // Those without a part of their own must still meet the others: they repeat the last.
    let own = first + lane / LANES;
    let unit = min(own, UNITS - 1u);
    let member = lane % LANES;
    let group = unit / PARTS;
    let begin = group * LEN + unit % PARTS * PART;
    let count = min(PART, LEN - unit % PARTS * PART);

    let first_x = x[group * LEN];
#for K in HOLD
    let r_${K} = member + ${K}u * LANES;
    let in_${K} = (${K}u < FULL) | (r_${K} < count);
    let x_${K} = x[begin + select(0u, r_${K}, in_${K})] - first_x;
#endfor
    var sum = 0.0;
#for K in HOLD
    sum += select(0.0, x_${K}, in_${K});
#endfor
    let centre = segment_total(lane, vec2(sum, 0.0)).x / f32(count);

    var both = vec2<f32>();
#for K in HOLD
    let d_${K} = select(0.0, x_${K} - centre, in_${K});
    both += vec2(d_${K}, d_${K} * d_${K});
#endfor
    both = segment_total(lane, both);
    let rest = both.x / f32(count);

#if TO == scratch
    if member == 0u && own < UNITS {
        parts[unit] = vec2(centre + rest, both.y);
    }
#else
    let scale = 1.0 / sqrt(both.y / f32(count) + EPS);
    if own >= UNITS {
        return;
    }
    let first_c = group % G * GROUP_C;
#for K in HOLD
    if in_${K} {
        let c = first_c + channel(${K}u, r_${K});
        store(begin + r_${K}, (d_${K} - rest) * scale * gamma[c] + beta[c]);
    }
#endfor
    if member == 0u {
        shift[group] = centre + rest;
        rstd[group] = scale;
    }
#endif
}
