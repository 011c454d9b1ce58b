//! The settings of batches that do not depend on the type of the examples.

use super::order::Order;
use super::taken::{Taken, digest};
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
    pub skip: Taken,
    pub workers: usize,
    pub ahead: Option<usize>,
    /// The rank whose part of each batch is made, and the number of ranks.
    pub part: (usize, usize),
    /// The ranks with the other parts.
    pub world: Option<World>,
}

/// The examples of an epoch.
pub(super) struct Course {
    /// The examples, in their order.
    pub order: Vec<usize>,
    /// The position where the batches start: a multiple of their size, unless a run had batches of another size before.
    pub start: usize,
    /// The end of the positions for which there are batches.
    pub positions: usize,
    /// The number of batches to skip.
    pub skip: usize,
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
            skip: 0.into(),
            workers: 0,
            ahead: None,
            part: (0, 1),
            world: None,
        }
    }

    pub(super) fn seed_of_epoch(&self) -> Seed {
        self.epoch.map_or(self.seed, |epoch| self.seed.field(&epoch.to_string()))
    }

    /// These rows in the order of the epoch, and the positions for which there are batches.
    ///
    /// With several ranks, the call is collective: an error of one rank, or a difference, is an error of all.
    pub(super) fn course(&self, rows: &[usize]) -> Result<Course> {
        let own = self.own_course(rows);
        let Some(world) = &self.world else { return own };
        let course = world.expect_all(own)?;
        let (size, examples, digest) = (self.size, rows.len(), digest(&course.order));
        let Course { start, positions, skip, .. } = course;
        let own = format!(
            "of {size} of {examples} examples, {positions} in all, from {skip} on after {start}, in the order {digest:x}"
        );
        world.expect_same("the batches", &own)?;
        Ok(course)
    }

    /// The number of batches in a whole epoch of this many examples.
    pub(super) fn count(&self, examples: usize) -> Result<usize> {
        let examples = self.order.draws(examples, self.draws);
        self.expect_possible(examples)?;
        Ok(match self.last {
            Last::Drop => examples / self.size,
            Last::Keep | Last::Fill => examples.div_ceil(self.size),
        })
    }

    /// Refuses settings with which no epoch of this many examples has batches.
    fn expect_possible(&self, examples: usize) -> Result<()> {
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
        if matches!(self.last, Last::Drop) && examples < size {
            bail!(
                Argument,
                "batches of {size} examples from {examples}: `drop_last` leaves no batch; take smaller batches, or keep the \
                 last one"
            );
        }
        Ok(())
    }

    fn own_course(&self, rows: &[usize]) -> Result<Course> {
        let Self { size, part: (_, parts), .. } = *self;
        self.expect_possible(self.order.draws(rows.len(), self.draws))?;
        if self.epoch.is_none() && !matches!(self.order, Order::Given) {
            bail!(
                Argument,
                "no epoch was given, so the order would be the same in every epoch: loop over `batches.epochs(0..12)` or \
                 `run.next_epoch_of(&batches, 12)`, or give the number with `epoch`; a single pass is `epoch(0)`"
            );
        }
        let order = self.order.of(rows.len(), self.draws, self.seed_of_epoch())?;
        let order: Vec<usize> = try_collect(order.into_iter().map(|index| rows[index]))?;
        let skipped = self.skip.skipped(size, &order)?;
        let (start, skip) = if skipped.is_multiple_of(size) { (0, skipped / size) } else { (skipped, 0) };
        let left = order.len().saturating_sub(start);
        let positions = match self.last {
            Last::Keep => order.len(),
            Last::Drop => start + left / size * size,
            Last::Fill => left.div_ceil(size).saturating_mul(size).saturating_add(start),
        };
        let rest = positions.saturating_sub(start) % size;
        if !rest.is_multiple_of(parts) {
            bail!(
                Argument,
                "the last batch, of {rest} examples, has no {parts} equal parts, one for each rank: `drop_last` leaves it out, \
                 `fill_last` fills it up"
            );
        }
        Ok(Course { order, start, positions, skip })
    }
}
