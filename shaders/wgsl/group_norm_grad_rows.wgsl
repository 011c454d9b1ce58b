// Gradient of `group_norm` where each element is a channel (S = 1), as in normalisation over the last axes; see
// `group_norm_grad` for the formula. LANES invocations hold a group in registers, HOLD elements each, and add up Σ dy·z
// and Σ dy of their channels over ROWS samples.
//
// Bindings: x[N,C], gamma[C], mean[N,G,2], rstd[N,G], dy[N,C] → dx[N,C] by its epilogue, sums[⌈N/ROWS⌉,2,C]; dy is
// loaded through shared/prologue, each element once. ⌈⌈N/ROWS⌉·G·LANES/WG⌉ workgroups.
//
// Defines: WG; LANES see shared/totals; HOLD·LANES ≥ C/G
//          N, C, G; ROWS; UNITS: ⌈N/ROWS⌉·G
//          FULL   the first FULL of an invocation's HOLD elements lie in the group, whatever the invocation

#include "shared/epilogue"
#include "shared/grid"
#include "shared/mean"
#include "shared/prologue"
#include "shared/totals"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const G: u32 = ${G};
const ROWS: u32 = ${ROWS};
const FULL: u32 = ${FULL};
const LEN: u32 = C / G;
const UNITS: u32 = ${UNITS};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read> mean: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;

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
    // Invocations without a group must still reach the barriers: they repeat the last group.
    let own = first + lane / LANES;
    let unit = min(own, UNITS - 1u);
    let member = lane % LANES;
    let first_c = unit % G * LEN;
    let part = unit / G;

#for K in HOLD
    let r_${K} = member + ${K}u * LANES;
    let in_${K} = (${K}u < FULL) | (r_${K} < LEN);
    let c_${K} = first_c + select(0u, r_${K}, in_${K});
    var sum_${K} = vec2<f32>();
#endfor
    for (var row = 0u; row < ROWS; row++) {
        let sample = min(part * ROWS + row, N - 1u);
        let is_sample = part * ROWS + row < N;
        let centre = mean[sample * G + unit % G];
        let scale = rstd[sample * G + unit % G];
#for K in HOLD
        let x_${K} = x[sample * C + c_${K}];
        let d_${K} = select(0.0, load(sample * C + c_${K}), in_${K});
        let t_${K} = d_${K} * gamma[c_${K}];
#endfor
        var own_sum = vec2<f32>();
#for K in HOLD
        let z_${K} = centred(x_${K}, centre) * scale;
        sum_${K} += select(vec2<f32>(), vec2(d_${K}, d_${K} * z_${K}), is_sample);
        own_sum += select(vec2<f32>(), vec2(t_${K}, t_${K} * z_${K}), in_${K});
#endfor
        let means = segment_total(lane, own_sum) / f32(LEN);
        if is_sample && own < UNITS {
#for K in HOLD
            if in_${K} {
                store(sample * C + c_${K}, scale * (t_${K} - means.x - z_${K} * means.y));
            }
#endfor
        }
    }
    if own < UNITS {
#for K in HOLD
        if in_${K} {
            sums[part * 2u * C + c_${K}] = sum_${K}.y;
            sums[part * 2u * C + C + c_${K}] = sum_${K}.x;
        }
#endfor
    }
}
