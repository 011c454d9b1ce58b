// How a kernel stores its first result eight elements at a time: shared/epilogue for what lies with channels innermost.
// Elements are counted in that order, and i is a multiple of 8: `store_line(i, line)` once for each eight, or
// `let e = epilogue(i)` for a few lines first and then `finish(e, line)` for each. The host writes what is in them.
//
// Defines: STORE declarations, among them `struct Epilogue`, `fn epilogue(i: u32) -> Epilogue` and
//                `fn finish(e: Epilogue, line: Eight)`; they may call whatever shared/math and shared/half declare

#include "shared/half"
#include "shared/math"

${STORE}

fn store_line(i: u32, line: Eight) {
    finish(epilogue(i), line);
}
