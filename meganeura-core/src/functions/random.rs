//! Random numbers from a counter.

use super::Vjp;
use crate::ops::random::RandomUniform;
use crate::{DType, Precision, Result, Var};

impl Var {
    /// Uniform random numbers in `[0, 1)` with this value's shape, from the tape's seed.
    #[doc(alias = "rand_like")]
    #[must_use]
    #[track_caller]
    pub fn random_uniform(&self) -> Self {
        if self.error().is_some() {
            return self.clone();
        }
        let (seed, stream) = self.tape().random_stream();
        let precision = if self.ty().dtype == DType::F64 { Precision::Double } else { Precision::Full };
        self.record(RandomUniform { stream, shape: self.shape(), precision }, &[&seed])
    }
}

impl Vjp for RandomUniform {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Special, Tested};

    impl Tested for RandomUniform {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            [1, 5, 1027]
                .map(|n| Case::recorded("random_uniform", &[&[n]], |x| x[0].random_uniform()).tolerance(0.0))
                .into()
        }
    }
}
