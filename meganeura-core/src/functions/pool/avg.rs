//! Average pooling.

use crate::functions::Vjp;
use crate::ops::pool::{AnyPool, AvgPool, AvgPoolGrad};
use crate::ops::{Divisor, Pool};
use crate::{Result, Var};

impl Var {
    /// The mean of each window of `kernel` pixels. Padding counts as zeros with `count_include_pad`, otherwise not at
    /// all.
    ///
    /// Shapes: `x [N, C, H, W]` → `[N, C, P, Q]` with `P = ⌊(H + 2·padding − kernel)/stride⌋ + 1`, and `Q` likewise.
    /// Other shapes, and a window that is larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn avg_pool2d(
        &self,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
    ) -> Self {
        let pool = Pool { kernel, stride, padding, dilation: [1, 1], ceil_mode: false };
        self.avg_pool_of(pool, if count_include_pad { Divisor::Padded } else { Divisor::Inside })
    }

    /// The sum of each window, divided.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn avg_pool_of(&self, pool: impl Into<AnyPool>, divisor: Divisor) -> Self {
        self.record(AvgPool { pool: pool.into(), divisor }, &[self])
    }
}

impl Vjp for AvgPool {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        Ok(vec![Some(dy.record(AvgPoolGrad { forward: self.clone(), input: x[0].shape() }, &[dy]))])
    }
}

impl Vjp for AvgPoolGrad {
    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![dy[0].as_ref().map(|d| d.record(self.forward.clone(), &[d]))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Special, Tested};
    use crate::ops::pool::PoolShape;

    impl AvgPool {
        pub(crate) fn naive(&self, x: &Array) -> Array {
            let g = PoolShape::of(x.shape, self.pool);
            let mut data = Vec::new();
            for channel in x.data.chunks_exact(g.pixels()) {
                for at in 0..g.windows() {
                    let sum: f64 = g.window(g.place(at)).map(|place| channel[place]).sum();
                    data.push(sum / self.count(&g, g.place(at)) as f64);
                }
            }
            Array { shape: g.output(x.shape), data }
        }
    }

    impl Tested for AvgPool {
        fn cases() -> Vec<Case> {
            let all = [Divisor::Padded, Divisor::Inside, Divisor::Fixed(5)].map(|divisor| {
                crate::functions::pool::cases::windows().into_iter().map(move |(pool, x)| {
                    let op = Self { pool, divisor };
                    let reference = op.clone();
                    Case::new(op).input(x.dims()).naive(move |a| vec![reference.naive(&a[0])])
                })
            });
            let mut cases: Vec<_> = all.into_iter().flatten().collect();
            cases.push(Case::recorded("avg_pool2d", &[&[2, 24, 9, 7]], |x| {
                let y = (&x[0] * -2.0).avg_pool2d([2, 2], [1, 2], [0, 0], true);
                (y * 4.0).avg_pool2d([3, 2], [2, 1], [1, 1], false).sum_over(&[2, 3])
            }));
            cases
        }
    }

    impl Tested for AvgPoolGrad {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            crate::functions::pool::cases::windows()
                .into_iter()
                .map(|(pool, input)| {
                    let op = Self { forward: AvgPool { pool, divisor: Divisor::Inside }, input };
                    Case::new(op).input(PoolShape::of(input, pool).output(input).dims())
                })
                .collect()
        }
    }
}
