// `load(i)` reads element i of an operand, in the order of memory. The host writes the function: it reads memory, or
// runs elementwise work that was merged into the kernel. The host's bindings come after the kernel's own.
//
// Defines: LOAD  declarations, among them `fn load(i: u32)`, whose result has the operand's element type; they may call
//                whatever shared/math and shared/bf16 declare

#include "shared/bf16"
#include "shared/math"

${LOAD}
