//! The whole of an optimizer's state that the ranks have in parts.

use super::state::OptimizerState;
use crate::host::HostBuffer;
use crate::module::{Module, ModuleExt};
use crate::world::{Collective, Shards};
use crate::{Device, Precision, Result, Tensor};

/// Completes this rank's state with that of the others. The call is collective; tensors of other ranks are on the CPU.
pub(super) fn gather(
    shards: &Shards,
    module: &dyn Module,
    names: impl Fn(&crate::module::Leaf<'_>) -> Vec<String>,
    mut state: OptimizerState,
) -> Result<OptimizerState> {
    let leaves = module.leaves();
    for leaf in leaves.iter().filter(|leaf| leaf.param().is_some()) {
        let parameter = leaf.value();
        let precision = match parameter.device().precision() {
            Precision::Double => Precision::Double,
            _ => Precision::Full,
        };
        let (dtype, shape) = (precision.dtype(), parameter.shape());
        let Some(owner) = shards.owner(leaf.cell().id()) else { continue };
        for name in names(leaf) {
            let own = state.tensors.get(&name).filter(|_| owner == shards.world.rank());
            let mut of_all = vec![0.0; shards.world.size()];
            of_all[shards.world.rank()] = f64::from(u8::from(own.is_some()));
            if shards.world.sum(&of_all)?[owner] == 0.0 {
                continue;
            }
            let own = match own {
                Some(tensor) => tensor.to_host_here()?,
                None => HostBuffer::try_zeros(dtype, shape.elements())?,
            };
            let collective = Collective::AllGather(vec![owner]);
            let range = collective.range(&[own.bytes().len()], shards.world.size(), dtype.bytes());
            let mut from = HostBuffer::try_zeros(dtype, range.bytes / dtype.bytes())?;
            let mut all = HostBuffer::try_zeros(dtype, range.bytes / dtype.bytes())?;
            let place = range.part_of(owner);
            from.bytes_mut()[place.clone()].copy_from_slice(own.bytes());
            shards.world.run_collective(&collective, dtype, &range, from.bytes(), all.bytes_mut())?;
            let mut whole = HostBuffer::try_zeros(dtype, shape.elements())?;
            whole.bytes_mut().copy_from_slice(&all.bytes()[place]);
            let tensor = Tensor::from_host(&Device::cpu_with(precision), shape, whole)?;
            state.tensors.insert(name, tensor);
        }
    }
    Ok(state)
}
