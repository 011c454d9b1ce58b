//! Average pooling.

use crate::functions::Vjp;
use crate::ops::pool::{AvgPool2d, AvgPool2dGrad, Divisor, Pool2d};
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
        let pool = Pool2d { kernel, stride, padding, dilation: [1, 1], ceil_mode: false };
        self.avg_pool_of(pool, if count_include_pad { Divisor::Padded } else { Divisor::Inside })
    }

    /// The sum of each window, divided.
    #[track_caller]
    pub(crate) fn avg_pool_of(&self, pool: Pool2d, divisor: Divisor) -> Self {
        self.record(AvgPool2d { pool, divisor }, &[self])
    }
}

impl Vjp for AvgPool2d {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None]) };
        Ok(vec![Some(dy.record(AvgPool2dGrad { forward: self.clone(), input: x[0].shape() }, &[dy]))])
    }
}

impl Vjp for AvgPool2dGrad {
    fn vjp(&self, _x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![dy[0].as_ref().map(|d| d.record(self.forward.clone(), &[d]))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::Shape;
    use crate::functions::case::{Array, Case, Special, Tested};
    use crate::ops::pool::PoolShape;

    impl AvgPool2d {
        pub(crate) fn naive(&self, x: &Array) -> Array {
            let g = PoolShape::of(x.shape, self.pool);
            let mut data = Vec::new();
            for plane in x.data.chunks_exact(g.h * g.w) {
                for at in 0..g.p * g.q {
                    let (p, q) = (at / g.q, at % g.q);
                    let sum: f64 = g.window(p, q).map(|place| plane[place]).sum();
                    data.push(sum / self.count(&g, p, q) as f64);
                }
            }
            Array { shape: g.output(x.shape), data }
        }
    }

    impl Tested for AvgPool2d {
        fn cases() -> Vec<Case> {
            let all = [Divisor::Padded, Divisor::Inside, Divisor::Fixed(5)].map(|divisor| {
                crate::functions::pool::cases::windows().into_iter().map(move |(pool, x)| {
                    let op = Self { pool, divisor };
                    let reference = op.clone();
                    Case::new(op).input(&x).naive(move |a| vec![reference.naive(&a[0])])
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

    impl Tested for AvgPool2dGrad {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            crate::functions::pool::cases::windows()
                .into_iter()
                .map(|(pool, x)| {
                    let input = Shape::from(x);
                    let op = Self { forward: AvgPool2d { pool, divisor: Divisor::Inside }, input };
                    Case::new(op).input(PoolShape::of(input, pool).output(input).dims())
                })
                .collect()
        }
    }
}
