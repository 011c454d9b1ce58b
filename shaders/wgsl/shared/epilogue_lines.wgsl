// `store_line(i, line)`: shared/epilogue for results with channels innermost, eight elements at a time. Elements are
// counted in that order, and i is a multiple of 8. An invocation that stores a few lines first calls
// `let e = epilogue(i)` for each, and then `finish(e, line)`.
//
// Defines: STORE  declarations, among them `struct Epilogue`, `fn epilogue(i: u32) -> Epilogue` and
//                 `fn finish(e: Epilogue, line: Eight)`; they may call whatever shared/math and shared/bf16 declare

#include "shared/bf16"
#include "shared/math"

${STORE}

fn store_line(i: u32, line: Eight) {
    finish(epilogue(i), line);
}
