//! Exchanges between the ranks of a world.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::world::{Collective, World};
use crate::{Result, TensorType};

/// A collective over the ranks of a world, such as the sum `yₖ = Σᵣ xₖᵣ`, of any number of values at once.
///
/// Shapes: each result has that of its operand, which is the same on every rank. Gradient of the sum: that of the sum
/// of all ranks' losses, `dxₖ = Σᵣ dyₖᵣ`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CollectiveOp {
    pub(crate) world: World,
    pub(crate) collective: Collective,
    /// `true` if ranks may exchange bf16. Only for sums on all ranks.
    pub(crate) rounded: bool,
}

impl Primitive for CollectiveOp {
    fn name(&self) -> &'static str {
        match self.collective {
            Collective::AllReduce => "all_sum",
            Collective::ReduceScatter(_) => "sum_to_owners",
            Collective::AllGather(_) => "from_owners",
        }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match x.iter().find(|ty| !ty.dtype.is_float()) {
            Some(ty) => Err(format!("needs floats, not {}", ty.dtype)),
            None => Ok(x.to_vec()),
        }
    }
}

impl Kernel for CollectiveOp {
    fn collective(&self) -> Option<&CollectiveOp> {
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
        if let Err(error) = self.world.run_collective(&self.collective, T::DTYPE, &range, own, all) {
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
