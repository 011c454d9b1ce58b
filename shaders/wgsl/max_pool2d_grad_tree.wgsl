// `max_pool2d_grad` where windows are large: a workgroup adds what an element of the input gets; see shared/tree.
//
// Bindings: index[N,P,Q] (u32), dy[N,P,Q] → dx[N,H,W]. N·H·W workgroups.
//
// Defines: those of `max_pool2d`, and EACH

#include "shared/tree"
#include "shared/outputs"

const RESULTS: u32 = N * H * W;

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;

fn term(terms: Terms, t: u32) -> f32 {
    let at = output_at(terms, output_over(terms, t));
    return select(0.0, dy[at], index[at] == terms.row * W + terms.column);
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
