// Channels of images side by side, in bf16 with channels innermost, where operands do not end with a line:
// y[PIXELS,C] = the channels of x_0, x_1, … of a pixel. Lines of a pixel are padded with zeros, in operands and result.
// Each invocation writes a line of the result: the bits of all operands that have channels in it, shifted.
//
// Bindings: x_0, x_1, … → y. One invocation writes a line; ⌈PIXELS·LINES/WG⌉ workgroups.
//
// Defines: WG
//          PIXELS, LINES  of all images, and lines of a pixel of the result
//          OPERANDS
//          PARTS          for each operand K, `fn part_K(pixel: u32, line: u32) -> vec4<u32>`: what it has of a line of
//                         the result, with zeros elsewhere

#include "shared/elements"

const LINES: u32 = ${LINES};
const ELEMENTS: u32 = ${PIXELS} * LINES;

#for K in OPERANDS
@group(0) @binding(${K}) var<storage, read> x_${K}: array<vec4<u32>>;
#endfor
@group(0) @binding(${OPERANDS}) var<storage, read_write> y: array<vec4<u32>>;

${PARTS}

fn compute(i: u32) {
    let pixel = i / LINES;
    let line = i % LINES;
    var words = vec4<u32>();
#for K in OPERANDS
    words |= part_${K}(pixel, line);
#endfor
    y[i] = words;
}
