//! The embedded WGSL files, and which kernels run without checks. [`preprocess`] knows the syntax of a file.

use crate::preprocess::{self, ExpandError};

/// Pairs each name with the text of its file under `wgsl/`.
macro_rules! embed {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../wgsl/", $name, ".wgsl")))),*]
    };
}

/// The folder of the files that kernels include. They have no entry point.
const SHARED: &str = "shared/";

/// Name and text of every file, sorted by name. A macro cannot list a folder; a test checks that the list is complete.
const SOURCES: &[(&str, &str)] = embed! {
    "arg_reduce"
    "attention"
    "attention_bf16"
    "attention_grad"
    "attention_grad_bf16"
    "attention_join"
    "attention_weights"
    "avg_pool2d"
    "avg_pool2d_grad"
    "cast"
    "channel_moments"
    "channel_moments_join"
    "channel_sums"
    "channel_sums_join"
    "concat_lines"
    "conv2d"
    "conv2d_gemm"
    "conv2d_grad_weight"
    "conv2d_grad_weight_gemm"
    "conv2d_grad_weight_lines"
    "conv2d_grad_weight_planes"
    "conv2d_grad_weight_taps"
    "conv2d_lines"
    "conv2d_pack"
    "conv2d_pack_taps"
    "conv2d_planes"
    "conv2d_taps"
    "convert"
    "cross_entropy"
    "cross_entropy_grad"
    "ctc"
    "ctc_grad"
    "cumsum"
    "custom"
    "embedding"
    "embedding_grad"
    "embedding_grad_parts"
    "embedding_grad_sorted"
    "embedding_starts"
    "gather"
    "gemm"
    "group_norm"
    "group_norm_apply"
    "group_norm_grad"
    "group_norm_grad_apply"
    "group_norm_grad_lines"
    "group_norm_grad_rows"
    "group_norm_grad_sums"
    "group_norm_lines"
    "integer"
    "integer_products"
    "iota"
    "label_weights"
    "logcumsumexp"
    "matmul_bf16"
    "matmul_dot"
    "matmul_fragments"
    "matrix_probe"
    "max_pool2d"
    "max_pool2d_grad"
    "order_fragments"
    "pad"
    "pointwise"
    "random_uniform"
    "recurrent"
    "recurrent_grad"
    "recurrent_start"
    "reduce"
    "reduce_lines"
    "resample"
    "scatter_along"
    "shared/angle"
    "shared/attention"
    "shared/attention_bf16"
    "shared/attention_slopes"
    "shared/avg_pool2d"
    "shared/bf16"
    "shared/channels"
    "shared/conv2d"
    "shared/conv2d_lines"
    "shared/conv2d_product"
    "shared/conv2d_tile"
    "shared/conv2d_tiles"
    "shared/ctc"
    "shared/element"
    "shared/elements"
    "shared/epilogue"
    "shared/epilogue_all"
    "shared/epilogue_lines"
    "shared/fit"
    "shared/float"
    "shared/fragment_lines"
    "shared/fragments"
    "shared/gemm"
    "shared/grid"
    "shared/group_norm_lines"
    "shared/i64"
    "shared/i64_division"
    "shared/math"
    "shared/mean"
    "shared/order"
    "shared/outputs"
    "shared/planes"
    "shared/pool"
    "shared/product"
    "shared/product_rows"
    "shared/prologue"
    "shared/prologue_lines"
    "shared/recurrent"
    "shared/recurrent_tile"
    "shared/reduce"
    "shared/resample"
    "shared/row_statistics"
    "shared/scan"
    "shared/segment_folds"
    "shared/segments"
    "shared/sort"
    "shared/terms"
    "shared/totals"
    "shared/units"
    "shared/value"
    "shared/values"
    "shared/window"
    "shared/winograd"
    "shared/winograd_tiles"
    "softmax"
    "softmax_parts"
    "sort_blocks"
    "sort_merge"
    "sum_parts"
    "to_index"
    "winograd_grad_output"
    "winograd_grad_weight"
    "winograd_input"
    "winograd_output"
    "winograd_weight"
};

/// Kernels that run with checks of their accesses and loops, each with the reason. Every other kernel runs without
/// checks; the tests run it with checks first.
const UNTRUSTED: &[(&str, &str)] = &[("custom", "a user writes its WGSL")];

/// `true` if a kernel stays inside its bindings and its workgroup memory, ends its loops, and writes workgroup memory
/// before it reads it, whatever numbers its bindings hold. The sizes of bindings and the defines must be as its head
/// comment says. `false` for a name that is no kernel of this crate.
#[must_use]
pub fn is_trusted(kernel: &str) -> bool {
    !kernel.starts_with(SHARED) && source(kernel).is_some() && UNTRUSTED.iter().all(|(name, _)| *name != kernel)
}

/// The names of all kernels, sorted.
pub fn kernels() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(name, _)| *name).filter(|name| !name.starts_with(SHARED))
}

/// The WGSL of `kernel` with its includes and `defines` filled in; see the [crate's documentation](crate).
///
/// # Errors
///
/// The kernel is unknown, a hole has no define, a define is given twice or mentioned nowhere, or the kernel's own text
/// is broken.
pub fn expand(kernel: &str, defines: &[(&str, &str)]) -> Result<String, ExpandError> {
    if kernel.starts_with(SHARED) {
        return Err(ExpandError::UnknownKernel { kernel: kernel.to_owned() });
    }
    preprocess::expand(source, kernel, defines)
}

fn source(name: &str) -> Option<&'static str> {
    let index = SOURCES.binary_search_by_key(&name, |(name, _)| name).ok()?;
    Some(SOURCES[index].1)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn files_under(folder: &Path, prefix: &str) -> Vec<String> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).expect("the folder of WGSL files can be read") {
            let path = entry.expect("its entries can be read").path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("names are UTF-8");
            if path.is_dir() {
                names.extend(files_under(&path, &format!("{prefix}{stem}/")));
            } else {
                names.push(format!("{prefix}{stem}"));
            }
        }
        names
    }

    #[test]
    fn every_file_is_embedded_in_order() {
        let mut files = files_under(&Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl"), "");
        files.sort();
        let embedded: Vec<_> = SOURCES.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, files);
    }

    #[test]
    fn kernels_of_users_are_not_trusted() {
        assert!(UNTRUSTED.iter().all(|(name, reason)| kernels().any(|kernel| kernel == *name) && !reason.is_empty()));
        assert!(is_trusted("gemm") && !is_trusted("custom") && !is_trusted("unknown") && !is_trusted("shared/gemm"));
    }

    #[test]
    fn functions_called_in_kernel_loops_have_no_loops() {
        for name in ["shared/angle", "shared/float", "shared/math"] {
            let text = source(name).expect("embedded");
            let code = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_start());
            let is_loop = |line: &str| ["for ", "while ", "loop "].iter().any(|word| line.starts_with(word));
            assert_eq!(code.filter(|line| is_loop(line)).collect::<Vec<_>>(), [""; 0], "{name}");
        }
    }

    #[test]
    fn shared_files_are_not_kernels() {
        assert!(kernels().all(|name| !name.contains('/')));
        assert_eq!(expand("shared/grid", &[]), Err(ExpandError::UnknownKernel { kernel: "shared/grid".to_owned() }));
    }
}
