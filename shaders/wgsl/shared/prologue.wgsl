// `load(i)`: how a kernel reads the operand that the host may compute on the way, by the element's place in memory. The
// host writes the function. It reads memory, or runs elementwise work that was merged into the kernel. Its bindings
// come after the kernel's own.
//
// Defines: LOAD  declarations, among them `fn load(i: u32) -> f32`; they may call whatever shared/math and shared/half
//                declare

#include "shared/half"
#include "shared/math"

${LOAD}
