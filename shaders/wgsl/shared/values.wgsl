// `store_value(at, x)` stores value `at` of the first result of a kernel that computes with values (shared/value).
//
// Defines: FORMAT  full: by elements, through shared/epilogue; lines: by lines, through shared/epilogue_lines

#include "shared/value"

#if FORMAT == lines
#include "shared/epilogue_lines"

fn store_value(at: u32, x: Value) {
    store_line(8u * at, Eight(x[0], x[1]));
}
#else
#include "shared/epilogue"

fn store_value(at: u32, x: Value) {
    store(at, x);
}
#endif
