// peaks[o,g]: the largest finite magnitude among the share of workgroup g in operand o. The maximum over g is that of the operand.
//
// Bindings: a, b → peaks[2,GROUPS]. GROUPS workgroups.
//
// Defines: WG a power of two; GROUPS
//          A_ELEM, B_ELEM f32, or vec4<f32> for operands of a multiple of four elements
//          A_LEN, B_LEN   elements of the operands, so counted
//          A_FROM, B_FROM where they begin in their bindings, so counted

#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const GROUPS: u32 = ${GROUPS};
const A_LEN: u32 = ${A_LEN};
const B_LEN: u32 = ${B_LEN};
/// Distance of the elements of an invocation.
const STRIDE: u32 = GROUPS * WG;

@group(0) @binding(0) var<storage, read> a: array<${A_ELEM}>;
@group(0) @binding(1) var<storage, read> b: array<${B_ELEM}>;
@group(0) @binding(2) var<storage, read_write> peaks: array<f32>;

fn magnitudes(x: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(x) & vec4(0x7fffffffu);
    return bitcast<vec4<f32>>(select(vec4<u32>(), bits, bits < vec4(0x7f800000u)));
}

fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = workgroup_index(workgroup, workgroups);
    if group >= GROUPS {
        return;
    }
    // Four at a time, so that loads need not wait for one another; past the end the last counts again.
    var of_a = vec4<f32>();
    for (var at = group * WG + lane; at < A_LEN; at += 4u * STRIDE) {
#for R in 4
        let a_${R} = a[${A_FROM}u + min(at + ${R}u * STRIDE, A_LEN - 1u)];
#endfor
#for R in 4
        of_a = max(of_a, magnitudes(vec4<f32>(a_${R})));
#endfor
    }
    var of_b = vec4<f32>();
    for (var at = group * WG + lane; at < B_LEN; at += 4u * STRIDE) {
#for R in 4
        let b_${R} = b[${B_FROM}u + min(at + ${R}u * STRIDE, B_LEN - 1u)];
#endfor
#for R in 4
        of_b = max(of_b, magnitudes(vec4<f32>(b_${R})));
#endfor
    }
    let peak_a = workgroup_max(lane, largest(of_a));
    let peak_b = workgroup_max(lane, largest(of_b));
    if lane == 0u {
        peaks[group] = peak_a;
        peaks[GROUPS + group] = peak_b;
    }
}
