//! Every loss, with every reduction.

use std::sync::Arc;

use meganeura::loss::{
    BceWithLogitsOptions, CosineEmbeddingOptions, CrossEntropyOptions, CtcOptions, DiceOptions, FocalBceOptions,
    FocalCrossEntropyOptions, HingeEmbeddingOptions, KlDivOptions, MultiMarginOptions, NllOptions, Reduction,
    SoftCrossEntropyOptions, TripletMarginOptions,
};
use meganeura::{Tensor, Var};

use super::{Case, Inputs, function};

const REDUCTIONS: [(&str, Reduction); 3] =
    [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)];

/// A loss with each reduction, whose name completes PyTorch's call.
fn each(call: &str, loss: fn(&Inputs, Reduction) -> Var) -> Vec<Arc<Case>> {
    let case = |(name, reduction): &(&str, Reduction)| {
        let reduction = *reduction;
        function("losses", format!("{call}, reduction='{name}')"), move |inputs| loss(inputs, reduction))
    };
    REDUCTIONS.iter().map(case).collect()
}

/// Cross-entropy with each reduction and these other options.
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
        each("F.mse_loss(x, t", |i, reduction| i.var("x").mse_with(i.var("t"), reduction)),
        each("F.l1_loss(x, t", |i, reduction| i.var("x").l1_with(i.var("t"), reduction)),
        each("F.huber_loss(x, t, delta=0.5", |i, reduction| i.var("x").huber_with(i.var("t"), 0.5, reduction)),
        each("F.smooth_l1_loss(x, t, beta=1.5", |i, reduction| i.var("x").smooth_l1_with(i.var("t"), 1.5, reduction)),
        each("F.binary_cross_entropy_with_logits(x, t.sigmoid()", |i, reduction| {
            i.var("x")
                .bce_with_logits_with(&i.var("t").sigmoid(), &BceWithLogitsOptions { reduction, ..Default::default() })
        }),
        each("F.binary_cross_entropy_with_logits(x, t.sigmoid(), pos_weight=w.exp()", |i, reduction| {
            let positive_weight = Some(i.setting("w", f64::exp));
            i.var("x").bce_with_logits_with(&i.var("t").sigmoid(), &BceWithLogitsOptions { positive_weight, reduction })
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
        classes(),
        distributions(),
        sequences(),
        pairs(),
        regions(),
    ]
    .concat()
}

/// Losses of labels.
fn classes() -> Vec<Arc<Case>> {
    [
        each("F.nll_loss(x, labels", |i, reduction| {
            i.var("x").nll_with(i.tensor("labels"), &NllOptions { reduction, ..Default::default() })
        }),
        each("F.nll_loss(x, labels, weight=w.exp(), ignore_index=2", |i, reduction| {
            let class_weights = Some(i.setting("w", f64::exp));
            i.var("x").nll_with(i.tensor("labels"), &NllOptions { class_weights, ignored: Some(2), reduction })
        }),
        each("F.multi_margin_loss(x, labels", |i, reduction| {
            i.var("x").multi_margin_with(i.tensor("labels"), &MultiMarginOptions { reduction, ..Default::default() })
        }),
        each("F.multi_margin_loss(x, labels, p=2, margin=0.3, weight=w.exp()", |i, reduction| {
            let class_weights = Some(i.setting("w", f64::exp));
            let options = MultiMarginOptions { margin: 0.3, squared: true, class_weights, reduction };
            i.var("x").multi_margin_with(i.tensor("labels"), &options)
        }),
        each("focal_loss(x, labels", |i, reduction| {
            let options = FocalCrossEntropyOptions { reduction, ..Default::default() };
            i.var("x").focal_cross_entropy_with(i.tensor("labels"), &options)
        }),
        each("focal_loss(x, labels, gamma=0.5, weight=w.exp()", |i, reduction| {
            let class_weights = Some(i.setting("w", f64::exp));
            let options = FocalCrossEntropyOptions { gamma: 0.5, class_weights, ignored: None, reduction };
            i.var("x").focal_cross_entropy_with(i.tensor("labels"), &options)
        }),
    ]
    .concat()
}

fn distributions() -> Vec<Arc<Case>> {
    [
        each("F.cross_entropy(x, t.softmax(1)", |i, reduction| {
            let options = SoftCrossEntropyOptions { reduction, ..Default::default() };
            i.var("x").soft_cross_entropy_with(&i.var("t").softmax(1), &options)
        }),
        each("F.cross_entropy(x, t.softmax(1), weight=w.exp(), label_smoothing=0.3", |i, reduction| {
            let class_weights = Some(i.setting("w", f64::exp));
            let options = SoftCrossEntropyOptions { label_smoothing: 0.3, class_weights, reduction };
            i.var("x").soft_cross_entropy_with(&i.var("t").softmax(1), &options)
        }),
        each("F.kl_div(x.log_softmax(1), t.softmax(1)", |i, reduction| {
            let options = KlDivOptions { log_target: false, reduction };
            i.var("x").log_softmax(1).kl_div_with(&i.var("t").softmax(1), &options)
        }),
        each("F.kl_div(x.log_softmax(1), t.log_softmax(1), log_target=True", |i, reduction| {
            let options = KlDivOptions { log_target: true, reduction };
            i.var("x").log_softmax(1).kl_div_with(&i.var("t").log_softmax(1), &options)
        }),
    ]
    .concat()
}

fn sequences() -> Vec<Arc<Case>> {
    fn ctc(i: &Inputs, more: u32, zero_infinity: bool, reduction: Reduction) -> Var {
        let steps: Vec<_> = i.tensor("a").to_u32_vec().expect("indices").into_iter().map(|a| more + a).collect();
        let steps = Tensor::indices(&i.tape.device(), [steps.len()], &steps).expect("as before");
        let options = CtcOptions { blank: 4, zero_infinity, reduction };
        i.var("x").log_softmax(2).ctc_with(i.tensor("labels"), &steps, i.tensor("b"), &options)
    }
    [
        each("F.ctc_loss(x.log_softmax(2), labels, 5 + a, b, blank=4", |i, reduction| ctc(i, 5, false, reduction)),
        each("F.ctc_loss(x.log_softmax(2), labels, a, b, blank=4, zero_infinity=True", |i, reduction| {
            ctc(i, 0, true, reduction)
        }),
    ]
    .concat()
}

/// Losses of similar and dissimilar pairs. Targets have no gradient.
fn pairs() -> Vec<Arc<Case>> {
    fn signs(inputs: &Inputs) -> Var {
        inputs.tape.input(&inputs.setting("w", f64::signum))
    }
    [
        each("F.hinge_embedding_loss(x, w.sign()", |i, reduction| {
            i.var("x").hinge_embedding_with(&signs(i), &HingeEmbeddingOptions { reduction, ..Default::default() })
        }),
        each("F.hinge_embedding_loss(x, w.sign(), margin=0.3", |i, reduction| {
            i.var("x").hinge_embedding_with(&signs(i), &HingeEmbeddingOptions { margin: 0.3, reduction })
        }),
        each("F.cosine_embedding_loss(x, y, w.sign()", |i, reduction| {
            let options = CosineEmbeddingOptions { reduction, ..Default::default() };
            i.var("x").cosine_embedding_with(i.var("y"), &signs(i), &options)
        }),
        each("F.cosine_embedding_loss(x, y, w.sign(), margin=-0.3", |i, reduction| {
            let options = CosineEmbeddingOptions { margin: -0.3, reduction };
            i.var("x").cosine_embedding_with(i.var("y"), &signs(i), &options)
        }),
        each("F.triplet_margin_loss(x, y, z", |i, reduction| {
            let options = TripletMarginOptions { reduction, ..Default::default() };
            i.var("x").triplet_margin_with(i.var("y"), i.var("z"), &options)
        }),
        each("F.triplet_margin_loss(x, y, z, margin=2.5, p=3.0, swap=True", |i, reduction| {
            let options = TripletMarginOptions { margin: 2.5, p: 3.0, swap: true, reduction, ..Default::default() };
            i.var("x").triplet_margin_with(i.var("y"), i.var("z"), &options)
        }),
        each("F.triplet_margin_loss(x, y, z, p=1.0, eps=0.01", |i, reduction| {
            let options = TripletMarginOptions { p: 1.0, eps: 0.01, reduction, ..Default::default() };
            i.var("x").triplet_margin_with(i.var("y"), i.var("z"), &options)
        }),
    ]
    .concat()
}

/// Losses of segmentation and detection.
fn regions() -> Vec<Arc<Case>> {
    [
        each("dice_loss(x.sigmoid(), t.sigmoid()", |i, reduction| {
            let options = DiceOptions { reduction, ..Default::default() };
            i.var("x").sigmoid().dice_with(&i.var("t").sigmoid(), &options)
        }),
        each("dice_loss(x.sigmoid(), t.sigmoid(), smooth=0.1, squared=True", |i, reduction| {
            let options = DiceOptions { smooth: 0.1, squared: true, reduction };
            i.var("x").sigmoid().dice_with(&i.var("t").sigmoid(), &options)
        }),
        each("sigmoid_focal_loss(x, t.sigmoid()", |i, reduction| {
            let options = FocalBceOptions { reduction, ..Default::default() };
            i.var("x").focal_bce_with(&i.var("t").sigmoid(), &options)
        }),
        each("sigmoid_focal_loss(x, t.sigmoid(), alpha=-1, gamma=0.5", |i, reduction| {
            let options = FocalBceOptions { gamma: 0.5, alpha: None, reduction };
            i.var("x").focal_bce_with(&i.var("t").sigmoid(), &options)
        }),
    ]
    .concat()
}
