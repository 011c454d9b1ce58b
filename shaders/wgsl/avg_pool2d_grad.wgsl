// Gradient of `avg_pool2d`: dx[n,h,w] = Σ dy[n,p,q] / (number of elements that output p, q averages) over the outputs
// p, q whose windows cover h, w; of volumes also over the planes z.
//
// Bindings: dy[N,OUT_D,P,Q] → dx[N,IN_D,H,W], or in lines dy[N,OUT_D,P,Q,SIDE] → dx[N,IN_D,H,W,SIDE], by shared/terms.
//
// Defines: those of `avg_pool2d`

#include "shared/terms"
#include "shared/avg_pool2d"
#include "shared/outputs"

@group(0) @binding(0) var<storage, read> dy: array<Held>;

fn term(terms: Terms, t: vec2<u32>) -> Value {
    let output = output_over(terms, t);
    if !reads(terms, output) {
        return Value();
    }
    return divided(value(dy[output_at(terms, output)]), averaged(output));
}

fn result(terms: Terms, sum: Value) -> Value {
    return sum;
}
