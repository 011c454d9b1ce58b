// The weights in Winograd's frequencies for matrix units, G w Gᵀ: u[f,c,o] for each of 16 frequencies f; for the gradient with respect to the
// input the taps turned. Packed as shared/packed says, in lines of eight input channels.
//
// Bindings: w[O,C,3,3] → u[16,C/8,O,8], the exponents of the powers e[⌈C/32⌉,⌈O/32⌉]. An invocation transforms eight pairs of channels;
// ⌈C/32⌉·⌈O/32⌉ workgroups of 128.
//
// Defines: O, C  multiples of 8
//          FORM  forward or grad_input

#include "shared/grid"
#include "shared/packed"
#include "shared/reduce"
#include "shared/winograd2"

const WG: u32 = 128u;
const O: u32 = ${O};
const C: u32 = ${C};
const BLOCKS_O: u32 = (O + BLOCK - 1u) / BLOCK;

@group(0) @binding(0) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> u: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> exponents_of: array<i32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= (C + BLOCK - 1u) / BLOCK * BLOCKS_O {
        return;
    }
    let line = index / BLOCKS_O * 4u + lane / BLOCK;
    let o = index % BLOCKS_O * BLOCK + lane % BLOCK;
    let there = line < C / 8u && o < O;
    let at = select(0u, (o * C + line * 8u) * 9u / 4u, there);
    // All taps of eight channels.
    var taps: array<f32, 72>;
    var peak = vec4<f32>();
#for L in 18
    let w_${L} = w[at + ${L}u];
    peak = max(peak, finite_magnitudes(w_${L}));
#for E in 4
    taps[4u * ${L}u + ${E}u] = w_${L}[${E}];
#endfor
#endfor
    // A frequency is at most 9/4 of the largest tap.
    let exponent = exponent_for(workgroup_max(lane, select(0.0, largest(peak), there)), 2);
    let scale = powers(vec2(exponent)).x;
    if lane == 0u {
        exponents_of[index] = exponent;
    }
    if !there {
        return;
    }

    var of_line: array<vec4<u32>, 16>;
    // Of the channel before: two at a time are rounded.
    var before: array<vec4<f32>, 4>;
#for K in 8
    {
        const AT: u32 = 9u * ${K}u;
#for J in 3
#if FORM == forward
        let column_${J} = scale * of_weight(taps[AT + ${J}u], taps[AT + 3u + ${J}u], taps[AT + 6u + ${J}u]);
#else
        let column_${J} = scale * of_weight(taps[AT + 8u - ${J}u], taps[AT + 5u - ${J}u], taps[AT + 2u - ${J}u]);
#endif
#endfor
#for I in 4
        let row_${I} = of_weight(column_0[${I}], column_1[${I}], column_2[${I}]);
        if ${K}u % 2u == 0u {
            before[${I}] = row_${I};
        } else {
#for J in 4
            of_line[4u * ${I}u + ${J}u][${K}u / 2u] = pack2x16float(vec2(before[${I}][${J}], row_${I}[${J}]));
#endfor
        }
#endfor
    }
#endfor
#for F in 16
    u[(${F}u * (C / 8u) + line) * O + o] = of_line[${F}];
#endfor
}
