//! The methods of `Var` that `then` and `before` can apply, for suggestions. Other names are left to the compiler,
//! because a user's trait may define them.

use super::nearest::nearest;

/// Methods whose result has the shape of their operand.
const KEEP_SHAPE: &[&str] = &[
    "abs",
    "bitwise_not",
    "cast",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cumprod",
    "cumsum",
    "detach",
    "elu",
    "erf",
    "erfinv",
    "exp",
    "expm1",
    "flip",
    "floor",
    "gelu",
    "gelu_tanh",
    "leaky_relu",
    "log",
    "log_softmax",
    "logcumsumexp",
    "powf",
    "random_normal",
    "random_uniform",
    "recip",
    "relu",
    "roll",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "tril",
    "triu",
];

/// The other methods from one value to one value. Methods with a second value are missing, because a chain has no
/// argument for it.
const CHANGE_SHAPE: &[&str] = &[
    "adaptive_avg_pool2d",
    "all",
    "all_over",
    "any",
    "any_over",
    "argmax",
    "argmin",
    "argsort",
    "at",
    "avg_pool2d",
    "cumulative_trapezoid",
    "cumulative_trapezoid_with",
    "diagonal",
    "expand",
    "flatten",
    "logsumexp",
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
    "norm",
    "norm_over",
    "one_hot",
    "pad",
    "pad_with",
    "permute",
    "prod",
    "prod_over",
    "repeat_interleave",
    "reshape",
    "resize_bicubic",
    "resize_bilinear",
    "slice",
    "squeeze",
    "std",
    "std_over",
    "sum",
    "sum_keep",
    "sum_over",
    "t",
    "tile",
    "to_float",
    "to_index",
    "transpose",
    "trapezoid",
    "trapezoid_with",
    "unsqueeze",
    "upsample_nearest",
    "variance",
    "variance_keep",
    "variance_over",
];

/// `true` if the result of a method of `Var` has its input's shape.
pub fn keeps_shape(name: &str) -> bool {
    KEEP_SHAPE.contains(&name)
}

fn methods() -> impl Iterator<Item = &'static str> {
    KEEP_SHAPE.iter().chain(CHANGE_SHAPE).copied()
}

pub fn is_method(name: &str) -> bool {
    methods().any(|method| method == name)
}

/// The most similar method.
pub fn nearest_method(name: &str) -> Option<&'static str> {
    nearest(name, methods())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn misspelt_methods_get_a_suggestion() {
        for (given, meant) in
            [("relew", "relu"), ("sigmod", "sigmoid"), ("flaten", "flatten"), ("leaky_rely", "leaky_relu")]
        {
            assert_eq!(nearest_method(given), Some(meant));
        }
        assert_eq!(nearest_method("frobnicate"), None);
        assert!(is_method("relu") && !is_method("relew"));
    }

    /// The sources of the framework's operations, and of the functions that are composed of them.
    fn operations() -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../meganeura-core/src");
        let mut sources = String::new();
        let mut folders = vec![source.join("ops"), source.join("functions")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                match entry.unwrap().path() {
                    path if path.is_dir() => folders.push(path),
                    path => sources.push_str(&fs::read_to_string(path).unwrap()),
                }
            }
        }
        sources
    }

    /// The methods of rows of the elementwise table with one operand: `Tanh "tanh" tanh(x) = …`.
    fn rows(sources: &str) -> impl Iterator<Item = &str> {
        sources.lines().filter_map(|line| {
            let (row, _) = line.split_once("(x) = ")?;
            let (_, method) = row.rsplit_once("\" ")?;
            (!method.is_empty()).then_some(method)
        })
    }

    #[test]
    fn all_known_methods_are_methods_of_var() {
        let sources = operations();
        // Either a function or a word of a table row.
        let ends = [" ", "(", "<"];
        let is_declared = |method: &&str| ends.iter().any(|end| sources.contains(&format!(" {method}{end}")));
        let unknown: Vec<_> = methods().filter(|method| !is_declared(method)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// The public methods from one value to one value that are written out, without those that users do not see.
    fn declared(sources: &str) -> impl Iterator<Item = &str> {
        let functions = sources.split("pub fn ").collect::<Vec<_>>();
        let seen = |pair: &&[&str]| !pair[0].trim_end().ends_with("#[doc(hidden)]");
        let seen = functions.windows(2).filter(seen).map(|pair| pair[1]).collect::<Vec<_>>();
        seen.into_iter().filter_map(|text| {
            let (signature, _) = text.split_once('{')?;
            let (name, parameters) = signature.split_once("(&self")?;
            let is_of_one = parameters.trim_end().ends_with("-> Self") && !parameters.contains("&Self");
            (is_of_one && !parameters.contains("Option<") && !parameters.contains("World")).then_some(name)
        })
    }

    #[test]
    fn every_method_of_one_value_is_known() {
        let sources = operations();
        assert!(declared(&sources).any(|method| method == "cumsum"), "no methods are found");
        // Those of macros begin with `$`.
        let missing = declared(&sources).filter(|method| !method.starts_with('$') && !is_method(method));
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "{missing:?} are in neither list");
    }

    #[test]
    fn every_row_of_one_operand_keeps_the_shape() {
        let sources = operations();
        assert!(rows(&sources).any(|row| row == "tanh"), "no rows are found");
        let missing: Vec<_> = rows(&sources).filter(|row| !keeps_shape(row)).collect();
        assert!(missing.is_empty(), "{missing:?} are not in KEEP_SHAPE");
    }
}
