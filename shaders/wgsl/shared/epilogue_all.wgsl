// `store_all(i, values)` stores element i of every result of a kernel, four at most, in the order of the components:
// shared/epilogue for results of one shape that elementwise work reads together.
//
// Defines: STORE  declarations, among them `struct Epilogue`, `fn epilogue(i: u32) -> Epilogue` and
//                 `fn finish(e: Epilogue, values: vec4<f32>)`; they may call whatever shared/math declares

#include "shared/math"

${STORE}

fn store_all(i: u32, values: vec4<f32>) {
    finish(epilogue(i), values);
}
