//! Pass for GPUs, after fusing: decides which groups run inside of a kernel's launch, so that values pass through no memory on
//! their way.
//!
//! A group becomes a kernel's *prologue*, the way in which it loads an operand, if
//!
//! * the kernel can load that operand so, and reads it in order: element `i` is element `i` of the group's result;
//! * the group has this result alone, and nobody else reads it.
//!
//! Nothing moves then: the group runs where the kernel does.
//!
//! A group becomes a kernel's *epilogue*, the way in which it stores its first result, if
//!
//! * the kernel can store so, and stores through no other group;
//! * the group reads this result in order, and no other result of the kernel;
//! * the group needs the kernel in no other way: no way leads from the kernel through other steps to the group. So contracting
//!   the two makes no circle, and the kernel can wait until all else that the group reads is computed.
//!
//! Of several kernels whose results a group reads, the last one hosts it. Prologues come first: they save storing what the group
//! computes, and a kernel's operands that it reads as well.
//!
//! Both keep to the buffers that a launch may bind. A kernel's scratch counts as the operands that went into it: what reads
//! scratch reads no more buffers than the operation has operands.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fuse::Item;
use super::uses::Uses;
use crate::DType;
use crate::graph::{Source, ValueId};
use crate::ops::{KernelOp, Op};

/// The same steps with groups merged into kernels, in order.
pub(super) fn merge(uses: &Uses<'_>, items: Vec<Item>, bindings: usize) -> Vec<Item> {
    let mut owner = vec![usize::MAX; uses.graph.nodes().len()];
    for (at, item) in items.iter().enumerate() {
        nodes(item).for_each(|node| owner[node] = at);
    }
    let mut merging = Merging { uses, items, owner, most: bindings };
    for at in 0..merging.items.len() {
        merging.prologue(at);
    }
    for at in 0..merging.items.len() {
        merging.epilogue(at);
    }
    merging.sorted()
}

fn nodes(item: &Item) -> impl Iterator<Item = usize> + '_ {
    let (first, second, third): (&[usize], &[usize], &[usize]) = match item {
        Item::Group(nodes) => (nodes, &[], &[]),
        Item::Kernel { node, load, store } => (load, std::slice::from_ref(node), store),
    };
    first.iter().chain(second).chain(third).copied()
}

struct Merging<'a> {
    uses: &'a Uses<'a>,
    /// What went into another item leaves an empty group behind.
    items: Vec<Item>,
    /// The item of each node.
    owner: Vec<usize>,
    /// The most buffers that a launch may bind.
    most: usize,
}

impl Merging<'_> {
    fn op(&self, node: usize) -> Option<&KernelOp> {
        match &self.uses.graph.nodes()[node].source {
            Source::Op(Op::Kernel(op)) => Some(op),
            _ => None,
        }
    }

    /// Merges what makes the kernel's operand into the kernel.
    fn prologue(&mut self, at: usize) {
        let Item::Kernel { node, .. } = self.items[at] else { return };
        let Some(operand) = self.op(node).and_then(KernelOp::loads) else { return };
        let origin = self.uses.origin(self.uses.graph.nodes()[node].inputs[operand]);
        let maker = self.uses.graph.maker_index(origin.value);
        if !origin.in_order || !self.uses.is_pointwise(maker) || self.uses.is_wanted(origin.value) {
            return;
        }
        let from = self.owner[maker];
        let Item::Group(group) = &self.items[from] else { return };
        let mut others = self.uses.readers(origin.value).iter().filter(|read| !group.contains(&read.node));
        let only_reader = others.all(|read| (read.node, read.operand) == (node, operand));
        let alone = self.uses.results(group) == [maker];
        // Neither the operand nor the group's result are in memory.
        if !only_reader || !alone || self.own_bindings(node) + self.uses.bindings(group, None) > self.most + 2 {
            return;
        }
        let Item::Group(group) = std::mem::replace(&mut self.items[from], Item::Group(Vec::new())) else { return };
        group.iter().for_each(|&member| self.owner[member] = at);
        self.items[at] = Item::Kernel { node, load: group, store: Vec::new() };
    }

    /// Operands and results.
    fn own_bindings(&self, node: usize) -> usize {
        let node = &self.uses.graph.nodes()[node];
        node.inputs.len() + node.types.len()
    }

    /// Merges a group into the last of the kernels that it can be merged into.
    fn epilogue(&mut self, at: usize) {
        let Item::Group(group) = &self.items[at] else { return };
        let mut hosts: Vec<usize> =
            group.iter().flat_map(|&node| self.uses.makers(node)).map(|(maker, _)| self.owner[maker]).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let Some(host) = hosts.into_iter().rev().find(|&host| self.can_host(host, at)) else { return };
        let host = std::mem::replace(&mut self.items[host], Item::Group(Vec::new()));
        let group = std::mem::replace(&mut self.items[at], Item::Group(Vec::new()));
        let (Item::Kernel { node, load, .. }, Item::Group(store)) = (host, group) else {
            unreachable!("kernels host groups")
        };
        // The kernel moves to the place of the group.
        self.items[at] = Item::Kernel { node, load, store };
        nodes(&self.items[at]).for_each(|node| self.owner[node] = at);
    }

    fn can_host(&self, host: usize, at: usize) -> bool {
        let (Item::Kernel { node, load, store }, Item::Group(group)) = (&self.items[host], &self.items[at]) else {
            return false;
        };
        let kernel = &self.uses.graph.nodes()[*node];
        if !self.op(*node).is_some_and(KernelOp::stores) || !store.is_empty() || kernel.types[0].dtype != DType::F32 {
            return false;
        }
        let in_group = |node: &usize| group.contains(node);
        let elementwise = |value: ValueId| {
            let mut reads = self.uses.readers(value).iter().filter(|read| in_group(&read.node));
            reads.all(|read| value == kernel.first && read.in_order)
        };
        let kept = usize::from(self.uses.is_read_outside(kernel.first, group));
        // Neither what the kernel loads through a group is in memory, nor, unless others read it, what it computes.
        let (loaded, absent) = if load.is_empty() { (0, 1) } else { (self.uses.bindings(load, None), 3) };
        let bound = self.own_bindings(*node) + loaded + kept + self.uses.bindings(group, Some(kernel.first));
        kernel.outputs().all(elementwise) && bound <= self.most + absent && !self.leads_around(host, at)
    }

    /// Whether a way leads from one item to another through a third.
    fn leads_around(&self, from: usize, to: usize) -> bool {
        let mut seen = vec![false; self.items.len()];
        (seen[from], seen[to]) = (true, true);
        let mut open = Vec::new();
        self.readers_of(from, |reader| {
            if !std::mem::replace(&mut seen[reader], true) {
                open.push(reader);
            }
        });
        while let Some(item) = open.pop() {
            let mut arrived = false;
            self.readers_of(item, |reader| {
                arrived |= reader == to;
                if !std::mem::replace(&mut seen[reader], true) {
                    open.push(reader);
                }
            });
            if arrived {
                return true;
            }
        }
        false
    }

    /// Calls `f` with every item that reads what an item computes, perhaps several times.
    fn readers_of(&self, item: usize, mut f: impl FnMut(usize)) {
        let values = nodes(&self.items[item]).flat_map(|node| self.uses.graph.nodes()[node].outputs());
        values.flat_map(|value| self.uses.readers(value)).for_each(|read| f(self.owner[read.node]));
    }

    /// The items in an order where operands come first, and else in the order that they had.
    fn sorted(mut self) -> Vec<Item> {
        let mut missing = vec![0usize; self.items.len()];
        for item in 0..self.items.len() {
            self.readers_of(item, |reader| missing[reader] += usize::from(reader != item));
        }
        let is_ready = |&item: &usize| missing[item] == 0;
        let mut ready: BinaryHeap<_> = (0..self.items.len()).filter(is_ready).map(Reverse).collect();
        let mut sorted = Vec::with_capacity(self.items.len());
        while let Some(Reverse(item)) = ready.pop() {
            self.readers_of(item, |reader| {
                if reader != item {
                    missing[reader] -= 1;
                    if missing[reader] == 0 {
                        ready.push(Reverse(reader));
                    }
                }
            });
            sorted.push(std::mem::replace(&mut self.items[item], Item::Group(Vec::new())));
        }
        debug_assert!(missing.iter().all(|&count| count == 0), "items depend on each other in a circle");
        sorted.retain(|item| *item != Item::Group(Vec::new()));
        sorted
    }
}
