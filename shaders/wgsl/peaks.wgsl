// peaks[g]: the largest finite magnitude among the share of workgroup g in x. The maximum over g is that of x.
//
// Bindings: x → peaks[GROUPS]. GROUPS workgroups.
//
// Defines: WG a power of two; GROUPS
//          ELEM f32, or vec4<f32> for an operand of a multiple of four elements
//          LEN  elements of the operand, so counted
//          FROM where it begins in its binding, so counted

#include "shared/grid"
#include "shared/reduce"

const WG: u32 = ${WG};
const GROUPS: u32 = ${GROUPS};
const LEN: u32 = ${LEN};
/// Distance of the elements of an invocation.
const STRIDE: u32 = GROUPS * WG;

@group(0) @binding(0) var<storage, read> x: array<${ELEM}>;
@group(0) @binding(1) var<storage, read_write> peaks: array<f32>;

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
    var largest_of = vec4<f32>();
    for (var at = group * WG + lane; at < LEN; at += 4u * STRIDE) {
#for R in 4
        let x_${R} = x[${FROM}u + min(at + ${R}u * STRIDE, LEN - 1u)];
#endfor
#for R in 4
        largest_of = max(largest_of, magnitudes(vec4<f32>(x_${R})));
#endfor
    }
    let peak = workgroup_max(lane, largest(largest_of));
    if lane == 0u {
        peaks[group] = peak;
    }
}
