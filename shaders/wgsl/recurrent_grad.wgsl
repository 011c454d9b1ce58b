// The gradient of a step of a recurrent layer (`recurrent`). The cotangent d of the state after the step is the sum of
// those from the outputs, of the step after it through the product with the weight, which is computed here, and of that
// step directly. From d and from what `recurrent` saved follow the cotangents of the gates' sums:
//
//     tanh, relu   d·(1 − h'²), d where h' > 0
//     lstm         e = d_c + d·o·(1 − tanh² c');  e·g·i·(1 − i), e·c·f·(1 − f), e·i·(1 − g²), d·tanh(c')·o·(1 − o);
//                  f·e goes on to c
//     gru          v = d·(1 − z)·(1 − n²);  v·m·r·(1 − r), d·(h − n)·z·(1 − z), v, and v·r for m = W₂·h + bias;
//                  d·z goes on to h
//
// FORM last is the last step, which has no product; FORM start computes the cotangents of the initial state alone.
// With MASK, a row whose mask is 0 passes all on.
//
// Bindings, by the defines AT_…: unless FORM is last, the state and the weight of shared/recurrent: the state has the
// cotangents [N,GATES·H] of the step after this one, then those [N,H] that go on to h, then those to c; HIDDEN: the
// cotangents of the outputs of all steps. FORM start: D_HIDDEN[N,H], and D_CELL[N,H] (lstm). Else: SUMS: the cotangents
// of the gates' sums of all steps, [N,BLOCKS·H] for each, of gru v before v·r; NEXT: the state of the next launch;
// VALUES: the states of all steps (lstm: the cell states); SAVED: see `recurrent`; MASK[N]; with CELL, D_LAST[N,H]: the
// cotangent of the last cell state. A workgroup computes a tile of shared/recurrent; TILES workgroups.
//
// Defines: those of shared/recurrent, with WEIGHT across; FORM last has those of shared/recurrent_tile alone
//          FORM     last, step or start
//          FORMULA  tanh, relu, lstm or gru
//          GATES, BLOCKS   1, 1, 4 or 3; 1, 1, 4 or 4
//          PAIRS    elements of the state for each invocation, ⌈ROWS·UNITS/WG⌉
//          HIDDEN_FROM, SUMS_TO, BEFORE, AFTER, SAVED_FROM, MASK_FROM   the first element of a step in its binding; of
//                   VALUES, that of the state before the step, and of the one after
//          MASKED   defined where there is a mask
//          DIRECT   defined where cotangents go on to h
//          CELL     FORM last of an lstm: defined where the last cell state has a cotangent

#include "shared/grid"
#include "shared/math"
#if FORM == last
#include "shared/recurrent_tile"
#else
#include "shared/recurrent"
#endif

@group(0) @binding(${AT_HIDDEN}) var<storage, read> d_outputs: array<f32>;
#if FORM == start
@group(0) @binding(${AT_D_HIDDEN}) var<storage, read_write> d_hidden: array<f32>;
#if FORMULA == lstm
@group(0) @binding(${AT_D_CELL}) var<storage, read_write> d_cell: array<f32>;
#endif
#else
@group(0) @binding(${AT_SUMS}) var<storage, read_write> d_sums: array<f32>;
@group(0) @binding(${AT_NEXT}) var<storage, read_write> next_state: array<f32>;
@group(0) @binding(${AT_VALUES}) var<storage, read> values: array<f32>;
#if FORMULA == lstm
@group(0) @binding(${AT_SAVED}) var<storage, read> saved: array<f32>;
#endif
#if FORMULA == gru
@group(0) @binding(${AT_SAVED}) var<storage, read> saved: array<f32>;
#endif
#if MASKED
@group(0) @binding(${AT_MASK}) var<storage, read> mask: array<f32>;
#endif
#if CELL
@group(0) @binding(${AT_D_LAST}) var<storage, read> d_last: array<f32>;
#endif
#endif

/// The first cotangents in the state that go on to h, and to c.
const ON: u32 = N * ${GATES}u * H;
const ON_CELL: u32 = ON + N * H;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
#insert tile()
    // These arrive while the product is computed.
#for P in PAIRS
#insert pair(P)
    var d_${P} = d_outputs[${HIDDEN_FROM}u + own_${P}];
#if FORMULA == lstm
#if FORM == last
#if CELL
    let d_cell_${P} = d_last[own_${P}];
#else
    let d_cell_${P} = 0.0;
#endif
#else
    let d_cell_${P} = state_at(ON_CELL + own_${P});
#endif
#endif
#if FORM != last
#if DIRECT
    d_${P} += state_at(ON + own_${P});
#endif
#endif
#if FORM != start
#if FORMULA == lstm
    let from_${P} = ${SAVED_FROM}u + select(0u, row_${P} * 4u * H + unit_${P}, there_${P});
#for G in 4
    let gate_${P}_${G} = saved[from_${P} + ${G}u * H];
#endfor
    let before_${P} = values[${BEFORE}u + own_${P}];
    let after_${P} = values[${AFTER}u + own_${P}];
#elif FORMULA == gru
    let from_${P} = ${SAVED_FROM}u + select(0u, row_${P} * 4u * H + unit_${P}, there_${P});
#for G in 4
    let gate_${P}_${G} = saved[from_${P} + ${G}u * H];
#endfor
    let before_${P} = values[${BEFORE}u + own_${P}];
#else
    let after_${P} = values[${AFTER}u + own_${P}];
#endif
#if MASKED
    let on_${P} = !is_zero(mask[${MASK_FROM}u + select(0u, row_${P}, there_${P})]);
#endif
#endif
#endfor
#if FORM != last
#insert multiply()
#endif
#for P in PAIRS
    if there_${P} {
#if FORM != last
        d_${P} += total(pair_${P} / UNITS, pair_${P} % UNITS);
#endif
        let d = d_${P};
#if FORM == start
        d_hidden[own_${P}] = d;
#if FORMULA == lstm
        d_cell[own_${P}] = d_cell_${P};
#endif
#else
#if FORMULA == tanh
        let sum_of_0 = d - d * after_${P} * after_${P};
#endif
#if FORMULA == relu
        let sum_of_0 = select(d, 0.0, is_at_most_zero(after_${P}));
#endif
#if FORMULA == lstm
        let input = gate_${P}_0;
        let forget = gate_${P}_1;
        let candidate = gate_${P}_2;
        let output = gate_${P}_3;
        let t = m_tanh(after_${P});
        let of_cell = d_cell_${P} + d * output * (1.0 - t * t);
        let sum_of_0 = of_cell * candidate * (input - input * input);
        let sum_of_1 = of_cell * before_${P} * (forget - forget * forget);
        let sum_of_2 = of_cell * input * (1.0 - candidate * candidate);
        let sum_of_3 = d * t * (output - output * output);
        let to_cell = of_cell * forget;
#endif
#if FORMULA == gru
        let reset = gate_${P}_0;
        let update = gate_${P}_1;
        let candidate = gate_${P}_2;
        let sum_of_2 = (d - d * update) * (1.0 - candidate * candidate);
        let sum_of_0 = sum_of_2 * gate_${P}_3 * (reset - reset * reset);
        let sum_of_1 = d * (before_${P} - candidate) * (update - update * update);
        let sum_of_3 = sum_of_2 * reset;
        let to_hidden = d * update;
#elif DIRECT
        let to_hidden = 0.0;
#endif
        let to = ${SUMS_TO}u + row_${P} * ${BLOCKS}u * H + unit_${P};
        let to_next = row_${P} * ${GATES}u * H + unit_${P};
#for B in BLOCKS
#if MASKED
        let kept_${B} = select(0.0, sum_of_${B}, on_${P});
#else
        let kept_${B} = sum_of_${B};
#endif
        d_sums[to + ${B}u * H] = kept_${B};
#endfor
#if FORMULA == gru
        next_state[to_next] = kept_0;
        next_state[to_next + H] = kept_1;
        next_state[to_next + 2u * H] = kept_3;
#else
#for G in GATES
        next_state[to_next + ${G}u * H] = kept_${G};
#endfor
#endif
#if DIRECT
#if MASKED
        next_state[ON + own_${P}] = select(d, to_hidden, on_${P});
#else
        next_state[ON + own_${P}] = to_hidden;
#endif
#endif
#if FORMULA == lstm
#if MASKED
        next_state[ON_CELL + own_${P}] = select(d_cell_${P}, to_cell, on_${P});
#else
        next_state[ON_CELL + own_${P}] = to_cell;
#endif
#endif
#endif
    }
#endfor
}
