// `avg_pool2d_grad` where windows are large: a workgroup adds what an element of the input gets; see shared/tree.
//
// Bindings: dy[N,P,Q] → dx[N,H,W]. N·H·W workgroups.
//
// Defines: those of `avg_pool2d`, and EACH

#include "shared/tree"
#include "shared/avg_pool2d"
#include "shared/outputs"

const RESULTS: u32 = N * H * W;

@group(0) @binding(0) var<storage, read> dy: array<f32>;

fn term(terms: Terms, t: u32) -> f32 {
    let output = output_over(terms, t);
    let share = dy[output_at(terms, output)] / averaged(output.x, output.y);
    return select(0.0, share, reads(terms, output));
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
