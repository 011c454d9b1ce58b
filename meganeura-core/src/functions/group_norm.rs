//! Group normalisation and its gradients.

use super::Vjp;
use crate::graph::Exact;
use crate::ops::group_norm::{GroupNorm, GroupNormGrad, GroupNormShape};
use crate::{Result, Var};

impl Var {
    /// Group normalisation: `(x − mean)/√(variance + eps)·weight + bias`, where mean and variance are those of a group
    /// of channels of an example.
    ///
    /// Shapes: `x [N, C, …]`, `weight [C]`, `bias [C]` → `[N, C, …]`. Other shapes, and a number of groups that does
    /// not divide `C`, are an error.
    #[must_use]
    #[track_caller]
    pub fn group_norm(&self, groups: usize, eps: f64, weight: &Self, bias: &Self) -> Self {
        let [y, _, _] = self.record_many(GroupNorm { groups, eps: Exact(eps) }, &[self, weight, bias]);
        y
    }
}

impl Vjp for GroupNorm {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, weight, _], [_, mean, rstd], [dy, d_mean, d_rstd]) = (x, y, dy) else {
            unreachable!("three operands, three results")
        };
        let (mut dx, mut dw, mut db) = (None, None, None);
        if let Some(dy) = dy {
            (dx, dw, db) =
                dy.record_many(GroupNormGrad::new(self.groups), &[x, weight, mean, rstd, dy]).map(Some).into();
        }
        let g = GroupNormShape::of(x.shape(), self.groups);
        let (one, len) = ([g.n, g.groups, 1], g.group());
        let mut add = |more: Var| {
            let more = more.reshape(x.shape());
            dx = Some(dx.take().map_or(more.clone(), |dx| dx + more));
        };
        if let Some(d_mean) = d_mean {
            add(d_mean.slice(2, 0..1).scale(1.0 / len as f64).expand([g.n, g.groups, len]));
        }
        if let Some(d_rstd) = d_rstd {
            let slope = -(d_rstd * rstd * rstd.square()).scale(1.0 / len as f64);
            add(g.centred(x, mean) * slope.reshape(one));
        }
        Ok(vec![dx, dw, db])
    }

    /// From `x` and the statistics, by broadcasting over groups: `[N, G, C/G, …]`.
    fn rematerialized(&self, x: &[Var], y: &[Var]) -> Option<Var> {
        let ([x, weight, bias], [_, mean, rstd]) = (x, y) else { return None };
        let g = GroupNormShape::of(x.shape(), self.groups);
        let per_channel = |parameter: &Var| parameter.reshape([1, g.groups, g.c / g.groups, 1]);
        let centred = g.centred(x, mean).reshape([g.n, g.groups, g.c / g.groups, g.s]);
        let y = centred * rstd.reshape([g.n, g.groups, 1, 1]) * per_channel(weight) + per_channel(bias);
        Some(y.reshape(x.shape()))
    }
}

impl Vjp for GroupNormGrad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, weight, mean, rstd, dy], [of_dx, of_dw, of_db]) = (x, dy) else {
            unreachable!("five operands, three results")
        };
        let g = GroupNormShape::of(x.shape(), self.groups);
        let (per_group, len) = (g.c / g.groups, g.group() as f64);
        let groups = |x: &Var| x.reshape([g.n, g.groups, per_group, g.s]);
        let channels = |x: &Var| x.reshape([1, g.groups, per_group, 1]);
        let mean_of = |x: Var| x.sum_keep(&[2, 3]).scale(1.0 / len);
        let add = |sum: &mut Option<Var>, term: Var| {
            *sum = Some(match sum.take() {
                Some(sum) => sum + term,
                None => term,
            });
        };
        let centred = groups(&g.centred(x, mean));
        let rstd = rstd.reshape([g.n, g.groups, 1, 1]);
        let (normal, slope, weight) = (&centred * &rstd, groups(dy), channels(weight));
        // Cotangents of the normalised input, of `γ`, of `r` alone and of `dy`.
        let (mut of_normal, mut of_weight, mut of_rstd, mut of_dy) = (None, None, None, None);
        if let Some(u) = of_dx {
            let (u, g) = (groups(u), &slope * &weight);
            let (u_mean, u_dot) = (mean_of(u.clone()), mean_of(&u * &normal));
            let (g_mean, g_dot) = (mean_of(g.clone()), mean_of(&g * &normal));
            let of_g = &rstd * (&u - u_mean - &normal * &u_dot);
            add(&mut of_normal, -(&rstd * (&u * &g_dot + &g * u_dot)));
            add(&mut of_rstd, (u * (g - g_mean - &normal * g_dot)).sum_over(&[2, 3]));
            add(&mut of_weight, (&slope * &of_g).sum_over(&[0, 3]));
            add(&mut of_dy, weight * of_g);
        }
        if let Some(v) = of_dw {
            add(&mut of_normal, &slope * channels(v));
            add(&mut of_dy, &normal * channels(v));
        }
        if let Some(w) = of_db {
            add(&mut of_dy, channels(w).expand([g.n, g.groups, per_group, g.s]));
        }
        let (mut of_x, mut of_mean) = (None, None);
        if let Some(of_normal) = of_normal {
            add(&mut of_rstd, (&of_normal * centred).sum_over(&[2, 3]));
            let of_centred = of_normal * rstd;
            // A mean is the sum of two numbers.
            let sum = -of_centred.sum_over(&[2, 3]).reshape([g.n, g.groups, 1]);
            of_mean = Some(sum.expand(mean.shape()));
            of_x = Some(of_centred.reshape(x.shape()));
        }
        let of_weight = of_weight.map(|of_weight| of_weight.reshape([g.c]));
        Ok(vec![of_x, of_weight, of_mean, of_rstd, of_dy.map(|of_dy| of_dy.reshape(x.shape()))])
    }
}

impl GroupNormShape {
    /// Each group minus its mean, `[N, G, K]`.
    pub(crate) fn centred(&self, x: &Var, mean: &Var) -> Var {
        let groups = x.reshape([self.n, self.groups, self.group()]);
        groups - mean.slice(2, 0..1) - mean.slice(2, 1..2)
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Special, Tested};

    pub(crate) fn naive(a: &[Array], groups: usize) -> Vec<Array> {
        let g = GroupNormShape::of(a[0].shape, groups);
        let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
        for (at, x) in a[0].data.chunks_exact(g.group()).enumerate() {
            let n = x.len() as f64;
            let mean = x.iter().sum::<f64>() / n;
            let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-5).sqrt();
            y.extend(x.iter().enumerate().map(|(i, x)| {
                let c = at % groups * (g.c / groups) + i / g.s;
                (x - mean) * rstd * a[1].data[c] + a[2].data[c]
            }));
            means.extend([mean, 0.0]);
            rstds.push(rstd);
        }
        let array = |shape, data| Array { shape, data };
        vec![array(a[0].shape, y), array(g.means(), means), array(g.rstds(), rstds)]
    }

    impl Tested for GroupNorm {
        fn cases() -> Vec<Case> {
            let case = |shape: &[usize], groups| {
                let c = [shape[1]];
                Case::new(Self { groups, eps: Exact(1e-5) })
                    .input(shape)
                    .input(&c)
                    .input(&c)
                    .tolerance(2e-5)
                    .naive(move |a| naive(a, groups))
            };
            vec![
                case(&[1, 1, 2, 2], 1),
                case(&[2, 6, 3, 5], 3),
                case(&[3, 4, 5], 4),
                case(&[2, 4, 7, 9], 1),
                case(&[2, 8, 1, 1], 2),
                case(&[1, 32, 5, 5], 32),
                case(&[3, 10], 5),
                case(&[1, 2, 33, 31], 1),
                // Channels whose elements align with the invocations, groups that share a workgroup, and one channel
                // each.
                case(&[2, 8, 8, 16], 2),
                case(&[5, 4, 16, 16], 4),
                // Many channels with few elements: in blocks, in rows of one element, and in longer rows.
                case(&[2, 300, 3], 1),
                case(&[3, 90, 2], 2),
                case(&[3, 700], 2),
                case(&[2, 4500], 1),
                // Rows, as in normalisation over the last axes, in lines of eight.
                case(&[37, 1, 520], 1),
                case(&[3, 1, 3, 8], 1),
                case(&[2050, 1, 24], 1),
                // Samples that are summed in two steps, and several by one workgroup.
                case(&[3000, 2], 1),
                case(&[2050, 40], 1),
                case(&[2049, 16, 3], 8),
                // Longer than a workgroup holds, and channels longer than a block.
                case(&[1, 2, 129, 130], 1),
                // A mean far above the spread, where E[x²] − E[x]² would lose every digit. The remaining error is the
                // rounding of the input to f32, by 3e-5 of 0.1.
                Case::recorded("group_norm", &[&[2, 4, 4, 4], &[4], &[4]], |x| {
                    (x[0].scale(0.1) + x[0].constant(1000.0)).group_norm(2, 1e-5, &x[1], &x[2])
                })
                .tolerance(1e-3),
            ]
        }
    }

    impl Tested for GroupNormGrad {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            // Arbitrary statistics: `1/σ` and the mean are operands like others. The gradients of `group_norm`'s cases
            // cover the rest.
            let case = |shape: &[usize], groups: usize| {
                let (means, rstds) = ([shape[0], groups, 2], [shape[0], groups]);
                let case =
                    Case::new(Self { groups }).input(shape).input(&[shape[1]]).input(&means).input(&rstds).input(shape);
                case.tolerance(2e-5).range(-0.5, 1.5)
            };
            vec![case(&[2, 6, 3, 5], 3), case(&[3, 4], 1), case(&[2, 3, 1, 7], 3), case(&[1, 8, 4, 2], 2)]
        }
    }
}
