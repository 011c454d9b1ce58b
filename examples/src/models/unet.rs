//! The U-Net of a diffusion model (DDPM) for small images: 22,944,003 parameters for colour images at 128 channels.

use meganeura::prelude::*;

/// Maps noisy images `[N, images, H, W]` and their timesteps `[N]` to the noise in them; H and W are multiples of 4.
#[derive(Module, Debug, Clone)]
#[module(config(
    /// Channels of the images: 1 for grey ones, 3 for coloured ones.
    images: usize,
    /// Channels of the first level; a multiple of the groups.
    channels: usize,
    /// The groups of each normalisation, 32 in the reference.
    groups: usize,
))]
pub struct UNet {
    #[module(init = (SinusoidalEmbedding::new(channels), Linear::new(channels, 4 * channels), Silu,
        Linear::new(4 * channels, 4 * channels)))]
    time: (SinusoidalEmbedding, Linear, Silu, Linear),
    #[module(init = Conv2d::new(images, channels, 3).padding(1))]
    stem: Conv2d,
    #[module(init = [(1, 1, true), (1, 2, true), (2, 2, false)].map(|(inputs, outputs, halves)|
        DownConfig { inputs: inputs * channels, outputs: outputs * channels, time: 4 * channels, groups, halves }))]
    down: [Down; 3],
    #[module(init = BlockConfig { inputs: 2 * channels, outputs: 2 * channels, time: 4 * channels, groups })]
    middle: Block,
    #[module(init = [([2, 2, 2], 2, true), ([2, 2, 1], 2, true), ([1, 1, 1], 1, false)].map(|(skips, outputs, doubles)|
        UpConfig {
            inputs: 2 * channels, skips: skips.map(|skip| skip * channels), outputs: outputs * channels, time: 4 * channels,
            groups, doubles,
        }))]
    up: [Up; 3],
    #[module(init = GroupNorm::new(groups, channels))]
    norm: GroupNorm,
    #[module(init = Conv2d::new(channels, images, 3).padding(1))]
    head: Conv2d,
    #[module(skip, init = false)]
    recompute: bool,
}

impl UNet {
    /// Sets whether each block is recomputed in the backward pass (activation checkpointing).
    #[must_use]
    pub fn recompute(self, recompute: bool) -> Self {
        Self { recompute, ..self }
    }

    /// The noise in images x `[N, images, H, W]` at timesteps t `[N]`.
    pub fn forward(&self, x: &Var, t: &Var) -> Var {
        let (tape, t) = (x.tape(), self.time.forward(t));
        let mut h = self.stem.forward(x);
        let mut skips = vec![h.clone()];
        for down in &self.down {
            for block in &down.blocks {
                h = self.region(tape, || block.forward(&h, &t));
                skips.push(h.clone());
            }
            if let Some(half) = &down.half {
                h = half.forward(&h);
                skips.push(h.clone());
            }
        }
        h = self.region(tape, || self.middle.forward(&h, &t));
        for up in &self.up {
            for block in &up.blocks {
                let skip = skips.pop().expect("there is one for each block");
                h = self.region(tape, || block.forward(&Var::concat(&[&h, &skip], 1), &t));
            }
            if let Some(double) = &up.double {
                h = double.forward(&h.upsample_nearest([2, 2]));
            }
        }
        self.head.forward(&self.norm.forward(&h).silu())
    }

    /// Runs a block; the backward pass recomputes its intermediate values if the model is set to.
    fn region(&self, tape: &Tape, f: impl FnOnce() -> Var) -> Var {
        if self.recompute { tape.recompute(f) } else { f() }
    }
}

/// A level on the way down.
#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize, time: usize, groups: usize, halves: bool))]
struct Down {
    #[module(init = [inputs, outputs].map(|inputs| BlockConfig { inputs, outputs, time, groups }))]
    blocks: [Block; 2],
    #[module(init = halves.then(|| Conv2d::new(outputs, outputs, 3).stride(2).padding(1)))]
    half: Option<Conv2d>,
}

/// A level on the way up, whose blocks also take the results of the way down.
#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, skips: [usize; 3], outputs: usize, time: usize, groups: usize, doubles: bool))]
struct Up {
    #[module(init = [inputs + skips[0], outputs + skips[1], outputs + skips[2]]
        .map(|inputs| BlockConfig { inputs, outputs, time, groups }))]
    blocks: [Block; 3],
    #[module(init = doubles.then(|| Conv2d::new(outputs, outputs, 3).padding(1)))]
    double: Option<Conv2d>,
}

#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize, time: usize, groups: usize))]
struct Block {
    #[module(init = GroupNorm::new(groups, inputs))]
    norm1: GroupNorm,
    #[module(init = Conv2d::new(inputs, outputs, 3).padding(1))]
    conv1: Conv2d,
    #[module(init = Linear::new(time, outputs))]
    time: Linear,
    #[module(init = GroupNorm::new(groups, outputs))]
    norm2: GroupNorm,
    #[module(init = Conv2d::new(outputs, outputs, 3).padding(1))]
    conv2: Conv2d,
    #[module(init = (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)))]
    skip: Option<Conv2d>,
}

impl Block {
    fn forward(&self, x: &Var, t: &Var) -> Var {
        let h = self.conv1.forward(&self.norm1.forward(x).silu());
        let t = self.time.forward(&t.silu());
        let h = h + t.reshape([t.shape()[0], t.shape()[1], 1, 1]);
        let h = self.conv2.forward(&self.norm2.forward(&h).silu());
        h + self.skip.as_ref().map_or_else(|| x.clone(), |skip| skip.forward(x))
    }
}
