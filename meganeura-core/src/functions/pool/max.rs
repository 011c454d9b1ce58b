//! Maximum pooling.

use crate::functions::Vjp;
use crate::ops::pool::{MaxPool2d, MaxPool2dGrad, Pool2d};
use crate::{Result, Var};

impl Var {
    /// The maximum of each window of `kernel` pixels. Padding counts as −∞; it is at most half of the kernel.
    ///
    /// Shapes: `x [N, C, H, W]` → `[N, C, P, Q]` with `P = ⌊(H + 2·padding − dilation·(kernel − 1) − 1)/stride⌋ + 1`,
    /// and `Q` likewise. Other shapes, and a window that is larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn max_pool2d(
        &self,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
    ) -> Self {
        let [y, _] = self.max_pool_of(Pool2d { kernel, stride, padding, dilation, ceil_mode: false });
        y
    }

    /// The maximum of each window, and its index in the image.
    #[track_caller]
    pub(crate) fn max_pool_of(&self, pool: Pool2d) -> [Self; 2] {
        self.record_many(MaxPool2d(pool), &[self])
    }
}

impl Vjp for MaxPool2d {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        Ok(vec![Some(dy.record(MaxPool2dGrad { pool: self.0, input: x[0].shape() }, &[&y[1], dy]))])
    }
}

impl Vjp for MaxPool2dGrad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([index, _], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let planes = |x: &Var| {
            let [n, c, h, w] = *x.shape().dims() else { unreachable!("images, by the type rule") };
            x.reshape([n * c, h * w])
        };
        Ok(vec![None, Some(planes(d).gather_or_zero(1, &planes(index)).reshape(index.shape()))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Tested};

    impl Tested for MaxPool2d {
        fn cases() -> Vec<Case> {
            let mut cases = crate::functions::pool::cases::windows();
            let dilated =
                Pool2d { kernel: [2, 3], stride: [1, 2], padding: [1, 1], dilation: [2, 2], ceil_mode: false };
            cases.push((dilated, [2, 2, 7, 9]));
            cases.push((dilated, [2, 16, 7, 9]));
            cases.push((Pool2d { stride: [3, 3], ceil_mode: true, ..dilated }, [2, 2, 7, 9]));
            let mut cases: Vec<_> = cases.into_iter().map(|(pool, x)| Case::new(Self(pool)).input(&x)).collect();
            // Between other operations, which leave a value stored as bf16.
            cases.push(Case::recorded("max_pool2d", &[&[2, 24, 9, 7]], |x| {
                let y = (&x[0] * -2.0).max_pool2d([3, 2], [2, 3], [1, 0], [1, 1]);
                (y * 4.0).max_pool2d([2, 2], [1, 1], [0, 0], [1, 1]).sum_over(&[2, 3])
            }));
            cases
        }
    }

    impl Tested for MaxPool2dGrad {
        fn cases() -> Vec<Case> {
            // Tested on every device through the gradients of `max_pool2d`'s cases, where a winner is in its window.
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Result, Tape, Tensor};

    #[test]
    fn windows_in_the_padding_alone_have_no_winner() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_slice(&device, [1, 1, 1, 3], &[1.0, 2.0, 3.0])?);
        let y = x.max_pool2d([2, 2], [1, 1], [1, 1], [2, 2]);
        assert_eq!(y.to_vec()?, [f32::NEG_INFINITY; 3]);
        let grads = tape.backward(&y.sum())?;
        assert_eq!(grads.of(&x).expect("the sum depends on x").to_vec()?, [0.0; 3]);
        Ok(())
    }
}
