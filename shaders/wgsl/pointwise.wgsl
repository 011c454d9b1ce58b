// y[i] = f(x[i], …): a fused chain of elementwise operations, which the host writes.
//
// Bindings: those that BINDINGS declares. One invocation computes EACH units of every output, WG apart. A unit is an
// element, or a line of eight; ⌈N/WG/EACH⌉ workgroups.
//
// Defines: WG
//          N         number of units
//          EACH      units of an invocation, whose numbers are unit_0, unit_1, …
//          BINDINGS  declarations of the inputs and outputs
//          FUNCTIONS declarations of further functions and constants; may be empty
//          VALUES    statements that read and compute all units; they may call whatever shared/math and shared/bf16
//                    declare. A unit past the end repeats the last one
//          STORES    statements that store the units for which `is_unit(place_…)` holds

#include "shared/grid"
#include "shared/bf16"
#include "shared/math"

const WG: u32 = ${WG};
const N: u32 = ${N};
const EACH: u32 = ${EACH};
const WHOLE: bool = N % (WG * EACH) == 0u;

${BINDINGS}

${FUNCTIONS}

fn is_unit(place: u32) -> bool {
    return WHOLE || place < N;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = workgroup_index(workgroup, workgroups) * (WG * EACH) + lane;
#for E in EACH
    let place_${E} = place + ${E}u * WG;
    let unit_${E} = select(min(place_${E}, N - 1u), place_${E}, WHOLE);
#endfor
    ${VALUES}
    ${STORES}
}
