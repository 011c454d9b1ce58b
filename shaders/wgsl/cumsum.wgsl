// Cumulative sum: y[o,k,i] = Σ x[o,l,i] over l ≤ k, or with REVERSE 1 over l ≥ k.
//
// Bindings, defines and workgroups: those of shared/scan.

#include "shared/scan"

alias Sum = f32;

fn neutral() -> Sum {
    return 0.0;
}

fn term(x: f32) -> Sum {
    return x;
}

fn joined(a: Sum, b: Sum) -> Sum {
    return a + b;
}

fn result(sum: Sum) -> f32 {
    return sum;
}
