//! Small models, and random numbers to fill them with.

use meganeura::module::At;
use meganeura::nn::{Conv2d, GroupNorm, Linear, MaxPool2d};
use meganeura::{
    Buffer, Device, FromSeed, Init, Layer, Module, ModuleExt, Param, Result, Seed, Shape, Tape, Tensor, Var,
};
use rand_distr::{Distribution, StandardNormal};

/// Normal numbers, the same for the same name. They are rounded to `f32`, so every device holds them exactly.
pub(crate) fn normal(name: &str, elements: usize) -> Vec<f64> {
    let mut rng = Seed::new(11).field(name).rng();
    let mut draw = || -> f64 { StandardNormal.sample(&mut rng) };
    (0..elements).map(|_| f64::from(draw() as f32)).collect()
}

/// A tensor of [`normal`] numbers.
pub(crate) fn tensor(device: &Device, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    Tensor::from_f64(device, shape, &normal(name, shape.elements()))
}

/// Fills every parameter and buffer with [`normal`] numbers by its path, so that none is special, such as 0 or 1.
pub(crate) fn randomise(module: &mut dyn Module) -> Result<()> {
    let mut result = Ok(());
    module.visit_mut(At::root(), &mut |at, mut slot| {
        let old = slot.value();
        let set = tensor(old.device(), &at.path(), old.shape()).and_then(|fresh| slot.set(fresh));
        if result.is_ok() {
            result = set;
        }
    });
    result
}

/// The bits of every parameter and buffer, by path.
pub(crate) fn bits<M: Module + ?Sized>(module: &M) -> Result<Vec<(String, Vec<u64>)>> {
    let bits = |tensor: Tensor| Ok::<_, meganeura::Error>(tensor.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    module.leaves().into_iter().map(|leaf| Ok((leaf.path.clone(), bits(leaf.value())?))).collect()
}

/// A classifier of images `[N, 1, 6, 6]` into 3 classes.
#[derive(Module, Debug, Clone)]
#[module(sequential)]
pub(crate) struct Tiny {
    #[module(init = Conv2d::new(1, 4, 3).padding(1))]
    pub(crate) stem: Conv2d,
    #[module(init = GroupNorm::new(2, 4), then = relu)]
    pub(crate) norm: GroupNorm,
    #[module(init = Conv2d::new(4, 6, 3).stride(2).padding(1), then = relu)]
    pub(crate) down: Conv2d,
    #[module(init = Linear::new(6 * 3 * 3, 3), before = flatten)]
    pub(crate) head: Linear,
}

/// The same with a frozen stem.
#[derive(Module, Debug)]
#[module(sequential)]
pub(crate) struct FrozenStem {
    #[module(frozen, init = Conv2d::new(1, 4, 3).padding(1))]
    pub(crate) stem: Conv2d,
    #[module(init = GroupNorm::new(2, 4), then = relu)]
    pub(crate) norm: GroupNorm,
    #[module(init = Conv2d::new(4, 6, 3).stride(2).padding(1), then = relu)]
    pub(crate) down: Conv2d,
    #[module(init = Linear::new(6 * 3 * 3, 3), before = flatten)]
    pub(crate) head: Linear,
}

/// Images and labels for [`Tiny`]: the label is the image's brightest third.
pub(crate) fn images(device: &Device, name: &str, batch: usize) -> Result<(Tensor, Tensor)> {
    let pixels = normal(name, batch * 36);
    let label = |image: &[f64]| {
        let brightness = |third: u32| image[third as usize * 12..][..12].iter().sum::<f64>();
        (0..3).max_by(|&a, &b| brightness(a).total_cmp(&brightness(b))).expect("three thirds")
    };
    let labels: Vec<u32> = pixels.chunks(36).map(label).collect();
    Ok((Tensor::from_f64(device, [batch, 1, 6, 6], &pixels)?, Tensor::indices(device, [batch], &labels)?))
}

/// One forward and backward pass of a classifier on a new tape: the loss and its gradients.
pub(crate) fn record(net: &dyn Layer, images: &Tensor, labels: &Tensor) -> Result<(Var, meganeura::Grads)> {
    let tape = Tape::new(images.device());
    let loss = net.forward(&tape.input(images)).cross_entropy(labels);
    let grads = tape.backward(&loss)?;
    Ok((loss, grads))
}

/// A model with every kind of field, for images `[N, 2, 5, 5]`.
#[derive(Module, Debug)]
pub(crate) struct Nested {
    pub(crate) blocks: Vec<Residual>,
    pub(crate) pool: Pool,
    #[module(frozen)]
    pub(crate) gain: Param,
    pub(crate) offset: Buffer,
    pub(crate) head: Option<Linear>,
    pub(crate) unused: Option<Linear>,
    #[module(skip)]
    pub(crate) slope: f64,
}

#[derive(Module, Debug)]
pub(crate) struct Residual {
    pub(crate) conv: Conv2d,
    pub(crate) norm: GroupNorm,
    #[module(rename = "shortcut")]
    pub(crate) skip: Option<Conv2d>,
}

#[derive(Module, Debug)]
pub(crate) enum Pool {
    Max(MaxPool2d),
    Weighted { weight: Param },
}

impl Layer for Residual {
    fn forward(&self, x: &Var) -> Var {
        let y = self.norm.forward(&self.conv.forward(x));
        let x = self.skip.as_ref().map_or_else(|| x.clone(), |skip| skip.forward(x));
        (y + x).relu()
    }
}

impl Layer for Pool {
    fn forward(&self, x: &Var) -> Var {
        match self {
            Self::Max(pool) => pool.forward(x),
            Self::Weighted { weight } => x * x.param(weight),
        }
    }
}

impl Layer for Nested {
    fn forward(&self, x: &Var) -> Var {
        let y = self.blocks.forward(&(x + x.buffer(&self.offset)));
        let y = self.pool.forward(&y).flatten() * x.param(&self.gain);
        let y = self.head.as_ref().map_or_else(|| y.clone(), |head| head.forward(&y));
        y.leaky_relu(self.slope)
    }
}

impl FromSeed for Nested {
    fn from_seed(device: &Device, seed: Seed) -> Result<Self> {
        let block = |inputs: usize, skip: bool, seed: Seed| -> Result<Residual> {
            let skip = skip.then(|| Conv2d::new(inputs, 3, 1).bias(false));
            Ok(Residual {
                conv: Conv2d::new(inputs, 3, 3).padding(1).init(device, seed.field("conv"))?,
                norm: GroupNorm::new(3, 3).init(device, seed.field("norm"))?,
                skip: skip.init(device, seed.field("shortcut"))?,
            })
        };
        let blocks = seed.field("blocks");
        Ok(Self {
            blocks: vec![block(2, true, blocks.index(0))?, block(3, false, blocks.index(1))?],
            pool: Pool::Max(MaxPool2d::new(2)),
            gain: Param::new(Tensor::full(device, [1], 1.5)?),
            offset: Buffer::new(Tensor::full(device, [2, 1, 1], 0.25)?),
            head: Some(Linear::new(12, 2).init(device, seed.field("head"))?),
            unused: None,
            slope: 0.1,
        })
    }
}
