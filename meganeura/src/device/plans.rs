//! The plan cache of a device.

use std::sync::Arc;

use super::{Device, PreparedPlan, lock};
use crate::plan::{Excerpt, Key, Memory};

/// The most plans to keep, and the most nodes that their graphs may have in total; the least recently used plan is
/// evicted first.
const PLANS_KEPT: (usize, usize) = (64, 1 << 21);

/// Plans by the structure that they were made for, the least recently used first.
#[derive(Default)]
pub(super) struct Plans(pub(super) Vec<(Key, Arc<PreparedPlan>)>);

impl Plans {
    /// A hit is mostly the last plan, which is faster to compare than a hash is to compute. Others differ early.
    pub(super) fn find(&mut self, excerpt: &Excerpt<'_>) -> Option<Arc<PreparedPlan>> {
        let at = self.0.iter().rposition(|(key, _)| excerpt.is(key))?;
        self.0[at..].rotate_left(1);
        self.0.last().map(|(_, prepared)| Arc::clone(prepared))
    }

    pub(super) fn keep(&mut self, key: Key, prepared: Arc<PreparedPlan>) {
        self.0.push((key, prepared));
        self.0.drain(..surplus(&self.0.iter().map(|(key, _)| key.nodes()).collect::<Vec<_>>()));
    }
}

/// The number of plans to evict from the front, given the number of nodes of each. The last one always stays.
fn surplus(nodes: &[usize]) -> usize {
    let mut kept = 0;
    let fits = |&&nodes: &&usize| {
        kept += nodes;
        kept <= PLANS_KEPT.1
    };
    let last = nodes.iter().rev().take(PLANS_KEPT.0).take_while(fits).count();
    nodes.len() - last.max(1)
}

impl Device {
    /// The kept plans as text, the most recently used last: their steps, what is fused, where results are placed, and
    /// how many bytes that takes.
    #[must_use]
    pub fn plan_dumps(&self) -> Vec<String> {
        lock(&self.0.plans).0.iter().map(|(_, prepared)| prepared.plan.to_string()).collect()
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
    /// assert!(plan.contains("fused\\ntanh, mul\\nout0: f32[64, 64], 16384 B"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    pub fn plan_dots(&self) -> Vec<String> {
        lock(&self.0.plans).0.iter().map(|(_, prepared)| prepared.plan.to_dot()).collect()
    }

    /// The memory of each of these plans, in the same order.
    #[must_use]
    pub fn plan_memory(&self) -> Vec<Memory> {
        lock(&self.0.plans).0.iter().map(|(_, prepared)| prepared.plan.memory()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_plans_are_evicted_first() {
        assert_eq!(surplus(&[10; 64]), 0);
        assert_eq!(surplus(&[10; 65]), 1);
        assert_eq!(surplus(&[1 << 21, 1, 1 << 20, (1 << 20) - 1]), 1);
        assert_eq!(surplus(&[1, 1, 1 << 22]), 2);
    }
}
