// Gradient of `max_pool2d`: dx[n,h,w] = Σ dy[n,p,q] over the outputs p, q whose winner is element h, w; of volumes
// likewise.
//
// Bindings: index[N,OUT_D,P,Q] (u32), dy[N,OUT_D,P,Q] → dx[N,IN_D,H,W], by shared/terms. In lines
// index[N,CHANNELS,OUT_D,P,Q] and dy[N,OUT_D,P,Q,SIDE] → dx[N,IN_D,H,W,SIDE].
//
// Defines: those of `max_pool2d`

#include "shared/terms"
#include "shared/outputs"

#if FORMAT == lines
const CHANNELS: u32 = ${CHANNELS};
#endif

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<Held>;

fn term(terms: Terms, t: vec2<u32>) -> Value {
    let output = output_over(terms, t);
    let place = (terms.at.x * H + terms.at.y) * W + terms.at.z;
    let cotangent = value(dy[output_at(terms, output)]);
#if FORMAT == lines
    // For the padding, the last channel is read again.
    let first = ((terms.n * CHANNELS * OUT_D + output.x) * P + output.y) * Q + output.z;
    return Value(
#for V in 2
        select(
            vec4<f32>(),
            cotangent[${V}],
            vec4(place) == vec4(
#for K in 4
                index[first + min(terms.side * 8u + 4u * ${V}u + ${K}u, CHANNELS - 1u) * OUTPUTS],
#endfor
            ),
        ),
#endfor
    );
#else
    return select(0.0, cotangent, index[output_at(terms, output)] == place);
#endif
}

fn result(terms: Terms, sum: Value) -> Value {
    return sum;
}
