// `store(i, value)` stores element i of a kernel's first result. A kernel calls it once for each element, in any
// control flow. The host writes what it does, including elementwise work that was merged into the kernel. The host's
// bindings come after the kernel's own, and the result's is among them.
//
// Merged work may read memory, and a read after a store waits for the store. It is faster to call `let e = epilogue(i)`
// for several elements, which reads what they need, and then `finish(e, value)` for each.
//
// Defines: STORE  declarations, among them `alias Stored`, the type of an element, `struct Epilogue`,
//                 `fn epilogue(i: u32) -> Epilogue` and `fn finish(e: Epilogue, value: Stored)`; they may call
//                 whatever shared/math declares

#include "shared/math"

${STORE}

fn store(i: u32, value: Stored) {
    finish(epilogue(i), value);
}
