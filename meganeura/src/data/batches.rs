//! Batches: tensors of some of a dataset's examples.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use super::order::Order;
use super::recipe::{Mapped, Recipe, Source};
use super::settings::{Course, Last, Settings};
use super::taken::Taken;
use super::transform::Transform;
use super::{Array, BatchesOn, Collate, Collated, Fields, Stack};
use crate::error::here;
use crate::seed::Seed;
use crate::world::World;
use crate::{Device, Result, Tensor};

/// The settings for batches of a dataset; [`on`](Self::on) makes the batches.
///
/// A batch depends only on the seed, the epoch and its index. It has the same bits with [workers](Self::workers) or
/// without, and after earlier batches were [skipped](Self::skip).
///
/// `I` and `T` are the inputs and the targets of an example, `C` makes a batch of examples.
#[doc(alias = "DataLoader")]
#[must_use]
pub struct Batches<I = Array<f32>, T = u32, C = Stack> {
    source: Arc<dyn Source<I, T>>,
    /// The number of functions that change each example.
    stages: usize,
    collate: C,
    rows: Arc<Vec<usize>>,
    settings: Settings,
}

/// A batch of examples on a device.
#[derive(Clone, Debug)]
pub struct Batch<I = Tensor, T = Tensor> {
    /// The inputs, `[N, …]`; `[N, C, H, W]` for images. A tuple of tensors where examples have several.
    pub inputs: I,
    /// The targets: labels `[N]`, or numbers `[N, …]`. A tuple of tensors where examples have several.
    pub targets: T,
}

impl<I: Fields, T: Fields> Batches<I, T> {
    pub(super) fn new(source: Arc<dyn Source<I, T>>, rows: Arc<Vec<usize>>, size: usize) -> Self {
        Self { source, stages: 0, collate: Stack, rows, settings: Settings::new(size) }
    }

    /// Makes batches with this function, instead of stacking examples of equal shapes.
    ///
    /// For sequences of different lengths, for example, which the function pads to the longest. It is called once for
    /// each batch, with its examples in order, and returns the inputs and targets of the batch, including the batch
    /// axis.
    ///
    /// ```
    /// use meganeura::data::{Array, Examples};
    /// use meganeura::prelude::*;
    ///
    /// /// Sentences as tokens, and whether they are kind.
    /// struct Sentences(Vec<(Vec<u32>, u32)>);
    ///
    /// impl Examples for Sentences {
    ///     type Inputs = Array<u32>;
    ///     type Targets = u32;
    ///
    ///     fn len(&self) -> usize {
    ///         self.0.len()
    ///     }
    ///
    ///     fn read(&self, index: usize) -> meganeura::Result<(Array<u32>, u32)> {
    ///         let (tokens, label) = &self.0[index];
    ///         Ok((Array::from(tokens.clone()), *label))
    ///     }
    /// }
    ///
    /// let sentences = Dataset::of(Sentences(vec![(vec![5, 2, 9], 1), (vec![7], 0)]))?;
    /// let batches = sentences.batches(2).collate(|examples| {
    ///     let longest = examples.iter().map(|(tokens, _)| tokens.values().len()).max().unwrap_or(0).max(1);
    ///     let mut tokens = Array::zeros([examples.len(), longest])?; // 0 is padding
    ///     for (row, (sentence, _)) in tokens.values_mut().chunks_mut(longest).zip(&examples) {
    ///         row[..sentence.values().len()].copy_from_slice(sentence.values());
    ///     }
    ///     let labels: Vec<_> = examples.iter().map(|(_, label)| *label).collect();
    ///     Ok((tokens, Array::from(labels)))
    /// });
    /// let batch = batches.on(&Device::cpu()).next().unwrap()?;
    /// assert_eq!(batch.inputs.to_u32_vec()?, [5, 2, 9, 7, 0, 0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// Like everything else that makes a batch, it runs in the [workers](Self::workers), and must return the same for
    /// the same examples. In a [world](Self::part_of), each rank collates its own part.
    #[doc(alias = "collate_fn")]
    pub fn collate<A: Fields, B: Fields>(
        self,
        function: impl Fn(Vec<(I, T)>) -> Result<(A, B)> + Send + Sync + 'static,
    ) -> Batches<I, T, Collated<I, T, A, B>> {
        let Self { source, stages, rows, settings, .. } = self;
        Batches { source, stages, collate: Collated::new(function), rows, settings }
    }

    /// Changes each example with this function, after the functions added before.
    ///
    /// All randomness must come from the seed that it gets, which depends on the seed of the batches, the epoch and the
    /// position of the example in the epoch.
    ///
    /// ```
    /// use meganeura::data::{Array, HorizontalFlip};
    /// use meganeura::prelude::*;
    ///
    /// let images = Array::new(vec![0.0, 1.0].repeat(10), [10, 1, 1, 2])?;
    /// let masks = images.clone();
    /// // An image and its mask are mirrored together.
    /// let batches = Dataset::from_columns(images, masks)?.batches(10).map(|image, mask, seed| {
    ///     let flip = HorizontalFlip::new(0.5);
    ///     Ok((image.transformed(&flip, seed)?, mask.transformed(&flip, seed)?))
    /// });
    /// let batch = batches.on(&Device::cpu()).next().unwrap()?;
    /// assert_eq!(batch.inputs.to_vec()?, batch.targets.to_vec()?);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub fn map<J: Fields, U: Fields>(
        self,
        function: impl Fn(I, T, Seed) -> Result<(J, U)> + Send + Sync + 'static,
    ) -> Batches<J, U> {
        let Self { source, stages, rows, settings, .. } = self;
        let source = Arc::new(Mapped { source, function, stage: stages });
        Batches { source, stages: stages + 1, collate: Stack, rows, settings }
    }
}

impl<T: Fields> Batches<Array<f32>, T> {
    /// Changes the input of each example: crops, flips, normalises. Transformations apply in the order in which they
    /// are added. [`map`](Self::map) can also change targets and several inputs.
    ///
    /// The random numbers of a transformation depend only on the seed, the epoch and the position of the example in the
    /// epoch.
    pub fn transform(self, transform: impl Transform + 'static) -> Self {
        self.map(move |input, targets, seed| Ok((input.transformed(&transform, seed)?, targets)))
    }
}

impl<I: Fields, T: Fields, C: Collate<I, T>> Batches<I, T, C> {
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.settings;
        change(&mut settings);
        Self { settings, ..self }
    }

    /// Shuffles the examples, in another order for each seed and epoch. [`epochs`](Self::epochs) and
    /// [`Run::next_epoch_of`](crate::run::Run::next_epoch_of) count the epochs, [`epoch`](Self::epoch) sets one.
    ///
    /// Without an epoch, every pass would have the same order and the same random changes, so that is an error of
    /// [`on`](Self::on). A single pass is `epoch(0)`.
    ///
    /// The order is that of Durstenfeld's shuffle with the numbers of [`Seed::rng`], and will not change. The seed is
    /// also that of the [transformations](Self::transform). Of `shuffle`, [`weighted`](Self::weighted) and
    /// [`stratified`](Self::stratified), the last one called applies.
    pub fn shuffle(self, seed: impl Into<Seed>) -> Self {
        self.with(|settings| settings.order = Order::Shuffled).seed(seed)
    }

    /// Draws examples at random with replacement and with these weights: rare classes more often, for example.
    ///
    /// An epoch has as many draws as there are examples, or as set by [`draws`](Self::draws). Some examples come
    /// several times, others not at all. Example `i` of the dataset is drawn with the probability `wᵢ / Σw`. Draws
    /// follow the seed and the epoch like the order of [`shuffle`](Self::shuffle). Invalid weights are an error of
    /// [`on`](Self::on): a weight that is NaN, infinite or below 0, a sum of 0, or not exactly one weight per example.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let dataset = Dataset::new(vec![0.0; 100], [1], [vec![0; 90], vec![1; 10]].concat())?;
    /// // Both classes as often as each other.
    /// let labels = dataset.targets()?;
    /// let mut counts = [0.0; 2];
    /// labels.iter().for_each(|&label| counts[label as usize] += 1.0);
    /// let weights: Vec<f64> = labels.iter().map(|&label| 1.0 / counts[label as usize]).collect();
    /// let batch = dataset.batches(100).weighted(weights, 7).epoch(0).on(&Device::cpu()).next().unwrap()?;
    /// # let rare: u32 = batch.targets.to_u32_vec()?.iter().sum();
    /// # assert!((25..75).contains(&rare), "{rare}");
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub fn weighted(self, weights: impl Into<Vec<f64>>, seed: impl Into<Seed>) -> Self {
        let weights = weights.into().into();
        self.with(|settings| settings.order = Order::Weighted(weights)).seed(seed)
    }

    /// Sets the number of draws in an epoch, by the weights of [`weighted`](Self::weighted). PyTorch's `num_samples`.
    /// Without weights, this is an error of [`on`](Self::on).
    pub fn draws(self, draws: usize) -> Self {
        self.with(|settings| settings.draws = Some(draws))
    }

    /// Shuffles the examples so that classes are spread evenly, given the class of each example. Every example comes
    /// once, and every batch has about the class proportions of the whole.
    ///
    /// Up to any position of the epoch, the count of a class differs from its share by less than one; within a batch,
    /// by less than two. The order follows the seed and the epoch like that of [`shuffle`](Self::shuffle). It is an
    /// error of [`on`](Self::on) if there is not exactly one class per example.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let dataset = Dataset::new(vec![0.0; 100], [1], [vec![0; 80], vec![1; 20]].concat())?;
    /// for batch in dataset.batches(10).stratified(dataset.targets()?, 7).epoch(0).on(&Device::cpu()) {
    ///     let ones: u32 = batch?.targets.to_u32_vec()?.iter().sum();
    ///     assert!((1..=3).contains(&ones));
    /// }
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub fn stratified(self, classes: impl Into<Vec<u32>>, seed: impl Into<Seed>) -> Self {
        let classes = classes.into().into();
        self.with(|settings| settings.order = Order::Stratified(classes)).seed(seed)
    }

    /// Sets the seed of the [transformations](Self::transform), for batches without [`shuffle`](Self::shuffle); 0 by
    /// default.
    pub fn seed(self, seed: impl Into<Seed>) -> Self {
        let seed = seed.into();
        self.with(|settings| settings.seed = seed)
    }

    /// Sets the epoch, which changes the order and the transformations. The seed is then
    /// [`seed.index(epoch)`](Seed::index). A [run](crate::run::Run::next_epoch) knows the epoch.
    pub fn epoch(self, epoch: u64) -> Self {
        self.with(|settings| settings.epoch = Some(epoch))
    }

    /// The batches of these epochs, one epoch after the other: each has its own order and its own random changes.
    ///
    /// A [run](crate::run::Run::next_epoch_of) goes through epochs in the same way, and resumes in the middle of one.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let data = Dataset::new(vec![0.0, 1.0, 2.0, 3.0], [1], vec![0, 1, 2, 3])?;
    /// let mut seen = Vec::new();
    /// for epoch in data.batches(2).shuffle(7).epochs(0..5) {
    ///     for batch in epoch.on(&device) {
    ///         seen.extend(batch?.targets.to_u32_vec()?);
    ///     }
    /// }
    /// assert_eq!(seen.len(), 20);
    /// assert!(seen.chunks(4).any(|order| order != &seen[..4]));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    pub fn epochs(self, epochs: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Self> {
        epochs.into_iter().map(move |epoch| self.clone().epoch(epoch))
    }

    /// The number of batches in a whole epoch: the steps for a [schedule](crate::optim::Schedule). No example is read.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let data = Dataset::new(vec![0.0; 10], [1], vec![0; 10])?;
    /// assert_eq!(data.batches(4).len()?, 3);
    /// assert_eq!(data.batches(4).shuffle(7).drop_last().len()?, 2);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`on`](Self::on) if the settings are invalid, but for the weights and the classes of single examples.
    #[expect(clippy::len_without_is_empty, reason = "only batches of a dataset without examples are empty")]
    #[track_caller]
    pub fn len(&self) -> Result<usize> {
        here(|| self.settings.count(self.rows.len()))
    }

    /// Drops the last batch if it is smaller than the others. Every step then has the same shapes, and so the same
    /// plan. If that leaves no batch, it is an error of [`on`](Self::on).
    ///
    /// By default, a smaller last batch is kept.
    pub fn drop_last(self) -> Self {
        self.with(|settings| settings.last = Last::Drop)
    }

    /// Fills up the last batch with examples from the start of the order, if it would be smaller than the others.
    ///
    /// No example is left out and every step has the same shapes, but some examples come twice. This suits training,
    /// but not counting errors.
    pub fn fill_last(self) -> Self {
        self.with(|settings| settings.last = Last::Fill)
    }

    /// Skips the batches that were taken from the epoch before, without reading them: to resume in the middle of an
    /// epoch. Takes a number of batches, or [`Run::batch`](crate::run::Run::batch).
    ///
    /// A run counts examples: after four batches of ten, batches of twenty continue with example 40, and each example
    /// comes once. It is an error of [`on`](Self::on) if the run had the examples in another order, by another seed for
    /// example.
    pub fn skip(self, taken: impl Into<Taken>) -> Self {
        let taken = taken.into();
        self.with(|settings| settings.skip = taken)
    }

    /// Makes only this rank's part of each batch, in a [world](crate::world).
    ///
    /// Batches, their order and the random numbers of transformations are the same as on one rank, and each rank reads
    /// and makes only its own examples. The part of rank 0 comes first in each batch.
    ///
    /// The batch size must be a multiple of the number of ranks: with unequal parts, the mean over ranks is not the
    /// mean over the batch. So a smaller batch at the end must be [dropped](Self::drop_last) or
    /// [filled up](Self::fill_last), unless it is such a multiple, too.
    ///
    /// [`on`](Self::on) is then a collective call: ranks compare the size of the batches and the order of the examples.
    /// A difference is an error on every rank.
    pub fn part_of(self, world: &World) -> Self {
        self.with(|settings| {
            settings.part = (world.rank(), world.size());
            settings.world = Some(world.clone()).filter(|world| !world.is_alone());
        })
    }

    /// Makes batches in this many threads while the device computes, each thread one batch at a time. With 0, the
    /// default, and in a browser, which has no threads, the thread that asks for a batch makes it.
    ///
    /// Batches come in the same order and with the same bits. An error in a thread, including a panic, becomes the
    /// error of that batch. The threads start when the first batch is requested, and have ended when the iterator is
    /// dropped.
    #[doc(alias = "num_workers")]
    pub fn workers(self, threads: usize) -> Self {
        self.with(|settings| settings.workers = if cfg!(target_family = "wasm") { 0 } else { threads })
    }

    /// The number of batches by which the [workers](Self::workers) may be ahead of the loop: at most this many are
    /// finished or in progress, besides those that the loop holds.
    ///
    /// By default two per worker. This bounds the memory, on the host and on the device.
    pub fn ahead(self, batches: usize) -> Self {
        self.with(|settings| settings.ahead = Some(batches))
    }

    /// The batches, one after the other, as tensors on `device`.
    ///
    /// A batch is an error if an example cannot be read, changed or put into a batch with the others, or if the device
    /// has no room for it. Invalid settings (batches of 0 examples, 0 batches ahead, invalid weights) give a single
    /// error and no batches. Errors name the line of this call.
    #[track_caller]
    pub fn on(self, device: &Device) -> BatchesOn<<C::Inputs as Fields>::Tensors, <C::Targets as Fields>::Tensors> {
        let Settings { workers, ahead, .. } = self.settings;
        let pace = [workers, ahead.unwrap_or(workers.saturating_mul(2))];
        let recipe = self.recipe(device);
        BatchesOn::new(recipe.map(|(recipe, skip)| (Arc::new(recipe) as _, skip)), pace, Location::caller())
    }

    /// The recipe of the epoch's batches, and the number of batches to skip.
    fn recipe(self, device: &Device) -> Result<(Recipe<I, T, C>, usize)> {
        let Self { source, collate, rows, settings, .. } = self;
        let Course { order, start, positions, skip } = settings.course(&rows)?;
        let Settings { size, part: (part, parts), .. } = settings;
        let (seed, device) = (settings.seed_of_epoch().field("transform"), device.clone());
        Ok((Recipe { source, collate, device, order, start, positions, size, part, parts, seed }, skip))
    }
}

impl<I, T, C: Clone> Clone for Batches<I, T, C> {
    fn clone(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            stages: self.stages,
            collate: self.collate.clone(),
            rows: Arc::clone(&self.rows),
            settings: self.settings.clone(),
        }
    }
}

impl<I, T, C> fmt::Debug for Batches<I, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the order, which is as long as the dataset.
        write!(f, "Batches({} of {} examples, {} changes)", self.settings.size, self.rows.len(), self.stages)
    }
}

#[cfg(test)]
mod tests;
