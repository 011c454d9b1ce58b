// A step of a recurrent layer: the product of the last state with the weight, and the formula of the layer in its
// epilogue, so that a time step is one launch. With s = x + W·h of each gate, and σ(s) = 1/(1 + e⁻ˢ):
//
//     tanh, relu   h' = tanh(s), max(s, 0)
//     lstm         c' = σ(s₁)·c + σ(s₀)·tanh(s₂),  h' = σ(s₃)·tanh(c')
//     gru          n = tanh(x₂ + σ(s₀)·(W₂·h + bias)),  h' = σ(s₁)·(h − n) + n
//
// With MASK, the state of a row whose mask is 0 stays as it is.
//
// Bindings, by the defines AT_…: state h[N,H] and the weight, of shared/recurrent; X: x[N,GATES·H]; HIDDEN: the outputs
// of all steps; CELLS: the cell states of all steps (lstm); SAVED: what the gradient needs, [N,4·H] (lstm: the gates;
// gru: the gates, n, and W₂·h + bias); BIAS[H]; MASK[N]; NEXT[N,H]: the next state, or LAST[N,H]: c' (lstm). A
// workgroup computes a tile of shared/recurrent; TILES workgroups.
//
// Defines: those of shared/recurrent, with WEIGHT along
//          FORMULA  tanh, relu, lstm or gru
//          GATES    1, 1, 4 or 3
//          PAIRS    elements of the state for each invocation, ⌈ROWS·UNITS/WG⌉
//          X_FROM, HIDDEN_TO, CELLS_FROM, CELLS_TO, SAVED_TO, MASK_FROM   the first element of a step in its binding
//          BIASED, MASKED, ENDS   defined where there is a bias, a mask, or no next state

#include "shared/grid"
#include "shared/math"
#include "shared/recurrent"

@group(0) @binding(${AT_X}) var<storage, read> x: array<f32>;
@group(0) @binding(${AT_HIDDEN}) var<storage, read_write> hidden: array<f32>;
#if FORMULA == lstm
@group(0) @binding(${AT_CELLS}) var<storage, read_write> cells: array<f32>;
@group(0) @binding(${AT_SAVED}) var<storage, read_write> saved: array<f32>;
#endif
#if FORMULA == gru
@group(0) @binding(${AT_SAVED}) var<storage, read_write> saved: array<f32>;
#endif
#if BIASED
@group(0) @binding(${AT_BIAS}) var<storage, read> bias: array<f32>;
#endif
#if MASKED
@group(0) @binding(${AT_MASK}) var<storage, read> mask: array<f32>;
#endif
#if ENDS
#if FORMULA == lstm
@group(0) @binding(${AT_LAST}) var<storage, read_write> last: array<f32>;
#endif
#else
@group(0) @binding(${AT_NEXT}) var<storage, read_write> next_state: array<f32>;
#endif

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
    let of_x_${P} = ${X_FROM}u + select(0u, row_${P} * ${GATES}u * H + unit_${P}, there_${P});
#for G in GATES
    let x_${P}_${G} = x[of_x_${P} + ${G}u * H];
#endfor
#if FORMULA == lstm
    let cell_${P} = cells[${CELLS_FROM}u + own_${P}];
#endif
#if MASKED
    let on_${P} = !is_zero(mask[${MASK_FROM}u + select(0u, row_${P}, there_${P})]);
#endif
#endfor
#insert multiply()
#for P in PAIRS
    if there_${P} {
        let r = pair_${P} / UNITS;
        let u = pair_${P} % UNITS;
#if FORMULA == tanh
        var y = m_tanh(total(r, u) + x_${P}_0);
#endif
#if FORMULA == relu
        let sum = total(r, u) + x_${P}_0;
        var y = select(sum, 0.0, is_at_most_zero(sum));
#endif
#if FORMULA == lstm
        let input = m_sigmoid(total(r, u) + x_${P}_0);
        let forget = m_sigmoid(total(r, UNITS + u) + x_${P}_1);
        let candidate = m_tanh(total(r, 2u * UNITS + u) + x_${P}_2);
        let output = m_sigmoid(total(r, 3u * UNITS + u) + x_${P}_3);
        var c = forget * cell_${P} + input * candidate;
        var y = output * m_tanh(c);
        let save = ${SAVED_TO}u + row_${P} * 4u * H + unit_${P};
        saved[save] = input;
        saved[save + H] = forget;
        saved[save + 2u * H] = candidate;
        saved[save + 3u * H] = output;
#if MASKED
        c = select(cell_${P}, c, on_${P});
#endif
        cells[${CELLS_TO}u + own_${P}] = c;
#endif
#if FORMULA == gru
        let reset = m_sigmoid(total(r, u) + x_${P}_0);
        let update = m_sigmoid(total(r, UNITS + u) + x_${P}_1);
#if BIASED
        let of_state = total(r, 2u * UNITS + u) + bias[unit_${P}];
#else
        let of_state = total(r, 2u * UNITS + u);
#endif
        let candidate = m_tanh(x_${P}_2 + reset * of_state);
        var y = update * (state_at(own_${P}) - candidate) + candidate;
        let save = ${SAVED_TO}u + row_${P} * 4u * H + unit_${P};
        saved[save] = reset;
        saved[save + H] = update;
        saved[save + 2u * H] = candidate;
        saved[save + 3u * H] = of_state;
#endif
#if MASKED
        y = select(state_at(own_${P}), y, on_${P});
#endif
        hidden[${HIDDEN_TO}u + own_${P}] = y;
#if ENDS
#if FORMULA == lstm
        last[own_${P}] = c;
#endif
#else
        next_state[own_${P}] = y;
#endif
    }
#endfor
}
