// `load_line(i)`: shared/prologue for operands with channels innermost, eight elements at a time. Elements are counted
// in that order, and i is a multiple of 8.
//
// Defines: LOAD  declarations, among them `fn load_line(i: u32) -> Eight`; they may call whatever shared/math and
//                shared/bf16 declare

#include "shared/bf16"
#include "shared/math"

${LOAD}
