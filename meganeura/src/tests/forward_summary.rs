//! Printed summaries of forward passes, and the properties of each row.

mod identity;

use crate::nn::{
    Conv2d, Conv3d, ConvTranspose2d, Dropout, Flatten, GroupNorm, Linear, MaxPool2d, MultiheadAttention, Relu, Rnn,
};
use crate::{Device, ErrorKind, Init, Layer, Module, ModuleExt, Seed, Shape, Var};

#[derive(Module, Debug)]
#[module(sequential, residual)]
struct Block {
    #[module(init = Conv2d::new(4, 4, 3).padding(1))]
    conv: Conv2d,
    #[module(init = GroupNorm::new(2, 4))]
    norm: GroupNorm,
    #[module(init = Relu)]
    relu: Relu,
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Net {
    #[module(init = Conv2d::new(3, 4, 3).padding(1), then = [relu, MaxPool2d::new(2)])]
    stem: Conv2d,
    #[module(init)]
    blocks: [Block; 2],
    #[module(init = Flatten)]
    flatten: Flatten,
    #[module(init = Linear::new(4 * 4 * 4, 10))]
    head: Linear,
}

fn net() -> Net {
    Net::init(&Device::cpu(), 1).unwrap()
}

#[test]
fn a_sequential_model_is_listed_field_by_field() {
    let summary = net().summary_with([2, 3, 8, 8]).unwrap();
    let expected = "\
Net               output            parameters  multiply-adds   memory
├─ stem: Conv2d   f32[2, 4, 8, 8]          112         13,824  2,048 B
├─ MaxPool2d      f32[2, 4, 4, 4]                                512 B
├─ blocks: [Block; 2]  f32[2, 4, 4, 4]        312          9,216    512 B";
    let shown = summary.to_string();
    // The test below covers the layout of the columns.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let first: Vec<_> = shown.lines().take(4).map(words).collect();
    assert_eq!(first, expected.lines().map(words).collect::<Vec<_>>(), "\n{shown}");
    let paths: Vec<_> = summary.rows().iter().map(|row| (row.path.as_deref().unwrap_or("?"), &*row.kind)).collect();
    let block = |at: usize| ["", ".conv", ".norm", ".relu"].map(|field| format!("blocks.{at}{field}")).into_iter();
    let blocks: Vec<String> = block(0).chain(block(1)).collect();
    let kinds = ["Block", "Conv2d", "GroupNorm", "Relu"];
    let mut wanted = vec![("", "Net"), ("stem", "Conv2d"), ("?", "MaxPool2d"), ("blocks", "[Block; 2]")];
    wanted.extend(blocks.iter().zip(kinds.into_iter().cycle()).map(|(path, kind)| (&**path, kind)));
    wanted.extend([("flatten", "Flatten"), ("head", "Linear")]);
    assert_eq!(paths, wanted, "\n{shown}");
    // 2·8·8 pixels times 4 kernels of 27 weights, 2·4·4 pixels times 4 kernels of 36 in each of two layers, and 2 rows
    // times 64×10.
    assert_eq!(summary.multiply_adds(), 2 * 64 * 4 * 27 + 2 * (2 * 16 * 4 * 36) + 2 * 640);
    let activations = [2 * 4 * 64, 2 * 4 * 16].into_iter().chain([2 * 4 * 16; 6]).chain([2 * 64, 2 * 10]);
    assert_eq!(summary.activation_bytes(), 4 * activations.sum::<usize>());
    assert_eq!((summary.input_bytes(), summary.counts().trained), (4 * 2 * 3 * 64, net().parameter_count()));
    assert!(shown.ends_with("1,536 B of input, 6,224 B of activations"), "{shown}");
}

#[test]
fn columns_and_branches_are_aligned() {
    let net = ((Linear::new(3, 4), Relu), Linear::new(4, 2)).init(&Device::cpu(), Seed::new(1)).unwrap();
    let expected = "\
((Linear, Relu), Linear)  output     parameters  multiply-adds  memory
├─ 0: (Linear, Relu)      f32[5, 4]          16             60    80 B
│  ├─ 0: Linear           f32[5, 4]          16             60    80 B
│  └─ 1: Relu             f32[5, 4]                               80 B
└─ 1: Linear              f32[5, 2]          10             40    40 B
26 parameters, 104 B with buffers
100 multiply-adds
60 B of input, 200 B of activations";
    let summary = net.summary_with([5, 3]).unwrap();
    assert_eq!(summary.to_string(), expected, "\n{summary}");
    let top = summary.depth(1).to_string();
    assert_eq!(top.lines().count(), 6, "{top}");
    assert!(top.contains("├─ 0: (Linear, Relu)") && top.contains("└─ 1: Linear"), "{top}");
}

/// A model that calls its parts by hand.
#[derive(Module, Debug)]
struct ByHand {
    #[module(init = [Linear::new(4, 4), Linear::new(4, 4)])]
    layers: [Linear; 2],
    #[module(init = Linear::new(4, 4))]
    shared: Linear,
    #[module(init = Dropout::new(0.5))]
    dropout: Dropout,
    #[module(init = Rnn::new(4, 3).layers(2))]
    rnn: Rnn,
}

impl ByHand {
    fn forward(&self, x: &Var, y: &Var) -> [Var; 2] {
        let mut h = self.shared.forward(x);
        for layer in &self.layers {
            h = Relu.forward(&layer.forward(&h));
        }
        let h = self.dropout.forward(&self.shared.forward(&h));
        [self.rnn.forward(&(h.reshape([1, 2, 4]) * y)), h.sum()]
    }
}

#[test]
fn layers_called_by_hand_are_identified_by_their_tensors() {
    let net = ByHand::init(&Device::cpu(), 1).unwrap();
    let summary = net.summary_by(([2, 4], [1, 2, 4]), |net, (x, y)| net.forward(x, y)).unwrap();
    let shown = summary.to_string();
    let rows: Vec<_> = summary.rows()[1..]
        .iter()
        .map(|row| (row.path.as_deref().unwrap_or("?"), &*row.kind, row.depth, row.is_again))
        .collect();
    let expected = [
        ("shared", "Linear", 1, false),
        ("layers", "", 1, false),
        ("layers.0", "Linear", 2, false),
        ("?", "Relu", 2, false),
        ("layers.1", "Linear", 2, false),
        ("?", "Relu", 1, false),
        ("shared", "Linear", 1, true),
        ("dropout", "Dropout", 1, false),
        ("rnn", "Recurrent<RnnGates>", 1, false),
    ];
    assert_eq!(rows, expected, "\n{shown}");
    assert!(shown.contains("again"), "{shown}");
    // The row shows the output, not the last state, which the layer records after it.
    let rnn = summary.rows().last().unwrap();
    assert_eq!(rnn.output.shape, Shape::from([1, 2, 3]));
    assert_eq!(summary.rows()[2].parameters, 40);
    assert_eq!(summary.input_bytes(), 4 * (8 + 8));
}

#[test]
fn nothing_is_touched_and_nothing_runs() {
    let device = Device::cpu();
    device.set_seed(7);
    let mut net = net();
    net.evaluate("stem").unwrap();
    let (before, runs) = (net.summary().to_string(), device.stats().runs);
    // Far more data than fits into memory.
    let summary = net.summary_with([1 << 30, 3, 8, 8]).unwrap();
    assert!(summary.activation_bytes() > 1 << 40);
    assert_eq!((net.summary().to_string(), device.stats().runs, device.seed()), (before, runs, 7));
}

#[test]
fn misfits_name_the_field() {
    let error = net().summary_with([2, 3, 16, 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("head.weight"), "{error}");
    let (error, line) = (net().summary_with([0, 3, 8, 8]).unwrap_err(), line!());
    assert!(error.to_string().contains("needs at least one element"), "{error}");
    assert_eq!(error.location().unwrap().line(), line);
}

#[test]
fn multiply_adds_are_those_of_the_definition() {
    let device = Device::cpu();
    type Case<'a> = (Box<dyn Layer>, &'a [usize], u64);
    let cases: [Case<'_>; 6] = [
        // Each group has 2 of the 4 channels.
        (Box::new(Conv2d::new(4, 6, 3).groups(2).init(&device, 1).unwrap()), &[2, 4, 7, 6], 2 * 5 * 4 * 6 * 2 * 9),
        // Each input element is multiplied by each weight of its channel.
        (Box::new(ConvTranspose2d::new(4, 6, 3).init(&device, 1).unwrap()), &[2, 4, 5, 5], 2 * 4 * 25 * 6 * 9),
        (Box::new(Conv3d::new(2, 3, 2).init(&device, 1).unwrap()), &[1, 2, 3, 4, 5], 2 * 3 * 4 * 3 * 2 * 8),
        (Box::new(Linear::new(5, 7).init(&device, 1).unwrap()), &[2, 3, 5], 6 * 5 * 7),
        // Four projections, the scores, and the weighted sums.
        (
            Box::new(MultiheadAttention::new(6, 2).init(&device, 1).unwrap()),
            &[2, 3, 6],
            4 * 6 * 36 + 2 * (2 * 3 * 3 * 6),
        ),
        (Box::new((Relu, Flatten)), &[2, 3, 4], 0),
    ];
    for (layer, shape, expected) in cases {
        let summary = layer.summary_with(Shape::new(shape)).unwrap();
        assert_eq!(summary.multiply_adds(), expected, "{summary}");
    }
}
