//! The cache of an attention that generates a sequence step by step.

use crate::{ErrorKind, Tape, Var};

use super::MultiheadAttention;

/// A key-value cache for generation: the keys and values of all earlier positions. [`MultiheadAttention::attend_next`]
/// appends to it
///
/// It has room for a fixed number of positions, so all steps that add equally many positions run the same plan. Each
/// step writes the whole cache. It belongs to one tape: an inference tape that all steps use.
///
/// ```
/// use meganeura::nn::KeyValueCache;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let attention = MultiheadAttention::new(8, 2).init(&device, Seed::new(42))?;
/// let tape = Tape::inference(&device);
/// let mut cache = KeyValueCache::new(&tape, &attention, 1, 16);
/// let prompt = tape.input(&Tensor::randn(&device, [1, 5, 8], 1)?);
/// let next = tape.input(&Tensor::randn(&device, [1, 1, 8], 2)?);
/// assert_eq!(attention.attend_next(&prompt, &mut cache).to_vec()?.len(), 5 * 8);
/// assert_eq!(attention.attend_next(&next, &mut cache).to_vec()?.len(), 8);
/// assert_eq!(cache.len(), 6);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct KeyValueCache {
    /// `[N, heads, capacity, d]`
    key: Var,
    value: Var,
    len: usize,
}

impl KeyValueCache {
    /// An empty cache for `batch` sequences of at most `capacity` positions.
    #[must_use]
    #[track_caller]
    pub fn new(tape: &Tape, attention: &MultiheadAttention, batch: usize, capacity: usize) -> Self {
        let width = attention.query.weight.shape()[0];
        Self::of_heads(tape, [batch, attention.heads, capacity, width / attention.heads])
    }

    /// An empty cache for an attention of your own, which calls [`push`](Self::push): `[N, heads, capacity, d]`.
    #[must_use]
    #[track_caller]
    pub fn of_heads(tape: &Tape, shape: [usize; 4]) -> Self {
        let empty = tape.constant(0.0).expand(shape);
        Self { key: empty.clone(), value: empty, len: 0 }
    }

    /// The number of positions seen so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `true` if no position was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the keys and values `[N, heads, L, d]` of the next positions. Returns those of all positions,
    /// `[N, heads, capacity, d]`, and the mask `[L, capacity]` that hides what comes after each position: what the
    /// queries of the next positions attend to.
    ///
    /// Errors: more positions than the cache has room for; a batch, heads or features other than the cache's.
    #[must_use]
    #[track_caller]
    #[expect(clippy::cast_precision_loss, reason = "places are far below 2^53")]
    pub fn push(&mut self, key: &Var, value: &Var) -> [Var; 3] {
        if let Some(error) = [key, value, &self.key, &self.value].into_iter().find_map(Var::error) {
            let failed = key.fail(error);
            return [failed.clone(), failed.clone(), failed];
        }
        let (next, capacity) = (key.shape()[2], self.key.shape()[2]);
        if key.shape().with(2, capacity) != self.key.shape() {
            let message = format!("keys {} do not go into a cache of {}", key.shape(), self.key.shape());
            let misfit = key.refuse("key_value_cache", ErrorKind::Shape, message);
            return [misfit.clone(), misfit.clone(), misfit];
        }
        if self.len + next > capacity {
            let message = format!("{next} places after {}, the cache has room for {capacity}", self.len);
            let full = key.refuse("key_value_cache", ErrorKind::Argument, message);
            return [full.clone(), full.clone(), full];
        }
        let tape = key.tape();
        let before = tape.scalar(self.len as f64);
        // The index of each cached position, counted from the first of the next ones.
        let number = tape.iota([capacity], 0) - &before;
        let last = tape.constant(next as f64 - 1.0);
        let is_next = (number.ge(tape.constant(0.0)) * number.le(&last)).reshape([capacity, 1]);
        let from = number.maximum(tape.constant(0.0)).minimum(&last).to_index();
        for (all, next) in [(&mut self.key, key), (&mut self.value, value)] {
            *all = is_next.where_cond(&next.index_select(2, &from), all).detach();
        }
        self.len += next;
        let last_seen = tape.iota([next, 1], 0) + before;
        let is_seen = tape.iota([1, capacity], 1).le(&last_seen);
        let mask = is_seen.where_cond(&tape.constant(0.0), &tape.scalar(f64::NEG_INFINITY));
        [self.key.clone(), self.value.clone(), mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{AttentionMask, TransformerEncoderLayer};
    use crate::{Device, Init, Result, Seed, Tensor};

    #[test]
    fn place_by_place_is_the_causal_attention() -> Result<()> {
        let device = Device::cpu();
        let layer = TransformerEncoderLayer::new(8, 2).feed_forward(5).init(&device, Seed::new(3))?;
        let tape = Tape::inference(&device);
        let x = tape.input(&Tensor::randn(&device, [2, 7, 8], 1)?);
        let whole = layer.forward_with(&x, AttentionMask { causal: true, ..AttentionMask::default() }).to_tensor()?;
        let mut cache = KeyValueCache::new(&tape, &layer.attention, 2, 9);
        for part in [0..3, 3..4, 4..5, 5..7] {
            let y = layer.forward_next(&x.slice(1, part.clone()), &mut cache).to_tensor()?;
            let expected = whole.map(|whole| whole.slice(1, part))?;
            y.expect_close(&expected, 1e-5, 1e-6)?;
        }
        assert_eq!(cache.len(), 7);
        let full =
            layer.forward_next(&x.slice(1, 0..3), &mut cache).to_vec().expect_err("seven and three are more than nine");
        assert!(full.to_string().contains("3 places after 7, the cache has room for 9"), "{full}");
        let other =
            layer.forward_next(&x.slice(0, 0..1).slice(1, 0..1), &mut cache).to_vec().expect_err("another batch");
        assert!(other.to_string().contains("do not go into a cache of [2, 2, 9, 4]"), "{other}");
        Ok(())
    }
}
