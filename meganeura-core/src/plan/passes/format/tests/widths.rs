//! Plans of convolutional networks of any width, for a large GPU with matrix units and for the same GPU in full
//! precision: what is held as bf16, and the launches and bytes that it takes.

use crate::kernel::launch::{Caps, Format};
use crate::ops::Conv2dOptions;
use crate::plan::{Plan, Preferences, Request, Target};
use crate::{Device, Result, Tape, Tensor, TensorType, Var};

/// The plan for the gradients of what `record` computes from images and weights.
fn planned(caps: Caps, shapes: &[[usize; 4]], record: impl Fn(&[Var]) -> Var) -> Result<Plan> {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let operands = shapes.iter().map(|&shape| Ok(tape.input(&Tensor::zeros(&device, shape)?)));
    let operands = operands.collect::<Result<Vec<_>>>()?;
    let grads = tape.backward(&record(&operands).square().sum())?;
    let outputs = operands[1..].iter().filter_map(|x| grads.of(x)).map(|dx| dx.id()).collect::<Result<Vec<_>>>()?;
    tape.with_graph(|graph| {
        let request = Request { graph, outputs: &outputs, assigns: &[] };
        Plan::new(&request, Target::Gpu { caps, preferences: &Preferences::default() })
    })
}

fn fast() -> Caps {
    Caps { matrix: true, bf16: true, bf16_units: true, fragments: true, ..Caps::DISCRETE }
}

fn options(stride: usize, padding: usize, groups: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups }
}

/// Statistics of the batch, and what follows.
fn normalised(x: &Var) -> Var {
    let [mean, _, variance] = x.channel_moments();
    let factor = (variance + 1e-5).sqrt().recip();
    x.channel_affine(&mean, &factor, &(&mean * &factor)).relu()
}

/// A stem, a block with a bottleneck of depthwise convolution, a pool and a head; the network's plan.
fn network(caps: Caps, width: usize) -> Result<Plan> {
    let w = width;
    let shapes = [[16, 3, 64, 64], [w, 3, 3, 3], [2 * w, w, 1, 1], [2 * w, 1, 3, 3], [w, 2 * w, 1, 1], [w, w, 3, 3]];
    planned(caps, &shapes, |x| {
        let stem = normalised(&x[0].conv2d(&x[1], options(2, 1, 1)));
        let wide = normalised(&stem.conv2d(&x[2], options(1, 0, 1)));
        let deep = normalised(&wide.conv2d(&x[3], options(1, 1, 2 * w)));
        let block = stem + normalised(&deep.conv2d(&x[4], options(1, 0, 1)));
        let pooled = block.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1]);
        normalised(&pooled.conv2d(&x[5], options(2, 1, 1))).mean_over(&[2, 3])
    })
}

/// Bytes that all steps of a plan read and write, each operand and result once.
fn bytes(plan: &Plan) -> usize {
    let of_step = |step: &crate::plan::Step| {
        let read = step.inputs.iter().map(|input| input.storage);
        let all = read.chain(step.outputs.iter().map(|&(storage, _)| storage));
        all.map(|storage| plan.storages[storage].bytes()).sum::<usize>()
    };
    plan.steps.iter().map(of_step).sum()
}

/// Images of at least five channels that are held as `f32`.
fn full_images(plan: &Plan) -> Vec<TensorType> {
    let is_image = |ty: &TensorType| {
        ty.dtype.is_float() && ty.shape.rank() == 4 && ty.shape[1] >= 5 && ty.shape[0] == 16 && ty.shape[2] > 1
    };
    let results = plan.steps.iter().flat_map(|step| &step.outputs);
    let full = results.filter(|(storage, ty)| is_image(ty) && plan.storages[*storage].format == Format::Full);
    full.map(|&(_, ty)| ty).collect()
}

#[test]
fn networks_of_every_width_stay_in_bf16() -> Result<()> {
    for (width, like) in [(10, 16), (12, 16), (60, 64), (100, 104), (63, 64), (65, 72)] {
        let [odd, whole] = [width, like].map(|width| network(fast(), width));
        let (odd, whole, full) = (odd?, whole?, network(Caps::DISCRETE, width)?);
        assert_eq!(full_images(&odd), [], "{width}: {odd}");
        let launches = [&odd, &whole].map(|plan| plan.launch_infos().count());
        assert_eq!(launches[0], launches[1], "{width}: {odd}");
        let conversions = odd.launch_infos().filter(|launched| launched.kernel == "convert").count();
        // The pictures of three channels, once for the stem and for the gradient of its weight.
        assert_eq!(conversions, 1, "{width}: {odd}");
        let moved = [&odd, &whole, &full].map(bytes);
        assert!(moved[0] <= moved[1], "{width}: {moved:?}");
        // Half, but for padding and the pictures, which stay f32.
        let share = moved[0] as f64 / moved[2] as f64 * width as f64 / width.next_multiple_of(8) as f64;
        assert!(share < 0.58, "{width}: {share}, {moved:?}");
    }
    Ok(())
}

/// No width makes a step of fast precision move more than one of full precision.
#[test]
fn fast_moves_no_more_than_full() -> Result<()> {
    for width in 1..=41 {
        let [fast, full] = [fast(), Caps::DISCRETE].map(|caps| network(caps, width));
        let [fast, full] = [&fast?, &full?].map(|plan| (bytes(plan), plan.launch_infos().count()));
        assert!(fast.0 <= full.0, "{width}: {fast:?}, {full:?}");
    }
    Ok(())
}

/// Each block appends twelve channels, so that parts begin anywhere in a line; and so do the slices of the gradients.
#[test]
fn dense_blocks_stay_in_bf16() -> Result<()> {
    let shapes = [[16, 3, 8, 8], [60, 3, 3, 3], [12, 60, 3, 3], [12, 72, 3, 3], [12, 84, 3, 3], [7, 96, 1, 1]];
    let plan = planned(fast(), &shapes, |x| {
        let mut y = x[0].conv2d(&x[1], options(1, 1, 1));
        for w in &x[2..5] {
            let more = normalised(&y).conv2d(w, options(1, 1, 1));
            y = Var::concat(&[&y, &more], 1);
        }
        y.conv2d(&x[5], options(1, 0, 1))
    })?;
    assert_eq!(full_images(&plan), [], "{plan}");
    let launches = |kernel: &str| plan.launch_infos().filter(|launched| launched.kernel == kernel).count();
    // The channels begin at 60, 72 and 84; what begins at 72 is stored in place. The pictures are converted.
    assert_eq!((launches("concat_lines"), launches("convert")), (2, 1), "{plan}");
    Ok(())
}

#[test]
fn parts_that_end_with_a_line_are_stored_in_place() -> Result<()> {
    let plan = planned(fast(), &[[16, 16, 8, 8], [64, 16, 3, 3], [12, 64, 3, 3], [76, 76, 1, 1]], |x| {
        let first = x[0].conv2d(&x[1], options(1, 1, 1)).relu();
        let second = first.conv2d(&x[2], options(1, 1, 1)).relu();
        Var::concat(&[&first, &second], 1).conv2d(&x[3], options(1, 0, 1))
    })?;
    assert_eq!(full_images(&plan), [], "{plan}");
    Ok(())
}
