//! Regions whose values are recomputed in the backward pass instead of kept.
//!
//! A region is a range of nodes. When the sweep reaches it, `grad/replay.rs` records those nodes again, and makes them
//! wait for the cotangents of the region's results. The caller's code never runs twice.

use std::ops::Range;
use std::panic::Location;

use super::{Tape, TapeState};
use crate::graph::{Operands, Source, ValueId};
use crate::ops::{Op, View};

/// The number of a recomputed region of a tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region(u32);

impl Tape {
    /// Records `f` as a region whose intermediate values are recomputed in the backward pass.
    ///
    /// This trades time for memory; it is known as activation checkpointing or rematerialisation.
    ///
    /// The inputs and results of the region are kept as usual; values in between live only until their last reader in
    /// the forward pass. When the backward pass reaches the region, it recomputes the values that gradients need. That
    /// is less than the whole region: values that only its results need are not computed twice.
    ///
    /// In full precision, recomputing does not change a bit of the results, on the CPU or on Vulkan. Metal and DirectX
    /// may contract a multiplication and an addition in one kernel and not in another, so results there agree only up
    /// to rounding. Fast precision rounds stored values. Gradients of gradients add up in another order.
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
    /// * **It pays off** for a part with many large values inside and a small input, such as a block of a network. A
    ///   single operation, or a whole network, gains nothing. [`Layer::recompute`](crate::Layer::recompute) does this
    ///   for a layer, `#[module(recompute)]` for a field of a sequential struct.
    /// * **`f` is called once.** The recorded operations run again, the closure does not. So random numbers are drawn
    ///   once (the same elements are dropped), [buffers](Self::update_buffer) are updated once, and other side effects
    ///   of `f` happen once.
    /// * **Held values are kept**: a [`Var`](crate::Var) of the region that is held during a run is computed as usual,
    ///   and recomputed besides.
    /// * A region inside another is part of the outer one.
    /// * Each backward pass recomputes the region: two separate passes for two losses do it twice.
    ///
    /// Without a backward pass this changes nothing. [`Device::plan_memory`](crate::Device::plan_memory) returns the
    /// bytes of each plan.
    pub fn recompute<R>(&self, f: impl FnOnce() -> R) -> R {
        let _open = self.open_region();
        f()
    }

    /// Begins a region, which ends when the guard is dropped. For callers whose line a closure would hide.
    pub(crate) fn open_region(&self) -> OpenRegion {
        let mut recording = self.recording.borrow_mut();
        let outer = recording.region;
        recording.region = outer.or_else(|| Some(recording.new_region()));
        OpenRegion { tape: self.clone(), outer }
    }

    /// Ends the open region until the guard is dropped; then another one begins.
    pub(crate) fn interrupt_region(&self) -> OpenRegion {
        let mut recording = self.recording.borrow_mut();
        let outer = recording.region.take().map(|_| recording.new_region());
        OpenRegion { tape: self.clone(), outer }
    }

    /// The region that a node is in.
    pub(crate) fn region(&self, node: usize) -> Option<Region> {
        self.recording.borrow().regions[node]
    }

    /// The nodes of a region up to and including `last`.
    pub(crate) fn nodes_of(&self, region: Region, last: usize) -> Range<usize> {
        let before = &self.recording.borrow().regions[..last];
        let count = before.iter().rev().take_while(|other| **other == Some(region)).count();
        last - count..last + 1
    }

    /// Records a node's operation again, on these operands of the same types, and returns its first result. No region
    /// may be open, as in a sweep.
    pub(crate) fn record_again(&self, node: usize, inputs: Operands) -> ValueId {
        let mut recording = self.recording.borrow_mut();
        let again = &recording.graph.nodes()[node];
        let (source, types, origin) = (again.source.clone(), again.types.clone(), recording.origins[node]);
        recording.push(source, inputs, types, origin)
    }

    /// A view of a value whose readers wait until `others` are computed.
    pub(crate) fn after(&self, value: ValueId, others: &[ValueId], origin: &'static Location<'static>) -> ValueId {
        let mut recording = self.recording.borrow_mut();
        let ty = recording.graph.ty(value);
        let inputs = std::iter::once(value).chain(others.iter().copied());
        recording.push(Source::Op(Op::View(View::After)), inputs, [ty], origin)
    }
}

impl TapeState {
    fn new_region(&mut self) -> Region {
        let region = self.next_region;
        self.next_region = Region(region.0 + 1);
        region
    }
}

/// A guard: while it lives, the tape records into the opened region, or into none.
pub(crate) struct OpenRegion {
    tape: Tape,
    /// The region to reopen afterwards.
    outer: Option<Region>,
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        self.tape.recording.borrow_mut().region = self.outer;
    }
}
