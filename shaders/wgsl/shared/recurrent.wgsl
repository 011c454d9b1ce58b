// The product in a step of a recurrent layer, for `recurrent` and `recurrent_grad`: sums of TERMS terms for each of N
// rows of the state and for each column of the weight. A workgroup computes ROWS rows and COLUMNS columns, which belong
// to UNITS hidden units. Its invocations form SPLITS groups, each of which adds PART terms for the whole tile: a single
// group would wait for memory most of the time. Operands pass through workgroup memory, DEPTH terms of each group at a
// time; then the sums of the groups do, which `total` adds up in their order.
//
// The kernel includes shared/grid and shared/math first. It gives macro multiply(), and
//     fn total(row: u32, column: u32) -> f32   a sum, by its place in the tile, after multiply()
//     fn state_at(i: u32) -> f32   element i of the state
//
// Bindings: state, whose first N·TERMS elements are the rows (AT_STATE), and weight (AT_WEIGHT)
//
// Defines: those of shared/recurrent_tile; WG is SPLITS·DOWN·ACROSS
//          WEIGHT   along, if terms of a column are adjacent in the weight [·, H], and TERMS is H; column `c` of the
//                   tile is row c / UNITS·H + c % UNITS of the weight, counted from the first unit. Or across: the
//                   weight is [TERMS, H], and column c is that of the weight
//          HELD     weights and state: `one`, in f32; `four`, in f32 with H a multiple of 4; or `line`, weights in bf16
//                   with H a multiple of 8
//          TERMS, PART, SPLITS   PART a multiple of 8, SPLITS·PART at least TERMS
//          COLUMNS  of a tile
//          EACH     rows of an invocation; DOWN: ROWS/EACH, ACROSS: COLUMNS/4
//          DEPTH, STEPS   terms in workgroup memory, a multiple of 4, or of 8 with lines; ⌈PART/DEPTH⌉
//          PITCH    the distance of rows in workgroup memory, in fours: odd
//          PLACES, PLACES_STATE   fours of workgroup memory; those of the state
//          LOADS_STATE, LOADS_WEIGHT   loads of an invocation in a step

#include "shared/recurrent_tile"
#if HELD == line
#include "shared/bf16"
#endif

const TERMS: u32 = ${TERMS};
const PART: u32 = ${PART};
const SPLITS: u32 = ${SPLITS};
const COLUMNS: u32 = ${COLUMNS};
const DOWN: u32 = ${DOWN};
const ACROSS: u32 = ${ACROSS};
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
#elif HELD == four
    return select(vec4<f32>(), weight[select(0u, at / WIDTH, count > 0u)], count > 0u);
#else
    return select(vec4<u32>(), weight[select(0u, at / WIDTH, count > 0u)], count > 0u);
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
    let group = column % ACROSS;
    let part = column / ACROSS;
#else
    let group = column / 4u;
    let part = column % 4u;
#endif
    var sum = places[row * ACROSS + group][part];
    for (var split = 1u; split < SPLITS; split += 1u) {
        sum += places[(split * ROWS + row) * ACROSS + group][part];
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
    let place_w_${L} = PLACES_STATE + term_of_${L} * ACROSS + load_w_${L} % (UNITS / WIDTH) * (WIDTH / 4u);
    var held_${L} = load_weight(term_w_${L} * H + unit_of_${L}, select(0u, units_${L}, term_w_${L} < end_w_${L}));
#endif
#endfor
    let split = lane / (DOWN * ACROSS);
    let down = lane % DOWN;
    let across = lane / DOWN % ACROSS;
#for I in EACH
    var sum_${I} = vec4<f32>();
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
#if WEIGHT == along
            let at = PLACES_STATE + (split * COLUMNS + across) * PITCH + q;
            let column_0 = places[at];
            let column_1 = places[at + ACROSS * PITCH];
            let column_2 = places[at + 2u * ACROSS * PITCH];
            let column_3 = places[at + 3u * ACROSS * PITCH];
            let term_0 = vec4(column_0.x, column_1.x, column_2.x, column_3.x);
            let term_1 = vec4(column_0.y, column_1.y, column_2.y, column_3.y);
            let term_2 = vec4(column_0.z, column_1.z, column_2.z, column_3.z);
            let term_3 = vec4(column_0.w, column_1.w, column_2.w, column_3.w);
#else
            let at = PLACES_STATE + (split * DEPTH + 4u * q) * ACROSS + across;
            let term_0 = places[at];
            let term_1 = places[at + ACROSS];
            let term_2 = places[at + 2u * ACROSS];
            let term_3 = places[at + 3u * ACROSS];
#endif
#for I in EACH
            let of_row_${I} = places[(split * ROWS + down + ${I}u * DOWN) * PITCH + q];
            sum_${I} = fma(vec4(of_row_${I}.x), term_0, sum_${I});
            sum_${I} = fma(vec4(of_row_${I}.y), term_1, sum_${I});
            sum_${I} = fma(vec4(of_row_${I}.z), term_2, sum_${I});
            sum_${I} = fma(vec4(of_row_${I}.w), term_3, sum_${I});
#endfor
        }
    }
    workgroupBarrier();
#for I in EACH
    places[(split * ROWS + down + ${I}u * DOWN) * ACROSS + across] = sum_${I};
#endfor
    workgroupBarrier();
#endmacro
