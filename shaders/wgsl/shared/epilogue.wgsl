// How a kernel stores its first result: `store(i, value)`, once for each element i of it, wherever the kernel's control flow
// stands. The host writes the function: it runs what elementwise work was merged into the kernel, and declares its bindings
// after the kernel's own, that of the result included.
//
// Defines: STORE declarations, among them `fn store(i: u32, value: f32)`; they may call whatever shared/math declares

#include "shared/math"

${STORE}
