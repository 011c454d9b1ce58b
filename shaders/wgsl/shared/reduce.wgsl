// Reductions over the WG values of a workgroup, in a tree of fixed order. All invocations call them together, and all
// get the result. WG, a constant of the kernel, is a power of two.

#include "shared/float"

var<workgroup> partials: array<f32, WG>;

fn workgroup_sum(lane: u32, value: f32) -> f32 {
    partials[lane] = value;
    for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            partials[lane] += partials[lane + stride];
        }
    }
    return workgroupUniformLoad(&partials[0]);
}

/// NaN if any value is.
fn workgroup_max(lane: u32, value: f32) -> f32 {
    partials[lane] = value;
    for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if lane < stride {
            partials[lane] = m_max(partials[lane], partials[lane + stride]);
        }
    }
    return workgroupUniformLoad(&partials[0]);
}
