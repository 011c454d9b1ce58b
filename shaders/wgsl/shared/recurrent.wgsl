// The product in a step of a recurrent layer, for `recurrent` and `recurrent_grad`: sums of TERMS terms for each of N
// rows of the state and for each column of the weight. A workgroup computes ROWS rows and COLUMNS columns, which belong
// to UNITS hidden units. Its invocations form SPLITS groups, each of which adds PART terms for the whole tile, so that
// an invocation has EACH·WIDE fours of sums, and loads few operands for each from workgroup memory, which bounds the
// time. Operands pass through that memory, DEPTH terms of each group at a time; then the sums of the groups do: FOLDS
// times, one half of them adds those of the other, and `total` adds up the rest in their order.
//
// The kernel includes shared/grid and shared/math first. It gives macro multiply(), and
//     fn total(row: u32, column: u32) -> f32   a sum, by its place in the tile, after multiply()
//     fn state_at(i: u32) -> f32   element i of the state
//
// Bindings: state, whose first N·TERMS elements are the rows (AT_STATE), and weight (AT_WEIGHT)
//
// Defines: N, H     rows; hidden units
//          WG       invocations, SPLITS·DOWN·ACROSS
//          WEIGHT   along, if terms of a column are adjacent in the weight [·, H], and TERMS is H; column `c` of the
//                   tile is row c / UNITS·H + c % UNITS of the weight, counted from the first unit. Or across: the
//                   weight is [TERMS, H], and column c is that of the weight
//          HELD     weights and state: `one`, in f32; `four`, in f32 with H a multiple of 4; or `line`, weights in bf16
//                   with H a multiple of 8
//          TERMS, PART, SPLITS   PART a multiple of 8, SPLITS·PART at least TERMS
//          ROWS, COLUMNS, UNITS   of a tile; TILES_H tiles across, ⌈H/UNITS⌉, and TILES in all
//          EACH, WIDE   rows, and fours of columns, of an invocation; DOWN: ROWS/EACH, ACROSS: COLUMNS/(4·WIDE)
//          FOLDS    SPLITS is a multiple of 2^FOLDS
//          DEPTH, STEPS   terms in workgroup memory, a multiple of 4, or of 8 with lines; ⌈PART/DEPTH⌉
//          PITCH    the distance of rows in workgroup memory, in fours: odd
//          PLACES, PLACES_STATE   fours of workgroup memory; those of the state
//          LOADS_STATE, LOADS_WEIGHT   loads of an invocation in a step

#if HELD == line
#include "shared/bf16"
#endif

const N: u32 = ${N};
const H: u32 = ${H};
const WG: u32 = ${WG};
const TERMS: u32 = ${TERMS};
const PART: u32 = ${PART};
const SPLITS: u32 = ${SPLITS};
const ROWS: u32 = ${ROWS};
const COLUMNS: u32 = ${COLUMNS};
const UNITS: u32 = ${UNITS};
const TILES_H: u32 = ${TILES_H};
const TILES: u32 = ${TILES};
const DOWN: u32 = ${DOWN};
const ACROSS: u32 = ${ACROSS};
/// Fours of sums in a row.
const FOURS: u32 = COLUMNS / 4u;
const DEPTH: u32 = ${DEPTH};
const STEPS: u32 = ${STEPS};
const PITCH: u32 = ${PITCH};
const PLACES_STATE: u32 = ${PLACES_STATE};

#if HELD == one
alias Row = f32;
#else
alias Row = vec4<f32>;
#endif
#if HELD == line
alias Held = vec4<u32>;
const WIDTH: u32 = 8u;
#else
alias Held = vec4<f32>;
const WIDTH: u32 = 4u;
#endif

@group(0) @binding(${AT_STATE}) var<storage, read> state: array<Row>;
#if HELD == line
@group(0) @binding(${AT_WEIGHT}) var<storage, read> weight: array<vec4<u32>>;
#else
@group(0) @binding(${AT_WEIGHT}) var<storage, read> weight: array<Row>;
#endif

var<workgroup> places: array<vec4<f32>, ${PLACES}>;

fn state_at(i: u32) -> f32 {
#if HELD == one
    return state[i];
#else
    return state[i / 4u][i % 4u];
#endif
}

/// Terms `k` to `k + 3` of a row, zero outside.
fn load_state(row: u32, k: u32, end: u32) -> vec4<f32> {
#if HELD == one
    let at = row * TERMS + k;
    let there = vec4(row < N) & (vec4(k) + vec4(0u, 1u, 2u, 3u) < vec4(end));
    let from_0 = state[select(0u, at, there.x)];
    let from_1 = state[select(0u, at + 1u, there.y)];
    let from_2 = state[select(0u, at + 2u, there.z)];
    let from_3 = state[select(0u, at + 3u, there.w)];
    return select(vec4<f32>(), vec4(from_0, from_1, from_2, from_3), there);
#else
    let there = row < N && k < end;
    return select(vec4<f32>(), state[select(0u, (row * TERMS + k) / 4u, there)], there);
#endif
}

/// WIDTH neighbours of the weight from element `at` on, the first `count` of them; zeros for the others.
fn load_weight(at: u32, count: u32) -> Held {
#if HELD == one
    let there = vec4(0u, 1u, 2u, 3u) < vec4(count);
    let from_0 = weight[select(0u, at, there.x)];
    let from_1 = weight[select(0u, at + 1u, there.y)];
    let from_2 = weight[select(0u, at + 2u, there.z)];
    let from_3 = weight[select(0u, at + 3u, there.w)];
    return select(vec4<f32>(), vec4(from_0, from_1, from_2, from_3), there);
#else
    return select(Held(), weight[select(0u, at / WIDTH, count > 0u)], count > 0u);
#endif
}

fn put_weight(place: u32, held: Held) {
#if HELD == line
    let line = eight_of(held);
    places[place] = line.first;
    places[place + 1u] = line.second;
#else
    places[place] = held;
#endif
}

/// The elements from `x` on that are before `end`.
fn left(x: u32, end: u32) -> u32 {
    return select(0u, end - x, x < end);
}

fn total(row: u32, column: u32) -> f32 {
#if WEIGHT == along
    let four = column % FOURS;
    let part = column / FOURS;
#else
    let four = column / 4u;
    let part = column % 4u;
#endif
    var sum = places[row * FOURS + four][part];
    for (var split = 1u; split < (SPLITS >> ${FOLDS}u); split += 1u) {
        sum += places[(split * ROWS + row) * FOURS + four][part];
    }
    return sum;
}

// The groups' sums of the tile that begins at `row0` and `unit0`. It takes `lane`.
#macro multiply()
#for L in LOADS_STATE
    let load_${L} = min(lane + ${L}u * WG, SPLITS * ROWS * DEPTH / 4u - 1u);
    let row_of_${L} = load_${L} / (DEPTH / 4u);
    let term_${L} = row_of_${L} / ROWS * PART + load_${L} % (DEPTH / 4u) * 4u;
    let end_${L} = min(row_of_${L} / ROWS * PART + PART, TERMS);
    let place_${L} = row_of_${L} * PITCH + load_${L} % (DEPTH / 4u);
    var four_${L} = load_state(row0 + row_of_${L} % ROWS, term_${L}, end_${L});
#endfor
#for L in LOADS_WEIGHT
#if WEIGHT == along
    let load_w_${L} = min(lane + ${L}u * WG, SPLITS * COLUMNS * DEPTH / WIDTH - 1u);
    let column_of_${L} = load_w_${L} / (DEPTH / WIDTH);
    let split_of_${L} = column_of_${L} / COLUMNS;
    let unit_of_${L} = unit0 + column_of_${L} % UNITS;
    let first_${L} = (column_of_${L} % COLUMNS / UNITS * H + min(unit_of_${L}, H - 1u)) * H;
    let term_w_${L} = split_of_${L} * PART + load_w_${L} % (DEPTH / WIDTH) * WIDTH;
    let end_w_${L} = select(0u, min(split_of_${L} * PART + PART, H), unit_of_${L} < H);
    let place_w_${L} = PLACES_STATE + column_of_${L} * PITCH + load_w_${L} % (DEPTH / WIDTH) * (WIDTH / 4u);
    var held_${L} = load_weight(first_${L} + term_w_${L}, left(term_w_${L}, end_w_${L}));
#else
    let load_w_${L} = min(lane + ${L}u * WG, SPLITS * DEPTH * UNITS / WIDTH - 1u);
    let term_of_${L} = load_w_${L} / (UNITS / WIDTH);
    let unit_of_${L} = unit0 + load_w_${L} % (UNITS / WIDTH) * WIDTH;
    let units_${L} = left(unit_of_${L}, H);
    let term_w_${L} = term_of_${L} / DEPTH * PART + term_of_${L} % DEPTH;
    let end_w_${L} = min(term_of_${L} / DEPTH * PART + PART, TERMS);
    let place_w_${L} = PLACES_STATE + term_of_${L} * FOURS + load_w_${L} % (UNITS / WIDTH) * (WIDTH / 4u);
    var held_${L} = load_weight(term_w_${L} * H + unit_of_${L}, select(0u, units_${L}, term_w_${L} < end_w_${L}));
#endif
#endfor
    let split = lane / (DOWN * ACROSS);
    let down = lane % DOWN;
    let across = lane / DOWN % ACROSS;
#for I in EACH
#for J in WIDE
    var sum_${I}_${J} = vec4<f32>();
#endfor
    let of_sums_${I} = (split * ROWS + down + ${I}u * DOWN) * FOURS + across;
#endfor
    for (var step = 0u; step < STEPS; step += 1u) {
        workgroupBarrier();
#for L in LOADS_STATE
        if lane + ${L}u * WG < SPLITS * ROWS * DEPTH / 4u {
            places[place_${L}] = four_${L};
        }
#endfor
#for L in LOADS_WEIGHT
#if WEIGHT == along
        if lane + ${L}u * WG < SPLITS * COLUMNS * DEPTH / WIDTH {
#else
        if lane + ${L}u * WG < SPLITS * DEPTH * UNITS / WIDTH {
#endif
            put_weight(place_w_${L}, held_${L});
        }
#endfor
        workgroupBarrier();
        let next = (step + 1u) * DEPTH;
        // A part may end within a step, so the last loads of a group ask for terms of the next: nothing is there.
#for L in LOADS_STATE
        four_${L} = load_state(row0 + row_of_${L} % ROWS, term_${L} + next, end_${L});
#endfor
#for L in LOADS_WEIGHT
#if WEIGHT == along
        held_${L} = load_weight(first_${L} + term_w_${L} + next, left(term_w_${L} + next, end_w_${L}));
#else
        held_${L} = load_weight(
            (term_w_${L} + next) * H + unit_of_${L}, select(0u, units_${L}, term_w_${L} + next < end_w_${L}));
#endif
#endfor
        for (var q = 0u; q < DEPTH / 4u; q += 1u) {
#for J in WIDE
#if WEIGHT == along
            let at_${J} = PLACES_STATE + (split * COLUMNS + across + ${J}u * ACROSS) * PITCH + q;
#for K in 4
            let column_${J}_${K} = places[at_${J} + ${K}u * FOURS * PITCH];
#endfor
            let term_${J}_0 = vec4(column_${J}_0.x, column_${J}_1.x, column_${J}_2.x, column_${J}_3.x);
            let term_${J}_1 = vec4(column_${J}_0.y, column_${J}_1.y, column_${J}_2.y, column_${J}_3.y);
            let term_${J}_2 = vec4(column_${J}_0.z, column_${J}_1.z, column_${J}_2.z, column_${J}_3.z);
            let term_${J}_3 = vec4(column_${J}_0.w, column_${J}_1.w, column_${J}_2.w, column_${J}_3.w);
#else
            let at_${J} = PLACES_STATE + (split * DEPTH + 4u * q) * FOURS + across + ${J}u * ACROSS;
#for K in 4
            let term_${J}_${K} = places[at_${J} + ${K}u * FOURS];
#endfor
#endif
#endfor
#for I in EACH
            let of_row_${I} = places[(split * ROWS + down + ${I}u * DOWN) * PITCH + q];
#for J in WIDE
            sum_${I}_${J} = fma(vec4(of_row_${I}.x), term_${J}_0, sum_${I}_${J});
            sum_${I}_${J} = fma(vec4(of_row_${I}.y), term_${J}_1, sum_${I}_${J});
            sum_${I}_${J} = fma(vec4(of_row_${I}.z), term_${J}_2, sum_${I}_${J});
            sum_${I}_${J} = fma(vec4(of_row_${I}.w), term_${J}_3, sum_${I}_${J});
#endfor
#endfor
        }
    }
#for F in FOLDS
    workgroupBarrier();
    if split >= (SPLITS >> (${F}u + 1u)) && split < (SPLITS >> ${F}u) {
#for I in EACH
#for J in WIDE
        places[of_sums_${I} + ${J}u * ACROSS - (SPLITS >> (${F}u + 1u)) * ROWS * FOURS] = sum_${I}_${J};
#endfor
#endfor
    }
    workgroupBarrier();
    if split < (SPLITS >> (${F}u + 1u)) {
#for I in EACH
#for J in WIDE
        sum_${I}_${J} += places[of_sums_${I} + ${J}u * ACROSS];
#endfor
#endfor
    }
#endfor
    workgroupBarrier();
    if split < (SPLITS >> ${FOLDS}u) {
#for I in EACH
#for J in WIDE
        places[of_sums_${I} + ${J}u * ACROSS] = sum_${I}_${J};
#endfor
#endfor
    }
    workgroupBarrier();
#endmacro
