// Fragments of 16×16 on matrix units, and operations on them in registers. WGSL has no such operations: the host
// replaces calls of functions that begin with `coop_` in the compiled kernel (`gpu/vulkan/fragments.rs`). Their bodies
// never run.
//
//     coop_as_left(x)       sums as the left operand of a product, in its type; some devices truncate them
//     coop_as_right(x)      likewise as the right operand
//     coop_rows_NAME(x)     each element is the row's, reduced by `fn NAME(a: f32, b: f32) -> f32`
//     coop_map_NAME(x, …)   each element is `NAME(row, column, x, …)`. Other fragments are passed by their elements
//
// shared/fragment_lines has more of them.
//
// A kernel declares functions to map with, `fn NAME(row: u32, column: u32, x: f32, …) -> f32`, each beside its
// `coop_map_NAME`.

alias Sums = coop_mat16x16<f32, C>;
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;

fn coop_as_left(x: Sums) -> Left {
    return Left();
}

fn coop_as_right(x: Sums) -> Right {
    return Right();
}

fn larger(a: f32, b: f32) -> f32 {
    return max(a, b);
}

fn coop_rows_larger(x: Sums) -> Sums {
    return x;
}

fn sum(a: f32, b: f32) -> f32 {
    return a + b;
}

fn coop_rows_sum(x: Sums) -> Sums {
    return x;
}
