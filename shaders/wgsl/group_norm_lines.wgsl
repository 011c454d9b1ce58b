// Group normalisation of bf16: y = (x − mean)·rstd·gamma + beta, with mean and rstd = 1/√(variance + EPS) over an
// image's group of C/G channels. The statistics are those of `group_norm`: the mean is the sum of two numbers, `high`
// and `low`, and squares are summed about `high`.
//
// Unlike there, `high` is a plain sum divided by the count, and may be off by a few units in its last place. That costs
// no digits, because two different bf16 numbers differ by at least 2¹⁵ such units.
//
// Bindings: x[N,C,S] in lines, gamma[C], beta[C] → y[N,C,S] in lines by its epilogue, mean[N,G,2], rstd[N,G]. A
// workgroup computes a slab; N·C/SLAB workgroups.
//
// Defines: those of shared/group_norm_lines
//          PLANES is 2·CELLS
//          EPS a literal

#include "shared/epilogue_lines"
#include "shared/grid"
#include "shared/group_norm_lines"
#include "shared/mean"

const EPS: f32 = ${EPS};

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> gamma: array<OfChannels>;
@group(0) @binding(2) var<storage, read> beta: array<OfChannels>;
@group(0) @binding(3) var<storage, read_write> mean: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> rstd: array<f32>;

/// `high`, `low` and rstd of the slab's groups.
var<workgroup> groups: array<vec3<f32>, GROUPS>;

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
    var sum = Sum();
#if HELD == 0
    for (var step = 0u; step < STEPS; step++) {
        let first = own + step * STEP;
#insert read_step(begin, first)
#endif
#for Q in QUADS
        var quad_${Q} = Eight();
#for K in EACH
        quad_${Q} = plus(quad_${Q}, only(in_${Q}_${K}, eight_of(x_${Q}_${K})));
#endfor
        sum = added(sum, quad_${Q});
#endfor
#if HELD == 0
        sum = after(sum, step);
    }
#endif
    let sums = cells_of(sum_of(sum));
    var planes = array<f32, PLANES>();
#for J in CELLS
    planes[${J}] = sums[${J}];
#endfor
    add_pixels(lane, planes, CELLS);
    fold_groups(lane, CELLS);
    for (var g = lane; g < GROUPS; g += WG) {
        groups[g].x = group_total(g, CELLS).x / f32(LEN);
    }
    workgroupBarrier();

    var highs = array<f32, CELLS>();
#for J in CELLS
    highs[${J}] = groups[group_of(octet, ${J}u)].x;
#endfor
    let high = line_of_cells(highs);
    sum = Sum();
    var squares = Sum();
#if HELD == 0
    for (var step = 0u; step < STEPS; step++) {
        let first = own + step * STEP;
#insert read_step(begin, first)
#endif
#for Q in QUADS
        var about_${Q} = Eight();
        var squares_${Q} = Eight();
#for K in EACH
        let d_${Q}_${K} = only(in_${Q}_${K}, minus(again(x_${Q}_${K}), high));
        about_${Q} = plus(about_${Q}, d_${Q}_${K});
        squares_${Q} = plus(squares_${Q}, times(d_${Q}_${K}, d_${Q}_${K}));
#endfor
        sum = added(sum, about_${Q});
        squares = added(squares, squares_${Q});
#endfor
#if HELD == 0
        sum = after(sum, step);
        squares = after(squares, step);
    }
#endif
    let sums_about = cells_of(sum_of(sum));
    let squares_about = cells_of(sum_of(squares));
#for J in CELLS
    planes[${J}] = sums_about[${J}];
    planes[CELLS + ${J}u] = squares_about[${J}];
#endfor
    add_pixels(lane, planes, PLANES);
    fold_groups(lane, PLANES);
    for (var g = lane; g < GROUPS; g += WG) {
        let both = group_total(g, PLANES);
        let low = both.x / f32(LEN);
        let scale = reciprocal_deviation(squares_about_mean(both, low) / f32(LEN), EPS);
        let high_of_group = groups[g].x;
        groups[g] = vec3(high_of_group, low, scale);
        if slab * GROUPS + g < G {
            mean[image * G + slab * GROUPS + g] = vec2(high_of_group, low);
            rstd[image * G + slab * GROUPS + g] = scale;
        }
    }
    workgroupBarrier();

    // y = (x − high)·factor + shift
    var lows = array<f32, CELLS>();
    var scales = array<f32, CELLS>();
#for J in CELLS
    lows[${J}] = groups[group_of(octet, ${J}u)].y;
    scales[${J}] = groups[group_of(octet, ${J}u)].z;
#endfor
#insert line_of_channels(weight, gamma, line)
#insert line_of_channels(bias, beta, line)
    let factor = times(line_of_cells(scales), weight);
    let shift = minus(bias, times(line_of_cells(lows), factor));
#if HELD == 0
    for (var step = 0u; step < STEPS; step++) {
        let first = own + step * STEP;
#insert read_step(begin, first)
#endif
#for Q in QUADS
#for K in EACH
        let e_${Q}_${K} = epilogue(8u * at_${Q}_${K});
#endfor
#for K in EACH
        if in_${Q}_${K} {
            finish(e_${Q}_${K}, plus(times(minus(again(x_${Q}_${K}), high), factor), shift));
        }
#endfor
#endfor
#if HELD == 0
    }
#endif
}
