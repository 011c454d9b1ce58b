//! The methods of `Var` that `then` and `before` can apply, for suggestions. Other names are left to the compiler,
//! because a user's trait may define them.

use super::nearest::nearest;

/// Methods from one value to one value. Methods with a second value are missing, because a chain has no argument for
/// it.
const METHODS: &[&str] = &[
    "abs",
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "clamp",
    "cos",
    "detach",
    "elu",
    "exp",
    "expand",
    "expm1",
    "flatten",
    "gelu",
    "gelu_tanh",
    "leaky_relu",
    "log",
    "log_softmax",
    "max",
    "max_keep",
    "max_over",
    "max_pool2d",
    "mean",
    "mean_keep",
    "mean_over",
    "min",
    "min_keep",
    "min_over",
    "pad",
    "permute",
    "powf",
    "random_uniform",
    "recip",
    "relu",
    "reshape",
    "resize_bilinear",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "slice",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "sum",
    "sum_keep",
    "sum_over",
    "t",
    "tanh",
    "upsample_nearest",
    "variance",
    "variance_keep",
    "variance_over",
];

/// The methods among these whose result has the shape of their input.
const ELEMENTWISE: &[&str] = &[
    "abs",
    "clamp",
    "cos",
    "detach",
    "elu",
    "exp",
    "expm1",
    "gelu",
    "gelu_tanh",
    "leaky_relu",
    "log",
    "log_softmax",
    "powf",
    "recip",
    "relu",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "tanh",
];

/// `true` if the result of a method of `Var` has its input's shape.
pub fn keeps_shape(name: &str) -> bool {
    ELEMENTWISE.contains(&name)
}

pub fn is_method(name: &str) -> bool {
    METHODS.contains(&name)
}

/// The most similar method.
pub fn nearest_method(name: &str) -> Option<&'static str> {
    nearest(name, METHODS.iter().copied())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_method_that_was_meant() {
        for (given, meant) in
            [("relew", "relu"), ("sigmod", "sigmoid"), ("flaten", "flatten"), ("leaky_rely", "leaky_relu")]
        {
            assert_eq!(nearest_method(given), Some(meant));
        }
        assert_eq!(nearest_method("frobnicate"), None);
        assert!(is_method("relu") && !is_method("relew"));
        assert!(ELEMENTWISE.iter().all(|method| is_method(method)), "elementwise methods are methods");
    }
    /// Reads the declarations of the methods: `fn relu(`, or a row of a table, `relu Relu;`.
    #[test]
    fn all_of_them_are_methods_of_var() {
        let ops = Path::new(env!("CARGO_MANIFEST_DIR")).join("../meganeura/src/ops");
        let mut sources = String::new();
        let mut folders = vec![ops];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                match entry.unwrap().path() {
                    path if path.is_dir() => folders.push(path),
                    path => sources.push_str(&fs::read_to_string(path).unwrap()),
                }
            }
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let declared = |method: &&&str| {
            sources.match_indices(**method).any(|(at, _)| {
                let (before, after) = (&sources[..at], &sources[at + method.len()..]);
                let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
                is_whole && (before.ends_with("pub fn ") || before.ends_with(' ') && after.starts_with(' '))
            })
        };
        let unknown: Vec<_> = METHODS.iter().filter(|method| !declared(method)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
