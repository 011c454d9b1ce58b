//! Statistics of channels, and work with a number per channel whose gradient takes them: the parts of batch
//! normalisation.

use super::Vjp;
use crate::ops::View;
use crate::ops::channels::{ChannelMoments, ChannelShape, ChannelSums};
use crate::ops::reduce::as_f64;
use crate::ops::view::Rule;
use crate::{Result, Shape, Var};

impl Var {
    /// The mean of each channel of `[N, C, …]`, the rounding error of the mean, which has no gradient, and the variance
    /// without Bessel's correction; each `[C]`.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn channel_moments(&self) -> [Self; 3] {
        let images = self.in_planes();
        images.record_many(ChannelMoments, &[&images])
    }

    /// Values `[N, C, …]` as images, which kernels hold as bf16; vectors `[N, C]`, and what has no elements, as they
    /// are.
    #[track_caller]
    fn in_planes(&self) -> Self {
        let shape = self.shape();
        match *shape.dims() {
            [_, _] | [_, _, _, _] => self.clone(),
            [n, c, ref rest @ ..] if shape.elements() > 0 => self.reshape([n, c, rest.iter().product(), 1]),
            _ => self.clone(),
        }
    }

    /// `(x − centre)·factor + shift`, with numbers of each channel of `[N, C, …]`: elementwise work, whose gradients
    /// are summed in one pass.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn channel_affine(&self, centre: &Self, factor: &Self, shift: &Self) -> Self {
        // A closure would lose the caller's line.
        let [centres, factors, shifts] = [
            self.over_channels(&centre.detach()),
            self.over_channels(&factor.detach()),
            self.over_channels(&shift.detach()),
        ];
        let y = (self.detach() - centres) * factors + shifts;
        y.record(View::Ruled(Rule::ChannelAffine), &[&y, self, centre, factor, shift])
    }

    /// Numbers of each channel in a shape that broadcasts to this `[N, C, …]`.
    #[track_caller]
    fn over_channels(&self, numbers: &Self) -> Self {
        let mut dims = vec![1; self.shape().rank().max(2) - 1];
        dims[0] = numbers.shape().elements();
        numbers.reshape(Shape::new(&dims))
    }
}

/// The gradients of the operands of `Rule::ChannelAffine`.
pub(super) fn of_affine(x: &[Var], dy: &Var) -> Vec<Option<Var>> {
    let [_, x, centre, factor, _] = x else { unreachable!("the values and four operands") };
    let images = [dy, x].map(Var::in_planes);
    let [sum, product] = dy.record_many(ChannelSums, &[&images[0], &images[1], centre]);
    let dx = dy * x.over_channels(factor);
    vec![None, Some(dx), Some(-(factor * &sum)), Some(product), Some(sum)]
}

impl Vjp for ChannelMoments {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x], [mean, rest, _], [d_mean, _, d_variance]) = (x, y, dy) else {
            unreachable!("one operand, three results")
        };
        let share = 1.0 / as_f64(ChannelShape::of(x.shape()).len());
        let shift = d_mean.as_ref().map(|d_mean| d_mean.scale(share));
        let Some(d_variance) = d_variance else {
            return Ok(vec![shift.map(|shift| x.over_channels(&shift).expand(x.shape()))]);
        };
        let slope = d_variance.scale(2.0 * share);
        let below = rest * &slope;
        let shift = match shift {
            Some(shift) => shift - below,
            None => -below,
        };
        let channels = |numbers: &Var| x.over_channels(numbers);
        // The forward pass computed the same difference, which would be kept until now.
        let late = x.after(std::slice::from_ref(&slope));
        Ok(vec![Some((late - channels(mean)) * channels(&slope) + channels(&shift))])
    }
}

impl Vjp for ChannelSums {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([slopes, x, centre], [sum, _], [u, v]) = (x, y, dy) else { unreachable!("three operands, two results") };
        let channels = |numbers: &Var| x.over_channels(numbers);
        let of_sum = u.as_ref().map(|u| channels(u).expand(x.shape()));
        let Some(v) = v else { return Ok(vec![of_sum, None, None]) };
        let of_product = (x - channels(centre)) * channels(v);
        let of_slopes = match of_sum {
            Some(of_sum) => of_sum + of_product,
            None => of_product,
        };
        Ok(vec![Some(of_slopes), Some(slopes * channels(v)), Some(-(v * sum))])
    }
}

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Special, Tested};

    /// The elements of each channel, with the number of the channel.
    fn elements(x: &Array, c: usize) -> impl Iterator<Item = (usize, f64)> {
        let dims = x.shape.dims();
        let (channels, pixels) = (dims[1], dims[2..].iter().product::<usize>());
        x.data.iter().copied().enumerate().filter(move |(i, _)| i / pixels % channels == c)
    }

    fn moments(a: &[Array]) -> Vec<Array> {
        let c = a[0].shape.dims()[1];
        let mut results = [(); 3].map(|()| Vec::with_capacity(c));
        for channel in 0..c {
            let of = || elements(&a[0], channel).map(|(_, x)| x);
            let n = of().count() as f64;
            let mean = of().sum::<f64>() / n;
            let variance = of().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            results.iter_mut().zip([mean, 0.0, variance]).for_each(|(to, number)| to.push(number));
        }
        results.map(|data| Array { shape: Shape::from([c]), data }).into()
    }

    fn sums(a: &[Array]) -> Vec<Array> {
        let c = a[0].shape.dims()[1];
        let mut results = [(); 2].map(|()| Vec::with_capacity(c));
        for channel in 0..c {
            let of = || elements(&a[0], channel);
            results[0].push(of().map(|(_, dy)| dy).sum());
            results[1].push(of().map(|(i, dy)| dy * (a[1].data[i] - a[2].data[channel])).sum());
        }
        results.map(|data| Array { shape: Shape::from([c]), data }).into()
    }

    /// Single elements; channels of one element in each example, few and many; narrow and wide planes, which align with
    /// nothing; channels that are split; images in lines, of one line, of three, of more than a workgroup's.
    const SHAPES: [&[usize]; 16] = [
        &[1, 1, 1, 1],
        &[3, 1],
        &[2, 3, 5],
        &[4, 3, 5, 7],
        &[1, 10, 3, 3],
        &[2, 2, 3, 4, 5],
        &[37, 10],
        &[300, 70],
        &[9, 3, 2, 2],
        &[3, 2, 90, 91],
        &[2, 60, 9, 4],
        &[5, 100, 3, 3],
        &[3, 8, 5, 7],
        &[2, 24, 31, 33],
        &[3, 40, 50, 41],
        &[2, 16, 4, 1],
    ];

    impl Tested for ChannelMoments {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            let case = |shape: &&[usize]| Case::new(Self).input(shape).tolerance(2e-6).naive(moments);
            let mut cases: Vec<_> = SHAPES.iter().map(case).collect();
            // A mean far above the spread. What is left is the rounding of the input to f32.
            for shape in [&[4, 3, 5, 7][..], &[300, 6], &[3, 10, 13, 17]] {
                cases.push(
                    Case::recorded("channel_moments", &[shape], |x| {
                        let [mean, rest, variance] = (x[0].scale(0.1) + x[0].constant(1000.0)).channel_moments();
                        (mean - rest.constant(1000.0)) + rest + variance.scale(10.0)
                    })
                    .tolerance(2e-3),
                );
            }
            cases
        }
    }

    impl Tested for ChannelSums {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            let case = |shape: &&[usize]| {
                let case = Case::new(Self).input(shape).input(shape).input(&[shape[1]]);
                // Sums of K terms of size 1 lose about √K units in the last place.
                case.tolerance(1e-5).naive(sums)
            };
            SHAPES.iter().map(case).collect()
        }
    }

    /// Values with a gradient rule of their own.
    pub(crate) fn ruled() -> impl Iterator<Item = Case> {
        [&[2, 3, 4, 5][..], &[9, 10], &[2, 16, 6, 5], &[3, 8, 7], &[2, 5, 2, 3, 4]].into_iter().map(|shape| {
            let c = [shape[1]];
            Case::recorded("channel_affine", &[shape, &c, &c, &c], |x| x[0].channel_affine(&x[1], &x[2], &x[3]).tanh())
        })
    }
}
