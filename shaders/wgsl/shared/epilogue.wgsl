// How a kernel stores its first result: `store(i, value)`, once for each element i of it, wherever the kernel's control
// flow stands. The host writes what is in it: it runs what elementwise work was merged into the kernel, and declares
// its bindings after the kernel's own, that of the result included.
//
// That work may read memory, and a read that comes after a store waits for it. An invocation that stores a few elements
// begins with `let e = epilogue(i)` for each, which reads what element i takes, and ends with `finish(e, value)`.
//
// Defines: STORE declarations, among them `struct Epilogue`, `fn epilogue(i: u32) -> Epilogue` and
//                `fn finish(e: Epilogue, value: f32)`; they may call whatever shared/math declares

#include "shared/math"

${STORE}

fn store(i: u32, value: f32) {
    finish(epilogue(i), value);
}
