//! Low-rank adapters on every convolution: one factor after the other.

use libtest_mimic::Trial;
use meganeura::nn::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
use meganeura::ops::Padding;
use meganeura::prelude::Lora;
use meganeura::{Device, Init, Layer, Seed, Shape, Tape};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{randomise, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("factored::convolutions", || convolutions(&Device::cpu().for_testing(0))));
    trials.push(gpu_trial("factored::gpu::convolutions", |device| convolutions(&device.for_testing(0))));
}

fn convolutions(device: &Device) -> Outcome {
    fn check<I>(device: &Device, builder: I, shape: &[usize]) -> Outcome
    where
        I: Init<Output: Layer>,
    {
        let mut layer = builder.init(device, Seed::new(1))?;
        Lora::new(2).alpha(3.0).attach(&mut layer, "weight", 5)?;
        randomise(&mut layer)?;
        let x = tensor(device, "x", Shape::new(shape))?;
        let tape = Tape::new(device);
        let adapted = layer.forward(&tape.input(&x));
        // The sum with a product of the factors would be a product of matrices.
        assert!(!tape.to_string().contains("matmul"), "{tape}");
        let adapted = adapted.to_tensor()?.to_f64_vec()?;
        Lora::merge(&mut layer)?;
        let merged = layer.forward(&Tape::inference(device).input(&x)).to_tensor()?.to_f64_vec()?;
        compare("the output", &Computed(adapted), &Reference(merged), 1e-5)?;
        Ok(())
    }
    check(device, Conv1d::new(3, 4, 4).padding_same().padding_mode(Padding::Circular), &[2, 3, 7])?;
    check(device, Conv2d::new(3, 4, 3).stride(2).padding(1), &[2, 3, 5, 6])?;
    check(device, Conv3d::new(2, 3, (3, 2, 2)).stride((1, 2, 1)).padding((1, 0, 1)), &[1, 2, 4, 4, 3])?;
    check(device, ConvTranspose1d::new(3, 4, 3).stride(2).output_padding(1), &[2, 3, 5])?;
    check(device, ConvTranspose2d::new(3, 2, (2, 3)).stride(2).padding(1), &[1, 3, 4, 3])?;
    check(device, ConvTranspose3d::new(3, 2, 2).stride((2, 1, 3)), &[1, 3, 2, 3, 2])
}
