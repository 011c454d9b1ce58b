//! Connectionist temporal classification.

use super::{Labels, Reduction};
use crate::Var;

/// The options of [`Var::ctc_with`]. The defaults are those of [`Var::ctc`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CtcOptions {
    /// The blank class, which stands for no label; 0 by default.
    pub blank: u32,
    /// `true` if targets that are too long for their input cost 0 and have no gradient. By default they cost infinity,
    /// and their gradient is NaN.
    pub zero_infinity: bool,
    /// The reduction of the losses of single examples.
    pub reduction: Reduction,
}

impl Var {
    /// CTC loss of sequences with unaligned labels: the mean of `−ln p(targets)` of each example, divided by its number
    /// of labels (or 1)
    ///
    /// `p` is the probability of all paths, with a class for each step, that become the targets when repeated classes
    /// are merged and blanks, class 0, are removed. [Graves et al., 2006](https://doi.org/10.1145/1143844.1143891).
    ///
    /// Shapes: log-probabilities `[T, N, C]`, from [`log_softmax(2)`](Var::log_softmax); targets `[N, S]`, padded with
    /// any class; lengths of inputs, up to `T`, and of targets, up to `S`, `[N]` → a scalar. Targets and lengths are
    /// tensors of indices or values on the tape. A value out of range is an error; one that only the device knows makes
    /// the loss NaN.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let indices = |shape: &[usize], data: &[u32]| Tensor::indices(&device, meganeura::Shape::new(shape), data);
    /// // Three classes, equally probable at each of two steps. Paths of the target 1 are 1-1, 1-0 and 0-1.
    /// let x = Tape::new(&device).input(&Tensor::zeros(&device, [2, 1, 3])?).log_softmax(2);
    /// let loss = x.ctc(&indices(&[1, 1], &[1])?, &indices(&[1], &[2])?, &indices(&[1], &[1])?);
    /// assert!((loss.item()? - 3f32.ln()).abs() < 1e-6);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[doc(alias = "ctc_loss")]
    #[must_use]
    #[track_caller]
    pub fn ctc(
        &self,
        targets: &(impl Labels + ?Sized),
        input_lengths: &(impl Labels + ?Sized),
        target_lengths: &(impl Labels + ?Sized),
    ) -> Self {
        self.ctc_with(targets, input_lengths, target_lengths, &CtcOptions::default())
    }

    /// [`ctc`](Self::ctc) with another blank, without infinite losses, or with another reduction. Only the mean divides
    /// by the number of labels, as in PyTorch.
    ///
    /// Shapes: the same; unreduced `[N]`. Errors: also if the blank is not a class.
    #[must_use]
    #[track_caller]
    pub fn ctc_with(
        &self,
        targets: &(impl Labels + ?Sized),
        input_lengths: &(impl Labels + ?Sized),
        target_lengths: &(impl Labels + ?Sized),
        options: &CtcOptions,
    ) -> Self {
        let CtcOptions { blank, zero_infinity, reduction } = *options;
        let tape = self.tape();
        let (targets, inputs, lengths) = (targets.on(tape), input_lengths.on(tape), target_lengths.on(tape));
        let losses = self.ctc_losses(&targets, [&inputs, &lengths], blank, zero_infinity);
        if reduction != Reduction::Mean || losses.error().is_some() {
            return reduction.of(&losses);
        }
        (losses / lengths.to_float().maximum(self.constant(1.0))).mean()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{device, input, tape, tensor};
    use crate::{Device, ErrorKind, Shape, Tape, Tensor};

    fn indices(shape: &[usize], indices: &[u32]) -> Tensor {
        Tensor::indices(&device(), Shape::new(shape), indices).unwrap()
    }

    fn numbers(n: usize) -> Vec<f64> {
        (0..n).map(|i| (i as f64 * 0.7).sin() * 2.0).collect()
    }

    #[track_caller]
    fn assert_near(loss: &Var, expected: &[f64]) {
        let found = loss.to_tensor().unwrap().to_f64_vec().unwrap();
        let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-13 * b.abs();
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?}, not {expected:?}");
    }

    #[test]
    fn paths_of_equal_probability_are_counted() {
        let tape = tape();
        let x = input(&tape, &[4, 5, 3], &[0.0; 60]).log_softmax(2);
        // Inputs of 4, 3, 2, 0 and 0 steps, each with a target.
        let targets = indices(&[5, 2], &[1, 2, 1, 1, 1, 1, 0, 0, 2, 0]);
        let lengths = [indices(&[5], &[4, 3, 2, 0, 0]), indices(&[5], &[2, 2, 2, 0, 1])];
        let with = |zero_infinity, reduction| {
            let options = CtcOptions { zero_infinity, reduction, ..Default::default() };
            x.ctc_with(&targets, &lengths[0], &lengths[1], &options)
        };
        // Target 1-2 in four steps: 15 of 81 paths. Target 1-1 in three steps: 1 of 27, namely 1-0-1. In two steps:
        // none.
        let (first, second) = ((81.0_f64 / 15.0).ln(), 27.0_f64.ln());
        assert_near(&with(false, Reduction::None), &[first, second, f64::INFINITY, 0.0, f64::INFINITY]);
        assert_near(&with(true, Reduction::None), &[first, second, 0.0, 0.0, 0.0]);
        assert_near(&with(true, Reduction::Sum), &[first + second]);
        assert_near(&with(true, Reduction::Mean), &[(first + second) / 2.0 / 5.0]);
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[6, 2, 4], &numbers(48))];
        let targets = indices(&[2, 3], &[1, 1, 2, 0, 2, 3]);
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let losses = |_: &(), x: &[Var]| {
                let options = CtcOptions { blank: 3, zero_infinity: false, reduction };
                // Unnormalised inputs as well, where the gradient still is the formula's.
                let x = [&x[0], &x[0].log_softmax(2)];
                let lengths = [indices(&[2], &[6, 5]), indices(&[2], &[3, 2])];
                x.map(|x| x.ctc_with(&targets, &lengths[0], &lengths[1], &options)).to_vec()
            };
            gradcheck(&(), &x, losses).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn long_sequences_keep_their_digits() {
        let (steps, classes) = (600, 5);
        let labels: Vec<_> = (0..200).map(|k| 1 + (k * 7 + k / 3) % 4).collect();
        let run = |device: &Device| {
            let tape = Tape::new(device);
            let x = Tensor::from_f64(device, [steps, 1, classes], &numbers(steps * classes)).unwrap();
            let of = |data: &[u32]| Tensor::indices(device, [data.len()], data).unwrap();
            let x = tape.input(&x);
            let targets = of(&labels).reshape([1, 200]).unwrap();
            let loss = x.log_softmax(2).ctc(&targets, &of(&[600]), &of(&[200]));
            let dx = tape.backward(&loss).unwrap().of(&x).unwrap();
            [loss, dx].map(|x| x.to_tensor().unwrap().to_f64_vec().unwrap())
        };
        let ([loss, dx], [exact, exact_dx]) = (run(&Device::cpu()), run(&device()));
        assert!((loss[0] - exact[0]).abs() <= 2e-6 * exact[0], "{loss:?}, not {exact:?}");
        let largest = exact_dx.iter().fold(0.0, |largest: f64, dx| largest.max(dx.abs()));
        // A gradient from one log-domain sum would be off by a unit in that sum's last place, 1e-4.
        assert!(dx.iter().zip(&exact_dx).all(|(a, b)| (a - b).abs() <= 2e-5 * largest));
    }

    #[test]
    fn impossible_targets_have_no_gradient() {
        for zero_infinity in [true, false] {
            let tape = tape();
            let x = input(&tape, &[2, 1, 3], &numbers(6));
            let options = CtcOptions { zero_infinity, ..Default::default() };
            let loss = x.ctc_with(&indices(&[1, 2], &[1, 1]), &indices(&[1], &[2]), &indices(&[1], &[2]), &options);
            let dx = tape.backward(&loss).unwrap().of(&x).unwrap().to_tensor().unwrap().to_f64_vec().unwrap();
            assert!(dx.iter().all(|dx| if zero_infinity { *dx == 0.0 } else { dx.is_nan() }), "{dx:?}");
        }
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let x = input(&tape, &[3, 2, 4], &numbers(24));
        let (targets, three, two) = (indices(&[2, 2], &[1, 2, 3, 1]), indices(&[2], &[3, 3]), indices(&[2], &[2, 2]));
        let blank = CtcOptions { blank: 4, ..Default::default() };
        for (loss, kind, message) in [
            (
                x.ctc(&indices(&[2, 2], &[1, 2, 4, 1]), &three, &two),
                ErrorKind::Argument,
                "ctc: label 4 is out of range",
            ),
            (
                x.ctc(&targets, &indices(&[2], &[4, 3]), &two),
                ErrorKind::Argument,
                "ctc: input length 4 is out of range",
            ),
            (x.ctc(&targets, &three, &three), ErrorKind::Argument, "ctc: target length 3 is out of range"),
            (x.ctc(&two, &three, &two), ErrorKind::Shape, "the targets must be integers [2, S]"),
            (x.ctc(&targets, &indices(&[1], &[3]), &two), ErrorKind::Shape, "must be u32[2], one is u32[1]"),
            (x.reshape([6, 4]).ctc(&targets, &three, &two), ErrorKind::Shape, "must be floats [T, N, classes]"),
            (x.ctc_with(&targets, &three, &two, &blank), ErrorKind::Shape, "the blank is class 4 of 4"),
        ] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(message), "{error}");
            assert!(error.location().unwrap().file().ends_with("ctc.rs"), "{error}");
        }
    }
}
