// The divisor of average pooling.
//
// Defines: those of shared/pool
//          DIVISOR       see `avg_pool2d`

#include "shared/pool"

/// The number that the sum of output p, q is divided by.
fn averaged(p: u32, q: u32) -> f32 {
    return ${DIVISOR};
}
