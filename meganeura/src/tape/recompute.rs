//! Regions whose values the backward pass computes again instead of keeping them.
//!
//! A region is a run of nodes. `grad/replay.rs` records those nodes once more where the sweep reaches the region, and
//! has them wait for the cotangents of its results. So nothing here runs the caller's code twice.

use std::ops::Range;
use std::panic::Location;

use super::{Recording, Tape};
use crate::graph::{Operands, Source, ValueId};
use crate::ops::{Op, View};

/// The number of a recomputed region of a tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region(u32);

impl Tape {
    /// Records `f` as a region whose intermediate values are recomputed in the backward pass: a trade of time for
    /// memory, known as activation checkpointing or rematerialisation.
    ///
    /// The inputs of the region and its results are kept, as they would be without this; values in between live no
    /// longer than their readers in the forward pass. Where the backward pass reaches the region, it computes again
    /// those of them that gradients need. That is less than the region: what leads to its results alone is not computed
    /// twice.
    ///
    /// In full precision, the numbers are the same to the bit on the CPU and on Vulkan. Metal and DirectX may contract a
    /// multiplication and an addition in one kernel and not in another, so numbers agree there up to rounding. Fast
    /// precision rounds values where they are kept. Gradients of gradients add up terms in another order.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let layers = [Linear::new(8, 8), Linear::new(8, 8), Linear::new(8, 8)].init(&device, Seed::new(1))?;
    /// let tape = Tape::new(&device);
    /// let mut x = tape.input(&Tensor::full(&device, [4, 8], 1.0)?);
    /// for layer in &layers {
    ///     x = tape.recompute(|| (layer.forward(&x) * 3.0).tanh().square());
    /// }
    /// let grads = tape.backward(&x.mean())?;
    /// assert!(grads.get(&layers[0].weight).is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// * **It pays** for a part with many large values inside and a small input: a block of a network. Around a single
    ///   operation, or a whole network, there is nothing to gain. [`Layer::recompute`](crate::Layer::recompute) does
    ///   this for a layer, `#[module(recompute)]` for a field of a sequential struct.
    /// * **`f` is called once.** What was recorded is computed again, not the closure. So random numbers are drawn once
    ///   (the same elements are dropped), [buffers](Self::update_buffer) are updated once, and whatever else `f` does
    ///   happens once.
    /// * **What is held is kept**: a [`Var`](crate::Var) of the region that somebody holds at a run is handed out as
    ///   ever, and computed again besides.
    /// * A region inside of another one is part of that.
    /// * Each backward pass computes the region again: two losses that are differentiated apart do it twice.
    ///
    /// On a tape without a backward pass this changes nothing. [`Device::plan_memory`](crate::Device::plan_memory) has
    /// the bytes of each plan.
    pub fn recompute<R>(&self, f: impl FnOnce() -> R) -> R {
        let _open = self.open_region();
        f()
    }

    /// Begins a region, which ends when the guard is dropped. For callers that a closure would hide from what they
    /// record.
    pub(crate) fn open_region(&self) -> OpenRegion {
        let mut recording = self.recording.borrow_mut();
        let outer = recording.region;
        recording.region = outer.or_else(|| Some(recording.new_region()));
        OpenRegion { tape: self.clone(), outer }
    }

    /// Ends the region that is open, until the guard is dropped: another one begins then.
    pub(crate) fn interrupt_region(&self) -> OpenRegion {
        let mut recording = self.recording.borrow_mut();
        let outer = recording.region.take().map(|_| recording.new_region());
        OpenRegion { tape: self.clone(), outer }
    }

    /// The region that a node is in.
    pub(crate) fn region(&self, node: usize) -> Option<Region> {
        self.recording.borrow().regions[node]
    }

    /// The nodes of a region up to `last`, which is one of them.
    pub(crate) fn nodes_of(&self, region: Region, last: usize) -> Range<usize> {
        let before = &self.recording.borrow().regions[..last];
        let count = before.iter().rev().take_while(|other| **other == Some(region)).count();
        last - count..last + 1
    }

    /// Records the operation of a node once more, on these operands of the same types, and returns its first result. No
    /// region is open during a sweep.
    pub(crate) fn record_again(&self, node: usize, inputs: Operands) -> ValueId {
        let mut recording = self.recording.borrow_mut();
        let again = &recording.graph.nodes()[node];
        let (source, types, origin) = (again.source.clone(), again.types.clone(), recording.origins[node]);
        recording.push(source, inputs, types, origin)
    }

    /// The same value, for nodes that wait until `others` are computed.
    pub(crate) fn after(&self, value: ValueId, others: &[ValueId], origin: &'static Location<'static>) -> ValueId {
        let mut recording = self.recording.borrow_mut();
        let ty = recording.graph.ty(value);
        let inputs = std::iter::once(value).chain(others.iter().copied());
        recording.push(Source::Op(Op::View(View::After)), inputs, [ty], origin)
    }
}

impl Recording {
    fn new_region(&mut self) -> Region {
        let region = self.next_region;
        self.next_region = Region(region.0 + 1);
        region
    }
}

/// While it lives, its tape records into the region that was opened, or into none.
pub(crate) struct OpenRegion {
    tape: Tape,
    /// The region that is open afterwards.
    outer: Option<Region>,
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        self.tape.recording.borrow_mut().region = self.outer;
    }
}
