// For each channel of dy[N,C,S] and x[N,C,S]: Σ dy and Σ dy·(x − centre), in one pass. Gradients of a shift and of a
// factor of each channel are such sums.
//
// Bindings: x, centre[C] → parts[C,PARTS,2] (TO scratch; see `channel_sums_join`), or sum[C] and product[C] by its
// epilogue (TO result, with PARTS 1). dy is loaded through shared/prologue or shared/prologue_lines, each element once.
// ⌈UNITS·LANES/WG⌉ workgroups, or UNITS with lines.
//
// Defines: TO result or scratch; the others see shared/channels

#include "shared/channels"
#if FORMAT == lines
#include "shared/prologue_lines"
#else
#include "shared/prologue"
#endif
#if TO == result
#include "shared/epilogue_all"
#endif

@group(0) @binding(0) var<storage, read> x: array<Held>;
@group(0) @binding(1) var<storage, read> centre: array<f32>;
#if TO == scratch
@group(0) @binding(2) var<storage, read_write> parts: array<vec2<f32>>;
#endif

/// The centres of a cell's half h; for the padding, that of the last channel.
fn centre_of(own: u32, h: u32) -> V {
#if FORMAT == lines
    let c = own * 8u + h * 4u;
    return vec4(
        centre[min(c, C - 1u)],
        centre[min(c + 1u, C - 1u)],
        centre[min(c + 2u, C - 1u)],
        centre[min(c + 3u, C - 1u)],
    );
#else
    return centre[own];
#endif
}

fn load_cell(at: u32) -> Cell {
#if FORMAT == lines
    let line = load_line(8u * at);
    return Cell(line.first, line.second);
#else
    return Cell(load(at));
#endif
}

/// Adds the terms of cells FIRST, FIRST + APART, …, four of them, those below LAST.
#macro add_four(OWN, FIRST, LAST)
#for U in 4
            let at_${U} = ${FIRST} + ${U}u * APART;
            let in_${U} = at_${U} < ${LAST};
            let place_${U} = place(${OWN}, select(${FIRST}, at_${U}, in_${U}));
            let cell_${U} = cell(x[place_${U}]);
            let slope_${U} = load_cell(place_${U});
#endfor
#for H in HALVES
#for U in 4
            let dy_${H}_${U} = kept(slope_${U}[${H}], in_${U});
            let d_${H}_${U} = kept(cell_${U}[${H}] - centre_${H}, in_${U});
#endfor
            stretch_${H} += (dy_${H}_0 + dy_${H}_1) + (dy_${H}_2 + dy_${H}_3);
            dots_${H} += (dy_${H}_0 * d_${H}_0 + dy_${H}_1 * d_${H}_1) + (dy_${H}_2 * d_${H}_2 + dy_${H}_3 * d_${H}_3);
#endfor
#endmacro

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if is_beyond(index) {
        return;
    }
    let work = work_of(index, lane);
#for H in HALVES
    let centre_${H} = centre_of(work.own, ${H}u);
    var sum_${H} = V();
    var dot_${H} = V();
#endfor
    for (var r = work.begin + work.member; r < work.end; r += STRETCH * APART) {
        let last = min(r + STRETCH * APART, work.end);
#for H in HALVES
        var stretch_${H} = V();
        var dots_${H} = V();
#endfor
        for (var s = r; s < last; s += 4u * APART) {
#insert add_four(work.own, s, last)
        }
#for H in HALVES
        sum_${H} += stretch_${H};
        dot_${H} += dots_${H};
#endfor
    }
#if FORMAT == lines
    let sums = total_of(lane, Cell(sum_0, sum_1));
    let dots = total_of(lane, Cell(dot_0, dot_1));
    if lane < EIGHTS && work.is_unit {
#for H in HALVES
#for E in 4
        if 8u * work.own + ${H}u * 4u + ${E}u < C {
            parts[(8u * work.own + ${H}u * 4u + ${E}u) * PARTS + work.part] = vec2(sums[${H}][${E}], dots[${H}][${E}]);
        }
#endfor
#endfor
    }
#else
    let both = segment_total(lane, vec2(sum_0, dot_0));
    if work.is_unit && work.member == 0u {
#if TO == scratch
        parts[work.own * PARTS + work.part] = both;
#else
        store_all(work.own, vec4(both, 0.0, 0.0));
#endif
    }
#endif
}
