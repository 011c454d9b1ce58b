//! Weighted sums of gathered columns.

use super::Vjp;
use crate::ops::weighted_gather::{WeightedGather, WeightedGatherGradInput, WeightedGatherGradWeight};
use crate::{Result, Var};

impl Var {
    /// Weighted sums of columns: `y[n,c,k] = Σ_t w[n,t,k]·x[n,c,index[n,t,k]]`. A column past the end is 0.
    ///
    /// Shapes: `x [N,C,R]`, `index [N,T,K]` of integers, `w [N,T,K]` → `y [N,C,K]`.
    #[doc(hidden)]
    #[must_use]
    #[track_caller]
    pub fn weighted_gather(&self, index: &Self, w: &Self) -> Self {
        self.record(WeightedGather, &[self, &index.as_index(), w])
    }

    #[track_caller]
    fn scattered_columns(&self, index: &Self, w: &Self, columns: usize) -> Self {
        self.record(WeightedGatherGradInput { columns }, &[index, w, self])
    }

    #[track_caller]
    fn products_of_columns(&self, index: &Self, dy: &Self) -> Self {
        self.record(WeightedGatherGradWeight, &[self, index, dy])
    }
}

impl Vjp for WeightedGather {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, index, w], Some(dy)) = (x, &dy[0]) else { return Ok(vec![None; 3]) };
        let dx = dy.scattered_columns(index, w, x.shape()[2]);
        Ok(vec![Some(dx), None, Some(x.products_of_columns(index, dy))])
    }
}

impl Vjp for WeightedGatherGradInput {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([index, w, dy], Some(d)) = (x, &dy[0]) else { return Ok(vec![None; 3]) };
        Ok(vec![None, Some(d.products_of_columns(index, dy)), Some(d.weighted_gather(index, w))])
    }
}

impl Vjp for WeightedGatherGradWeight {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, index, dy], Some(d)) = (x, &dy[0]) else { return Ok(vec![None; 3]) };
        let dx = dy.scattered_columns(index, d, x.shape()[2]);
        Ok(vec![Some(dx), None, Some(x.weighted_gather(index, d))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Tested};

    /// `[N, C, R, T, K]`: one channel, a few, more than a block; one column and more; more than a tile; more indices
    /// than a workgroup has invocations.
    const EXTENTS: [[usize; 5]; 6] =
        [[1, 1, 1, 1, 1], [2, 1, 5, 3, 7], [2, 3, 7, 4, 70], [1, 19, 6, 2, 5], [3, 33, 4, 1, 3], [1, 9, 70, 4, 90]];

    /// The places and the values of a naive sum over all of `[N, C, T, K]`: `f` gets the numbers of a term in
    /// `[N, C, K]`, `[N, T, K]`, and in `[N, C, R]`, if its index is not past the end.
    fn each_term(g: [usize; 5], index: &Array, mut f: impl FnMut(usize, usize, Option<usize>)) {
        let [n, c, r, t, k] = g;
        for (image, channel, tap, at) in (0..n).flat_map(|image| {
            (0..c).flat_map(move |channel| (0..t).flat_map(move |tap| (0..k).map(move |at| (image, channel, tap, at))))
        }) {
            let (plane, tap) = (image * c + channel, (image * t + tap) * k + at);
            let column = index.data[tap] as usize;
            f(plane * k + at, tap, (column < r).then_some(plane * r + column));
        }
    }

    /// The case of an operation whose operands have these places among `x`, `index`, `w` and `dy`.
    fn case(case: Case, g: [usize; 5], operands: [usize; 3], naive: fn([usize; 5], &[Array]) -> Array) -> Case {
        let [n, c, r, t, k] = g;
        let case = operands.iter().fold(case, |case, operand| match operand {
            0 => case.input(&[n, c, r]),
            // Some are past the end.
            1 => case.labels(&[n, t, k], r + 2),
            2 => case.input(&[n, t, k]),
            _ => case.input(&[n, c, k]),
        });
        // Sums of up to K·T terms: ε·√360 is 2e-6.
        case.naive(move |x| vec![naive(g, x)]).tolerance(5e-6)
    }

    fn zeros(shape: [usize; 3]) -> Array {
        let shape = crate::Shape::from(shape);
        Array { shape, data: vec![0.0; shape.elements()] }
    }

    impl Tested for WeightedGather {
        fn cases() -> Vec<Case> {
            let naive = |g: [usize; 5], x: &[Array]| {
                let mut y = zeros([g[0], g[1], g[4]]);
                each_term(g, &x[1], |at, tap, column| {
                    y.data[at] += x[2].data[tap] * column.map_or(0.0, |column| x[0].data[column]);
                });
                y
            };
            let own = EXTENTS.map(|g| case(Case::new(Self), g, [0, 1, 2], naive)).to_vec();
            [own, crate::functions::grid_sample::cases::recorded()].concat()
        }
    }

    impl Tested for WeightedGatherGradInput {
        fn cases() -> Vec<Case> {
            let naive = |g: [usize; 5], x: &[Array]| {
                let mut y = zeros([g[0], g[1], g[2]]);
                each_term(g, &x[0], |at, tap, column| {
                    if let Some(column) = column {
                        y.data[column] += x[1].data[tap] * x[2].data[at];
                    }
                });
                y
            };
            EXTENTS.map(|g| case(Case::new(Self { columns: g[2] }), g, [1, 2, 3], naive)).to_vec()
        }
    }

    impl Tested for WeightedGatherGradWeight {
        fn cases() -> Vec<Case> {
            let naive = |g: [usize; 5], x: &[Array]| {
                let mut y = zeros([g[0], g[3], g[4]]);
                each_term(g, &x[1], |at, tap, column| {
                    y.data[tap] += x[2].data[at] * column.map_or(0.0, |column| x[0].data[column]);
                });
                y
            };
            EXTENTS.map(|g| case(Case::new(Self), g, [0, 1, 3], naive)).to_vec()
        }
    }
}
