//! Misuse of every operation. The recorded error names the operation, the operands and the line.

use libtest_mimic::{Failed, Trial};
use meganeura::data::Dataset;
use meganeura::loss::CrossEntropyOptions;
use meganeura::nn::*;
use meganeura::ops::case::Case;
use meganeura::ops::{Conv2dOptions, ConvTranspose2dOptions, CustomOp, Pointwise};
use meganeura::{
    Device, Error, ErrorKind, Init, Layer, Module, Param, Precision, Result, Seed, Tape, Tensor, TensorType, Var,
};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;

/// The values that the mistakes use.
struct Operands {
    /// `[2, 3]`
    a: Var,
    /// `[4, 5]`
    b: Var,
    /// `[3]`
    v: Var,
    /// `[1, 2, 5, 5]`
    image: Var,
    /// Labels `[4]`, up to 9.
    labels: Tensor,
    /// The same labels on the tape; not floats.
    u: Var,
}

struct Misuse {
    op: &'static str,
    parts: &'static [&'static str],
    call: fn(&Operands) -> Var,
}

/// `"name in the message" ["parts of the message", …] |x| the call;`, on one line: the error must name that line.
macro_rules! misuses {
    ($($op:literal [$($part:literal),*] |$x:ident| $call:expr;)+) => {
        const MISUSES: &[Misuse] = &[$(Misuse { op: $op, parts: &[$($part),*], call: |$x| $call }),+];
    };
}

const WIDE: [usize; 2] = [usize::MAX, usize::MAX];
const ONE: [usize; 2] = [1, 1];
const TWO: [usize; 2] = [2, 2];
const NONE: [usize; 2] = [0, 0];

fn conv(change: impl FnOnce(&mut Conv2dOptions)) -> Conv2dOptions {
    let mut options = Conv2dOptions::default();
    change(&mut options);
    options
}

fn transposed(change: impl FnOnce(&mut ConvTranspose2dOptions)) -> ConvTranspose2dOptions {
    let mut options = ConvTranspose2dOptions::default();
    change(&mut options);
    options
}

misuses! {
    "neg" ["u32[4]"] |x| -&x.u;
    "exp" ["u32[4]"] |x| x.u.exp();
    "leaky_relu" ["u32[4]"] |x| x.u.leaky_relu(0.1);
    "elu" ["u32[4]"] |x| x.u.elu(1.0);
    "clamp" ["u32[4]"] |x| x.u.clamp(0.0, 1.0);
    "clamp" ["between 1 and 0", "f32[2, 3]"] |x| x.a.clamp(1.0, 0.0);
    "clamp" ["between NaN and 1"] |x| x.a.clamp(f64::NAN, 1.0);
    "pow" ["u32[4]"] |x| x.u.powf(2.0);
    "pow" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.pow(&x.b);
    "add" ["f32[2, 3]", "f32[4, 5]"] |x| &x.a + &x.b;
    "add" ["f32[2, 3]", "u32[4]"] |x| &x.a + &x.u;
    "add" ["u32[4]"] |x| 1.0 + &x.u;
    "sub" ["f32[4, 5]", "f32[3]"] |x| &x.b - &x.v;
    "mul" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.clone() * &x.b;
    "div" ["f32[2, 3]", "f32[4, 5]"] |x| &x.a / x.b.clone();
    "min" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.minimum(&x.b);
    "max" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.maximum(&x.b);
    "eq" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.eq(&x.b);
    "ne" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.ne(&x.b);
    "lt" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.lt(&x.b);
    "le" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.le(&x.b);
    "gt" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.gt(&x.b);
    "ge" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.ge(&x.b);
    "where_cond" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.where_cond(&x.a, &x.b);
    "where_cond" ["f32[4, 5]", "f32[2, 3]"] |x| x.b.where_cond(&x.a, &x.a);
    "reshape" ["[2, 3]", "[5]", "6"] |x| x.a.reshape([5]);
    "reshape" ["[2, 3]"] |x| x.a.reshape(WIDE);
    "permute" ["[0]", "f32[2, 3]"] |x| x.a.permute(&[0]);
    "permute" ["[0, 0]"] |x| x.a.permute(&[0, 0]);
    "permute" ["[0, 2]"] |x| x.a.permute(&[0, 2]);
    "t" ["f32[3]"] |x| x.v.t();
    "expand" ["[2, 3]", "[4, 3]"] |x| x.a.expand([4, 3]);
    "expand" ["[2, 3]", "[3]"] |x| x.a.expand([3]);
    "expand" ["[0, 3]"] |x| x.v.expand([0, 3]);
    "slice" ["axis 2", "f32[2, 3]"] |x| x.a.slice(2, 0..1);
    "slice" ["1..4", "axis 1"] |x| x.a.slice(1, 1..4);
    "slice" ["axis 0"] |x| x.a.slice(0, 1..1);
    "slice" ["axis 1"] |x| x.a.slice(1, usize::MAX - 1..usize::MAX);
    "concat" ["[2, 3]", "[4, 5]"] |x| Var::concat(&[&x.a, &x.b], 0);
    "concat" ["[2, 3]", "[3]"] |x| Var::concat(&[&x.a, &x.v], 0);
    "concat" ["[1, 2, 5, 5]", "[1, 2, 4, 5]"] |x| Var::concat(&[&x.image, &x.image.slice(2, 0..4)], 0);
    "concat" ["axis 2"] |x| Var::concat(&[&x.a, &x.a], 2);
    "concat" ["f32", "u32"] |x| Var::concat(&[&x.v, &x.u], 0);
    "pad" ["1", "2", "f32[2, 3]"] |x| x.a.pad(&[(1, 1)], 0.0);
    "pad" ["f32[3]", "fit an f32"] |x| x.v.pad(&[(1, 1)], 1e300);
    "pad" ["f32[3]"] |x| x.v.pad(&[(usize::MAX, usize::MAX)], 0.0);
    "cumsum" ["axis 2", "f32[2, 3]"] |x| x.a.cumsum(2);
    "cumsum" ["u32[4]"] |x| x.u.cumsum(0);
    "logcumsumexp" ["axis 2", "f32[2, 3]"] |x| x.a.logcumsumexp(2);
    "logcumsumexp" ["u32[4]"] |x| x.u.logcumsumexp(0);
    "trapezoid" ["axis 2", "f32[2, 3]"] |x| x.a.trapezoid(2);
    "cumulative_trapezoid" ["axis 2", "f32[2, 3]"] |x| x.a.cumulative_trapezoid_with(2, 0.5);
    "cumprod" ["axis 2", "f32[2, 3]"] |x| x.a.cumprod(2);
    "index_select" ["axis 2", "f32[2, 3]"] |x| x.a.index_select(2, &x.u);
    "chunk" ["axis 2", "f32[2, 3]"] |x| x.a.chunk(1, 2).swap_remove(0);
    "transpose" ["axis 2", "f32[2, 3]"] |x| x.a.transpose(0, 2);
    "roll" ["axis 2", "f32[2, 3]"] |x| x.a.roll(1, 2);
    "repeat_interleave" ["axis 2", "f32[2, 3]"] |x| x.a.repeat_interleave(2, 2);
    "sum" ["axis 2", "f32[2, 3]"] |x| x.a.sum_over(&[2]);
    "sum" ["axis 1", "twice"] |x| x.a.sum_keep(&[1, 0, 1]);
    "sum" ["u32[4]"] |x| x.u.sum();
    "sum" ["axis 7"] |x| x.a.mean_over(&[7]);
    "sum" ["axis 7"] |x| x.a.mean_keep(&[7]);
    "sum" ["u32[4]"] |x| x.u.mean();
    "max" ["axis 2"] |x| x.a.max_over(&[2]);
    "max" ["u32[4]"] |x| x.u.max();
    "min" ["axis 2"] |x| x.a.min_keep(&[2]);
    "min" ["u32[4]"] |x| x.u.min();
    "sum" ["axis 2"] |x| x.a.variance_over(&[2], 0);
    "variance" ["3", "f32[3]"] |x| x.v.variance(3);
    "variance" ["1", "f32[2, 3]"] |x| x.a.variance_over(&[0; 0], 1);
    "argmax" ["axis 2", "f32[2, 3]"] |x| x.a.argmax(2);
    "argmax" ["axis 1", "u32[4]"] |x| x.u.argmax(1);
    "argmin" ["axis 3", "f32[2, 3]"] |x| x.a.argmin(3);
    "softmax" ["axis 2", "f32[2, 3]"] |x| x.a.softmax(2);
    "softmax" ["u32[4]"] |x| x.u.softmax(0);
    "log_softmax" ["axis 5"] |x| x.a.log_softmax(5);
    "matmul" ["3", "4", "f32[2, 3]", "f32[4, 5]"] |x| x.a.matmul(&x.b);
    "matmul" ["f32[2, 3]", "f32[3]"] |x| x.a.matmul(&x.v);
    "matmul" ["u32[4]"] |x| x.u.matmul(&x.u);
    "matmul" ["[1, 2]", "[3]"] |x| x.image.matmul(&x.v.reshape([3, 1, 1]).expand([3, 5, 5]));
    "conv2d" ["[1, 2, 5, 5]", "2 channels"] |x| x.image.conv2d(&x.image.slice(1, 0..1), conv(|_| {}));
    "conv2d" ["[2, 3]"] |x| x.a.conv2d(&x.image, conv(|_| {}));
    "conv2d" ["[4, 5]"] |x| x.image.conv2d(&x.b, conv(|_| {}));
    "conv2d" ["u32[4]"] |x| x.image.conv2d(&x.u, conv(|_| {}));
    "conv2d" ["stride 0"] |x| x.image.conv2d(&x.image, conv(|o| o.stride = [0, 1]));
    "conv2d" ["dilation 0"] |x| x.image.conv2d(&x.image, conv(|o| o.dilation = [1, 0]));
    "conv2d" ["9 elements", "5"] |x| x.image.conv2d(&x.image, conv(|o| o.dilation = [2, 1]));
    "conv2d" ["0 groups"] |x| x.image.conv2d(&x.image, conv(|o| o.groups = 0));
    "conv2d" ["3 groups", "2 input channels"] |x| x.image.conv2d(&x.image, conv(|o| o.groups = 3));
    "conv2d" ["height", "3 elements", "has only 2"] |x| x.image.slice(2, 0..2).conv2d(&x.image.slice(2, 0..3), conv(|_| {}));
    "conv2d" ["2 groups", "1 output"] |x| x.image.conv2d(&x.image, conv(|o| o.groups = 2));
    "conv2d" ["height"] |x| x.image.conv2d(&x.image, conv(|o| o.padding = WIDE));
    "conv2d" ["height"] |x| x.image.conv2d(&x.image, conv(|o| o.dilation = WIDE));
    "conv_transpose2d" ["2 channels", "expects 1", "[1, 2, 5, 5]"] |x| x.image.conv_transpose2d(&x.image.slice(1, 0..1).reshape([1, 1, 5, 5]), transposed(|_| {}));
    "conv_transpose2d" ["[N, C, H, W]", "[2, 3]"] |x| x.a.conv_transpose2d(&x.image, transposed(|_| {}));
    "conv_transpose2d" ["[C, O/groups, KH, KW]", "[4, 5]"] |x| x.image.conv_transpose2d(&x.b, transposed(|_| {}));
    "conv_transpose2d" ["u32[4]"] |x| x.image.conv_transpose2d(&x.u, transposed(|_| {}));
    "conv_transpose2d" ["stride 0"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| o.stride = [0, 1]));
    "conv_transpose2d" ["dilation 0"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| o.dilation = [1, 0]));
    "conv_transpose2d" ["0 groups"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| o.groups = 0));
    "conv_transpose2d" ["3 groups", "2 input channels"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| o.groups = 3));
    "conv_transpose2d" ["width", "output padding, 2", "stride, 2", "dilation, 1"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| (o.stride, o.output_padding) = ([2, 2], [1, 2])));
    "conv_transpose2d" ["height", "cuts off 10 elements", "9"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| o.padding = [5, 0]));
    "conv_transpose2d" ["height", "too large"] |x| x.image.conv_transpose2d(&x.image.reshape([2, 1, 5, 5]), transposed(|o| o.stride = WIDE));
    "exp" ["u32[4]"] |x| x.image.conv_transpose2d(&x.u.exp(), transposed(|_| {}));
    "max_pool2d" ["[2, 3]"] |x| x.a.max_pool2d(TWO, TWO, NONE, ONE);
    "max_pool2d" ["u32[4]"] |x| x.u.max_pool2d(TWO, TWO, NONE, ONE);
    "max_pool2d" ["kernel 0"] |x| x.image.max_pool2d(NONE, TWO, NONE, ONE);
    "max_pool2d" ["stride 0"] |x| x.image.max_pool2d(TWO, NONE, NONE, ONE);
    "max_pool2d" ["dilation 0"] |x| x.image.max_pool2d(TWO, TWO, NONE, NONE);
    "max_pool2d" ["padding [2, 2]"] |x| x.image.max_pool2d(TWO, TWO, TWO, ONE);
    "max_pool2d" ["6 elements", "5"] |x| x.image.max_pool2d([6, 1], ONE, NONE, ONE);
    "max_pool2d" ["f32[1, 2, 5, 5]"] |x| x.image.max_pool2d(WIDE, ONE, NONE, TWO);
    "avg_pool2d" ["[2, 3]"] |x| x.a.avg_pool2d(TWO, TWO, NONE, true);
    "avg_pool2d" ["stride 0"] |x| x.image.avg_pool2d(TWO, NONE, NONE, true);
    "avg_pool2d" ["6 elements", "5"] |x| x.image.avg_pool2d([1, 6], ONE, NONE, false);
    "avg_pool2d" ["f32[1, 2, 5, 5]"] |x| x.image.avg_pool2d(WIDE, ONE, [usize::MAX / 2; 2], false);
    "group_norm" ["0 groups"] |x| x.a.group_norm(0, 1e-5, &x.v, &x.v);
    "group_norm" ["2 groups", "3 channels"] |x| x.a.group_norm(2, 1e-5, &x.v, &x.v);
    "group_norm" ["weight", "f32[2, 3]"] |x| x.a.group_norm(1, 1e-5, &x.a, &x.v);
    "group_norm" ["bias", "f32[4, 5]"] |x| x.a.group_norm(1, 1e-5, &x.v, &x.b);
    "group_norm" ["[3]"] |x| x.v.group_norm(1, 1e-5, &x.v, &x.v);
    "group_norm" ["NaN"] |x| x.a.group_norm(1, f64::NAN, &x.v, &x.v);
    "group_norm" ["-1"] |x| x.a.group_norm(1, -1.0, &x.v, &x.v);
    "group_norm" ["1e-50"] |x| x.a.group_norm(1, 1e-50, &x.v, &x.v);
    "group_norm" ["4 groups", "3 channels"] |x| x.a.group_norm(4, 1e-5, &x.v, &x.v);
    "layer_norm" ["the last axes [4]", "[2, 3]"] |x| layer_norm([4]).forward(&x.a);
    "layer_norm" ["the last axes [2, 5]", "f32[1, 2, 5, 5]"] |x| layer_norm([2, 5]).forward(&x.image);
    "layer_norm" ["the last axes [2, 2, 3]", "f32[2, 3]"] |x| layer_norm([2, 2, 3]).forward(&x.a);
    "layer_norm" ["needs floats", "u32[4]"] |x| layer_norm([4]).forward(&x.u);
    "instance_norm2d" ["normalises 3 channels", "has 2"] |x| instance_norm(3).forward(&x.image);
    "instance_norm2d" ["normalises 1 channels", "has 2"] |x| instance_norm(1).forward(&x.image);
    "instance_norm2d" ["[N, 3, H, W]", "f32[2, 3]"] |x| instance_norm(3).forward(&x.a);
    "instance_norm2d" ["needs floats", "u32[1, 1, 2, 2]"] |x| instance_norm(1).forward(&x.u.reshape([1, 1, 2, 2]));
    "instance_norm2d" ["single pixel"] |x| instance_norm(2).forward(&x.image.max_over(&[2, 3]).reshape([1, 2, 1, 1]));
    "batch_norm2d" ["single number", "more examples or pixels", "f32[1, 2, 1, 1]"] |x| batch_norm(2).forward(&x.image.max_over(&[2, 3]).reshape([1, 2, 1, 1]));
    "batch_norm2d" ["normalises 3 channels", "has 2"] |x| batch_norm(3).forward(&x.image);
    "cross_entropy" ["label 9", "5 classes", "f32[4, 5]", "u32[4]"] |x| x.b.cross_entropy(&x.labels);
    "cross_entropy" ["integers [2]", "u32[4]"] |x| x.a.pad(&[(0, 0), (0, 9)], 0.0).cross_entropy(&x.labels);
    "cross_entropy" ["[3]"] |x| x.v.cross_entropy(&x.labels);
    "cross_entropy" ["label smoothing", "1.5"] |x| x.b.cross_entropy_with(&x.labels, &CrossEntropyOptions { label_smoothing: 1.5, ..Default::default() });
    "cross_entropy" ["label smoothing", "NaN"] |x| x.b.cross_entropy_with(&x.labels, &CrossEntropyOptions { label_smoothing: f64::NAN, ..Default::default() });
    "cross_entropy" ["label 9"] |x| x.b.cross_entropy_with(&x.labels, &CrossEntropyOptions { ignored: Some(5), ..Default::default() });
    "cross_entropy" ["class weights", "[5]", "u32[4]"] |x| x.b.cross_entropy_with(&x.labels, &CrossEntropyOptions { class_weights: Some(x.labels.clone()), ..Default::default() });
    "mse" ["f32[2, 3]", "f32[3]"] |x| x.a.mse(&x.v);
    "sub" ["u32[4]"] |x| x.u.mse(&x.u);
    "sub" ["u32[4]"] |x| x.u.l1(&x.u);
    "sub" ["u32[4]"] |x| x.u.huber(&x.u, 1.0);
    "sub" ["u32[4]"] |x| x.u.smooth_l1(&x.u, 0.0);
    "sub" ["u32[4]"] |x| x.u.smooth_l1(&x.u, 1.0);
    "neg" ["u32[4]"] |x| x.u.bce_with_logits(&x.u);
    "nll" ["label 9", "5 classes", "f32[4, 5]", "u32[4]"] |x| x.b.nll(&x.labels);
    "nll" ["integers [2]", "u32[4]"] |x| x.a.nll(&x.labels);
    "nll" ["floats", "u32"] |x| x.u.reshape([4, 1]).nll(&x.labels);
    "ctc" ["[T, N, classes]", "f32[4, 5]"] |x| x.b.ctc(&x.labels, &x.labels, &x.labels);
    "soft_cross_entropy" ["f32[2, 3]", "f32[3]"] |x| x.a.soft_cross_entropy(&x.v);
    "soft_cross_entropy" ["[N, classes, …]", "f32[3]"] |x| x.v.soft_cross_entropy(&x.v);
    "kl_div" ["f32[2, 3]", "f32[3]"] |x| x.a.kl_div(&x.v);
    "hinge_embedding" ["f32[2, 3]", "f32[3]"] |x| x.a.hinge_embedding(&x.v);
    "multi_margin" ["label 9", "5 classes"] |x| x.b.multi_margin(&x.labels);
    "cosine_embedding" ["[…, D]", "f32[2, 3]", "f32[3]"] |x| x.a.cosine_embedding(&x.a, &x.v);
    "triplet_margin" ["f32[2, 3]", "f32[4, 5]"] |x| x.a.triplet_margin(&x.a, &x.b);
    "dice" ["[N, C, …]", "f32[2, 3]"] |x| x.a.dice(&x.a);
    "focal_bce" ["f32[2, 3]", "f32[3]"] |x| x.a.focal_bce(&x.v);
    "focal_cross_entropy" ["label 9", "5 classes"] |x| x.b.focal_cross_entropy(&x.labels);
    "cross_entropy" ["label 9", "1 classes", "u32[4, 1]"] |x| x.u.reshape([4, 1]).cross_entropy(&x.labels);
    "bce_with_logits" ["f32[2, 3]", "f32[3]"] |x| x.a.bce_with_logits(&x.v);
    "picky" ["exactly two", "f32[2, 3]"] |x| x.a.custom(Picky, &[]);
    "picky" ["floats", "u32[4]"] |x| x.a.custom(Picky, &[&x.u]);
    "linear" ["5", "3", "f32[4, 5]"] |x| linear().forward(&x.b);
    "dropout" ["1.5"] |x| Dropout::new(1.5).forward(&x.a);
    "max_pool2d" ["stride 0"] |x| MaxPool2d::new(2).stride(0).forward(&x.image);
    "conv2d" ["2 channels", "expects 3"] |x| Conv2d::new(3, 1, 1).init(&Device::cpu(), Seed::new(0)).expect("fine").forward(&x.image);
    "exp" ["u32[4]"] |x| vec![Relu, Relu].forward(&x.u.exp());
    "relu" ["u32[4]"] |x| vec![Relu, Relu].forward(&x.u);
    "input" ["f64[3]"] |x| x.a.tape().input(&tensor(&Device::cpu_with(Precision::Double), "v", [3]).expect("fine"));
}

fn linear() -> Linear {
    Linear::new(3, 2).init(&Device::cpu(), Seed::new(0)).expect("fine")
}

fn layer_norm(shape: impl Into<meganeura::Shape>) -> LayerNorm {
    LayerNorm::new(shape).init(&Device::cpu(), Seed::new(0)).expect("fine")
}

fn instance_norm(channels: usize) -> InstanceNorm2d {
    InstanceNorm2d::new(channels).init(&Device::cpu(), Seed::new(0)).expect("fine")
}

fn batch_norm(channels: usize) -> BatchNorm2d {
    BatchNorm2d::new(channels).init(&Device::cpu(), Seed::new(0)).expect("fine")
}

/// Takes two operands.
#[derive(Debug)]
struct Picky;

impl CustomOp for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if x.len() == 2 { Ok(vec![x[0]]) } else { Err("takes exactly two operands".into()) }
    }

    fn vjp(&self, x: &[Var], _: &[Var], _: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None; x.len()])
    }

    fn cpu(&self, _: &[TensorType], _: &[&[f64]], _: &mut [&mut [f64]]) {}

    fn wgsl(&self, _: &[TensorType]) -> (String, usize) {
        (String::new(), 0)
    }
}

fn operands(device: &Device) -> Result<Operands> {
    let tape = Tape::new(device);
    let input = |shape: &[usize]| Ok::<_, Error>(tape.input(&tensor(device, "x", meganeura::Shape::new(shape))?));
    let labels = Tensor::indices(device, [4], &[0, 9, 3, 1])?;
    let u = tape.input(&labels);
    Ok(Operands { a: input(&[2, 3])?, b: input(&[4, 5])?, v: input(&[3])?, image: input(&[1, 2, 5, 5])?, labels, u })
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for (k, misuse) in MISUSES.iter().enumerate() {
        let name = format!("bad_input::{}::{k}", misuse.op);
        trials.push(Trial::test(name, || refused(misuse)));
    }
    for &op in Pointwise::ALL {
        let case = Case::new(op);
        trials.push(Trial::test(format!("bad_input::{}::indices", case.name), move || indices(&case, op.arity())));
    }
    trials.push(Trial::test("bad_input::descriptions", descriptions));
    trials.push(Trial::test("bad_input::tensors", || tensors(&Device::cpu())));
    trials.push(gpu_trial("bad_input::gpu::tensors", tensors));
    trials.push(Trial::test("bad_input::sizes", || sizes(&Device::cpu())));
    trials.push(gpu_trial("bad_input::gpu::sizes", |device| sizes(&device.for_testing(0))));
}

fn refused(misuse: &Misuse) -> Outcome {
    let y = (misuse.call)(&operands(&Device::cpu())?);
    let error = y.error().ok_or("recorded without complaint")?;
    let message = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::Shape | ErrorKind::Argument | ErrorKind::Device), "{error:?}");
    assert!(message.starts_with(&format!("{}: ", misuse.op)), "{:?} is not named first: {message}", misuse.op);
    for part in misuse.parts {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    // The line of the call, which in this file contains the operation's name.
    assert!(line_of(&error)?.starts_with(&format!("{:?} [", misuse.op)), "not the line of the mistake: {message}");
    assert!(y.to_vec().is_err());
    Ok(())
}

/// A row of the elementwise table refuses operands that are not floats.
fn indices(case: &Case, arity: usize) -> Outcome {
    let x = vec![operands(&Device::cpu())?.u; arity];
    let error = Case::error(&(case.build)(&x)).ok_or("recorded without complaint")?;
    let message = error.to_string();
    assert!(message.starts_with(&format!("{}: ", case.name)) && message.contains("u32[4]"), "{message}");
    Ok(())
}

/// The line of this file that an error names.
fn line_of(error: &Error) -> Result<&'static str, Failed> {
    let at = error.location().ok_or_else(|| Failed::from(format!("no location: {error}")))?;
    assert!(at.file().ends_with("bad_input.rs"), "{error}");
    Ok(include_str!("bad_input.rs").lines().nth(at.line() as usize - 1).unwrap_or_default().trim_start())
}

/// Layers check their descriptions when they are built, before anything is recorded.
fn descriptions() -> Outcome {
    let device = Device::cpu();
    let seed = Seed::new(0);
    for (error, parts) in [
        (Conv2d::new(4, 6, 3).groups(0).init(&device, seed).err(), ["conv2d", "0 groups"]),
        (Conv2d::new(4, 6, 3).groups(4).init(&device, seed).err(), ["conv2d", "4 groups"]),
        (Conv2d::new(4, 6, 3).stride(0).init(&device, seed).err(), ["conv2d", "stride"]),
        (Conv2d::new(4, 6, 0).init(&device, seed).err(), ["conv2d", "kernel"]),
        (ConvTranspose2d::new(4, 6, 3).groups(4).init(&device, seed).err(), ["conv_transpose2d", "4 groups"]),
        (ConvTranspose2d::new(4, 6, 3).output_padding(1).init(&device, seed).err(), ["conv_transpose2d", "[1, 1]"]),
        (GroupNorm::new(0, 4).init(&device, seed).err(), ["group_norm", "0 equal groups"]),
        (GroupNorm::new(3, 4).init(&device, seed).err(), ["group_norm", "3 equal groups"]),
        (GroupNorm::new(8, 4).init(&device, seed).err(), ["group_norm", "4 channels do not fall into 8"]),
        (LayerNorm::new([]).init(&device, seed).err(), ["layer_norm", "at least one"]),
        (LayerNorm::new([3, 0]).init(&device, seed).err(), ["layer_norm", "[3, 0]"]),
        (LayerNorm::new([3]).eps(0.0).init(&device, seed).err(), ["layer_norm", "eps is 0"]),
        (LayerNorm::new([3]).eps(1e-50).init(&device, seed).err(), ["layer_norm", "eps is 1e-50"]),
        (InstanceNorm2d::new(0).init(&device, seed).err(), ["instance_norm2d", "0 channels"]),
        (Linear::new(0, 4).init(&device, seed).err(), ["linear", "0 to 4"]),
        (MaxPool2d::new(2).stride(0).init(&device, seed).err(), ["max_pool2d", "stride"]),
        (AvgPool2d::new(2).padding(2).init(&device, seed).err(), ["avg_pool2d", "padding"]),
        (Dropout::new(1.0).init(&device, seed).err(), ["dropout", "1"]),
    ] {
        let error = error.ok_or_else(|| Failed::from(format!("built without complaint: {parts:?}")))?;
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        // The line of the builder, which in this file contains the expected message.
        let line = line_of(&error)?;
        assert!(parts.iter().all(|part| line.contains(part)), "{error}");
    }
    Ok(())
}

/// 2⁶² bytes.
const HUGE: [usize; 2] = [1 << 30, 1 << 30];

#[derive(Module, Debug)]
#[module(sequential)]
struct Wide {
    #[module(init = Linear::new(1 << 30, 1 << 30))]
    head: Linear,
}

/// Values that fit on no device. The error names the operation with its line and operands, or the parameter, then the
/// bytes that it needs, and on a GPU the limit.
fn sizes(device: &Device) -> Outcome {
    let w = Param::new(tensor(device, "w", [1, 1])?);
    w.set_path("head.weight");
    let bytes = (4usize << 60).to_string();
    let check = |error: Error, parts: &[&str]| {
        let message = error.to_string();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{message}");
        for part in parts.iter().chain(&[&*bytes, "bytes"]).chain(device.is_gpu().then_some(&"allows at most ")) {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    };
    type Large = fn(&Var, &Var) -> Var;
    let cases: [(Large, &[&str]); 4] = [
        (|x, _| x.expand(HUGE).exp(), &["exp: its result f32[1073741824, 1073741824]: ", "operand 0: f32[1073741824"]),
        // Inside a chain, with a parameter as operand.
        (|x, w| (w.expand(HUGE) * x).softmax(0).sum(), &["mul: its result", "(parameter head.weight)"]),
        (|x, w| w.expand([1 << 30, 1]).matmul(&x.expand([1, 1 << 30])).sum(), &["matmul: its result", "head.weight)"]),
        // Views that must be copied before they can be read.
        (|x, _| x.expand(HUGE).softmax(1).sum(), &["softmax: a contiguous copy f32[1073741824, 1073741824]: "]),
    ];
    for (f, parts) in cases {
        let tape = Tape::new(device);
        let x = tape.input(&tensor(device, "x", [1, 1])?);
        let error = f(&x, &tape.param(&w)).to_vec().map(drop).expect_err("too large");
        assert!(error.location().is_some_and(|at| at.file().ends_with("bad_input.rs")), "{error}");
        check(error, parts);
    }
    // Tensors and parameters.
    let error = Tensor::zeros(device, HUGE).map(drop).expect_err("too large");
    assert!(line_of(&error)?.contains("Tensor::zeros(device, HUGE)"), "{error}");
    check(error, &["a tensor f32[1073741824, 1073741824]: "]);
    let error = Wide::init(device, 1).map(drop).expect_err("too large");
    assert!(line_of(&error)?.contains("Wide::init(device, 1)"), "{error}");
    let message = error.to_string();
    assert!(message.contains("head: weight: ") && message.contains("[1073741824, 1073741824]"), "{message}");
    assert!(message.contains(" bytes"), "{message}");
    Ok(())
}

fn tensors(device: &Device) -> Outcome {
    let empty = "empty batch";
    for (result, part) in [
        (Tensor::from_slice(device, [0, 3], &[]), empty),
        (Tensor::zeros(device, [4, 0]), empty),
        (Tensor::indices(device, [0], &[]), empty),
        (Tensor::from_slice(device, [2, 3], &[0.0; 5]), "5 numbers given for shape [2, 3]"),
        (Tensor::from_slice(device, [usize::MAX, 2], &[0.0; 5]), "5 numbers"),
        (Tensor::zeros(device, [2])?.reshape([3]), "[3]"),
    ] {
        let error = result.map(drop).expect_err(part);
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(line_of(&error)?.starts_with("(Tensor::"), "{error}");
    }
    let floats = Tensor::zeros(device, [2])?;
    assert_eq!(floats.to_u32_vec().map(drop).expect_err("floats").kind(), ErrorKind::Argument);
    assert_eq!(floats.item().map(drop).expect_err("two").kind(), ErrorKind::Shape);
    assert_eq!(Tensor::indices(device, [1], &[1])?.to_vec().map(drop).expect_err("labels").kind(), ErrorKind::Argument);
    // Images of 2×2 and 3×3 pixels do not have one shape.
    let error = Dataset::new(vec![0.0; 4 + 9], [1, 2, 2], vec![0, 1]).map(drop).expect_err("mixed sizes");
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("13 numbers given for inputs of shape [1, 2, 2] each"), "{error}");
    // Batches of nothing.
    let dataset = Dataset::new(vec![0.0; 4], [2], vec![0, 1])?;
    let mut batches = dataset.batches(0).on(device);
    assert_eq!(batches.next().expect("an error").map(drop).expect_err("empty").kind(), ErrorKind::Argument);
    assert!(batches.next().is_none());
    Ok(())
}
