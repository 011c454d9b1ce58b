// A matrix packed in f16 for matrix units as shared/packed says, in lines of eight rows: p[X/8,Y,8], the exponents of the powers
// e[⌈X/32⌉,⌈Y/32⌉], of x[X,Y].
//
// Bindings: x → p, e. An invocation packs a line; ⌈X/32⌉·⌈Y/32⌉ workgroups of 128.
//
// Defines: X, Y      X a multiple of 8
//          BEGIN     where x begins
//          PITCH     how much further on its next row is; neighbours along Y are neighbours in memory

#include "shared/grid"
#include "shared/packed"
#include "shared/reduce"

const WG: u32 = 128u;
const X: u32 = ${X};
const Y: u32 = ${Y};
const PITCH: u32 = ${PITCH};
const BLOCKS_Y: u32 = (Y + BLOCK - 1u) / BLOCK;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> p: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> exponents_of: array<i32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= (X + BLOCK - 1u) / BLOCK * BLOCKS_Y {
        return;
    }
    let line = index / BLOCKS_Y * 4u + lane / BLOCK;
    let y = index % BLOCKS_Y * BLOCK + lane % BLOCK;
    let there = line < X / 8u && y < Y;
    let at = select(0u, line * 8u * PITCH + y, there) + ${BEGIN}u;
#for I in 8
    let x_${I} = x[at + select(0u, ${I}u * PITCH, there)];
#endfor
    let first = vec4(x_0, x_1, x_2, x_3);
    let second = vec4(x_4, x_5, x_6, x_7);
    let peak = largest(max(finite_magnitudes(first), finite_magnitudes(second)));
    let exponent = exponent_for(workgroup_max(lane, select(0.0, peak, there)), 0);
    let scale = powers(vec2(exponent)).x;
    if lane == 0u {
        exponents_of[index] = exponent;
    }
    if there {
        p[line * Y + y] = vec4(
            pack2x16float(first.xy * scale),
            pack2x16float(first.zw * scale),
            pack2x16float(second.xy * scale),
            pack2x16float(second.zw * scale),
        );
    }
}
