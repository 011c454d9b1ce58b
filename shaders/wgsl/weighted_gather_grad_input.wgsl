// Gradient of `weighted_gather`: dx[n,c,r] = Σ w[n,t,k]·dy[n,c,k] over the t and k with index[n,t,k] = r, in a fixed
// order.
//
// Bindings: index[·,TAPS,COUNT], w[·,TAPS,COUNT], dy[·,CHANNELS,COUNT] → dx[·,CHANNELS,COLUMNS] by its epilogue. A
// segment of LANES invocations has ABREAST channels of a column, BLOCKS of which make up all channels. It compares all
// indices of the image with the column. ⌈N/(WG/LANES)⌉ workgroups.
//
// Defines: WG, LANES, ACROSS see shared/segments
//          N        number of such segments
//          CHANNELS, COLUMNS, TAPS, COUNT
//          ABREAST
//          BLOCKS   ⌈CHANNELS/ABREAST⌉

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const CHANNELS: u32 = ${CHANNELS};
const COLUMNS: u32 = ${COLUMNS};
const TAPS: u32 = ${TAPS};
const COUNT: u32 = ${COUNT};
const ABREAST: u32 = ${ABREAST};
const BLOCKS: u32 = ${BLOCKS};

#include "shared/segment_folds"

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = workgroup_index(workgroup, workgroups) * SEGMENTS + segment_of(lane);
    let column = i % COLUMNS;
    let image = i / (COLUMNS * BLOCKS);
    let channel = i / COLUMNS % BLOCKS * ABREAST;
    // None if the segment has no column.
    let channels = select(0u, min(ABREAST, CHANNELS - channel), i < N);
    var sums: array<f32, ABREAST>;
    if channels > 0u {
        let first = image * TAPS * COUNT;
        for (var at = member_of(lane); at < TAPS * COUNT; at += LANES) {
            if index[first + at] == column {
                let place = (image * CHANNELS + channel) * COUNT + at % COUNT;
                for (var c = 0u; c < channels; c++) {
                    sums[c] += w[first + at] * dy[place + c * COUNT];
                }
            }
        }
    }
    for (var c = 0u; c < ABREAST; c++) {
        let sum = segment_sum(lane, sums[c]);
        if c < channels && member_of(lane) == 0u {
            store((image * CHANNELS + channel + c) * COLUMNS + column, sum);
        }
    }
}
