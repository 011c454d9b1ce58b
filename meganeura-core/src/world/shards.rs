//! Owners: the ranks that keep the optimizer's state of each parameter.

use std::collections::HashMap;

use super::World;

/// The owner of each parameter of a module, by the parameter's identity.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Shards {
    pub world: World,
    owners: HashMap<u64, usize>,
}

impl Shards {
    /// Distributes parameters, given by element count and identity, evenly by their elements. The result depends only
    /// on sizes and order, so it is the same on all ranks.
    pub(crate) fn new(world: &World, mut parameters: Vec<(usize, u64)>) -> Self {
        // The largest first; equal sizes stay in order.
        parameters.sort_by_key(|&(elements, _)| std::cmp::Reverse(elements));
        let mut loads = vec![0; world.size()];
        let mut assign = |(elements, id): (usize, u64)| {
            let owner = (0..loads.len()).min_by_key(|&rank| loads[rank]).expect("a world has ranks");
            loads[owner] += elements;
            (id, owner)
        };
        let owners = parameters.into_iter().map(&mut assign).collect();
        Self { world: world.clone(), owners }
    }

    /// Adds the owners of other parameters.
    #[doc(hidden)]
    pub fn extend(&mut self, other: &Self) {
        self.owners.extend(&other.owners);
    }

    /// The owner of a parameter, if it has one.
    #[doc(hidden)]
    pub fn owner(&self, parameter: u64) -> Option<usize> {
        self.owners.get(&parameter).copied()
    }

    /// `true` if this rank owns the parameter.
    #[doc(hidden)]
    pub fn is_own(&self, parameter: u64) -> bool {
        self.owner(parameter) == Some(self.world.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_get_similar_shares() {
        let shards = Shards::new(&World::of_two(), vec![(3, 10), (5, 11), (3, 12), (1, 13)]);
        assert_eq!([10, 11, 12, 13, 99].map(|id| shards.owner(id)), [Some(1), Some(0), Some(1), Some(0), None]);
        assert!(shards.is_own(11) && !shards.is_own(12));
        let alone = Shards::new(&World::alone(), vec![(3, 10), (5, 11)]);
        assert!(alone.is_own(10) && alone.is_own(11));
    }
}
