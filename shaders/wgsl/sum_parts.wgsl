// y[i] = Σ_p parts[p,AT], in a fixed order: what a reduction that was cut into parts ends with.
//
// Bindings: parts[PARTS,PART] → y[LEN], by its epilogue.
//
// Defines: WG, PARTS, PART, LEN
//          BY    element: an invocation computes a sum; ⌈LEN/WG⌉ workgroups
//                four: four invocations compute four sums whose terms lie beside each other, each of some parts;
//                ⌈LEN/COUNT⌉ workgroups
//                line: an invocation computes a line, whose terms lie in a part as in the result; ⌈LEN/8/WG⌉ workgroups
//          AT    where element i is in a part; of a line, i
//          TAPS  of fours, the distance in the result of what lies side by side in a part; LEN is a multiple of 4·TAPS

#if BY == line
#include "shared/epilogue_lines"
#else
#include "shared/epilogue"
#endif
#include "shared/grid"

const WG: u32 = ${WG};
const PARTS: u32 = ${PARTS};
const PART: u32 = ${PART};
const LEN: u32 = ${LEN};

#if BY == element
@group(0) @binding(0) var<storage, read> parts: array<f32>;
#else
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;
#endif

#if BY == four
const TAPS: u32 = ${TAPS};
/// Invocations that share a sum.
const LANES: u32 = 4u;
/// Fours of a tap, and elements of all taps, that a workgroup computes.
const FOURS: u32 = WG / (LANES * TAPS);
const COUNT: u32 = 4u * TAPS * FOURS;

var<workgroup> sums: array<f32, 4u * WG>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
#if BY == line
    let line = index * WG + lane;
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
#endif
#if BY == element
    let i = index * WG + lane;
    if i >= LEN {
        return;
    }
    let at = ${AT};
    var sum = parts[at];
    for (var p = 1u; p < PARTS; p++) {
        sum += parts[p * PART + at];
    }
    store(i, sum);
#endif
#if BY == four
    // Neighbours read neighbours, and pass on what neighbours store.
    let first = index * COUNT;
    let i = first + lane % FOURS * (4u * TAPS) + lane / FOURS % TAPS;
    if lane < COUNT && i < LEN {
        let at = (${AT}) / 4u;
        var sum = vec4<f32>();
        var p = lane / (FOURS * TAPS);
        // Four are on their way at a time.
        for (; p + 3u * LANES < PARTS; p += 4u * LANES) {
#for U in 4
            let part_${U} = parts[(p + ${U}u * LANES) * (PART / 4u) + at];
#endfor
#for U in 4
            sum += part_${U};
#endfor
        }
        for (; p < PARTS; p += LANES) {
            sum += parts[p * (PART / 4u) + at];
        }
#for K in 4
        sums[lane * 4u + ${K}u] = sum[${K}];
#endfor
    }
    workgroupBarrier();
    if lane < COUNT && first + lane < LEN {
        let tap = lane % TAPS;
        let side = lane / TAPS;
        var sum = 0.0;
#for L in 4
        sum += sums[((${L}u * TAPS + tap) * FOURS + side / 4u) * 4u + side % 4u];
#endfor
        store(first + lane, sum);
    }
#endif
}
