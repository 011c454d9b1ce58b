// Gradient of `avg_pool2d`: dx[n,h,w] = Σ dy[n,p,q] / (number of elements that output p, q averages) over the outputs
// p, q whose windows cover h, w.
//
// Bindings: dy[N,P,Q] → dx[N,H,W], or of images in lines dy[N,P,Q,SIDE] → dx[N,H,W,SIDE], by shared/terms.
//
// Defines: those of `avg_pool2d`

#include "shared/terms"
#include "shared/avg_pool2d"
#include "shared/outputs"

@group(0) @binding(0) var<storage, read> dy: array<Held>;

fn term(terms: Terms, t: vec2<u32>) -> Value {
    let output = terms.first + t;
    if !reads(terms, output) {
        return Value();
    }
    return divided(value(dy[output_at(terms, output)]), averaged(output.x, output.y));
}

fn result(terms: Terms, sum: Value) -> Value {
    return sum;
}
