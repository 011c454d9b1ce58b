//! Batches: the examples of a dataset, some at a time, as tensors.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter::FusedIterator;
use std::panic::Location;
use std::sync::Arc;

use super::Dataset;
use super::dataset::numbered;
use super::loader::Loader;
use super::order::shuffle;
use super::recipe::Recipe;
use super::transform::{Transform, shapes};
use crate::error::bail;
use crate::module::Seed;
use crate::world::World;
use crate::{Device, Error, Result, Tensor};

/// How a dataset is cut into batches; [`on`](Self::on) cuts it.
///
/// A batch depends on the seed, the epoch and its number alone: it has the same bits with [workers](Self::workers) or without, and
/// after the batches before it were [skipped](Self::skip).
#[derive(Clone, Debug)]
#[must_use]
pub struct Batches {
    dataset: Dataset,
    size: usize,
    seed: Seed,
    is_shuffled: bool,
    epoch: Option<u64>,
    last: Last,
    transforms: Vec<Arc<dyn Transform>>,
    skip: usize,
    workers: usize,
    ahead: Option<usize>,
    /// The rank whose part of each batch is made, and how many there are.
    part: (usize, usize),
    /// The ranks that have the other parts.
    world: Option<World>,
}

/// What becomes of examples at the end that are too few for a batch.
#[derive(Clone, Copy, Debug)]
enum Last {
    Keep,
    Drop,
    Fill,
}

/// Some examples on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The inputs, `[N, …]`; `[N, C, H, W]` for images.
    pub inputs: Tensor,
    /// The targets: labels `[N]`, or numbers `[N, …]`.
    pub targets: Tensor,
}

impl Batches {
    pub(super) fn new(dataset: &Dataset, size: usize) -> Self {
        Self {
            dataset: dataset.clone(),
            size,
            seed: Seed::new(0),
            is_shuffled: false,
            epoch: None,
            last: Last::Keep,
            transforms: Vec::new(),
            skip: 0,
            workers: 0,
            ahead: None,
            part: (0, 1),
            world: None,
        }
    }

    /// In a random order, another for each seed: let it depend on the epoch, by [`epoch`](Self::epoch) or as you like.
    ///
    /// The order is that of Durstenfeld's shuffle with the numbers of [`Seed::rng`], and will not change. The seed is also that of the
    /// [transformations](Self::transform).
    pub fn shuffle(self, seed: impl Into<Seed>) -> Self {
        Self { is_shuffled: true, ..self.seed(seed) }
    }

    /// The seed of the [transformations](Self::transform), where there is no [`shuffle`](Self::shuffle) to name it. It is 0 otherwise.
    pub fn seed(self, seed: impl Into<Seed>) -> Self {
        Self { seed: seed.into(), ..self }
    }

    /// Which round through the data this is: the order and the transformations are others in each. The seed is then
    /// [`seed.index(epoch)`](Seed::index). A [run](crate::run::Run::next_epoch) says it.
    pub fn epoch(self, epoch: u64) -> Self {
        Self { epoch: Some(epoch), ..self }
    }

    /// With each example changed as it is put into a batch: cropped, flipped, normalised. Those named first are applied first.
    ///
    /// What is random about it depends on the seed, the epoch and the position of the example in the epoch, nothing else.
    pub fn transform(mut self, transform: impl Transform + 'static) -> Self {
        self.transforms.push(Arc::new(transform));
        self
    }

    /// Without the last batch if it is smaller than the others. Every step then has the same shapes, and so the same plan.
    ///
    /// Unless told otherwise, a smaller batch at the end is kept.
    pub fn drop_last(self) -> Self {
        Self { last: Last::Drop, ..self }
    }

    /// With the last batch filled up by examples from the front of the order, if it would be smaller than the others. No example is
    /// left out and every step has the same shapes, but some examples come twice: for training, not for counting errors.
    pub fn fill_last(self) -> Self {
        Self { last: Last::Fill, ..self }
    }

    /// Without the first `batches` batches, of which nothing is read: to go on in the middle of an epoch.
    pub fn skip(self, batches: usize) -> Self {
        Self { skip: batches, ..self }
    }

    /// The part of each batch that is this rank's of a [world](crate::world): the batches, their order and the random numbers of transformations
    /// are those of one rank, and each rank reads and makes its own examples alone. The part of rank 0 comes first in each batch.
    ///
    /// Batches must be a multiple of the number of ranks: of unequal parts, the mean of the ranks is not the mean of the batch. So a smaller
    /// one at the end is [dropped](Self::drop_last) or [filled up](Self::fill_last), unless it is such a multiple, too.
    ///
    /// [`on`](Self::on) is then a collective call: ranks compare the size of the batches and the order of the examples. A
    /// difference is an error on every rank.
    pub fn part_of(self, world: &World) -> Self {
        Self {
            part: (world.rank(), world.size()),
            world: Some(world.clone()).filter(|world| !world.is_alone()),
            ..self
        }
    }

    /// With so many threads that make batches while the device computes, each one batch at a time. With 0, the default, a batch is made
    /// by the thread that asks for it.
    ///
    /// Batches come in the same order and with the same bits. What goes wrong in a thread, panics included, is the error of that batch.
    /// The threads start with the first batch that is asked for, and have ended when the iterator is dropped.
    pub fn workers(self, threads: usize) -> Self {
        Self { workers: threads, ..self }
    }

    /// How many batches the [workers](Self::workers) may be ahead of the loop: at most so many are there or in the making, besides those
    /// that the loop holds. By default two for each worker. This bounds the memory, on the host and on the device.
    pub fn ahead(self, batches: usize) -> Self {
        Self { ahead: Some(batches), ..self }
    }

    /// The batches, one after the other, as tensors on `device`.
    ///
    /// Each is an error if an example cannot be read or the device has no room for it. What is wrong from the beginning (batches of 0
    /// examples, 0 batches ahead, a transformation that does not fit) is one error and no batches. Errors name the line of this call.
    #[track_caller]
    pub fn on(self, device: &Device) -> BatchesOn {
        let (skip, workers, ahead) = (self.skip, self.workers, self.ahead.unwrap_or(self.workers.saturating_mul(2)));
        let state = match self.recipe(device) {
            Ok(recipe) => {
                let next = skip.min(recipe.count());
                State::Ready { recipe: Arc::new(recipe), next, workers, ahead, loader: None }
            }
            Err(error) => State::Wrong(Some(error)),
        };
        BatchesOn { state, line: Location::caller() }
    }

    fn recipe(self, device: &Device) -> Result<Recipe> {
        let Self { dataset, size, .. } = self;
        if size == 0 {
            bail!(Argument, "batches of 0 examples were asked for; a batch has at least 1");
        }
        if self.ahead == Some(0) {
            bail!(Argument, "0 batches ahead leave the workers nothing to do; there is at least 1");
        }
        let (part, parts) = self.part;
        if !size.is_multiple_of(parts) {
            bail!(Argument, "batches of {size} examples have no {parts} equal parts, one for each rank");
        }
        let shapes = shapes(dataset.shape(), &self.transforms)?;
        let seed = self.epoch.map_or(self.seed, |epoch| self.seed.field(&epoch.to_string()));
        let mut order = numbered(dataset.len())?;
        if self.is_shuffled {
            shuffle(&mut order, seed);
        }
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
        if let Some(world) = &self.world {
            let mut digest = DefaultHasher::new();
            order.hash(&mut digest);
            let (len, digest) = (dataset.len(), digest.finish());
            let own = format!(
                "of {size} of {len} examples {}, from {} on, in the order {digest:x}",
                dataset.shape(),
                self.skip
            );
            world.expect_same("the batches", &own)?;
        }
        let seed = seed.field("transform");
        Ok(Recipe {
            dataset,
            device: device.clone(),
            order,
            positions,
            size,
            part,
            parts,
            transforms: self.transforms,
            shapes,
            seed,
        })
    }
}

/// The batches of a dataset on a device: an iterator. `nth` reads nothing of what it skips, nor do loops over `skip` and `step_by`,
/// which call it.
#[derive(Debug)]
#[must_use]
pub struct BatchesOn {
    state: State,
    /// Where the batches were asked for: a `for` loop has no line to call from.
    line: &'static Location<'static>,
}

#[derive(Debug)]
enum State {
    /// What was asked for cannot be had. It is said once.
    Wrong(Option<Error>),
    Ready {
        recipe: Arc<Recipe>,
        next: usize,
        workers: usize,
        ahead: usize,
        /// Once the first batch was asked for, if there are workers.
        loader: Option<Loader>,
    },
}

#[cfg(test)]
impl BatchesOn {
    pub(super) fn loader(&self) -> Option<&Loader> {
        match &self.state {
            State::Ready { loader, .. } => loader.as_ref(),
            State::Wrong(_) => None,
        }
    }
}

impl State {
    fn nth(&mut self, skipped: usize) -> Option<Result<Batch>> {
        let (recipe, next, workers, ahead, loader) = match self {
            State::Wrong(error) => return error.take().filter(|_| skipped == 0).map(Err),
            State::Ready { recipe, next, workers, ahead, loader } => (recipe, next, *workers, *ahead, loader),
        };
        let number = next.saturating_add(skipped);
        *next = number.saturating_add(1).min(recipe.count());
        if number >= recipe.count() {
            // No batch is left for the threads.
            *loader = None;
            return None;
        }
        if workers == 0 {
            return recipe.batch(number, || true).transpose();
        }
        if loader.is_none() {
            match Loader::new(recipe, workers, ahead, number) {
                Ok(started) => *loader = Some(started),
                Err(error) => return Some(Err(error)),
            }
        }
        loader.as_mut()?.batch(number)
    }
}

impl Iterator for BatchesOn {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    fn nth(&mut self, skipped: usize) -> Option<Self::Item> {
        let batch = self.state.nth(skipped)?;
        Some(batch.map_err(|error| error.at(self.line)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.state {
            State::Wrong(error) => usize::from(error.is_some()),
            State::Ready { recipe, next, .. } => recipe.count() - next,
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for BatchesOn {}

impl FusedIterator for BatchesOn {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{HorizontalFlip, RandomCrop};
    use crate::{ErrorKind, Shape};

    /// Five examples of shape `[1, 1, 2]`; example `i` is `(i, −i)` with label `10·i`.
    fn dataset() -> Dataset {
        let features = (0..5u8).map(f32::from).flat_map(|i| [i, -i]).collect();
        Dataset::new(features, [1, 1, 2], (0..5).map(|i| 10 * i).collect::<Vec<_>>()).unwrap()
    }

    fn labels(batches: Batches) -> Vec<Vec<u32>> {
        batches.on(&Device::cpu()).map(|batch| batch.unwrap().targets.to_u32_vec().unwrap()).collect()
    }

    fn inputs(batches: Batches) -> Vec<Vec<f32>> {
        batches.on(&Device::cpu()).map(|batch| batch.unwrap().inputs.to_vec().unwrap()).collect()
    }

    #[test]
    fn batches_come_in_order() {
        let dataset = dataset();
        let mut batches = dataset.batches(2).on(&Device::cpu());
        assert_eq!(batches.len(), 3);
        let batch = batches.nth(1).unwrap().unwrap();
        assert_eq!(batch.inputs.shape(), Shape::from([2, 1, 1, 2]));
        assert_eq!(batch.inputs.to_vec().unwrap(), [2.0, -2.0, 3.0, -3.0]);
        assert_eq!(batch.targets.to_u32_vec().unwrap(), [20, 30]);
        assert_eq!(batches.next().unwrap().unwrap().inputs.shape(), Shape::from([1, 1, 1, 2]));
        assert!(batches.next().is_none() && batches.next().is_none());
        assert!(dataset.batches(2).on(&Device::cpu()).nth(usize::MAX).is_none());
    }

    #[test]
    fn parts_of_batches_are_what_one_rank_would_have() {
        let data = Dataset::new((0..48u8).map(f32::from).collect(), [1, 2, 2], (0..12).collect::<Vec<_>>()).unwrap();
        let batches = || {
            data.batches(8).shuffle(7).transform(HorizontalFlip::new(0.5)).transform(RandomCrop::new(2, 2).padding(1))
        };
        for parts in [2, 4] {
            let of = |part| Batches { part: (part, parts), ..batches() };
            let joined = |each: Vec<Vec<Vec<f32>>>| -> Vec<Vec<f32>> {
                (0..each[0].len()).map(|batch| each.iter().flat_map(|part| part[batch].clone()).collect()).collect()
            };
            assert_eq!(joined((0..parts).map(|part| inputs(of(part))).collect()), inputs(batches()));
            let (first, all) = (labels(of(0).skip(1).workers(2)), labels(batches().skip(1)));
            assert_eq!(first[0], all[0][..4 / parts]);
        }
        let refused = |batches: Batches| batches.on(&Device::cpu()).next().unwrap().unwrap_err().to_string();
        let of_three = |batches: Batches| Batches { part: (0, 3), ..batches };
        assert!(refused(of_three(batches())).starts_with("batches of 8 examples have no 3 equal parts"));
        let uneven = of_three(data.batches(9)).skip(0);
        assert_eq!(labels(uneven).len(), 2);
        let said = refused(Batches { part: (0, 5), ..data.batches(10) });
        assert!(said.contains("the last batch, of 2 examples, has no 5 equal parts"), "{said}");
        assert_eq!(labels(Batches { part: (0, 5), ..data.batches(10).drop_last() }), [[0, 1]]);
    }

    #[test]
    fn shuffled_batches_follow_the_seed() {
        let dataset = dataset();
        // The order of `shuffle` for seed 7 and five rows: 3, 1, 2, 4, 0.
        assert_eq!(labels(dataset.batches(2).shuffle(7)), [vec![30, 10], vec![20, 40], vec![0]]);
        assert_eq!(labels(dataset.batches(2).shuffle(7).drop_last()), [[30, 10], [20, 40]]);
        assert_eq!(labels(dataset.batches(2).fill_last().shuffle(7)), [[30, 10], [20, 40], [0, 30]]);
        assert_ne!(labels(dataset.batches(5).shuffle(8)), labels(dataset.batches(5).shuffle(7)));
        assert_eq!(labels(dataset.batches(5)), [[0, 10, 20, 30, 40]]);
    }

    #[test]
    fn an_epoch_is_a_seed() {
        let dataset = dataset();
        let epoch = |epoch| labels(dataset.batches(5).epoch(epoch).shuffle(7));
        assert_eq!(epoch(3), labels(dataset.batches(5).shuffle(Seed::new(7).index(3))));
        assert_ne!(epoch(3), epoch(4));
        assert_eq!(labels(dataset.batches(5).epoch(1)), labels(dataset.batches(5)), "nobody asked for shuffling");
    }

    #[test]
    fn sizes_past_the_end_give_what_there_is() {
        let dataset = dataset();
        assert_eq!(labels(dataset.batches(100)).concat().len(), 5);
        assert_eq!(labels(dataset.batches(100).drop_last()).len(), 0);
        let twice = labels(dataset.batches(12).fill_last()).concat();
        assert_eq!(twice, [0, 10, 20, 30, 40, 0, 10, 20, 30, 40, 0, 10]);
        let empty = Dataset::new(vec![], [1], vec![]).unwrap();
        assert_eq!(labels(empty.batches(3)).len() + labels(empty.batches(3).fill_last().workers(1)).len(), 0);
        let error = dataset.batches(usize::MAX).fill_last().on(&Device::cpu()).next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    }

    #[test]
    fn skipping_is_going_on() {
        let batches = dataset().batches(1).shuffle(7).epoch(2).transform(RandomCrop::new(1, 1).padding(1));
        let (all, all_images) = (labels(batches.clone()), inputs(batches.clone()));
        for skip in 0..7 {
            let from = skip.min(5);
            assert_eq!(labels(batches.clone().skip(skip)), all[from..]);
            assert_eq!(inputs(batches.clone().skip(skip)), all_images[from..]);
            assert_eq!(batches.clone().on(&Device::cpu()).skip(skip).count(), 5 - from);
        }
        let mut rest = batches.skip(2).on(&Device::cpu());
        assert_eq!((rest.len(), rest.nth(1).is_some(), rest.len()), (3, true, 1));
    }

    #[test]
    fn transformations_depend_on_seed_epoch_and_position() {
        let constant = Dataset::new([0.0, 1.0].repeat(64), [1, 1, 2], vec![0; 64]).unwrap();
        let batches = constant.batches(64).transform(HorizontalFlip::new(0.5));
        let seen = |batches: &Batches| inputs(batches.clone()).concat();
        let first = seen(&batches);
        assert!(first.chunks(2).any(|x| x == [0.0, 1.0]) && first.chunks(2).any(|x| x == [1.0, 0.0]), "{first:?}");
        assert_eq!(seen(&batches), first);
        assert_ne!(seen(&batches.clone().seed(1)), first);
        assert_ne!(seen(&batches.clone().epoch(1)), first);
        assert_eq!(inputs(Batches { size: 7, ..batches.clone() }).concat(), first);
        // Examples that come twice to fill the last batch are transformed anew.
        let twice = seen(&Batches { size: 128, ..batches.fill_last() });
        assert_eq!(twice[..128], first);
        assert_ne!(twice[128..], first);
    }

    #[test]
    fn what_makes_no_sense_is_one_error() {
        let dataset = dataset();
        for (batches, kind) in [
            (dataset.batches(0).shuffle(1).drop_last(), ErrorKind::Argument),
            (dataset.batches(1).workers(2).ahead(0), ErrorKind::Argument),
            (dataset.batches(1).transform(RandomCrop::new(9, 9)), ErrorKind::Shape),
        ] {
            let mut batches = batches.on(&Device::cpu());
            assert_eq!(batches.len(), 1);
            assert_eq!(batches.next().unwrap().unwrap_err().kind(), kind);
            assert!(batches.next().is_none());
        }
    }
}
