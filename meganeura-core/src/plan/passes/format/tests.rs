mod axes;
mod widths;

use crate::kernel::launch::{Caps, Format, PaddedRows};
use crate::ops::Conv2dOptions;
use crate::plan::{Place, Plan, Preferences, Request, StorageInfo, Target};
use crate::{Device, Result, Tape, Tensor, Var};

#[test]
fn new_values_of_leaves_are_not_rounded() -> Result<()> {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let image = tape.input(&Tensor::zeros(&device, [8, 16, 6, 6])?);
    let weight = tape.input(&Tensor::zeros(&device, [16, 16, 3, 3])?);
    // A leaf that is read as bf16, updated, and read as bf16 again.
    let updated = &image - convolved(&image, &weight) * 0.1;
    let outputs = [convolved(&updated, &weight).id()?];
    let assigns = [(0, updated.id()?)];
    let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
    let plan = tape.with_graph(|graph| {
        let request = Request { graph, outputs: &outputs, assigns: &assigns };
        Plan::new(&request, Target::Gpu { caps, preferences: &Preferences::default() })
    })?;
    let is_leaf = |storage: usize| plan.storages[storage].place == Place::Leaf(0);
    let update = plan.steps.iter().find(|step| step.outputs.iter().any(|&(storage, _)| is_leaf(storage)));
    let update = update.expect("a step writes the leaf");
    assert!(update.inputs.iter().any(|input| is_leaf(input.storage)), "{plan}");
    Ok(())
}

/// The plan of a large GPU with matrix units for the gradients of a recording on images `[8, 16, 6, 6]` and
/// weights.
fn planned(f: impl Fn(&Var, &[Var]) -> Var) -> Result<Plan> {
    planned_on([8, 16, 6, 6], &Preferences::default(), f)
}

fn planned_on(images: [usize; 4], preferences: &Preferences, f: impl Fn(&Var, &[Var]) -> Var) -> Result<Plan> {
    let weights: [&[usize]; 3] = [&[24, 16, 3, 3], &[40, 24, 3, 3], &[16, 48, 3, 3]];
    planned_with(&images, &weights, preferences, f)
}

fn planned_with(
    image: &[usize],
    weights: &[&[usize]],
    preferences: &Preferences,
    f: impl Fn(&Var, &[Var]) -> Var,
) -> Result<Plan> {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let image = tape.input(&Tensor::zeros(&device, image)?);
    let weights =
        weights.iter().map(|&shape| Ok(tape.input(&Tensor::zeros(&device, shape)?))).collect::<Result<Vec<_>>>()?;
    let grads = tape.backward(&f(&image, &weights).square().sum())?;
    let outputs = weights.iter().filter_map(|weight| grads.of(weight)).map(|dw| dw.id()).collect::<Result<Vec<_>>>()?;
    let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
    tape.with_graph(|graph| {
        let request = Request { graph, outputs: &outputs, assigns: &[] };
        Plan::new(&request, Target::Gpu { caps, preferences })
    })
}

fn conversions(plan: &Plan) -> usize {
    plan.launch_infos().filter(|launched| launched.kernel == "convert").count()
}

fn convolved(x: &Var, w: &Var) -> Var {
    x.conv2d(w, Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() })
}

#[test]
fn small_plans_keep_f32_where_conversions_would_not_pay() -> Result<()> {
    let has_bf16 = |side, economical| -> Result<bool> {
        let preferences = Preferences { economical, ..Preferences::default() };
        let two = |x: &Var, w: &[Var]| convolved(&convolved(x, &w[0]).silu(), &w[1]);
        let plan = planned_on([64, 16, side, side], &preferences, two)?;
        let has_bf16 = plan.storages.iter().any(|storage| storage.format.is_bf16());
        assert!(has_bf16 || conversions(&plan) == 0, "{plan}");
        Ok(has_bf16)
    };
    assert!(!has_bf16(2, true)? && has_bf16(2, false)?);
    assert!(has_bf16(64, true)?);
    Ok(())
}

#[test]
fn the_gradient_of_a_weight_converts_large_images() -> Result<()> {
    let gradient = |side| {
        let economical = Preferences { economical: true, ..Preferences::default() };
        of_inputs(&[&[64, 16, side, side], &[16, 16, 3, 3]], &economical, |x| {
            let grads = x[0].tape().backward(&convolved(&x[0], &x[1]).sum())?;
            Ok(grads.of(&x[1]).into_iter().collect())
        })
    };
    // Its result is small at any size.
    let has_bf16 = |plan: &Plan| plan.storages.iter().any(|storage| storage.format.is_bf16());
    assert!(!has_bf16(&gradient(4)?) && has_bf16(&gradient(64)?));
    Ok(())
}

#[test]
fn only_the_input_is_converted_if_all_values_can_be_bf16() -> Result<()> {
    let chain = planned(|x, w| convolved(&convolved(x, &w[0]).silu(), &w[1]))?;
    assert_eq!(conversions(&chain), 1, "{chain}");
    let images = |ty: &crate::TensorType| ty.shape.rank() == 4 && ty.shape[2] * ty.shape[3] == 36;
    let results = chain.steps.iter().flat_map(|step| &step.outputs).filter(|(_, ty)| images(ty));
    for (storage, ty) in results {
        assert_ne!(chain.storages[*storage].format, Format::Full, "{ty}: {chain}");
    }
    Ok(())
}

#[test]
fn channels_side_by_side_and_parts_of_them_stay_bf16() -> Result<()> {
    let sides = planned(|x, w| {
        let y = convolved(x, &w[0]).relu();
        convolved(&Var::concat(&[&y, &y.sigmoid()], 1), &w[2])
    })?;
    assert_eq!(conversions(&sides), 1, "{sides}");
    Ok(())
}

#[test]
fn reshaped_images_are_stored_by_the_channels_of_the_convolution() -> Result<()> {
    let flat = planned(|x, w| convolved(&x.reshape([8, 576]).relu().reshape([8, 16, 6, 6]), &w[0]))?;
    assert_eq!(conversions(&flat), 0, "{flat}");
    Ok(())
}

#[test]
fn a_convolution_of_images_with_few_channels_stores_bf16() -> Result<()> {
    let colours = planned(|x, w| convolved(&convolved(&x.slice(1, 0..3), &w[0].slice(1, 0..3)).silu(), &w[1]).silu())?;
    let images = |ty: &crate::TensorType| ty.shape.rank() == 4 && ty.shape[1] >= 8 && ty.shape[2] == 6;
    let results: Vec<_> = colours.steps.iter().flat_map(|step| &step.outputs).filter(|(_, ty)| images(ty)).collect();
    assert!(results.len() >= 4, "{colours}");
    for (storage, ty) in results {
        assert_ne!(colours.storages[*storage].format, Format::Full, "{ty}: {colours}");
    }
    Ok(())
}

#[test]
fn values_without_readers_of_bf16_stay_f32() -> Result<()> {
    let padded = planned(|x, w| convolved(x, &w[0]).pad(&[(0, 0), (0, 0), (1, 0), (0, 1)], 0.0))?;
    let images = padded.steps.iter().filter(|step| step.outputs.iter().any(|(_, ty)| ty.shape.rank() == 4));
    let stored = images.flat_map(|step| &step.outputs).filter(|(s, _)| padded.storages[*s].format != Format::Full);
    // Two conversions: of the input, and of the cotangent for the product that reads both.
    assert_eq!((stored.count(), conversions(&padded)), (2, 2), "{padded}");
    Ok(())
}

#[test]
fn kernels_that_need_f32_get_f32() -> Result<()> {
    // Two conversions: of the input, and of `y`, once for both pads. The gradients of the pads are elementwise and
    // read the stored `f32`.
    let padded = planned(|x, w| {
        let y = convolved(x, &w[0]).relu();
        let pad = |value| y.pad(&[(0, 0), (0, 0), (1, 0), (0, 1)], value);
        pad(0.0) + pad(1.0)
    })?;
    assert_eq!(conversions(&padded), 2, "{padded}");
    Ok(())
}

#[test]
fn pooling_and_resampling_read_and_store_bf16() -> Result<()> {
    let pooled = planned(|x, w| {
        let y = convolved(x, &w[0]).relu();
        let small = y.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1]) + y.avg_pool2d([2, 2], [2, 2], [0, 0], false);
        small.resize_bilinear([5, 7], true)
    })?;
    // Only the input is converted.
    assert_eq!(conversions(&pooled), 1, "{pooled}");
    let launched: Vec<_> = pooled.launch_infos().filter(|launched| launched.variant == "lines").collect();
    assert_eq!(launched.len(), 6, "{pooled}");
    Ok(())
}

/// The plan of a large GPU with matrix units for values that `f` computes from matrices of these shapes.
fn of_matrices(shapes: &[&[usize]], f: impl Fn(&[Var]) -> Result<Vec<Var>>) -> Result<Plan> {
    of_inputs(shapes, &Preferences::default(), f)
}

fn of_inputs(shapes: &[&[usize]], preferences: &Preferences, f: impl Fn(&[Var]) -> Result<Vec<Var>>) -> Result<Plan> {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let input = |shape: &&[usize]| Ok(tape.input(&Tensor::zeros(&device, crate::Shape::new(shape))?));
    let outputs = f(&shapes.iter().map(input).collect::<Result<Vec<_>>>()?)?;
    let outputs = outputs.iter().map(Var::id).collect::<Result<Vec<_>>>()?;
    let caps = Caps { matrix: true, bf16: true, bf16_units: true, fragments: true, ..Caps::DISCRETE };
    tape.with_graph(|graph| {
        let request = Request { graph, outputs: &outputs, assigns: &[] };
        Plan::new(&request, Target::Gpu { caps, preferences })
    })
}

fn launches(plan: &Plan, kernel: &str) -> usize {
    plan.launch_infos().filter(|launched| launched.kernel == kernel).count()
}

/// The launches of products of bf16.
fn products(plan: &Plan) -> usize {
    launches(plan, "matmul_bf16") + launches(plan, "matmul_fragments")
}

#[test]
fn products_read_bf16_through_views_and_convert_each_weight_once() -> Result<()> {
    let plan = of_matrices(&[&[1024, 512], &[512, 512], &[512, 512]], |x| {
        let y = x[0].matmul(&x[1].t()).relu().matmul(&x[2].t());
        let grads = x[0].tape().backward(&y.square().sum())?;
        Ok([1, 2].iter().filter_map(|&k| grads.of(&x[k])).collect())
    })?;
    // Two products forward; backward, one for the hidden cotangent and one for each weight. The three leaves are
    // converted.
    assert_eq!((products(&plan), launches(&plan, "gemm")), (5, 0), "{plan}");
    let converted = plan.steps.iter().filter(|step| step.outputs.iter().all(|(s, _)| is_copy(&plan, *s)));
    assert_eq!(converted.count(), 3, "{plan}");
    Ok(())
}

/// `true` if a storage is a copy of a leaf as bf16.
fn is_copy(plan: &Plan, storage: usize) -> bool {
    let made = plan.steps.iter().find(|step| step.outputs.iter().any(|&(made, _)| made == storage));
    let of_leaf = |input: &crate::plan::Operand| matches!(plan.storages[input.storage].place, Place::Leaf(_));
    plan.storages[storage].format != Format::Full && made.is_some_and(|step| step.inputs.iter().all(of_leaf))
}

#[test]
fn products_of_few_terms_or_columns_are_converted_if_they_multiply_enough() -> Result<()> {
    for (shapes, is_bf16) in [([8192, 64, 10_000], true), ([8192, 10_000, 64], false), ([8192, 16, 10_000], false)] {
        let [m, k, n] = shapes;
        let plan = of_matrices(&[&[m, k], &[k, n]], |x| Ok(vec![x[0].matmul(&x[1])]))?;
        assert_eq!(products(&plan) == 1, is_bf16, "{plan}");
    }
    Ok(())
}

#[test]
fn the_gradient_of_a_weight_is_not_rounded() -> Result<()> {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let [x, w, dy] = [0, 1, 2].map(|_| Tensor::zeros(&device, [1024, 1024]).map(|zeros| tape.input(&zeros)));
    let (x, w, dy) = (x?, w?, dy?);
    // The gradient is clipped by its norm, so it is stored before it is used.
    let gradient = dy.t().matmul(&x);
    let norm = gradient.square().sum();
    let updated = &w - &gradient / norm.expand([1024, 1024]);
    let assigns = [(1, updated.id()?)];
    let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
    let plan = tape.with_graph(|graph| {
        let request = Request { graph, outputs: &[], assigns: &assigns };
        Plan::new(&request, Target::Gpu { caps, preferences: &Preferences::default() })
    })?;
    let product = plan.steps.iter().find(|step| step.launches.iter().any(|launch| launch.kernel == "matmul_bf16"));
    let (storage, _) = product.expect("it is large").outputs[0];
    assert_eq!(plan.storages[storage].format, Format::Full, "{plan}");
    Ok(())
}

#[test]
fn attention_stays_in_bf16() -> Result<()> {
    let plan = of_matrices(&[&[4, 256, 512], &[512, 1536]], |x| {
        let heads = |part: usize, qkv: &Var| {
            qkv.slice(2, 512 * part..512 * (part + 1)).reshape([4, 256, 8, 64]).permute(&[0, 2, 1, 3])
        };
        let qkv = x[0].matmul(&x[1]);
        let [q, k, v] = [0, 1, 2].map(|part| heads(part, &qkv));
        Ok(vec![q.matmul(&k.t()).scale(0.125).softmax(3).matmul(&v).square()])
    })?;
    assert_eq!((products(&plan), launches(&plan, "gemm")), (3, 0), "{plan}");
    let softmax = plan.launch_infos().find(|launched| launched.kernel == "softmax").expect("there is one");
    assert_eq!(softmax.variant, "lines", "{plan}");
    Ok(())
}

#[test]
fn a_gradient_that_the_caller_wants_is_not_rounded() -> Result<()> {
    let plan = of_matrices(&[&[1024, 512], &[1024, 512]], |x| {
        let gradient = x[0].t().matmul(&x[1]);
        let norm = gradient.square().sum();
        Ok(vec![gradient, norm])
    })?;
    assert_eq!(launches(&plan, "matmul_bf16"), 1, "{plan}");
    assert_eq!(plan.storages[plan.outputs[0]].format, Format::Full);
    let made = plan.steps.iter().find(|step| step.outputs[0].0 == plan.outputs[0]).expect("a step makes it");
    assert!(made.launches[0].kernel == "matmul_bf16", "{plan}");
    Ok(())
}

#[test]
fn a_slice_is_read_without_converting_its_whole_leaf() -> Result<()> {
    let plan = of_matrices(&[&[16_384, 512], &[512, 512]], |x| Ok(vec![x[0].slice(0, 0..1024).matmul(&x[1])]))?;
    assert_eq!(launches(&plan, "matmul_bf16"), 1, "{plan}");
    assert!(plan.storages.iter().all(|s| s.format == Format::Full || s.elements == 512 * 512), "{plan}");
    Ok(())
}

#[test]
fn unaligned_operands_are_multiplied_in_f32() -> Result<()> {
    let plan = of_matrices(&[&[1024, 1024], &[1024, 1027]], |x| Ok(vec![x[0].matmul(&x[1].slice(1, 3..1027))]))?;
    assert_eq!((products(&plan), launches(&plan, "gemm")), (0, 1), "{plan}");
    Ok(())
}

/// A layer and a head over so many classes, its loss and the gradients of all parameters.
fn head(classes: usize, record: impl Fn(Var, &Tensor) -> Var) -> Result<Plan> {
    let shapes: [&[usize]; 4] = [&[1024, 512], &[512, 512], &[classes, 512], &[classes]];
    of_matrices(&shapes, |x| {
        let labels = Tensor::indices(&x[0].tape().device(), [1024], &[3; 1024])?;
        let hidden = x[0].matmul(&x[1]).gelu();
        let loss = record(hidden.matmul(&x[2].t()) + &x[3], &labels);
        let grads = x[0].tape().backward(&loss)?;
        Ok([1, 2, 3].iter().filter_map(|&k| grads.of(&x[k])).chain([loss]).collect())
    })
}

/// The formats of values with so many elements, and the number of steps that only copy such a value.
fn of_logits(plan: &Plan, elements: usize) -> (Vec<Format>, usize) {
    let is_logits = |ty: &crate::TensorType| ty.shape.elements() == elements;
    let results = plan.steps.iter().flat_map(|step| &step.outputs).filter(|(_, ty)| is_logits(ty));
    let formats = results.map(|&(storage, _)| plan.storages[storage].format).collect();
    let is_copy = |step: &&crate::plan::Step| match &step.work {
        crate::plan::Work::Pointwise(program) => {
            program.instructions.is_empty() && program.shape.elements() == elements
        }
        crate::plan::Work::Kernel(_) => false,
    };
    (formats, plan.steps.iter().filter(is_copy).count())
}

#[test]
fn logits_of_an_odd_vocabulary_are_padded_and_never_converted() -> Result<()> {
    for classes in [50_257, 1003] {
        let padded = Format::PaddedRows(PaddedRows { len: classes });
        let plan = head(classes, |logits, labels| logits.cross_entropy(labels).mean())?;
        assert_eq!((products(&plan), launches(&plan, "gemm")), (5, 0), "{plan}");
        // The logits and their gradient, which takes their place.
        assert_eq!(of_logits(&plan, 1024 * classes), (vec![padded; 2], 0), "{plan}");
        let bias = plan.launch_infos().filter(|launched| launched.kernel == "reduce_lines").count();
        assert_eq!(bias, 1, "{plan}");
        let bytes: Vec<_> = plan.storages.iter().filter(|s| s.format == padded).map(StorageInfo::bytes).collect();
        assert_eq!(bytes, [2 * 1024 * classes.next_multiple_of(8)]);
    }
    Ok(())
}

#[test]
fn reshapes_that_keep_padded_rows_are_views() -> Result<()> {
    let padded = Format::PaddedRows(PaddedRows { len: 1003 });
    let batches = head(1003, |logits, labels| {
        let logits = logits.reshape([4, 256, 1003]) * 0.5;
        logits.reshape([1024, 1003]).cross_entropy(labels).mean()
    })?;
    assert_eq!((products(&batches), launches(&batches, "gemm")), (5, 0), "{batches}");
    let (formats, copies) = of_logits(&batches, 1024 * 1003);
    assert!(copies == 0 && formats.iter().all(|&format| format == padded), "{batches}");
    // A sum over pairs of rows breaks them.
    let pairs = head(1003, |logits, labels| {
        logits.cross_entropy(labels).mean() + logits.reshape([512, 2006]).square().max_over(&[1]).mean()
    })?;
    assert!(pairs.storages.iter().any(|s| s.format == padded), "{pairs}");
    assert_eq!(launches(&pairs, "gemm"), 0, "{pairs}");
    Ok(())
}

#[test]
fn weights_of_softmax_are_padded_for_products() -> Result<()> {
    // 197 patches, as of pictures of 224² in patches of 16².
    let plan = of_matrices(&[&[2, 197, 512], &[512, 1536]], |x| {
        let heads = |part: usize, qkv: &Var| {
            qkv.slice(2, 512 * part..512 * (part + 1)).reshape([2, 197, 8, 64]).permute(&[0, 2, 1, 3])
        };
        let qkv = x[0].reshape([394, 512]).matmul(&x[1]).reshape([2, 197, 1536]);
        let [q, k, v] = [0, 1, 2].map(|part| heads(part, &qkv));
        Ok(vec![q.matmul(&k.t()).scale(0.125).softmax(3).matmul(&v).square()])
    })?;
    assert_eq!((products(&plan), launches(&plan, "gemm")), (3, 0), "{plan}");
    let padded = plan.storages.iter().filter(|s| s.format == Format::PaddedRows(PaddedRows { len: 197 }));
    assert_eq!(padded.count(), 2, "{plan}");
    Ok(())
}

#[test]
fn rows_that_are_mostly_padding_stay_f32() -> Result<()> {
    let plan = head(10, |logits, labels| logits.cross_entropy(labels).mean())?;
    let (formats, _) = of_logits(&plan, 1024 * 10);
    assert!(formats.iter().all(|&format| format == Format::Full), "{plan}");
    assert!(plan.storages.iter().all(|s| !matches!(s.format, Format::PaddedRows(_))), "{plan}");
    Ok(())
}

#[test]
fn heads_are_views_and_their_copies_stay_bf16() -> Result<()> {
    let (batch, length, width, heads) = (8, 256, 512, 8);
    let shapes: [&[usize]; 3] = [&[batch, length, width], &[3 * width, width], &[width, width]];
    let plan = of_matrices(&shapes, |x| {
        let rows = x[0].tanh().reshape([batch * length, width]);
        let projected = rows.matmul(&x[1].t()).reshape([batch, length, 3 * width]);
        let head = |part: usize| {
            let part = projected.slice(2, width * part..width * (part + 1));
            part.reshape([batch, length, heads, width / heads]).permute(&[0, 2, 1, 3])
        };
        let y = head(0).attention(&head(1), &head(2), None).permute(&[0, 2, 1, 3]).reshape([batch * length, width]);
        let loss = (&rows + y.matmul(&x[2].t())).square().sum();
        let grads = x[0].tape().backward(&loss)?;
        Ok(x.iter().filter_map(|x| grads.of(x)).collect())
    })?;
    assert_eq!((products(&plan), launches(&plan, "gemm")), (6, 0), "{plan}");
    assert_eq!((launches(&plan, "attention_bf16"), launches(&plan, "attention_grad_bf16")), (1, 2), "{plan}");
    // Values as large as the tokens are bf16, but those that the caller wants.
    let results = plan.steps.iter().flat_map(|step| &step.outputs).map(|&(storage, _)| &plan.storages[storage]);
    let inner = results.filter(|storage| matches!(storage.place, Place::Slot(_)));
    let large: Vec<_> = inner.filter(|storage| storage.elements >= batch * length * width).collect();
    assert!(large.len() > 8 && large.iter().all(|storage| storage.format.is_bf16()), "{plan}");
    Ok(())
}

#[test]
fn heads_that_share_keys_are_fused_without_copies() -> Result<()> {
    use crate::ops::attention::Attention;

    let (heads, own, length, keys, features) = (8, 2, 256, 384, 160);
    let shapes: [&[usize]; 4] = [
        &[2, length, heads * features],
        &[2, keys, own * features],
        &[own * features, own * features],
        &[heads * features, 64],
    ];
    let plan = of_matrices(&shapes, |x| {
        let split = |x: &Var, heads: usize| x.reshape([2, x.shape()[1], heads, features]).permute(&[0, 2, 1, 3]);
        let q = split(&x[0].tanh(), heads);
        let k = split(&x[1].reshape([2 * keys, own * features]).matmul(&x[2]).reshape([2, keys, own * features]), own);
        let attention = Attention { scale: crate::graph::Exact(0.1), causal: true };
        let [y, _] = q.record_many(attention, &[&q, &k, &k]);
        let y = y.permute(&[0, 2, 1, 3]).reshape([2 * length, heads * features]).matmul(&x[3]);
        let grads = x[0].tape().backward(&y.square().sum())?;
        Ok(x.iter().filter_map(|x| grads.of(x)).collect())
    })?;
    assert_eq!((launches(&plan, "attention_bf16"), launches(&plan, "attention_grad_bf16")), (1, 2), "{plan}");
    // Neither scores nor keys for every head of queries are in memory.
    let scores = 2 * heads * length * keys;
    let repeated = 2 * heads * keys * features;
    assert!(plan.storages.iter().all(|storage| ![scores, repeated].contains(&storage.elements)), "{plan}");
    Ok(())
}

#[test]
fn the_gradient_of_a_sum_of_attention_is_fused() -> Result<()> {
    let plan = of_matrices(&[&[8, 256, 64], &[8, 128, 64]], |x| {
        let y = x[0].attention(&x[1], &x[1], None);
        let grads = x[0].tape().backward(&y.sum())?;
        Ok(x.iter().filter_map(|x| grads.of(x)).collect())
    })?;
    assert_eq!((launches(&plan, "attention_bf16"), launches(&plan, "attention_grad_bf16")), (1, 2), "{plan}");
    Ok(())
}
