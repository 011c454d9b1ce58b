// Statements that read the lines of a step; see shared/group_norm_lines. They take `x`; `begin`, the line of the
// image's first pixel; and `first`, the invocation's first pixel of the step. Where there is no such pixel, they read
// the image's first.
//
// Defines: QUADS, EACH

#for Q in QUADS
#for K in EACH
    let in_${Q}_${K} = is_pixel(first, ${Q}u * ${EACH}u + ${K}u);
    let at_${Q}_${K} = begin + select(0u, first + (${Q}u * ${EACH}u + ${K}u) * PIXELS, in_${Q}_${K}) * LINES;
    let x_${Q}_${K} = x[at_${Q}_${K}];
#endfor
#endfor
