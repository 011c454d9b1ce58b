//! Sharded optimizer state: each rank keeps the state of its share of the parameters, and updates these. Stage 1 of
//! [ZeRO](https://arxiv.org/abs/1910.02054).

use super::state::OptimizerState;
use super::trained::Trained;
use crate::host::HostBuffer;
use crate::module::{Module, ModuleExt};
use crate::ops::exchange;
use crate::world::{Collective, Shards, World};
use crate::{Device, Precision, Result, Tensor, Var};

impl Shards {
    /// Distributes parameters.
    pub(super) fn of_trained(trained: &[Trained], world: &World) -> Self {
        Self::new(world, trained.iter().map(|trained| (trained.dw.shape().elements(), trained.cell.id())).collect())
    }

    /// The owners of the parameters, in order.
    pub(super) fn owners(&self, trained: &[Trained]) -> Vec<usize> {
        self.expect_owners(trained.iter().map(|trained| trained.cell.id()))
    }

    fn expect_owners(&self, parameters: impl Iterator<Item = u64>) -> Vec<usize> {
        parameters.map(|id| self.owner(id).expect("every trained parameter has an owner")).collect()
    }

    /// The owner's copy of each value, given the parameters to which the values belong.
    #[track_caller]
    pub(super) fn exchange_from_owners(&self, parameters: &[u64], values: &[&Var]) -> Vec<Var> {
        let owners = self.expect_owners(parameters.iter().copied());
        exchange(values, &self.world, Collective::FromOwners(owners))
    }

    /// Completes this rank's state with that of the others. The call is collective; tensors of other ranks are on the
    /// CPU.
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
            let Some(owner) = self.owner(leaf.cell().id()) else { continue };
            for name in names(leaf) {
                let own = state.tensors.get(&name).filter(|_| owner == self.world.rank());
                let mut of_all = vec![0.0; self.world.size()];
                of_all[self.world.rank()] = f64::from(u8::from(own.is_some()));
                if self.world.sum(&of_all)?[owner] == 0.0 {
                    continue;
                }
                let own = match own {
                    Some(tensor) => tensor.to_host_here()?,
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
