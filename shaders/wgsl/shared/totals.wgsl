// Sums over segments of a workgroup, two at once. A segment is LANES neighbours of its WG invocations, which work on
// one result. Eight partial sums are added between two barriers, so that 256 of them take three barriers.
//
// The order is fixed. All invocations of a workgroup call `segment_total` together; each gets the total of its segment.
//
// Defines: LANES, a power of two, at most 256, that divides the kernel's constant WG
//          AFTER_ONE, AFTER_TWO   partial sums of a segment after its values were added in eights, and after those
//                                 were: max(LANES/8, 1) and max(LANES/64, 1)

const LANES: u32 = ${LANES};
const AFTER_ONE: u32 = ${AFTER_ONE};
const AFTER_TWO: u32 = ${AFTER_TWO};

var<workgroup> totals_values: array<vec2<f32>, WG>;
var<workgroup> totals_once: array<vec2<f32>, WG / LANES * AFTER_ONE>;
var<workgroup> totals_twice: array<vec2<f32>, WG / LANES * AFTER_TWO>;

fn segment_total(lane: u32, value: vec2<f32>) -> vec2<f32> {
    if LANES == 1u {
        return value;
    }
    let segment = lane / LANES;
    let member = lane % LANES;
    totals_values[lane] = value;
    workgroupBarrier();
    if LANES <= 8u {
        let first = segment * LANES;
        var total = totals_values[first];
        for (var j = 1u; j < LANES; j++) {
            total += totals_values[first + j];
        }
        // After this barrier, the next call may overwrite the values.
        workgroupBarrier();
        return total;
    }
    if member < AFTER_ONE {
        let first = segment * LANES + member;
        var total = totals_values[first];
        for (var j = 1u; j < 8u; j++) {
            total += totals_values[first + j * AFTER_ONE];
        }
        totals_once[segment * AFTER_ONE + member] = total;
    }
    workgroupBarrier();
    if LANES <= 64u {
        var total = totals_once[segment * AFTER_ONE];
        for (var j = 1u; j < AFTER_ONE; j++) {
            total += totals_once[segment * AFTER_ONE + j];
        }
        return total;
    }
    if member < AFTER_TWO {
        let first = segment * AFTER_ONE + member;
        var total = totals_once[first];
        for (var j = 1u; j < 8u; j++) {
            total += totals_once[first + j * AFTER_TWO];
        }
        totals_twice[segment * AFTER_TWO + member] = total;
    }
    workgroupBarrier();
    var total = totals_twice[segment * AFTER_TWO];
    for (var j = 1u; j < AFTER_TWO; j++) {
        total += totals_twice[segment * AFTER_TWO + j];
    }
    return total;
}
