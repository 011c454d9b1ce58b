//! Maximum pooling.

use crate::functions::Vjp;
use crate::ops::Pool;
use crate::ops::pool::{AnyPool, MaxPool, MaxPoolGrad};
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
        let [y, _] = self.max_pool_of(Pool { kernel, stride, padding, dilation, ceil_mode: false });
        y
    }

    /// The maximum of each window, and its index in the channel: `u32`, and `u32::MAX` for a window of padding alone.
    #[track_caller]
    #[doc(hidden)]
    pub fn max_pool_of(&self, pool: impl Into<AnyPool>) -> [Self; 2] {
        self.record_many(MaxPool(pool.into()), &[self])
    }
}

impl Vjp for MaxPool {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        Ok(vec![Some(dy.record(MaxPoolGrad { pool: self.0, input: x[0].shape() }, &[&y[1], dy]))])
    }
}

impl Vjp for MaxPoolGrad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([index, _], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let channels = |x: &Var| {
            let (shape, rows) = (x.shape(), x.shape()[0] * x.shape()[1]);
            x.reshape([rows, shape.elements() / rows])
        };
        Ok(vec![None, Some(channels(d).gather_or_zero(1, &channels(index)).reshape(index.shape()))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::Shape;
    use crate::functions::case::{Case, Tested};

    impl Tested for MaxPool {
        fn cases() -> Vec<Case> {
            let mut cases = crate::functions::pool::cases::windows();
            let dilated = Pool { kernel: [2, 3], stride: [1, 2], padding: [1, 1], dilation: [2, 2], ceil_mode: false };
            cases.push((dilated.into(), Shape::from([2, 2, 7, 9])));
            cases.push((dilated.into(), Shape::from([2, 16, 7, 9])));
            cases.push((Pool { stride: [3, 3], ceil_mode: true, ..dilated }.into(), Shape::from([2, 2, 7, 9])));
            let deep = Pool {
                kernel: [2, 3, 2],
                stride: [1, 2, 1],
                padding: [1, 1, 0],
                dilation: [2, 2, 3],
                ceil_mode: false,
            };
            cases.push((deep.into(), Shape::from([2, 2, 5, 7, 6])));
            cases.push((deep.into(), Shape::from([1, 16, 5, 7, 6])));
            let mut cases: Vec<_> = cases.into_iter().map(|(pool, x)| Case::new(Self(pool)).input(x.dims())).collect();
            // Between other operations, which leave a value stored as bf16.
            cases.push(Case::recorded("max_pool2d", &[&[2, 24, 9, 7]], |x| {
                let y = (&x[0] * -2.0).max_pool2d([3, 2], [2, 3], [1, 0], [1, 1]);
                (y * 4.0).max_pool2d([2, 2], [1, 1], [0, 0], [1, 1]).sum_over(&[2, 3])
            }));
            cases
        }
    }

    impl Tested for MaxPoolGrad {
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
