//! Batch normalisation of volumes.

use super::batch_norm::{Kind, batch_norm};

batch_norm! {
    /// Batch normalisation of volumes: `y = (x − mean)/√(variance + ε) · weight + bias`
    ///
    /// Statistics and their modes are those of [`BatchNorm2d`](super::BatchNorm2d), over the batch and all three axes.
    ///
    /// Shapes: `x [N, C, D, H, W]`, all others `[C]` → `y [N, C, D, H, W]`.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let norm = BatchNorm3d::new(2).init(&device, Seed::new(42))?;
    /// let x = Tensor::from_slice(&device, [1, 2, 2, 1, 1], &[3.0, 1.0, 0.0, 0.0])?;
    /// let y = norm.forward(&Tape::new(&device).input(&x)).to_vec()?;
    /// assert!((y[0] - 1.0).abs() < 1e-4 && (y[1] + 1.0).abs() < 1e-4 && y[2..] == [0.0, 0.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    BatchNorm3d BatchNorm3dConfig
    Kind { name: "batch_norm3d", behind: ", D, H, W]", ranks: &[5], places: "voxels" };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{Init, Layer, Seed};
    use crate::nn::BatchNorm2d;
    use crate::optim::{Optimizer, Sgd};
    use crate::{Device, Result, Tape, Tensor};

    /// The same numbers as of images with as many pixels: results, gradients and running statistics.
    #[test]
    fn volumes_are_normalised_as_images_are() -> Result<()> {
        let device = Device::cpu();
        let x = Tensor::rand(&device, [3, 2, 4, 5, 6], 7)?;
        let mut volumes = BatchNorm3d::new(2).init(&device, Seed::new(1))?;
        let mut images = BatchNorm2d::new(2).init(&device, Seed::new(1))?;
        let of = |norm: &dyn Layer, dims: &[usize]| -> Result<_> {
            let tape = Tape::new(&device);
            let input = tape.input(&x).reshape(crate::Shape::new(dims));
            let y = norm.forward(&input);
            let loss = (y.square() * &y + &input).square().sum();
            let (grads, y) = (tape.backward(&loss)?, y.reshape([720]));
            Ok((grads.of(&input).expect("it depends").to_vec()?, y.to_vec()?, grads))
        };
        let (dx, y, grads) = of(&volumes, &[3, 2, 4, 5, 6])?;
        Sgd::new(0.1).step(&mut volumes, &grads)?;
        let (expected_dx, expected_y, grads) = of(&images, &[3, 2, 4, 30])?;
        Sgd::new(0.1).step(&mut images, &grads)?;
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
        assert!(dx.iter().zip(&expected_dx).all(near) && y.iter().zip(&expected_y).all(near));
        for (found, expected) in [
            (volumes.running_mean.value(), images.running_mean.value()),
            (volumes.running_var.value(), images.running_var.value()),
        ] {
            assert!(found.to_vec()?.iter().zip(&expected.to_vec()?).all(near));
        }
        Ok(())
    }

    #[test]
    fn images_are_refused() -> Result<()> {
        let device = Device::cpu();
        let norm = BatchNorm3d::new(2).init(&device, Seed::new(1))?;
        let y = norm.forward(&Tape::new(&device).input(&Tensor::zeros(&device, [1, 2, 4, 4])?));
        let error = y.error().expect("four axes");
        assert!(error.to_string().contains("[N, 2, D, H, W], it is [1, 2, 4, 4]"), "{error}");
        Ok(())
    }
}
