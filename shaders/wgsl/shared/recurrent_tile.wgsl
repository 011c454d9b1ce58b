// The places of a step of a recurrent layer: a workgroup has ROWS rows and UNITS hidden units, and an invocation PAIRS
// pairs of a row and a unit. For `recurrent`, and for `recurrent_grad` with and without a product (shared/recurrent).
//
// The kernel includes shared/grid first, begins with tile(), and declares the places of pair P with pair(P): row_P and
// unit_P, and own_P, its element of [N,H], or 0 unless there_P.
//
// Defines: N, H     rows; hidden units
//          WG       invocations
//          ROWS, UNITS   of a tile; TILES_H tiles across, ⌈H/UNITS⌉, and TILES in all

const N: u32 = ${N};
const H: u32 = ${H};
const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const UNITS: u32 = ${UNITS};
const TILES_H: u32 = ${TILES_H};
const TILES: u32 = ${TILES};

#macro tile()
    let index = workgroup_index(workgroup, workgroups);
    if index >= TILES {
        return;
    }
    let row0 = index / TILES_H * ROWS;
    let unit0 = index % TILES_H * UNITS;
#endmacro

#macro pair(P)
    let pair_${P} = lane + ${P}u * WG;
    let row_${P} = row0 + pair_${P} / UNITS;
    let unit_${P} = unit0 + pair_${P} % UNITS;
    let there_${P} = pair_${P} < ROWS * UNITS && row_${P} < N && unit_${P} < H;
    let own_${P} = select(0u, row_${P} * H + unit_${P}, there_${P});
#endmacro
