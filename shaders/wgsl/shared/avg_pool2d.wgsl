// The divisor of average pooling.
//
// Defines: those of shared/pool
//          DIVISOR       see `avg_pool2d`

#include "shared/pool"

/// The number that the sum of an output is divided by.
fn averaged(output: vec3<u32>) -> f32 {
    let z = output.x;
    let p = output.y;
    let q = output.z;
    return ${DIVISOR};
}
