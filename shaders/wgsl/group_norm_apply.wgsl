// The second pass of group normalisation where `group_norm` summed parts of groups. It joins these, in a fixed order,
// to the group's mean and rstd, and computes y = (x − mean)·rstd·gamma + beta. Parts are joined as `group_norm` sums
// elements: first `high`, relative to the first part's, then `low` and the squares about `high`.
//
// Bindings: x[N,C,S], gamma[C], beta[C], parts[N,G,PARTS,4] → y[N,C,S] by its epilogue, mean[N,G,2], rstd[N,G]. Each
// workgroup joins the parts anew and computes CHUNK elements of the group; N·G·⌈LEN/CHUNK⌉ workgroups.
//
// Defines: WG = LANES, see shared/totals
//          N, C, S, G; EPS a literal
//          PART, PARTS  those of `group_norm`
//          CHUNK, CHUNKS   elements of a workgroup, and workgroups of a group

#include "shared/epilogue"
#include "shared/grid"
#include "shared/mean"
#include "shared/totals"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const EPS: f32 = ${EPS};
const PART: u32 = ${PART};
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;
const CHUNKS: u32 = ${CHUNKS};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> beta: array<f32>;
@group(0) @binding(3) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> mean: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> rstd: array<f32>;

/// The number of elements of part p.
fn count(p: u32) -> f32 {
    return f32(min(PART, LEN - p * PART));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= N * G * CHUNKS {
        return;
    }
    let group = index / CHUNKS;
    let chunk = index % CHUNKS;

    let first = parts[group * PARTS].x;
    var sum = 0.0;
    for (var p = lane; p < PARTS; p += WG) {
        let part = parts[group * PARTS + p];
        sum += count(p) * ((part.x - first) + part.y);
    }
    let high = first + segment_total(lane, vec2(sum, 0.0)).x / f32(LEN);
    var both = vec2<f32>();
    for (var p = lane; p < PARTS; p += WG) {
        let part = parts[group * PARTS + p];
        let d = (part.x - high) + part.y;
        both += vec2(count(p) * d, part.z + count(p) * d * d);
    }
    both = segment_total(lane, both);
    let low = both.x / f32(LEN);
    let scale = reciprocal_deviation(squares_about_mean(both, low) / f32(LEN), EPS);

    let first_c = group % G * GROUP_C;
    let begin = group * LEN;
    let end = min(chunk * CHUNK + CHUNK, LEN);
    for (var r = chunk * CHUNK + lane; r < end; r += 4u * WG) {
        // Four at a time, so that loads need not wait for one another.
#for K in 4
        let r_${K} = r + ${K}u * WG;
        let at_${K} = min(r_${K}, end - 1u);
        let c_${K} = first_c + at_${K} / S;
        let y_${K} = centred(x[begin + at_${K}], vec2(high, low)) * scale * gamma[c_${K}] + beta[c_${K}];
        let epilogue_${K} = epilogue(begin + at_${K});
#endfor
#for K in 4
        if r_${K} < end {
            finish(epilogue_${K}, y_${K});
        }
#endfor
    }
    if chunk == 0u && lane == 0u {
        mean[group] = vec2(high, low);
        rstd[group] = scale;
    }
}
