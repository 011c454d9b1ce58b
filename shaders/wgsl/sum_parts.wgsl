// y[i] = Σ_p parts[p,AT], in order of p: adds up the parts of a reduction that was cut.
//
// Bindings: parts[PARTS,PART] → y[LEN] by its epilogue. SLICES invocations compute a sum, or with LINES one computes
// eight neighbours; ⌈LEN·SLICES/WG⌉ or ⌈LEN/8/WG⌉ workgroups.
//
// Defines: WG    SLICES times a multiple of TAPS, and with ROWS of 8
//          SLICES  at most PARTS; above 1 only if TAPS is
//          PARTS, PART, LEN
//          AT    the place of element i in a part, an expression of `i: u32`
//          TAPS  elements that are adjacent in the result, but far apart in a part; 1 where the orders agree
//          INTEGERS  defined where parts are i32; their sum wraps around
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
const SLICES: u32 = ${SLICES};
/// Sums of a workgroup.
const ACROSS: u32 = WG / SLICES;

#if INTEGERS
alias Part = i32;
#else
alias Part = f32;
#endif

#if LINES
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;
#else
@group(0) @binding(0) var<storage, read> parts: array<Part>;
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
    let first = workgroup_index(workgroup, workgroups) * ACROSS;
    let slot = lane % ACROSS;
    let i = first + slot % (ACROSS / TAPS) * TAPS + slot / (ACROSS / TAPS);
    var sum = Part();
    if i < LEN {
        let at = ${AT};
        var p = lane / ACROSS * PARTS / SLICES;
        let end = (lane / ACROSS + 1u) * PARTS / SLICES;
        sum = parts[p * PART + at];
        p += 1u;
        // Eight loads are in flight at a time.
        for (; p + 8u <= end; p += 8u) {
#for U in 8
            let part_${U} = parts[(p + ${U}u) * PART + at];
#endfor
#for U in 8
            sum += part_${U};
#endfor
        }
        for (; p < end; p++) {
            sum += parts[p * PART + at];
        }
    }
#if SLICES != 1
    sums[lane] = sum;
    workgroupBarrier();
    if lane < ACROSS {
        for (var slice = 1u; slice < SLICES; slice++) {
            sum += sums[slice * ACROSS + lane];
        }
    }
    workgroupBarrier();
#endif
#if ROWS
    if lane < ACROSS {
        sums[i - first] = sum;
    }
    workgroupBarrier();
    let at = 8u * lane;
    if at < ACROSS && first + at < LEN {
        let lower = vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
        let upper = vec4(sums[at + 4u], sums[at + 5u], sums[at + 6u], sums[at + 7u]);
        store_line(first + at, Eight(lower, upper));
    }
#elif TAPS == 1
    if lane < ACROSS && i < LEN {
        store(i, Stored(sum));
    }
#else
    if lane < ACROSS {
        sums[i - first] = sum;
    }
    workgroupBarrier();
    if lane < ACROSS && first + lane < LEN {
        store(first + lane, sums[lane]);
    }
#endif
#endif
}
