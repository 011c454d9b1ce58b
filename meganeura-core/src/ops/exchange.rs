//! Exchanges between the ranks of a world.

use std::panic::Location;

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::tape::Var;
use crate::world::{Collective, World};
use crate::{Error, ErrorKind, Result, TensorType};

/// A collective over the `R` ranks of a world, such as the mean `yₖ = Σᵣ xₖᵣ / R`, of any number of values at once.
///
/// Shapes: each result has that of its operand, which is the same on every rank. Gradient of the mean: that of the sum
/// of all ranks' losses, `dxₖ = Σᵣ dyₖᵣ / R`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Exchange {
    pub(crate) world: World,
    pub(crate) collective: Collective,
    /// `true` if ranks may exchange bf16. Only for means.
    pub(crate) rounded: bool,
}

impl Primitive for Exchange {
    fn name(&self) -> &'static str {
        match self.collective {
            Collective::AllMean => "all_mean",
            Collective::MeanToOwners(_) => "mean_to_owners",
            Collective::FromOwners(_) => "from_owners",
        }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x.iter().find(|ty| !ty.dtype.is_float()) {
            Some(ty) => Err(format!("needs floats, not {}", ty.dtype)),
            None => Ok(x.to_vec()),
        }
    }

    fn vjp(&self, _: &[Var], _: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        if self.collective != Collective::AllMean {
            let message = "has no gradient, since each rank owns different values";
            return Err(Error::new(ErrorKind::NotDifferentiable, message).in_op(self.name()));
        }
        let given: Vec<_> = dy.iter().flatten().collect();
        let mut means = all_mean(&given, &self.world, self.rounded).into_iter();
        Ok(dy.iter().map(|dy| dy.as_ref().and_then(|_| means.next())).collect())
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [super::case::Special] {
        &[super::case::Special::WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        // A single rank; several are tested with several processes.
        let alone = || Case::new(Self { world: World::alone(), collective: Collective::AllMean, rounded: false });
        let shapes: [&[&[usize]]; 4] = [&[&[3, 5]], &[&[1]], &[&[2, 1, 300], &[7]], &[&[1], &[4, 3], &[5]]];
        shapes.iter().map(|shapes| shapes.iter().fold(alone(), |case, shape| case.input(shape))).collect()
    }
}

impl Kernel for Exchange {
    fn meets(&self) -> Option<&Exchange> {
        Some(self)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let sizes: Vec<_> = y.iter_mut().map(|y| size_of_val(y.floats())).collect();
        let range = self.collective.range(&sizes, self.world.size(), size_of::<T>());
        let Some(mut from) = scratch.borrow::<T>(range.bytes / size_of::<T>()) else { return };
        let Some(mut to) = scratch.borrow::<T>(range.bytes / size_of::<T>()) else { return };
        let (from, to) = (&mut from[..], &mut to[..]);
        from.fill(T::from_f64(0.0));
        to.fill(T::from_f64(0.0));
        let place = |k: usize| range.offsets[k] / size_of::<T>()..(range.offsets[k] + sizes[k]) / size_of::<T>();
        for (k, x) in x.iter().enumerate() {
            let place = place(k);
            let len = place.len();
            from[place].copy_from_slice(&x.floats()[..len]);
        }
        let (own, all) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
        if let Err(error) = self.world.exchange(&self.collective, T::DTYPE, &range, own, all) {
            return scratch.refuse(error);
        }
        for (k, y) in y.iter_mut().enumerate() {
            y.floats().copy_from_slice(&to[place(k)]);
        }
    }

    /// No launches: the executor exchanges the values between launches.
    fn variants(&self, _: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        vec![Variant { name: "ranks", launches: Vec::new(), scratch: Vec::new() }]
    }
}

/// Exchanges values of all ranks, to or from their owners; in a world of one, returns the values themselves.
#[track_caller]
#[doc(hidden)]
pub fn exchange(values: &[&Var], world: &World, collective: Collective) -> Vec<Var> {
    record(values, Exchange { world: world.clone(), collective, rounded: false })
}

/// The means of values over all ranks. They may be exchanged in bf16 if `rounded`.
#[track_caller]
#[doc(hidden)]
pub fn all_mean(values: &[&Var], world: &World, rounded: bool) -> Vec<Var> {
    record(values, Exchange { world: world.clone(), collective: Collective::AllMean, rounded })
}

#[track_caller]
fn record(values: &[&Var], op: Exchange) -> Vec<Var> {
    let Some(first) = values.first() else { return Vec::new() };
    if op.world.is_alone() {
        return values.iter().map(|&value| value.clone()).collect();
    }
    first.tape().record(op.into(), values, Location::caller()).into_vec()
}

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
