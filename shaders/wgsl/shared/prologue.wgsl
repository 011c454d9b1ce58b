// How a kernel reads the operand that the host may make on the way: `load(i)`, i being the element's place in memory.
// The host writes the function: it reads memory, or runs what elementwise work was merged into the kernel, and declares
// the bindings after the kernel's own.
//
// Defines: LOAD declarations, among them `fn load(i: u32) -> f32`; they may call whatever shared/math and shared/half
//              declare

#include "shared/half"
#include "shared/math"

${LOAD}
