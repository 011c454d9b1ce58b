//! Batch normalisation of images.

use super::batch_norm::{Kind, batch_norm};

batch_norm! {
    /// Batch normalisation of images: `y = (x − mean)/√(variance + ε) · weight + bias`
    ///
    /// On a training tape, mean and variance are those of each channel over the whole batch, the variance without
    /// Bessel's correction. The running statistics move towards them by the weight [`momentum`](Self::momentum), the
    /// variance with the correction. They move when the step is taken: by the optimizer, in the same run, or by
    /// [`Tape::apply`](crate::Tape::apply).
    ///
    /// On an inference tape, and in a part of the model that is [evaluated](crate::ModuleExt::evaluate), mean and
    /// variance are the running statistics. These stay as they are, and examples do not affect each other. Freezing the
    /// layer does not have this effect. PyTorch does the same, except that it moves the running statistics in the
    /// forward pass, even if no step follows.
    ///
    /// Shapes: `x [N, C, H, W]`, all others `[C]` → `y [N, C, H, W]`.
    /// [Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167).
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let mut norm = BatchNorm2d::new(2).init(&device, Seed::new(42))?;
    ///
    /// let x = Tensor::from_slice(&device, [2, 2, 1, 1], &[1.0, 0.0, 3.0, 0.0])?;
    /// let tape = Tape::new(&device);
    /// let grads = tape.backward(&norm.forward(&tape.input(&x)).square().sum())?;
    /// Sgd::new(0.1).step(&mut norm, &grads)?; // and the running statistics
    /// assert_eq!(norm.running_mean.value().to_vec()?, [0.2, 0.0]);
    /// assert_eq!(norm.running_var.value().to_vec()?, [1.1, 0.9]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    BatchNorm2d BatchNorm2dConfig
    Kind { name: "batch_norm2d", behind: ", H, W]", ranks: &[4], places: "pixels" };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{Init, Layer, ModuleExt, Seed};
    use crate::optim::{Optimizer, Sgd};
    use crate::{Device, ErrorKind, Shape, Tape, Tensor};

    fn tensor(device: &Device, shape: &[usize], x: &[f32]) -> Tensor {
        Tensor::from_slice(device, Shape::new(shape), x).unwrap()
    }

    #[track_caller]
    fn assert_near(found: &[f32], expected: &[f32]) {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?} is not {expected:?}");
    }

    fn running(norm: &BatchNorm2d) -> [Vec<f32>; 2] {
        [&norm.running_mean, &norm.running_var].map(|buffer| buffer.value().to_vec().unwrap())
    }

    /// Channel 0 holds 0, 6, 3, 3: mean 3, variance 4.5, unbiased 6. Channel 1 holds the constant 2.
    const X: [f32; 8] = [0.0, 6.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0];

    fn norm(device: &Device) -> BatchNorm2d {
        let mut norm = BatchNorm2d::new(2).eps(0.25).init(device, Seed::new(0)).unwrap();
        norm.weight.as_mut().unwrap().set(tensor(device, &[2], &[2.0, 1.0])).unwrap();
        norm.bias.as_mut().unwrap().set(tensor(device, &[2], &[1.0, 10.0])).unwrap();
        norm
    }

    #[test]
    fn training_uses_batch_statistics_and_the_step_moves_running_ones() {
        let device = Device::cpu();
        let mut norm = norm(&device);
        let tape = Tape::new(&device);
        let y = norm.forward(&tape.input(&tensor(&device, &[2, 2, 1, 2], &X)));
        // 3/√4.75 = 1.3764944
        let expected = [1.0 - 2.752_988_8, 1.0 + 2.752_988_8, 10.0, 10.0, 1.0, 1.0, 10.0, 10.0];
        assert_near(&y.to_vec().unwrap(), &expected);
        assert_eq!(running(&norm), [[0.0, 0.0], [1.0, 1.0]], "reading changes nothing");
        let grads = tape.backward(&y.sum()).unwrap();
        let runs = device.stats().runs;
        Sgd::new(0.0).step(&mut norm, &grads).unwrap();
        assert_eq!(device.stats().runs, runs + 1);
        let [mean, variance] = running(&norm);
        assert_near(&mean, &[0.3, 0.2]);
        assert_near(&variance, &[0.9 + 0.6, 0.9]);
    }

    #[test]
    fn inference_uses_running_statistics() {
        let device = Device::cpu();
        let mut norm = norm(&device);
        norm.running_mean.set(tensor(&device, &[2], &[3.0, 1.0])).unwrap();
        norm.running_var.set(tensor(&device, &[2], &[2.0, 0.75])).unwrap();
        let tape = Tape::inference(&device);
        let x = tape.input(&tensor(&device, &[1, 2, 1, 1], &[6.0, 3.0]));
        assert_near(&norm.forward(&x).to_vec().unwrap(), &[1.0 + 2.0 * 3.0 / 1.5, 12.0]);
        tape.apply().unwrap();
        assert_eq!(running(&norm), [[3.0, 1.0], [2.0, 0.75]]);
    }

    #[test]
    fn running_statistics_move_once_per_use_and_momentum_needs_no_new_plan() {
        let device = Device::cpu();
        let mut norm = BatchNorm2d::new(1).affine(false).momentum(0.5).init(&device, Seed::new(0)).unwrap();
        assert!(norm.named_parameters().is_empty());
        for (momentum, expected) in [(0.5, 2.0 * 0.25 + 4.0 * 0.5), (1.0, 4.0)] {
            norm.momentum = momentum;
            let tape = Tape::new(&device);
            for middle in [2.0, 4.0] {
                let _ = norm.forward(&tape.input(&tensor(&device, &[2, 1, 1, 1], &[middle - 1.0, middle + 1.0])));
            }
            tape.apply().unwrap();
            assert_near(&running(&norm)[0], &[expected]);
        }
        assert_eq!(device.stats().plans, 1);
    }

    #[test]
    fn a_mean_far_from_0_costs_no_digits() {
        let device = Device::cpu();
        let norm = BatchNorm2d::new(1).eps(1e-9).init(&device, Seed::new(0)).unwrap();
        // Numbers that are exact in f32, with a standard deviation of 1/8.
        let x = tensor(&device, &[4, 1, 1, 1], &[3000.125, 2999.875, 3000.125, 2999.875]);
        let y = norm.forward(&Tape::new(&device).input(&x)).to_vec().unwrap();
        assert_near(&y, &[1.0, -1.0, 1.0, -1.0]);
    }

    #[test]
    fn a_refused_step_keeps_the_running_statistics() {
        let device = Device::cpu();
        let mut norm = norm(&device);
        let tape = Tape::new(&device);
        let y = norm.forward(&tape.input(&tensor(&device, &[2, 2, 1, 2], &X)));
        let grads = tape.backward(&(y * f64::INFINITY).sum()).unwrap();
        let error = Sgd::new(0.1).check_finite(true).step(&mut norm, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        assert_eq!(running(&norm), [[0.0, 0.0], [1.0, 1.0]]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let configs = [
            BatchNorm2d::new(0),
            BatchNorm2d::new(1).eps(0.0),
            BatchNorm2d::new(1).eps(1e-50),
            BatchNorm2d::new(1).momentum(1.5),
        ];
        for config in configs.into_iter().chain([BatchNorm2d::new(1).momentum(f64::NAN)]) {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn misfits_poison() {
        let device = Device::cpu();
        let norm = norm(&device);
        let zeros = |tape: &Tape, shape: &[usize]| tape.input(&Tensor::zeros(&device, Shape::new(shape)).unwrap());
        for (shape, part) in [
            (&[1, 4, 2, 2][..], "normalises 2 channels, the input has 4"),
            (&[2, 2], "[N, 2, H, W], it is [2, 2]"),
            (&[1, 2, 1, 1], "single number"),
        ] {
            let (y, line) = (norm.forward(&zeros(&Tape::new(&device), shape)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().starts_with("batch_norm2d: ") && error.to_string().contains(part), "{error}");
        }
        assert!(norm.forward(&zeros(&Tape::inference(&device), &[1, 2, 1, 1])).error().is_none());
    }
}
