// Sums of each channel of images in lines, over parts of the pixels. The gradient of a convolution's bias is the sum of
// these.
//
// Bindings: x[PIXELS,C] through shared/prologue_lines → parts[PARTS,C]. A workgroup sums EIGHTS neighbouring lines of
// each pixel of a part; its invocations take different pixels. PARTS·⌈C/8/EIGHTS⌉ workgroups.
//
// Defines: WG
//          PIXELS, C a multiple of 8
//          PARTS, CHUNK  number of parts, and pixels of a part; the last part has between one and CHUNK
//          EIGHTS        a power of two; BLOCKS: ⌈C/8/EIGHTS⌉
//          ROWS, RUN     see below

#include "shared/prologue_lines"
#include "shared/grid"

const WG: u32 = ${WG};
const PIXELS: u32 = ${PIXELS};
const LINES: u32 = ${C} / 8u;
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};
const EIGHTS: u32 = ${EIGHTS};
const BLOCKS: u32 = ${BLOCKS};
/// Neighbouring pixels that a workgroup reads at once, and such reads of a run. Each run has a sum of its own: in one
/// long chain, every small element after a large one would be rounded.
const ROWS: u32 = ${ROWS};
const RUN: u32 = ${RUN};

@group(0) @binding(0) var<storage, read_write> parts: array<vec4<f32>>;

var<workgroup> sums: array<Eight, WG>;

fn sum_of(a: Eight, b: Eight) -> Eight {
    return Eight(a.first + b.first, a.second + b.second);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= PARTS * BLOCKS {
        return;
    }
    let line = index % BLOCKS * EIGHTS + lane % EIGHTS;
    let part = index / BLOCKS;
    let end = select(min(part * CHUNK + CHUNK, PIXELS), 0u, line >= LINES);
    var sum = Eight();
    for (var first = part * CHUNK + lane / EIGHTS; first < end; first += RUN * ROWS) {
        var run = Eight();
        for (var step = 0u; step < RUN; step += 4u) {
            // Four loads are in flight at a time.
#for U in 4
            let pixel_${U} = first + (step + ${U}u) * ROWS;
            var line_${U} = Eight();
            if pixel_${U} < end {
                line_${U} = load_line((pixel_${U} * LINES + line) * 8u);
            }
#endfor
#for U in 4
            run = sum_of(run, line_${U});
#endfor
        }
        sum = sum_of(sum, run);
    }
    sums[lane] = sum;
    for (var stride = WG / 2u; stride >= EIGHTS; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            sums[lane] = sum_of(sums[lane], sums[lane + stride]);
        }
    }
    if lane < EIGHTS && line < LINES {
        let to = (part * LINES + line) * 2u;
        parts[to] = sums[lane].first;
        parts[to + 1u] = sums[lane].second;
    }
}
