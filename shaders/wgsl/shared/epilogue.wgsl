// `store(i, value)`: how a kernel stores its first result, once for each element i, in any control flow. The host
// writes what it does, which includes elementwise work that was merged into the kernel. Its bindings come after the
// kernel's own, that of the result included.
//
// That work may read memory, and a read after a store waits for the store. An invocation that stores a few elements
// calls `let e = epilogue(i)` for each first, which reads what element i needs, and `finish(e, value)` last.
//
// Defines: STORE  declarations, among them `struct Epilogue`, `fn epilogue(i: u32) -> Epilogue` and
//                 `fn finish(e: Epilogue, value: f32)`; they may call whatever shared/math declares

#include "shared/math"

${STORE}

fn store(i: u32, value: f32) {
    finish(epilogue(i), value);
}
