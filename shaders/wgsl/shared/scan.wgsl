// Scans of lines: y[o,k,i] is the result of the terms x[o,l,i] over l ≤ k, or with REVERSE 1 over l ≥ k.
//
// Bindings: x[O,LEN,INNER] → y by its epilogue. BY invocation: each invocation scans a line; ⌈LINES/WG⌉ workgroups. BY
// workgroup: each workgroup scans a line, WG elements at a time, in log₂ WG steps; LINES workgroups.
//
// The kernel declares
//     alias Sum                          the state of a scan
//     fn neutral() -> Sum                of no terms
//     fn term(x: Element) -> Sum         of one
//     fn joined(a: Sum, b: Sum) -> Sum   of the terms of a, then those of b
//     fn result(sum: Sum) -> Element     the element of y
//
// Defines: WG; BY invocation or workgroup
//          REVERSE 0 or 1
//          LINES, LEN, INNER
//          ELEMENT see shared/element

#include "shared/element"
#include "shared/epilogue"

const LINES: u32 = ${LINES};
const LEN: u32 = ${LEN};
const INNER: u32 = ${INNER};

@group(0) @binding(0) var<storage, read> x: array<Element>;

/// The place of the element that is added after `k` others.
fn place(line: u32, k: u32) -> u32 {
#if REVERSE == 1
    let at = LEN - 1u - k;
#else
    let at = k;
#endif
    return (line / INNER * LEN + at) * INNER + line % INNER;
}

#if BY == invocation
#include "shared/elements"

const ELEMENTS: u32 = LINES;

fn compute(line: u32) {
    var sum = neutral();
    for (var k = 0u; k < LEN; k++) {
        sum = joined(sum, term(x[place(line, k)]));
        store(place(line, k), result(sum));
    }
}
#else
#include "shared/grid"

const WG: u32 = ${WG};

var<workgroup> partials: array<Sum, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let line = workgroup_index(workgroup, workgroups);
    var before = neutral();
    for (var first = 0u; first < LEN; first += WG) {
        let k = first + lane;
        var sum = neutral();
        if line < LINES && k < LEN {
            sum = term(x[place(line, k)]);
        }
        for (var step = 1u; step < WG; step *= 2u) {
            partials[lane] = sum;
            workgroupBarrier();
            if lane >= step {
                sum = joined(partials[lane - step], sum);
            }
            workgroupBarrier();
        }
        partials[lane] = sum;
        workgroupBarrier();
        if line < LINES && k < LEN {
            store(place(line, k), result(joined(before, sum)));
        }
        before = joined(before, partials[WG - 1u]);
        workgroupBarrier();
    }
}
#endif
