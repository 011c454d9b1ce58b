// Gradient of `group_norm` on bf16: dx = rstd·(t − ⟨t⟩ − z·⟨t·z⟩), where z = (x − mean)·rstd is the normalised input,
// t = dy·gamma, and ⟨·⟩ the mean over the group. Also Σ dy·z and Σ dy of each channel of an image;
// `group_norm_grad_sums` adds those up.
//
// Bindings: x[N,C,S] in lines, gamma[C], mean[N,G,2], rstd[N,G], dy[N,C,S] in lines → dx[N,C,S] in lines by its
// epilogue, and sums[N,2,C]. dy is loaded through shared/prologue_lines, each line once where HELD is 1, else twice. A
// workgroup computes a slab; N·C/SLAB workgroups.
//
// Defines: those of shared/group_norm_lines
//          PLANES is 2·CELLS + 16

#include "shared/epilogue_lines"
#include "shared/grid"
#include "shared/group_norm_lines"
#include "shared/prologue_lines"

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> gamma: array<OfChannels>;
@group(0) @binding(2) var<storage, read> mean: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;

/// ⟨t⟩ and ⟨t·z⟩ of the slab's groups.
var<workgroup> means: array<vec2<f32>, GROUPS>;

/// The first of the planes of channels' sums, which follow those of cells' sums.
const CHANNELS: u32 = 2u * CELLS;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let unit = workgroup_index(workgroup, workgroups);
    if unit >= N * SLABS {
        return;
    }
    let image = unit / SLABS;
    let slab = unit % SLABS;
    let octet = lane % OCTETS;
    let own = lane / OCTETS;
    let line = slab * OCTETS + octet;
    let begin = image * S * LINES + line;
    prepare(lane);

#if HELD == 1
    let first = own;
#insert read_step(begin, first)
#endif
    var highs = array<f32, CELLS>();
    var lows = array<f32, CELLS>();
    var scales = array<f32, CELLS>();
#for J in CELLS
    let mean_${J} = mean[image * G + group_at(slab, group_of(octet, ${J}u))];
    highs[${J}] = mean_${J}.x;
    lows[${J}] = mean_${J}.y;
    scales[${J}] = rstd[image * G + group_at(slab, group_of(octet, ${J}u))];
#endfor
    let high = line_of_cells(highs);
    let low = line_of_cells(lows);
    let scale = line_of_cells(scales);
#insert line_of_channels(weight, gamma, line)
#if HELD == 1
#for Q in QUADS
#for K in EACH
    let d_${Q}_${K} = only(in_${Q}_${K}, load_line(8u * at_${Q}_${K}));
#endfor
#endfor
#endif
    var sum = Sum();
    var dot = Sum();
#if HELD == 0
    for (var step = 0u; step < STEPS; step++) {
        let first = own + step * STEP;
#insert read_step(begin, first)
#for Q in QUADS
#for K in EACH
        let d_${Q}_${K} = only(in_${Q}_${K}, load_line(8u * at_${Q}_${K}));
#endfor
#endfor
#endif
#for Q in QUADS
        var sum_${Q} = Eight();
        var dot_${Q} = Eight();
#for K in EACH
        sum_${Q} = plus(sum_${Q}, d_${Q}_${K});
        dot_${Q} = plus(dot_${Q}, times(d_${Q}_${K}, minus(eight_of(x_${Q}_${K}), high)));
#endfor
        sum = added(sum, sum_${Q});
        dot = added(dot, dot_${Q});
#endfor
#if HELD == 0
        sum = after(sum, step);
        dot = after(dot, step);
    }
#endif
    // Sums of dy and dy·z by channels, and of t and t·z by cells.
    let channel = sum_of(sum);
    let channel_z = times(minus(sum_of(dot), times(low, channel)), scale);
    let cells = cells_of(times(weight, channel));
    let cells_z = cells_of(times(weight, channel_z));
    var planes = array<f32, PLANES>();
#for J in CELLS
    planes[${J}] = cells[${J}];
    planes[CELLS + ${J}u] = cells_z[${J}];
#endfor
#for I in 4
    planes[CHANNELS + ${I}u] = channel_z.first[${I}];
    planes[CHANNELS + ${I}u + 4u] = channel_z.second[${I}];
    planes[CHANNELS + ${I}u + 8u] = channel.first[${I}];
    planes[CHANNELS + ${I}u + 12u] = channel.second[${I}];
#endfor
    add_pixels(lane, planes, PLANES);
    fold_groups(lane, PLANES);
    for (var g = lane; g < GROUPS; g += WG) {
        means[g] = group_total(g, PLANES) / f32(LEN);
    }
    // Start from the last invocations, because the first ones are busy with groups.
    for (var i = WG - 1u - lane; i < 2u * SLAB; i += WG) {
        let c = i % SLAB;
        let total = plane_total(c / 8u, CHANNELS + i / SLAB * 8u + c % 8u);
        if slab * SLAB + c < C {
            sums[(image * 2u + i / SLAB) * C + slab * SLAB + c] = total;
        }
    }
    workgroupBarrier();

    // dx = dy·factor + (x − high)·slope + shift
    var means_t = array<f32, CELLS>();
    var means_tz = array<f32, CELLS>();
#for J in CELLS
    means_t[${J}] = means[group_of(octet, ${J}u)].x;
    means_tz[${J}] = -means[group_of(octet, ${J}u)].y;
#endfor
    let factor = times(weight, scale);
    let slope = times(times(line_of_cells(means_tz), scale), scale);
    let shift = minus(Eight(), plus(times(line_of_cells(means_t), scale), times(low, slope)));
#if HELD == 0
    for (var step = 0u; step < STEPS; step++) {
        let first = own + step * STEP;
#insert read_step(begin, first)
#for Q in QUADS
#for K in EACH
        let d_${Q}_${K} = load_line(8u * at_${Q}_${K});
#endfor
#endfor
#endif
#for Q in QUADS
#for K in EACH
        let e_${Q}_${K} = epilogue(8u * at_${Q}_${K});
#endfor
#for K in EACH
        if in_${Q}_${K} {
            let centred_${Q}_${K} = minus(again(x_${Q}_${K}), high);
            let rest_${Q}_${K} = plus(times(centred_${Q}_${K}, slope), shift);
            finish(e_${Q}_${K}, plus(times(d_${Q}_${K}, factor), rest_${Q}_${K}));
        }
#endfor
#endfor
#if HELD == 0
    }
#endif
}
