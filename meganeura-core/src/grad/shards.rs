//! Sharded optimizer state: each rank keeps the state of its share of the parameters, and updates these. Stage 1 of
//! [ZeRO](https://arxiv.org/abs/1910.02054).

use super::trained::Trained;
use crate::Var;
use crate::functions::record_collective;
use crate::world::{Collective, Shards, World};

impl Shards {
    /// Distributes parameters.
    pub fn of_trained(trained: &[Trained], world: &World) -> Self {
        Self::new(world, trained.iter().map(|trained| (trained.dw.shape().elements(), trained.cell.id())).collect())
    }

    /// The owners of the parameters, in order.
    pub fn owners(&self, trained: &[Trained]) -> Vec<usize> {
        self.expect_owners(trained.iter().map(|trained| trained.cell.id()))
    }

    fn expect_owners(&self, parameters: impl Iterator<Item = u64>) -> Vec<usize> {
        parameters.map(|id| self.owner(id).expect("every trained parameter has an owner")).collect()
    }

    /// The owner's copy of each value, given the parameters to which the values belong.
    #[track_caller]
    pub fn exchange_from_owners(&self, parameters: &[u64], values: &[&Var]) -> Vec<Var> {
        let owners = self.expect_owners(parameters.iter().copied());
        record_collective(values, &self.world, Collective::AllGather(owners))
    }
}
