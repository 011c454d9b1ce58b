//! Forward passes: recorded each time and compiled, alternately, in one run; and models from ONNX files.

use std::path::Path;
use std::time::{Duration, Instant};

use meganeura::onnx::Model;
use meganeura::prelude::*;
use meganeura::{Compiled, DType, Profiling, Result, TensorType};

use crate::models::{self, Gpt2, LstmLanguage, Mlp, MobileNetV2, ResNet18Gn, ResNet50, Tiny, UNet, ViT};
use crate::workload::{Name, Size};

const SEED: u64 = 42;

/// The milliseconds of both ways to call a model, including reading the result.
pub struct Times {
    pub recorded: Vec<f64>,
    pub compiled: Vec<f64>,
}

/// Times `steps` forward passes of a workload's model each way, after `warmup`.
pub fn run(name: Name, device: &Device, size: Size, warmup: u32, steps: u32) -> Result<Times> {
    let Size { batch, channels, layers, length } = size;
    let images = |shape: &[usize]| Tensor::randn(device, Shape::new(shape), Seed::new(SEED).field("data"));
    let tokens = || Tensor::indices(device, [batch, length], &vec![0; batch * length]);
    match name {
        Name::Tiny => layer(device, &Tiny::init(device, SEED)?, &images(&[batch, 1, 8, 8])?, warmup, steps),
        Name::Mlp => layer(device, &Mlp::init(device, SEED)?, &images(&[batch, 784])?, warmup, steps),
        Name::Resnet18gn => {
            let net = ResNet18Gn::init(device, SEED, models::resnet18gn(channels))?;
            layer(device, &net, &images(&[batch, 3, 32, 32])?, warmup, steps)
        }
        Name::Unet => {
            let net = UNet::init(device, SEED, models::unet(channels))?;
            let (x, t) = (images(&[batch, 3, 32, 32])?, Tensor::full(device, [batch], 500.0)?);
            let function: Compiled<(Tensor, Tensor)> = device.compile((&x, &t), |(x, t)| net.forward(x, t))?;
            let record = || {
                let tape = Tape::inference(device);
                net.forward(&tape.input(&x), &tape.input(&t)).to_tensor()
            };
            by_turns(record, || function.call((&x, &t)), warmup, steps)
        }
        Name::Vit => {
            let net = ViT::init(device, SEED, models::vit(channels, layers))?;
            layer(device, &net, &images(&[batch, 3, 224, 224])?, warmup, steps)
        }
        Name::Gpt2 => {
            let (net, tokens) = (Gpt2::init(device, SEED, models::gpt2(channels, layers, length))?, tokens()?);
            let function = device.compile(&tokens, |tokens| net.forward(tokens))?;
            let record = || net.forward(&Tape::inference(device).input(&tokens)).to_tensor();
            by_turns(record, || function.call(&tokens), warmup, steps)
        }
        Name::Resnet50 => {
            let net = ResNet50::init(device, SEED, models::resnet50(channels))?;
            layer(device, &net, &images(&[batch, 3, 224, 224])?, warmup, steps)
        }
        Name::Mobilenet => {
            let net = MobileNetV2::init(device, SEED, models::mobilenet())?;
            layer(device, &net, &images(&[batch, 3, 224, 224])?, warmup, steps)
        }
        Name::Lstm => {
            let net = LstmLanguage::init(device, SEED, models::lstm(channels, layers))?;
            layer(device, &net, &tokens()?, warmup, steps)
        }
    }
}

/// The times of calls by several threads that share a function.
pub struct Load {
    /// The milliseconds of each call, including reading the results, sorted.
    pub times: Vec<f64>,
    pub calls_per_second: f64,
}

impl Load {
    /// The milliseconds that this share of the calls take at most.
    pub fn quantile(&self, share: f64) -> f64 {
        let at = (share * self.times.len() as f64).ceil() as usize;
        self.times[at.clamp(1, self.times.len()) - 1]
    }
}

/// Calls a compiled ONNX file after `warmup` calls: each of the `clients` makes `steps` calls, one after the other.
/// Inputs are random numbers, or zeros for integers. A profile of one more call goes to standard error.
pub fn file(path: &Path, device: &Device, [warmup, steps, clients]: [u32; 3], profile: bool) -> Result<Load> {
    let function = Model::load(device, path)?.compile()?;
    let input = |(k, ty): (usize, &TensorType)| match ty.dtype {
        DType::U32 => Tensor::indices(device, ty.shape, &vec![0; ty.shape.elements()]),
        DType::I32 => Tensor::from_i32(device, ty.shape, &vec![0; ty.shape.elements()]),
        DType::I64 => Tensor::from_i64(device, ty.shape, &vec![0; ty.shape.elements()]),
        _ => Tensor::randn(device, ty.shape, Seed::new(SEED).index(k)),
    };
    let inputs = function.input_types().iter().enumerate().map(input).collect::<Result<Vec<_>>>()?;
    let inputs: Vec<_> = inputs.iter().collect();
    let call = || -> Result<f64> {
        let start = Instant::now();
        for y in function.call(&inputs)? {
            match y.ty().dtype {
                DType::U32 => y.to_u32_vec().map(drop),
                DType::I32 => y.to_i32_vec().map(drop),
                DType::I64 => y.to_i64_vec().map(drop),
                _ => y.to_vec().map(drop),
            }?;
        }
        Ok(milliseconds(start.elapsed()))
    };
    (0..=warmup).try_for_each(|_| call().map(drop))?;
    let start = Instant::now();
    let times = std::thread::scope(|scope| {
        let client = || (0..steps).map(|_| call()).collect::<Result<Vec<_>>>();
        let others: Vec<_> = (1..clients).map(|_| scope.spawn(client)).collect();
        let mut times = client()?;
        for other in others {
            times.extend(other.join().expect("a client does not panic")?);
        }
        Ok::<_, meganeura::Error>(times)
    });
    let (mut times, seconds) = (times?, start.elapsed().as_secs_f64());
    times.sort_unstable_by(f64::total_cmp);
    let calls_per_second = times.len() as f64 / seconds;
    if profile {
        device.set_profiling(Profiling::Launches)?;
        call()?;
        eprint!("{}", device.last_profile()?);
    }
    Ok(Load { times, calls_per_second })
}

fn layer<M: Layer>(device: &Device, net: &M, x: &Tensor, warmup: u32, steps: u32) -> Result<Times> {
    let function = device.compile(x, |x| net.forward(x))?;
    by_turns(|| net.forward(&Tape::inference(device).input(x)).to_tensor(), || function.call(x), warmup, steps)
}

fn by_turns(
    record: impl Fn() -> Result<Tensor>,
    call: impl Fn() -> Result<Tensor>,
    warmup: u32,
    steps: u32,
) -> Result<Times> {
    let timed = |forward: &dyn Fn() -> Result<Tensor>| -> Result<f64> {
        let start = Instant::now();
        forward()?.to_vec()?;
        Ok(milliseconds(start.elapsed()))
    };
    for _ in 0..=warmup {
        timed(&record)?;
        timed(&call)?;
    }
    let both = (0..steps).map(|_| Ok((timed(&record)?, timed(&call)?))).collect::<Result<Vec<_>>>()?;
    let (recorded, compiled) = both.into_iter().unzip();
    Ok(Times { recorded, compiled })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
