//! Exchanges between the ranks of a world.

use std::panic::Location;

use super::Vjp;
use crate::ops::Primitive;
use crate::ops::collective::CollectiveOp;
use crate::world::{Collective, World};
use crate::{Error, ErrorKind, Result, Var};

impl Var {
    /// The mean over all ranks of a [world](crate::world): `y = Σᵣ xᵣ / R`.
    ///
    /// Every rank gets the same result. In a world of one rank, this is the value itself.
    ///
    /// The gradient is that of the sum of all ranks' losses.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let world = World::alone();
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let loss = tape.input(&Tensor::from_slice(&device, [2], &[1.0, 3.0])?).mean();
    /// assert_eq!(loss.all_mean(&world).item()?, 2.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[doc(alias = "all_reduce")]
    #[must_use]
    #[track_caller]
    pub fn all_mean(&self, world: &World) -> Self {
        all_mean(&[self], world, false).swap_remove(0)
    }
}

impl Vjp for CollectiveOp {
    fn vjp(&self, _: &[Var], _: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        if self.collective != Collective::AllReduce {
            let message = "has no gradient, since each rank owns different values";
            return Err(Error::new(ErrorKind::NotDifferentiable, message).in_op(self.name()));
        }
        let given: Vec<_> = dy.iter().flatten().collect();
        let mut sums = all_sum(&given, &self.world, self.rounded).into_iter();
        Ok(dy.iter().map(|dy| dy.as_ref().and_then(|_| sums.next())).collect())
    }
}

/// Exchanges values of all ranks, to or from their owners; in a world of one, returns the values themselves.
#[track_caller]
#[doc(hidden)]
pub fn record_collective(values: &[&Var], world: &World, collective: Collective) -> Vec<Var> {
    record(values, CollectiveOp { world: world.clone(), collective, rounded: false })
}

/// The means of values over all ranks. They may be exchanged in bf16 if `rounded`.
///
/// The exchange adds, and what reads a sum multiplies it. The reciprocal of three in bf16 is 0.2 % too large, so ranks
/// must not multiply before they add.
#[track_caller]
#[doc(hidden)]
pub fn all_mean(values: &[&Var], world: &World, rounded: bool) -> Vec<Var> {
    let mut means = all_sum(values, world, rounded);
    if !world.is_alone() {
        for mean in &mut means {
            *mean = mean.scale(1.0 / world.size() as f64);
        }
    }
    means
}

/// The sums of values over all ranks. They may be exchanged in bf16 if `rounded`.
#[track_caller]
pub(crate) fn all_sum(values: &[&Var], world: &World, rounded: bool) -> Vec<Var> {
    record(values, CollectiveOp { world: world.clone(), collective: Collective::AllReduce, rounded })
}

#[track_caller]
fn record(values: &[&Var], op: CollectiveOp) -> Vec<Var> {
    let Some(first) = values.first() else { return Vec::new() };
    if op.world.is_alone() {
        return values.iter().map(|&value| value.clone()).collect();
    }
    first.tape().record(op.into(), values, Location::caller()).into_vec()
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Special, Tested};

    impl Tested for CollectiveOp {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            // A single rank; several are tested with several processes.
            let alone = || Case::new(Self { world: World::alone(), collective: Collective::AllReduce, rounded: false });
            let shapes: [&[&[usize]]; 4] = [&[&[3, 5]], &[&[1]], &[&[2, 1, 300], &[7]], &[&[1], &[4, 3], &[5]]];
            shapes.iter().map(|shapes| shapes.iter().fold(alone(), |case, shape| case.input(shape))).collect()
        }
    }
}
