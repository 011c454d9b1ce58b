// How a kernel reads the operand that the host may make on the way, eight elements at a time: shared/prologue for what
// lies with channels innermost. Elements are counted in that order, and the first of a line is a multiple of 8.
//
// Defines: LOAD declarations, among them `fn load_line(i: u32) -> Eight`; they may call whatever shared/math and
// shared/half declare

#include "shared/half"
#include "shared/math"

${LOAD}
