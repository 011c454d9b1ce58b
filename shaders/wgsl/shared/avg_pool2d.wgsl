// The divisor of average pooling.
//
// Defines: those of shared/pool
//          INCLUDE_PAD   see `avg_pool2d`

#include "shared/pool"

/// The number of elements that output p, q averages.
fn averaged(p: u32, q: u32) -> f32 {
#if INCLUDE_PAD == 1
    return f32(KH) * f32(KW);
#else
    return f32(rows_inside(p).y) * f32(columns_inside(q).y);
#endif
}
