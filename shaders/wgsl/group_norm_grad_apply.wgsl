// The second pass of the gradient of `group_norm` where `group_norm_grad` summed blocks of groups. It adds up these, in
// a fixed order, and computes dx = rstd·(t − ⟨t⟩ − z·⟨t·z⟩).
//
// Bindings: x[N,C,S], gamma[C], mean[N,G,2], rstd[N,G], parts[N,G,BLOCKS,2], dy[N,C,S] → dx[N,C,S] by its epilogue; dy
// is loaded through shared/prologue, each element once. Each workgroup adds up the blocks anew and computes CHUNK
// elements of the group; N·G·⌈LEN/CHUNK⌉ workgroups.
//
// Defines: WG = LANES, see shared/totals
//          N, C, S, G
//          BLOCKS  that of `group_norm_grad`
//          CHUNK, CHUNKS   elements of a workgroup, and workgroups of a group

#include "shared/epilogue"
#include "shared/grid"
#include "shared/mean"
#include "shared/prologue"
#include "shared/totals"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const G: u32 = ${G};
const BLOCKS: u32 = ${BLOCKS};
const CHUNK: u32 = ${CHUNK};
const GROUP_C: u32 = C / G;
const LEN: u32 = GROUP_C * S;
const CHUNKS: u32 = ${CHUNKS};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> mean: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> parts: array<vec2<f32>>;

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
    var sum = vec2<f32>();
    for (var b = lane; b < BLOCKS; b += WG) {
        sum += parts[group * BLOCKS + b];
    }
    let means = segment_total(lane, sum) / f32(LEN);

    let centre = mean[group];
    let scale = rstd[group];
    let first_c = group % G * GROUP_C;
    let begin = group * LEN;
    let end = min(chunk * CHUNK + CHUNK, LEN);
    for (var r = chunk * CHUNK + lane; r < end; r += 4u * WG) {
        // Four at a time, so that loads need not wait for one another.
#for K in 4
        let r_${K} = r + ${K}u * WG;
        let at_${K} = begin + min(r_${K}, end - 1u);
        let z_${K} = centred(x[at_${K}], centre) * scale;
        let t_${K} = load(at_${K}) * gamma[first_c + min(r_${K}, end - 1u) / S];
        let epilogue_${K} = epilogue(at_${K});
#endfor
#for K in 4
        if r_${K} < end {
            finish(epilogue_${K}, scale * (t_${K} - means.x - z_${K} * means.y));
        }
#endfor
    }
}
