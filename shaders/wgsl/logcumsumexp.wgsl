// Cumulative log-sum-exp: y[o,k,i] = ln Σ exp(x[o,l,i]) over l ≤ k. A sum of exponentials is kept as a peak and a mass,
// mass·exp(peak).
//
// Bindings, defines and workgroups: those of shared/scan.

#include "shared/float"
#include "shared/scan"

/// The peak, then the mass.
alias Sum = vec2<f32>;

fn neutral() -> Sum {
    return vec2(negative_infinity(), 0.0);
}

fn term(x: f32) -> Sum {
    return vec2(x, 1.0);
}

/// exp(x − peak): 1 at the peak, even an infinite one.
fn share(x: f32, peak: f32) -> f32 {
    return select(exp(x - peak), 1.0, bitcast<u32>(x) == bitcast<u32>(peak));
}

fn joined(a: Sum, b: Sum) -> Sum {
    let peak = m_max(a.x, b.x);
    return vec2(peak, a.y * share(a.x, peak) + b.y * share(b.x, peak));
}

fn result(sum: Sum) -> f32 {
    return sum.x + log(sum.y);
}
