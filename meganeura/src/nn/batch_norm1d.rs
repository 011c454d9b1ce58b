//! Batch normalisation of vectors and sequences.

use super::batch_norm::{Kind, batch_norm};

batch_norm! {
    /// Batch normalisation of vectors, or of sequences with channels: `y = (x − mean)/√(variance + ε) · weight + bias`
    ///
    /// Mean and variance are taken per channel: over the batch, and over the positions of sequences. Training,
    /// inference and running statistics work as in [`BatchNorm2d`](super::BatchNorm2d), the same layer for images.
    ///
    /// Shapes: `x [N, C]` or `[N, C, L]`, all others `[C]` → `y` like `x`.
    /// [Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167).
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let net = (Linear::new(4, 8), BatchNorm1d::new(8), Relu, Linear::new(8, 1)).init(&device, Seed::new(42))?;
    ///
    /// let x = Tape::new(&device).input(&Tensor::zeros(&device, [16, 4])?);
    /// assert_eq!(net.forward(&x).shape().dims(), [16, 1]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    BatchNorm1d BatchNorm1dConfig
    Kind { name: "batch_norm1d", behind: "] or [N, C, L]", ranks: &[2, 3], places: "positions" };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{Init, Layer, Seed};
    use crate::nn::BatchNorm2d;
    use crate::{Device, ErrorKind, Precision, Shape, Tape, Tensor, Var};

    const X: [f64; 12] = [1.0, 2.0, 3.0, 0.5, -1.0, 1.5, 0.25, 0.0, -2.0, -1.0, 4.0, 0.125];

    fn input(tape: &Tape, shape: &[usize]) -> Var {
        tape.input(&Tensor::from_f64(&tape.device(), Shape::new(shape), &X).unwrap())
    }

    #[test]
    fn vectors_and_sequences_are_narrow_images() {
        let device = Device::cpu_with(Precision::Double);
        for (shape, image) in [(&[4, 3][..], [4, 3, 1, 1]), (&[2, 3, 2], [2, 3, 2, 1])] {
            let one = BatchNorm1d::new(3).momentum(0.25).eps(0.1).init(&device, Seed::new(0)).unwrap();
            let two = BatchNorm2d::new(3).momentum(0.25).eps(0.1).init(&device, Seed::new(0)).unwrap();
            let tape = Tape::new(&device);
            let (y, expected) = (one.forward(&input(&tape, shape)), two.forward(&input(&tape, &image)));
            assert_eq!(y.shape().dims(), shape);
            let values = |y: Var| y.to_tensor().unwrap().to_f64_vec().unwrap();
            assert_eq!(values(y), values(expected));
            tape.apply().unwrap();
            for (own, other) in [(&one.running_mean, &two.running_mean), (&one.running_var, &two.running_var)] {
                assert_eq!(own.value().to_f64_vec().unwrap(), other.value().to_f64_vec().unwrap());
                assert_ne!(own.value().to_f64_vec().unwrap()[0], 1.0);
            }
        }
    }

    #[test]
    fn misfits_poison() {
        let device = Device::cpu();
        let norm = BatchNorm1d::new(2).init(&device, Seed::new(0)).unwrap();
        let zeros = |tape: &Tape, shape: &[usize]| tape.input(&Tensor::zeros(&device, Shape::new(shape)).unwrap());
        for (shape, part) in [
            (&[3, 4][..], "normalises 2 channels, the input has 4"),
            (&[2], "[N, 2] or [N, C, L], it is [2]"),
            (&[2, 2, 1, 1], "[N, 2] or [N, C, L], it is [2, 2, 1, 1]"),
            (&[1, 2], "single number"),
            (&[1, 2, 1], "more examples or positions"),
        ] {
            let (y, line) = (norm.forward(&zeros(&Tape::new(&device), shape)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().starts_with("batch_norm1d: ") && error.to_string().contains(part), "{error}");
        }
        assert!(norm.forward(&zeros(&Tape::inference(&device), &[1, 2])).error().is_none());
        let error = BatchNorm1d::new(0).init(&device, Seed::new(0)).unwrap_err();
        assert!(error.to_string().starts_with("batch_norm1d: of 0 channels"), "{error}");
    }
}
