// y[i] = Σ_p parts[p,AT], in order of p: adds up the parts of a reduction that was cut.
//
// Bindings: parts[PARTS,PART] → y[LEN] by its epilogue. One invocation computes a sum, or with LINES eight neighbours;
// ⌈LEN/WG⌉ or ⌈LEN/8/WG⌉ workgroups.
//
// Defines: WG    a multiple of TAPS, and with ROWS of 8
//          PARTS, PART, LEN
//          AT    the place of element i in a part, an expression of `i: u32`
//          TAPS  elements that are adjacent in the result, but far apart in a part; 1 where the orders agree
//          LINES defined where sums are stored in lines: LEN is a multiple of 8, and parts have the result's order
//          ROWS  defined where sums are stored in lines, whatever the order of parts: LEN is a multiple of 8

#if LINES
#include "shared/epilogue_lines"
#elif ROWS
#include "shared/epilogue_lines"
#else
#include "shared/epilogue"
#endif
#include "shared/grid"

const WG: u32 = ${WG};
const PARTS: u32 = ${PARTS};
const PART: u32 = ${PART};
const LEN: u32 = ${LEN};
const TAPS: u32 = ${TAPS};

#if LINES
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;
#else
@group(0) @binding(0) var<storage, read> parts: array<f32>;
#endif

#if ROWS
var<workgroup> sums: array<f32, WG>;
#elif TAPS != 1
var<workgroup> sums: array<f32, WG>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
#if LINES
    let line = workgroup_index(workgroup, workgroups) * WG + lane;
    if line >= LEN / 8u {
        return;
    }
    let e = epilogue(line * 8u);
    var sum = Eight(parts[2u * line], parts[2u * line + 1u]);
    for (var p = 1u; p < PARTS; p++) {
        let at = p * (PART / 4u) + 2u * line;
        sum = Eight(sum.first + parts[at], sum.second + parts[at + 1u]);
    }
    finish(e, sum);
#else
    // Neighbouring invocations read neighbouring elements, and pass their sums to the invocations that store them.
    let first = workgroup_index(workgroup, workgroups) * WG;
    let i = first + lane % (WG / TAPS) * TAPS + lane / (WG / TAPS);
    if i < LEN {
        let at = ${AT};
        var sum = parts[at];
        // Eight loads are in flight at a time.
        var p = 1u;
        for (; p + 8u <= PARTS; p += 8u) {
#for U in 8
            let part_${U} = parts[(p + ${U}u) * PART + at];
#endfor
#for U in 8
            sum += part_${U};
#endfor
        }
        for (; p < PARTS; p++) {
            sum += parts[p * PART + at];
        }
#if ROWS
        sums[i - first] = sum;
    }
    workgroupBarrier();
    let at = 8u * lane;
    if at < WG && first + at < LEN {
        let lower = vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
        let upper = vec4(sums[at + 4u], sums[at + 5u], sums[at + 6u], sums[at + 7u]);
        store_line(first + at, Eight(lower, upper));
    }
#elif TAPS == 1
        store(i, sum);
    }
#else
        sums[i - first] = sum;
    }
    workgroupBarrier();
    if first + lane < LEN {
        store(first + lane, sums[lane]);
    }
#endif
#endif
}
