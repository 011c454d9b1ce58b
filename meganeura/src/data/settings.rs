//! The settings of batches that do not depend on the type of the examples.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::order::Order;
use crate::Result;
use crate::error::bail;
use crate::host::try_collect;
use crate::seed::Seed;
use crate::world::World;

/// Sizes, orders and threads of [`Batches`](super::Batches).
#[derive(Clone)]
pub(super) struct Settings {
    pub size: usize,
    pub seed: Seed,
    pub order: Order,
    /// The number of examples drawn in an epoch, if not the number of all examples.
    pub draws: Option<usize>,
    pub epoch: Option<u64>,
    pub last: Last,
    pub skip: usize,
    pub workers: usize,
    pub ahead: Option<usize>,
    /// The rank whose part of each batch is made, and the number of ranks.
    pub part: (usize, usize),
    /// The ranks with the other parts.
    pub world: Option<World>,
}

/// The handling of examples at the end that are too few for a batch.
#[derive(Clone, Copy)]
pub(super) enum Last {
    Keep,
    Drop,
    Fill,
}

impl Settings {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            seed: Seed::new(0),
            order: Order::Given,
            draws: None,
            epoch: None,
            last: Last::Keep,
            skip: 0,
            workers: 0,
            ahead: None,
            part: (0, 1),
            world: None,
        }
    }

    pub(super) fn seed_of_epoch(&self) -> Seed {
        self.epoch.map_or(self.seed, |epoch| self.seed.field(&epoch.to_string()))
    }

    /// These rows in the order of the epoch, and the number of positions for which there are batches. With several
    /// ranks, the call is collective: an error of one rank, or a difference, is an error of all.
    pub(super) fn order_of(&self, rows: &[usize]) -> Result<(Vec<usize>, usize)> {
        let own = self.own_order(rows);
        let Some(world) = &self.world else { return own };
        let (order, positions) = world.expect_all(own)?;
        let mut digest = DefaultHasher::new();
        order.hash(&mut digest);
        let Self { size, skip, .. } = self;
        let (examples, digest) = (rows.len(), digest.finish());
        let own =
            format!("of {size} of {examples} examples, {positions} in all, from {skip} on, in the order {digest:x}");
        world.expect_same("the batches", &own)?;
        Ok((order, positions))
    }

    fn own_order(&self, rows: &[usize]) -> Result<(Vec<usize>, usize)> {
        let Self { size, part: (_, parts), .. } = *self;
        if size == 0 {
            bail!(Argument, "the batch size is 0; it must be at least 1");
        }
        if self.ahead == Some(0) {
            bail!(Argument, "`ahead` is 0, which leaves the workers nothing to do; it must be at least 1");
        }
        if !size.is_multiple_of(parts) {
            bail!(Argument, "batches of {size} examples have no {parts} equal parts, one for each rank");
        }
        let order = self.order.of(rows.len(), self.draws, self.seed_of_epoch())?;
        let positions = match self.last {
            Last::Keep => order.len(),
            Last::Drop => order.len() / size * size,
            Last::Fill => order.len().div_ceil(size).saturating_mul(size),
        };
        let rest = positions % size;
        if !rest.is_multiple_of(parts) {
            bail!(
                Argument,
                "the last batch, of {rest} examples, has no {parts} equal parts, one for each rank: `drop_last` leaves it out, \
                 `fill_last` fills it up"
            );
        }
        let order = try_collect(order.into_iter().map(|index| rows[index]))?;
        Ok((order, positions))
    }
}
