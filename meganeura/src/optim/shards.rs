//! Which rank of a world keeps what is remembered of which parameter, and how a step goes then: the first stage of
//! [ZeRO](https://arxiv.org/abs/1910.02054).

use std::cmp::Reverse;
use std::collections::HashMap;

use super::state::OptimizerState;
use super::trained::Trained;
use crate::host::HostBuffer;
use crate::module::{Module, ModuleExt};
use crate::ops::exchange;
use crate::world::{Collective, World};
use crate::{Device, Precision, Result, Tensor, Var};

/// The owner of each parameter of a module, by its identity.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    pub(super) world: World,
    owners: HashMap<u64, usize>,
}

impl Shards {
    /// Shares out the parameters of a module, so that each rank has about as many numbers. It depends on their sizes alone, so all ranks
    /// come to the same.
    pub(super) fn new(module: &dyn Module, world: &World) -> Self {
        let leaves = module.leaves();
        let parameters = leaves.iter().filter(|leaf| leaf.param().is_some());
        let mut sizes: Vec<_> = parameters.map(|leaf| (leaf.ty().shape.elements(), leaf.cell().id())).collect();
        // The largest first; of those of one size, in the order of the module.
        sizes.sort_by_key(|&(elements, _)| Reverse(elements));
        let mut loads = vec![0; world.size()];
        let mut owner = |(elements, id): (usize, u64)| {
            let owner = (0..loads.len()).min_by_key(|&rank| loads[rank]).expect("a world has ranks");
            loads[owner] += elements;
            (id, owner)
        };
        let owners = sizes.into_iter().map(&mut owner).collect();
        Self { world: world.clone(), owners }
    }

    /// The rank that owns a parameter. What is in no module's list is rank 0's.
    pub(super) fn owner(&self, parameter: u64) -> usize {
        self.owners.get(&parameter).copied().unwrap_or(0)
    }

    /// Whether this rank owns a parameter.
    pub(super) fn is_own(&self, parameter: u64) -> bool {
        self.owner(parameter) == self.world.rank()
    }

    /// The owners of parameters.
    pub(super) fn owners(&self, trained: &[Trained]) -> Vec<usize> {
        trained.iter().map(|trained| self.owner(trained.cell.id())).collect()
    }

    /// Each value as the rank has it that owns the parameter, in the order of the parameters.
    #[track_caller]
    pub(super) fn from_owners(&self, parameters: &[u64], values: &[&Var]) -> Vec<Var> {
        let owners = parameters.iter().map(|&id| self.owner(id)).collect();
        exchange(values, &self.world, Collective::FromOwners(owners))
    }

    /// A rank's part of what an optimizer remembers, made the whole. All ranks do so together; the tensors are on the CPU.
    pub(super) fn gather(
        &self,
        module: &dyn Module,
        names: impl Fn(&crate::module::Leaf<'_>) -> Vec<String>,
        mut state: OptimizerState,
    ) -> Result<OptimizerState> {
        let leaves = module.leaves();
        for leaf in leaves.iter().filter(|leaf| leaf.param().is_some()) {
            let parameter = leaf.value();
            let precision = match parameter.device().precision() {
                Precision::Double => Precision::Double,
                Precision::Full | Precision::Fast => Precision::Full,
            };
            let (dtype, shape) = (precision.dtype(), parameter.shape());
            let owner = self.owner(leaf.cell().id());
            for name in names(leaf) {
                let own = state.tensors.get(&name).filter(|_| owner == self.world.rank());
                let mut of_all = vec![0.0; self.world.size()];
                of_all[self.world.rank()] = f64::from(u8::from(own.is_some()));
                if self.world.sum(&of_all)?[owner] == 0.0 {
                    continue;
                }
                let own = match own {
                    Some(tensor) => tensor.to_host()?,
                    None => HostBuffer::try_zeros(dtype, shape.elements())?,
                };
                let collective = Collective::FromOwners(vec![owner]);
                let range = collective.range(&[own.bytes().len()], self.world.size(), dtype.bytes());
                let mut from = HostBuffer::try_zeros(dtype, range.bytes / dtype.bytes())?;
                let mut all = HostBuffer::try_zeros(dtype, range.bytes / dtype.bytes())?;
                let place = range.part_of(owner);
                from.bytes_mut()[place.clone()].copy_from_slice(own.bytes());
                self.world.exchange(&collective, dtype, &range, from.bytes(), all.bytes_mut())?;
                let mut whole = HostBuffer::try_zeros(dtype, shape.elements())?;
                whole.bytes_mut().copy_from_slice(&all.bytes()[place]);
                let tensor = Tensor::from_host(&Device::cpu_with(precision), shape, whole)?;
                state.tensors.insert(name, tensor);
            }
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Param, Shape};

    #[test]
    fn one_rank_owns_everything() {
        let param = |elements: usize| Param::new(Tensor::zeros(&Device::cpu(), Shape::from([elements])).unwrap());
        let net = (param(3), vec![param(5), param(1)]);
        let shards = Shards::new(&net, &World::alone());
        assert!(net.leaves().iter().all(|leaf| shards.is_own(leaf.cell().id())));
    }
}
