// The window of a pooling, over channels of volumes, images or sequences, or over such tensors in lines.
//
// Defines: those of shared/window, and of shared/planes with UD 1
//          SIDE  values of a pixel: 1 for channels; the lines of a pixel for tensors in lines

#include "shared/window"
#include "shared/planes"

const SIDE: u32 = ${SIDE};
/// Pixels of the input and of the result.
const INPUTS: u32 = IN_D * H * W;
const OUTPUTS: u32 = OUT_D * P * Q;

/// The first plane of the window of plane z of the result that is no padding, and the number of such planes.
fn planes_inside(z: u32) -> vec2<u32> {
#if VOLUMES
    return taps_inside(z, KD, SD, PD, DD, IN_D);
#else
    return vec2(0u, 1u);
#endif
}

/// The first pixel of the window of an output that is no padding, from the first such tap along each axis.
fn first_pixel(output: vec3<u32>, tap: vec3<u32>) -> u32 {
    let in_plane = (output.y * SH + tap.y * DH - PH) * W + output.z * SW + tap.z * DW - PW;
#if VOLUMES
    return (output.x * SD + tap.x * DD - PD) * (H * W) + in_plane;
#else
    return in_plane;
#endif
}

/// The distance to row t of a window that has so many rows in each plane.
fn row_of_window(t: u32, rows: u32) -> u32 {
#if VOLUMES
    return t / rows * (DD * H * W) + t % rows * (DH * W);
#else
    return t * (DH * W);
#endif
}

/// Plane, row and column of pixel number `pixel` of the result, which may count on through other channels.
fn output_of(pixel: u32) -> vec3<u32> {
#if VOLUMES
    return vec3(pixel / (Q * P) % OUT_D, pixel / Q % P, pixel % Q);
#else
    return vec3(0u, pixel / Q % P, pixel % Q);
#endif
}
