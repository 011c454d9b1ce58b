//! Layers over sequences and volumes, and transformer parts, written in PyTorch and here.

use std::sync::Arc;

use meganeura::io::Names;
use meganeura::nn::*;
use meganeura::{Init, Layer, Seed, Tensor, Var};

use super::{Case, Inputs, function, module};

/// A layer with one input.
fn layer<I>(torch: &str, builder: I) -> Arc<Case>
where
    I: Init<Output: Layer + 'static> + Clone + Send + Sync + 'static,
{
    let build = move |device: &_| builder.clone().init(device, Seed::new(1));
    module("sequences", torch, Names::new(), build, |layer, inputs| layer.forward(inputs.var("x")))
}

/// A recurrent layer, with its initial state from the inputs `h` and `c`, if any. Results: the outputs and all final
/// states, concatenated.
fn recurrent<G>(torch: &str, config: RecurrentConfig<G>, state: fn(&Inputs) -> Option<G::State>) -> Arc<Case>
where
    G: RecurrentGates,
{
    let build = move |device: &_| config.clone().init(device, Seed::new(1));
    module("sequences", torch, Names::new(), build, move |layer: &Recurrent<G>, inputs| {
        let lengths = lengths(inputs);
        let steps = lengths.as_ref().map_or(Steps::All, Steps::Lengths);
        let (y, last) = layer.forward_with(inputs.var("x"), state(inputs).as_ref(), steps);
        let parts = last.to_parts();
        let all: Vec<_> =
            std::iter::once(&y).chain(&parts).map(|part| part.reshape([part.shape().elements()])).collect();
        Var::concat(&all.iter().collect::<Vec<_>>(), 0)
    })
}

/// The golden case's lengths plus one.
fn lengths(inputs: &Inputs) -> Option<Var> {
    let drawn = inputs.tensors.get("lengths")?;
    let lengths: Vec<_> = drawn.to_u32_vec().expect("whole numbers").into_iter().map(|length| length + 1).collect();
    Some(inputs.tape.input(&Tensor::indices(&inputs.tape.device(), drawn.shape(), &lengths).expect("as before")))
}

/// A single step.
fn cell<G>(torch: &str, config: RecurrentCellConfig<G>, state: fn(&Inputs) -> Option<G::State>) -> Arc<Case>
where
    G: RecurrentGates,
{
    let build = move |device: &_| config.clone().init(device, Seed::new(1));
    module("sequences", torch, Names::new(), build, move |cell: &RecurrentCell<G>, inputs| {
        let parts = cell.step(inputs.var("x"), state(inputs).as_ref()).to_parts();
        Var::concat(&parts.iter().collect::<Vec<_>>(), 0)
    })
}

fn h(inputs: &Inputs) -> Option<Var> {
    inputs.vars.get("h").cloned()
}

fn h_and_c(inputs: &Inputs) -> Option<LstmState> {
    Some(LstmState { h: h(inputs)?, c: inputs.var("c").clone() })
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    [along_one_axis(), recurrent_layers(), of_transformers(), volumes()].concat()
}

fn along_one_axis() -> Vec<Arc<Case>> {
    vec![
        layer("nn.Conv1d(3, 5, 3, stride=2, padding=1)", Conv1d::new(3, 5, 3).stride(2).padding(1)),
        layer(
            "nn.Conv1d(4, 6, 3, stride=2, padding=3, dilation=2, groups=2, bias=False)",
            Conv1d::new(4, 6, 3).stride(2).padding(3).dilation(2).groups(2).bias(false),
        ),
        layer("nn.Conv1d(3, 6, 4, groups=3)", Conv1d::new(3, 6, 4).groups(3)),
        layer("nn.ConvTranspose1d(3, 2, 3)", ConvTranspose1d::new(3, 2, 3)),
        layer(
            "nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2, dilation=2, groups=2, bias=False)",
            ConvTranspose1d::new(4, 6, 3).stride(3).padding(1).output_padding(2).dilation(2).groups(2).bias(false),
        ),
        layer("nn.MaxPool1d(3, stride=2, padding=1, dilation=2)", MaxPool1d::new(3).stride(2).padding(1).dilation(2)),
        layer("nn.AvgPool1d(3, stride=2, padding=1)", AvgPool1d::new(3).stride(2).padding(1)),
        layer(
            "nn.AvgPool1d(2, count_include_pad=False, padding=1)",
            AvgPool1d::new(2).padding(1).count_include_pad(false),
        ),
        layer("nn.AdaptiveAvgPool1d(3)", AdaptiveAvgPool1d::new(3)),
        layer("nn.AdaptiveAvgPool1d(5)", AdaptiveAvgPool1d::new(5)),
    ]
}

fn recurrent_layers() -> Vec<Arc<Case>> {
    vec![
        recurrent("nn.RNN(3, 4, batch_first=True)", Rnn::new(3, 4), h),
        recurrent(
            "nn.RNN(2, 3, 2, nonlinearity='relu', bias=False, bidirectional=True, batch_first=True)",
            Rnn::new(2, 3).layers(2).nonlinearity(RnnNonlinearity::Relu).bias(false).bidirectional(true),
            h,
        ),
        recurrent("nn.LSTM(3, 4, batch_first=True)", Lstm::new(3, 4), h_and_c),
        recurrent("nn.LSTM(3, 4, bias=False, batch_first=True)", Lstm::new(3, 4).bias(false), h_and_c),
        recurrent(
            "nn.LSTM(3, 2, num_layers=2, bidirectional=True, batch_first=True)",
            Lstm::new(3, 2).layers(2).bidirectional(true),
            h_and_c,
        ),
        recurrent(
            "nn.LSTM(2, 3, num_layers=3, dropout=0.5, batch_first=True).eval()",
            Lstm::new(2, 3).layers(3).dropout(0.5),
            h_and_c,
        ),
        recurrent("nn.GRU(3, 4, batch_first=True)", Gru::new(3, 4), h),
        recurrent("nn.GRU(3, 4, bias=False, batch_first=True)", Gru::new(3, 4).bias(false), h),
        recurrent(
            "nn.GRU(3, 2, num_layers=2, bidirectional=True, batch_first=True)",
            Gru::new(3, 2).layers(2).bidirectional(true),
            h,
        ),
        cell("nn.RNNCell(3, 4, nonlinearity='relu')", RnnCell::new(3, 4).nonlinearity(RnnNonlinearity::Relu), h),
        cell("nn.LSTMCell(3, 4)", LstmCell::new(3, 4), h_and_c),
        cell("nn.GRUCell(3, 4)", GruCell::new(3, 4), h),
    ]
}

fn of_transformers() -> Vec<Arc<Case>> {
    let rotary = |inputs: &Inputs, rotary: RotaryEmbedding, offset| rotary.forward_from(inputs.var("x"), offset);
    vec![
        layer("nn.RMSNorm(7, eps=1e-5)", RmsNorm::new([7]).eps(1e-5)),
        layer("nn.RMSNorm((3, 5), eps=0.1, elementwise_affine=False)", RmsNorm::new([3, 5]).eps(0.1).affine(false)),
        layer("nn.GLU()", Glu::new()),
        layer("nn.GLU(dim=1)", Glu::new().axis(1)),
        layer("SwiGlu(4, 6)", SwiGlu::new(4, 6)),
        layer("SwiGlu(4, 3, bias=True)", SwiGlu::new(4, 3).bias(true)),
        function("sequences", "RotaryEmbedding(6)", move |inputs| rotary(inputs, RotaryEmbedding::new(6), 0)),
        function("sequences", "RotaryEmbedding(4, base=100.0, offset=7)", move |inputs| {
            rotary(inputs, RotaryEmbedding::new(4).base(100.0), 7)
        }),
    ]
}

fn volumes() -> Vec<Arc<Case>> {
    vec![
        layer("nn.Conv3d(2, 3, 3)", Conv3d::new(2, 3, 3)),
        layer(
            "nn.Conv3d(3, 4, (2, 3, 1), stride=(2, 1, 2), padding=(1, 1, 0), dilation=(2, 1, 1))",
            Conv3d::new(3, 4, (2, 3, 1)).stride((2, 1, 2)).padding((1, 1, 0)).dilation((2, 1, 1)),
        ),
        layer(
            "nn.Conv3d(4, 6, (3, 2, 2), stride=(1, 2, 1), padding=(2, 0, 1), groups=2, bias=False)",
            Conv3d::new(4, 6, (3, 2, 2)).stride((1, 2, 1)).padding((2, 0, 1)).groups(2).bias(false),
        ),
        layer("nn.Conv3d(3, 6, (1, 2, 2), groups=3)", Conv3d::new(3, 6, (1, 2, 2)).groups(3)),
        layer("nn.Conv3d(2, 2, 2, stride=3)", Conv3d::new(2, 2, 2).stride(3)),
        layer("nn.MaxPool3d(2)", MaxPool3d::new(2)),
        layer(
            "nn.MaxPool3d((3, 2, 2), stride=(2, 1, 1), padding=(1, 0, 1), dilation=(1, 2, 1))",
            MaxPool3d::new((3, 2, 2)).stride((2, 1, 1)).padding((1, 0, 1)).dilation((1, 2, 1)),
        ),
        layer("nn.AvgPool3d((2, 3, 2))", AvgPool3d::new((2, 3, 2))),
        layer(
            "nn.AvgPool3d(3, stride=(1, 2, 2), padding=(1, 0, 1))",
            AvgPool3d::new(3).stride((1, 2, 2)).padding((1, 0, 1)),
        ),
        layer(
            "nn.AvgPool3d(2, stride=1, padding=1, count_include_pad=False)",
            AvgPool3d::new(2).stride(1).padding(1).count_include_pad(false),
        ),
    ]
}
