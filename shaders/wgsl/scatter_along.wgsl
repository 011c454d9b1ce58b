// y[o,r,i] = the sum, or the maximum, of those x[o,k,i] with index[o,k,i] = r; 0 where there are none.
//
// Bindings: index[O,COUNT,INNER], x[O,COUNT,INNER] → y[O,ROWS,INNER] by its epilogue. A segment of LANES invocations
// compares all COUNT indices with a result's, in a fixed order. ⌈N/(WG/LANES)⌉ workgroups.
//
// Defines: WG, LANES, ACROSS see shared/segments
//          FOLD sum, or max of numbers that are at least 0
//          N    number of elements of y
//          ROWS, COUNT, INNER

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const ROWS: u32 = ${ROWS};
const COUNT: u32 = ${COUNT};
const INNER: u32 = ${INNER};

#include "shared/segment_folds"

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = workgroup_index(workgroup, workgroups) * SEGMENTS + segment_of(lane);
    var value = 0.0;
    if i < N {
        let first = i / (ROWS * INNER) * COUNT * INNER + i % INNER;
        let row = i / INNER % ROWS;
        for (var k = member_of(lane); k < COUNT; k += LANES) {
            if index[first + k * INNER] == row {
#if FOLD == sum
                value += x[first + k * INNER];
#else
                value = m_max(value, x[first + k * INNER]);
#endif
            }
        }
    }
#if FOLD == sum
    value = segment_sum(lane, value);
#else
    value = segment_max(lane, value);
#endif
    if i < N && member_of(lane) == 0u {
        store(i, value);
    }
}
