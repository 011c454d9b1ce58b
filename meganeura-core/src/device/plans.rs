//! The plan cache of a device.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{Device, PreparedPlan, lock};
use crate::plan::{Excerpt, Key, Memory};

/// The most bytes of host memory that kept plans may take in total; the least recently used plan is evicted first. The
/// number of plans is not limited: a model may be called with hundreds of sequence lengths.
const BYTES_KEPT: usize = 256 << 20;

/// The number of plans of one outline after which shapes are taken to vary. A training has two at least: full batches,
/// and the last one of an epoch.
const SHAPES_OF_ONE: u32 = 2;

/// The number of outlines above which they are counted anew.
const OUTLINES_KEPT: usize = 1 << 12;

/// The bytes above which a plan is kept only if its structure is planned a second time. A graph of tens of thousands of
/// operations may run once; if it is a step of a training, it is planned twice.
const LARGE: usize = 32 << 20;

/// The number of large structures to remember.
const REMEMBERED: usize = 64;

/// Plans by the structure that they were made for, the least recently used first.
#[derive(Default)]
pub(super) struct Plans {
    kept: Vec<Kept>,
    /// The number of plans made for each outline: the same function of other shapes.
    outlines: HashMap<u64, u32>,
    /// The numbers of nodes, steps and storages of large structures that were planned once.
    large: VecDeque<[usize; 3]>,
    /// `true` once a large plan was made and not kept.
    has_discarded: bool,
}

struct Kept {
    key: Key,
    /// [`Excerpt::digest`] of the key.
    digest: u64,
    /// An estimate of the host memory that it takes.
    bytes: usize,
    prepared: Arc<PreparedPlan>,
}

impl Plans {
    /// A hit is mostly the last plan, which is faster to compare than a hash is to compute.
    pub(super) fn find(&mut self, excerpt: &Excerpt<'_>) -> Option<Arc<PreparedPlan>> {
        let last = self.kept.last()?;
        if excerpt.is(&last.key) {
            return Some(Arc::clone(&last.prepared));
        }
        let digest = excerpt.digest();
        let at = self.kept.iter().rposition(|kept| kept.digest == digest && excerpt.is(&kept.key))?;
        self.kept[at..].rotate_left(1);
        self.kept.last().map(|kept| Arc::clone(&kept.prepared))
    }

    /// Counts a plan that is about to be made. Returns `true` if there were several for other shapes before.
    pub(super) fn count(&mut self, key: &Key) -> bool {
        if self.outlines.len() > OUTLINES_KEPT {
            self.outlines.clear();
        }
        let known = self.outlines.entry(key.outline()).or_default();
        *known += 1;
        *known > SHAPES_OF_ONE
    }

    pub(super) fn keep(&mut self, key: Key, digest: u64, prepared: Arc<PreparedPlan>) {
        let sizes = [key.nodes(), prepared.plan.steps.len(), prepared.plan.storages.len()];
        let bytes = key.host_bytes() + prepared.host_bytes();
        if self.is_worth(bytes, sizes) {
            self.kept.push(Kept { key, digest, bytes, prepared });
            self.kept.drain(..surplus(self.kept.iter().map(|kept| kept.bytes)));
        }
    }

    /// The kept plans, the least recently used first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PreparedPlan> {
        self.kept.iter().map(|kept| &*kept.prepared)
    }

    /// `true` if a new plan is kept: it is small, or was made before.
    fn is_worth(&mut self, bytes: usize, sizes: [usize; 3]) -> bool {
        if bytes <= LARGE || self.large.contains(&sizes) {
            return true;
        }
        self.has_discarded = true;
        self.large.push_back(sizes);
        if self.large.len() > REMEMBERED {
            self.large.pop_front();
        }
        false
    }

    /// An estimate of the host memory of all plans.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes as u64).sum()
    }
}

/// The number of plans to evict from the front, given the bytes of each. The last one always stays.
fn surplus(bytes: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator) -> usize {
    let (plans, mut kept) = (bytes.len(), 0_usize);
    let fits = |bytes: &usize| {
        kept = kept.saturating_add(*bytes);
        kept <= BYTES_KEPT
    };
    let last = bytes.rev().take_while(fits).count();
    plans - last.max(1)
}

impl Device {
    /// `true` if a large plan was made and not kept, since the last call.
    pub(crate) fn takes_discarded(&self) -> bool {
        std::mem::take(&mut lock(&self.0.plans).has_discarded)
    }

    /// The kept plans as text, the most recently used last: their steps, what is fused, where results are placed, and
    /// how many bytes that takes.
    #[must_use]
    pub fn plan_dumps(&self) -> Vec<String> {
        lock(&self.0.plans).iter().map(|prepared| prepared.plan.to_string()).collect()
    }

    /// The same plans in Graphviz's language, in the same order.
    ///
    /// `dot -Tsvg plan.dot > plan.svg` draws one. A box is a step with the operations fused into it, its kernels, and
    /// the bytes of its results.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::full(&device, [64, 64], 0.5)?);
    /// let y = x.matmul(&x).tanh() * 2.0;
    /// y.to_tensor()?;
    /// let plan = device.plan_dots().pop().unwrap();
    /// assert!(plan.contains("stores through tanh, mul\\nout0: f32[64, 64], 16384 B"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    pub fn plan_dots(&self) -> Vec<String> {
        lock(&self.0.plans).iter().map(|prepared| prepared.plan.to_dot()).collect()
    }

    /// The memory of each of these plans, in the same order.
    #[must_use]
    pub fn plan_memory(&self) -> Vec<Memory> {
        lock(&self.0.plans).iter().map(|prepared| prepared.plan.memory()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_plans_are_evicted_first() {
        let surplus = |bytes: &[usize]| surplus(bytes.iter().copied());
        assert_eq!(surplus(&[10; 1000]), 0);
        let (all, half) = (256 << 20, 128 << 20);
        assert_eq!(surplus(&[all, 1, half, half - 1]), 1);
        assert_eq!(surplus(&[1, 1, 2 * all]), 2);
    }

    #[test]
    fn large_plans_are_kept_from_the_second_time_on() {
        let mut plans = Plans::default();
        assert!(plans.is_worth(LARGE, [1; 3]));
        assert!(!plans.is_worth(LARGE + 1, [1; 3]));
        assert!(plans.is_worth(LARGE + 1, [1; 3]));
        for other in 0..REMEMBERED {
            assert!(!plans.is_worth(LARGE + 1, [other, 2, 0]));
        }
        assert!(!plans.is_worth(LARGE + 1, [1; 3]), "it was long ago");
        assert_eq!(plans.large.len(), REMEMBERED);
    }
}
