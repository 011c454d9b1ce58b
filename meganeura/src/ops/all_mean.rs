//! The mean over the ranks of a world.

use std::panic::Location;

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::tape::Var;
use crate::world::World;
use crate::{Result, TensorType};

/// `y = Σᵣ xᵣ / R` over the `R` ranks of a world, the same on every rank.
///
/// Shapes: that of `x`, which is that of every rank. Gradient: of the sum of all ranks' losses, `dx = Σᵣ dyᵣ / R`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllMean {
    world: World,
}

impl Primitive for AllMean {
    fn name(&self) -> &'static str {
        "all_mean"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if x[0].dtype.is_float() { Ok(vec![x[0]]) } else { Err(format!("needs floats, not {}", x[0].dtype)) }
    }

    fn vjp(&self, _: &[Var], _: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![dy[0].as_ref().map(|dy| dy.all_mean(&self.world))])
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        // Of one rank; several are tested as several processes.
        let alone = || Self { world: World::alone() };
        vec![Case::new(alone()).input(&[3, 5]), Case::new(alone()).input(&[1]), Case::new(alone()).input(&[2, 1, 300])]
    }
}

impl Kernel for AllMean {
    fn reads_strided(&self, _: usize) -> bool {
        false
    }

    fn loads(&self) -> Option<usize> {
        None
    }

    fn stores(&self) -> bool {
        false
    }

    fn meets(&self) -> Option<&World> {
        Some(&self.world)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let y = y[0].floats();
        let x = &x[0].floats()[..y.len()];
        if let Err(error) = self.world.mean(T::DTYPE, bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y)) {
            scratch.refuse(error);
        }
    }

    /// No launches: ranks meet between those before and those after.
    fn variants(&self, _: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        vec![Variant { name: "ranks", launches: Vec::new(), scratch: Vec::new() }]
    }
}

impl Var {
    /// The mean over all ranks of a [world](crate::world), the same on each: `y = Σᵣ xᵣ / R`. Of a world of one rank, the value itself.
    ///
    /// Its gradient is that of the sum of all ranks' losses.
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
    #[must_use]
    #[track_caller]
    pub fn all_mean(&self, world: &World) -> Self {
        if world.is_alone() {
            return self.clone();
        }
        let op = AllMean { world: world.clone() };
        self.tape().record(op.into(), &[self], Location::caller()).swap_remove(0)
    }
}
