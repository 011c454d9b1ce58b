//! Every loss, with every reduction.

use std::sync::Arc;

use meganeura::Var;
use meganeura::loss::{BceOptions, CrossEntropyOptions, Reduction};

use super::{Case, Inputs, function};

const REDUCTIONS: [(&str, Reduction); 3] =
    [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)];

/// A loss with each reduction; PyTorch's call is to be closed by that.
fn each(call: &str, loss: fn(&Inputs, Reduction) -> Var) -> Vec<Arc<Case>> {
    let case = |(name, reduction): &(&str, Reduction)| {
        let reduction = *reduction;
        function("losses", format!("F.{call}, reduction='{name}')"), move |inputs| loss(inputs, reduction))
    };
    REDUCTIONS.iter().map(case).collect()
}

/// Cross-entropy, with the options that are the same whatever the reduction.
fn cross_entropy(call: &str, is_weighted: bool, options: &CrossEntropyOptions) -> Vec<Arc<Case>> {
    let case = |(name, reduction): &(&str, Reduction)| {
        let options = CrossEntropyOptions { reduction: *reduction, ..options.clone() };
        function("losses", format!("F.cross_entropy(x, labels{call}, reduction='{name}')"), move |inputs| {
            let class_weights = is_weighted.then(|| inputs.setting("w", f64::exp));
            let options = CrossEntropyOptions { class_weights, ..options.clone() };
            inputs.var("x").cross_entropy_with(inputs.tensor("labels"), &options)
        })
    };
    REDUCTIONS.iter().map(case).collect()
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    let plain = CrossEntropyOptions::default;
    [
        each("mse_loss(x, t", |i, reduction| i.var("x").mse_with(i.var("t"), reduction)),
        each("l1_loss(x, t", |i, reduction| i.var("x").l1_with(i.var("t"), reduction)),
        each("huber_loss(x, t, delta=0.5", |i, reduction| i.var("x").huber_with(i.var("t"), 0.5, reduction)),
        each("smooth_l1_loss(x, t, beta=1.5", |i, reduction| i.var("x").smooth_l1_with(i.var("t"), 1.5, reduction)),
        each("binary_cross_entropy_with_logits(x, t.sigmoid()", |i, reduction| {
            i.var("x").bce_with(&i.var("t").sigmoid(), &BceOptions { reduction, ..Default::default() })
        }),
        each("binary_cross_entropy_with_logits(x, t.sigmoid(), pos_weight=w.exp()", |i, reduction| {
            let positive_weight = Some(i.setting("w", f64::exp));
            i.var("x").bce_with(&i.var("t").sigmoid(), &BceOptions { positive_weight, reduction })
        }),
        cross_entropy("", false, &plain()),
        cross_entropy(", ignore_index=1", false, &CrossEntropyOptions { ignored: Some(1), ..plain() }),
        cross_entropy(", label_smoothing=0.1", false, &CrossEntropyOptions { label_smoothing: 0.1, ..plain() }),
        cross_entropy(", weight=w.exp()", true, &plain()),
        cross_entropy(
            ", weight=w.exp(), ignore_index=2, label_smoothing=0.3",
            true,
            &CrossEntropyOptions { ignored: Some(2), label_smoothing: 0.3, ..plain() },
        ),
    ]
    .concat()
}
