//! The U-Net of a diffusion model (DDPM) for images of 32×32 pixels: 22,944,003 parameters at 128 channels.

use meganeura::prelude::*;

#[derive(Module, Debug)]
#[module(config(
    /// Channels of the first level; a multiple of 32.
    channels: usize,
))]
pub struct UNet {
    #[module(init = (SinusoidalEmbedding::new(channels), Linear::new(channels, 4 * channels), Silu,
        Linear::new(4 * channels, 4 * channels)))]
    time: (SinusoidalEmbedding, Linear, Silu, Linear),
    #[module(init = Conv2d::new(3, channels, 3).padding(1))]
    stem: Conv2d,
    #[module(init = stages(channels).0)]
    down: Vec<Stage>,
    #[module(init = ResidualBlockConfig { inputs: 2 * channels, outputs: 2 * channels, time: 4 * channels })]
    middle: ResidualBlock,
    #[module(init = stages(channels).1)]
    up: Vec<Stage>,
    #[module(init = GroupNorm::new(32, channels))]
    norm: GroupNorm,
    #[module(init = Conv2d::new(channels, 3, 3).padding(1))]
    head: Conv2d,
}

impl UNet {
    /// The noise in images x `[N, 3, 32, 32]` at timesteps t `[N]`.
    pub fn forward(&self, x: &Var, t: &Var) -> Var {
        let t = self.time.forward(t);
        let mut h = self.stem.forward(x);
        let mut skips = vec![h.clone()];
        for stage in &self.down {
            h = match stage {
                Stage::Block(block) => block.forward(&h, &t),
                Stage::Resize(conv) => conv.forward(&h),
            };
            skips.push(h.clone());
        }
        h = self.middle.forward(&h, &t);
        for stage in &self.up {
            h = match stage {
                Stage::Block(block) => {
                    let skip = skips.pop().expect("there is one for each block");
                    block.forward(&Var::concat(&[&h, &skip], 1), &t)
                }
                Stage::Resize(conv) => conv.forward(&h.upsample_nearest([2, 2])),
            };
        }
        self.head.forward(&self.norm.forward(&h).silu())
    }
}

#[derive(Module, Debug)]
enum Stage {
    Block(Box<ResidualBlock>),
    /// Half as large on the way down, after doubling on the way up.
    Resize(Conv2d),
}

enum StageConfig {
    Block(ResidualBlockConfig),
    Resize(Conv2dConfig),
}

impl Init for StageConfig {
    type Output = Stage;

    fn init(self, device: &Device, seed: Seed) -> meganeura::Result<Stage> {
        Ok(match self {
            Self::Block(block) => Stage::Block(Box::new(block.init(device, seed)?)),
            Self::Resize(conv) => Stage::Resize(conv.init(device, seed)?),
        })
    }
}

/// The way down, of three levels with two blocks each, and the way up, with three each, which take what the way down left.
fn stages(channels: usize) -> (Vec<StageConfig>, Vec<StageConfig>) {
    let block = |inputs, outputs| StageConfig::Block(ResidualBlockConfig { inputs, outputs, time: 4 * channels });
    let resize = |width, stride| StageConfig::Resize(Conv2d::new(width, width, 3).stride(stride).padding(1));
    let widths = [channels, 2 * channels, 2 * channels];
    let (mut skips, mut down, mut up) = (vec![channels], Vec::new(), Vec::new());
    let mut inputs = channels;
    for (level, &outputs) in widths.iter().enumerate() {
        for inputs in [inputs, outputs] {
            down.push(block(inputs, outputs));
            skips.push(outputs);
        }
        if level + 1 < widths.len() {
            down.push(resize(outputs, 2));
            skips.push(outputs);
        }
        inputs = outputs;
    }
    for (level, &outputs) in widths.iter().enumerate().rev() {
        for inputs in [inputs, outputs, outputs] {
            up.push(block(inputs + skips.pop().expect("as many as blocks"), outputs));
        }
        if level > 0 {
            up.push(resize(outputs, 1));
        }
        inputs = outputs;
    }
    (down, up)
}

#[derive(Module, Debug)]
#[module(config(inputs: usize, outputs: usize, time: usize))]
struct ResidualBlock {
    #[module(init = GroupNorm::new(32, inputs))]
    norm1: GroupNorm,
    #[module(init = Conv2d::new(inputs, outputs, 3).padding(1))]
    conv1: Conv2d,
    #[module(init = Linear::new(time, outputs))]
    time: Linear,
    #[module(init = GroupNorm::new(32, outputs))]
    norm2: GroupNorm,
    #[module(init = Conv2d::new(outputs, outputs, 3).padding(1))]
    conv2: Conv2d,
    #[module(init = (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)))]
    skip: Option<Conv2d>,
}

impl ResidualBlock {
    fn forward(&self, x: &Var, t: &Var) -> Var {
        let h = self.conv1.forward(&self.norm1.forward(x).silu());
        let t = self.time.forward(&t.silu());
        let h = h + t.reshape([t.shape()[0], t.shape()[1], 1, 1]);
        let h = self.conv2.forward(&self.norm2.forward(&h).silu());
        h + self.skip.as_ref().map_or_else(|| x.clone(), |skip| skip.forward(x))
    }
}
