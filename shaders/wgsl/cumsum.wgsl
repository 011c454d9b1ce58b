// Cumulative sum: y[o,k,i] = Σ x[o,l,i] over l ≤ k, or with REVERSE 1 over l ≥ k. Integers wrap around.
//
// Bindings, defines and workgroups: those of shared/scan.

#include "shared/scan"

alias Sum = Element;

fn neutral() -> Sum {
    return Element();
}

fn term(x: Element) -> Sum {
    return x;
}

fn joined(a: Sum, b: Sum) -> Sum {
    return e_sum(a, b);
}

fn result(sum: Sum) -> Element {
    return sum;
}
