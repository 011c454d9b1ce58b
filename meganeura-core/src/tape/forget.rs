//! Forgetting: unreachable nodes leave the recording, so that a tape can be reused.
//!
//! Held values stay, and so do cotangents named by a living `Grads`, with all that led to them, since their gradients
//! may be asked for. Parameters stay as well, so that the tape remembers the versions that it recorded.

use std::rc::Weak;
use std::sync::Arc;

use super::assign::New;
use super::{Leaf, Tape, TapeState};
use crate::graph::{Node, Source, ValueId};
use crate::ops::{Op, View};

/// A guard: while it lives, values on the tape keep their names.
pub(crate) struct Pin(Tape);

impl Tape {
    /// For callers that keep bare names of values while others record nodes and run the tape.
    pub(crate) fn pin(&self) -> Pin {
        self.recording.borrow_mut().pins += 1;
        Pin(self.clone())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.recording.borrow_mut().pins -= 1;
    }
}

impl TapeState {
    /// Called after a run. Forgets unreachable nodes once they are more than half of the nodes, or hold more than half
    /// of the bytes of inputs and values, so the tape keeps at most twice what is needed. A tape on its first run, such
    /// as that of a training step, has nothing to gain and is not searched.
    pub(super) fn forget(&mut self) {
        if !std::mem::replace(&mut self.has_run, true) || self.pins > 0 {
            return;
        }
        let live = self.live_nodes();
        let nodes = live.iter().filter(|live| **live).count();
        let (bytes, all_bytes) = self.bytes(&live);
        if 2 * nodes < live.len() || 2 * bytes < all_bytes {
            self.keep(&live);
        }
    }

    /// For each node, `true` if it is reachable: the caller can ask for its value, or for one that depends on it.
    fn live_nodes(&self) -> Vec<bool> {
        let mut live = vec![false; self.graph.nodes().len()];
        let mut root = |value: ValueId| live[self.graph.maker_index(value)] = true;
        let is_held = |value: ValueId| self.handles[value.index()].strong_count() > 0;
        for node in self.graph.nodes() {
            node.outputs().filter(|&value| is_held(value)).for_each(&mut root);
        }
        for leaf in &self.leaves {
            // The tape itself holds each parameter once.
            if let Leaf::Cell { cell, value, .. } = leaf
                && Arc::strong_count(cell) > 1
            {
                root(*value);
            }
        }
        let is_parameter = |value: ValueId| match self.graph.maker(value).source {
            Source::Leaf(leaf) => matches!(self.leaves[leaf], Leaf::Cell { .. }),
            _ => false,
        };
        for cotangents in self.cotangents.iter().filter_map(Weak::upgrade) {
            cotangents.borrow().named(|value| is_held(value) || is_parameter(value)).for_each(&mut root);
        }
        self.seed_value.into_iter().for_each(&mut root);
        self.assigned.iter().filter_map(|assigned| assigned.new.pending()).for_each(&mut root);
        for (at, node) in self.graph.nodes().iter().enumerate().rev() {
            if live[at] && !self.is_cut_off(node) {
                node.inputs.iter().for_each(|&input| live[self.graph.maker_index(input)] = true);
            }
        }
        live
    }

    /// `true` if a node's value is known and blocks all gradients, so the nodes that led to it are unreachable.
    fn is_cut_off(&self, node: &Node) -> bool {
        matches!(node.source, Source::Op(Op::View(View::Detach))) && self.values.contains_key(&node.first)
    }

    /// The bytes of live inputs and values, and of all.
    fn bytes(&self, live: &[bool]) -> (usize, usize) {
        let inputs = self.graph.nodes().iter().enumerate().filter_map(|(at, node)| match node.source {
            Source::Leaf(leaf) => match &self.leaves[leaf] {
                Leaf::Input(tensor) => Some((at, tensor)),
                Leaf::Declared { .. } | Leaf::Cell { .. } => None,
            },
            _ => None,
        });
        let values = self.values.iter().map(|(&value, tensor)| (self.graph.maker_index(value), tensor));
        inputs.chain(values).fold((0, 0), |(kept, all), (at, tensor)| {
            let bytes = tensor.ty().bytes();
            (kept + if live[at] { bytes } else { 0 }, all + bytes)
        })
    }

    /// Keeps only the live nodes, and renames their values.
    fn keep(&mut self, live: &[bool]) {
        let mut renamed: Vec<Option<ValueId>> = vec![None; self.graph.values()];
        let cut_off: Vec<bool> = self.graph.nodes().iter().map(|node| self.is_cut_off(node)).collect();
        let old = std::mem::take(&mut self.graph).into_nodes();
        let (origins, mut handles) = (std::mem::take(&mut self.origins), std::mem::take(&mut self.handles));
        let mut kept = live.iter();
        self.regions.retain(|_| *kept.next().expect("a region for each node"));
        let mut leaves: Vec<_> = std::mem::take(&mut self.leaves).into_iter().map(Some).collect();
        let (host, mut values) = (std::mem::take(&mut self.host), std::mem::take(&mut self.values));
        self.cells.clear();
        for (at, (node, origin)) in old.into_iter().zip(origins).enumerate().filter(|(at, _)| live[*at]) {
            let outputs = node.outputs();
            let Node { source, mut inputs, first: old, types } = node;
            let next = ValueId(u32::try_from(self.graph.values()).expect("fewer than before"));
            let source = match source {
                Source::Leaf(leaf) => {
                    let mut leaf = leaves[leaf].take().expect("each leaf is one node's");
                    if let Leaf::Cell { cell, value, .. } = &mut leaf {
                        *value = next;
                        self.cells.insert(cell.id(), self.leaves.len());
                    }
                    self.leaves.push(leaf);
                    Source::Leaf(self.leaves.len() - 1)
                }
                Source::Host(at) => {
                    let first = self.host.len();
                    self.host.extend_from_slice(&host[at..at + types[0].shape.elements()]);
                    Source::Host(first)
                }
                Source::Op(_) if cut_off[at] => {
                    self.leaves.push(Leaf::Input(values.remove(&old).expect("it is known")));
                    inputs.clear();
                    Source::Leaf(self.leaves.len() - 1)
                }
                source => source,
            };
            let rename = |input: &mut ValueId| *input = renamed[input.index()].expect("operands are kept");
            inputs.iter_mut().for_each(rename);
            self.origins.push(origin);
            let first = self.graph.push(source, inputs, types);
            for (offset, value) in (0..).zip(outputs) {
                let new = ValueId(first.0 + offset);
                renamed[value.index()] = Some(new);
                let handle = std::mem::take(&mut handles[value.index()]);
                if let Some(handle) = handle.upgrade() {
                    handle.id.set(new);
                }
                self.handles.push(handle);
                if let Some(tensor) = values.remove(&value) {
                    self.values.insert(new, tensor);
                }
            }
        }
        let renamed = |value: ValueId| renamed[value.index()];
        self.seed_value = self.seed_value.and_then(renamed);
        for assigned in &mut self.assigned {
            if let New::Pending(value) = &mut assigned.new {
                *value = renamed(*value).expect("new values of buffers are kept");
            }
        }
        self.cotangents.retain(|cotangents| cotangents.strong_count() > 0);
        for cotangents in self.cotangents.iter().filter_map(Weak::upgrade) {
            cotangents.borrow_mut().rename(renamed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::CustomOp;
    use crate::storage::{HostMemory, Storage};
    use crate::{Buffer, Device, Param, Result, Tensor, TensorType, Var};

    fn tensor(data: &[f32]) -> Tensor {
        Tensor::from_slice(&Device::cpu(), [data.len()], data).unwrap()
    }

    fn memory(tensor: &Tensor) -> std::sync::Weak<HostMemory> {
        match tensor.storage() {
            Storage::Host(buffer) => Arc::downgrade(buffer),
            #[cfg(feature = "gpu")]
            Storage::Gpu(_) => unreachable!("the device is the CPU"),
        }
    }

    /// Records more unreachable values than live ones.
    fn litter(tape: &Tape) {
        for _ in 0..3 {
            let mut x = tape.input(&tensor(&[1.0; 64]));
            for _ in 0..40 {
                x += 1.0;
            }
            assert_eq!(x.to_vec().unwrap(), [41.0; 64]);
        }
    }

    #[test]
    fn a_tape_keeps_at_most_two_passes() {
        let device = Device::cpu();
        let w = Param::new(tensor(&[2.0, 3.0]));
        let tape = Tape::inference(&device);
        let first = tape.input(&tensor(&[1.0, 1.0])) * tape.param(&w);
        let mut memories = Vec::new();
        for pass in 0..4000_u16 {
            let x = tensor(&[f32::from(pass), 1.0]);
            memories.push(memory(&x));
            // A parameter that is dropped after the pass.
            let own = Param::new(tensor(&[1.0, -1.0]));
            let y = (tape.input(&x) * tape.param(&w) + tape.param(&own)) * 0.5;
            assert_eq!(y.to_vec().unwrap(), [f32::from(pass) + 0.5, 1.0]);
            let recording = tape.recording.borrow();
            let sizes = [
                recording.graph.nodes().len(),
                recording.handles.len(),
                recording.origins.len(),
                recording.regions.len(),
                recording.leaves.len(),
                recording.cells.len(),
                recording.host.len(),
                recording.values.len(),
            ];
            assert!(sizes.iter().all(|&size| size <= 40), "{sizes:?} after pass {pass}");
            memories.retain(|memory| memory.strong_count() > 0);
            assert!(memories.len() <= 5, "the inputs of {} passes", memories.len());
        }
        assert_eq!(first.to_vec().unwrap(), [2.0, 3.0]);
        assert!(device.stats().plans <= 3, "{} plans", device.stats().plans);
    }

    #[test]
    fn values_that_wait_for_a_step_are_kept() {
        let device = Device::cpu();
        let (w, mut v) = (Param::new(tensor(&[2.0])), Param::new(tensor(&[5.0])));
        let seen = Buffer::new(tensor(&[1.0]));
        let tape = Tape::new(&device);
        let number = tape.scalar(3.0);
        tape.update_buffer(&seen, |old| old * 10.0 + tape.param(&w));
        let grads = tape.backward(&(tape.param(&w).square() * tape.param(&v).square() * &number).sum()).unwrap();
        litter(&tape);
        assert_eq!((number * 2.0).item().unwrap(), 6.0);
        assert_eq!(grads.get(&w).unwrap().to_vec().unwrap(), [2.0 * 2.0 * 25.0 * 3.0]);
        litter(&tape);
        assert!(tape.recording.borrow().graph.nodes().len() < 330, "{tape:?}");
        assert_eq!(grads.get(&v).unwrap().to_vec().unwrap(), [4.0 * 2.0 * 5.0 * 3.0]);
        tape.apply().unwrap();
        assert_eq!(seen.value().to_vec().unwrap(), [12.0]);
        // The tape must remember the parameter, because it recorded an earlier version.
        v.set(tensor(&[7.0])).unwrap();
        litter(&tape);
        assert_eq!(tape.param(&v).to_vec().unwrap_err().kind(), crate::ErrorKind::StaleTape);
    }

    /// A gradient rule that reads values.
    #[derive(Debug)]
    struct Reads;

    impl CustomOp for Reads {
        fn name(&self) -> &'static str {
            "reads"
        }

        fn key(&self) -> String {
            String::new()
        }

        fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
            Ok(vec![x[0]])
        }

        fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
            litter(x[0].tape());
            let factor = f64::from((&x[0] * 2.0).to_vec()?[0]);
            Ok(vec![dy[0].as_ref().map(|dy| dy * factor)])
        }

        fn cpu(&self, _types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
            y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = x * x);
        }

        fn wgsl(&self, _types: &[TensorType]) -> (String, usize) {
            unreachable!("runs on the CPU")
        }
    }

    #[test]
    fn a_gradient_rule_may_read() {
        let device = Device::cpu();
        let w = Param::new(tensor(&[3.0]));
        let tape = Tape::new(&device);
        litter(&tape);
        let y = (tape.param(&w) * 2.0).custom(Reads, &[]) * tape.param(&w);
        litter(&tape);
        let grads = tape.backward(&y.sum()).unwrap();
        // 4·w³
        assert_eq!(grads.get(&w).unwrap().to_vec().unwrap(), [12.0 * 9.0]);
    }
}
