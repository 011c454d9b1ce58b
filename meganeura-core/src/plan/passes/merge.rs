//! Decides which groups run inside a kernel, so that values between the two skip memory: in its launch on a GPU, and
//! in native kernels that hand over their results.
//!
//! A group becomes a kernel's *prologue*, which loads an operand, if
//!
//! * the kernel can load that operand through a program, and reads it in order: element `i` is element `i` of the
//!   group's result;
//! * this is the group's only result, and the kernel its only reader.
//!
//! Then nothing moves: the group runs in the place of the kernel.
//!
//! A group becomes a kernel's *epilogue*, which stores its first result, if
//!
//! * the kernel can store through a program, and has no other epilogue; a kernel that stores all results together may
//!   have several, which become one program;
//! * the group reads this result in order, or all that are stored together, and no other result of the kernel;
//! * the group does not depend on the kernel in another way: no path leads from the kernel through other steps to the
//!   group. So contracting the two makes no cycle, and the kernel can wait until all other operands of the group are
//!   computed.
//!
//! A group that reads the results of several kernels is merged into the last. Prologues come first: they save storing
//! the group's result, and a kernel's operands that the group also reads.
//!
//! On the CPU there are epilogues alone, of one result that replaces the kernel's (`Kernel::finishes`).
//!
//! Both respect the limit on the buffers of a launch, scratch memory included. On matrix units, a group with a costly
//! function, such as `erf`, is no epilogue of a product: on an H200, GELU then costs a product of 12,544×384×1536 163
//! µs, and 47 in a launch of its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::fuse::Item;
use super::uses::{Origin, Uses};
use crate::DType;
use crate::graph::{Source, ValueId};
use crate::ops::{KernelOp, Op};

/// The most scratch buffers that a launch reads in the least demanding variant of any operation.
const MOST_SCRATCH: usize = 2;

/// The code that runs groups inside of kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Host {
    /// The native kernels of operations that hand over their results: a group of one result replaces the kernel's.
    /// `trains` is `true` if the plan updates leaves.
    Native { trains: bool },
    /// Launches that bind so many buffers. `units` is `true` if kernels use matrix units.
    Launches { bindings: usize, units: bool },
}

/// The same steps with groups merged into kernels, in order.
pub(super) fn merge(uses: &Uses<'_>, items: Vec<Item>, within: Host) -> Vec<Item> {
    let mut owners = vec![None; uses.graph.nodes().len()];
    for (at, item) in items.iter().enumerate() {
        item.nodes().for_each(|node| owners[node] = Some(at));
    }
    let mut merging = Merging { uses, items, owners, within };
    if let Host::Launches { bindings, .. } = within {
        (0..merging.items.len()).for_each(|at| merging.prologue(at, bindings));
    }
    for at in 0..merging.items.len() {
        merging.epilogue(at);
    }
    merging.sorted()
}

struct Merging<'a> {
    uses: &'a Uses<'a>,
    /// Items merged into another leave an empty group behind.
    items: Vec<Item>,
    /// The item of each node; `None` for leaves, numbers and views.
    owners: Vec<Option<usize>>,
    within: Host,
}

impl Merging<'_> {
    /// The item that computes a node.
    fn owner(&self, node: usize) -> usize {
        self.owners[node].expect("an item computes it")
    }

    fn op(&self, node: usize) -> Option<&KernelOp> {
        match &self.uses.graph.nodes()[node].source {
            Source::Op(Op::Kernel(op)) => Some(op),
            _ => None,
        }
    }

    /// Merges the group that computes the kernel's operand into the kernel, whose launch binds `most` buffers at most.
    fn prologue(&mut self, at: usize, most: usize) {
        let Item::Kernel { node, .. } = self.items[at] else { return };
        let Some(operand) = self.op(node).and_then(KernelOp::loads) else { return };
        let origin = self.uses.origin(self.uses.graph.nodes()[node].inputs[operand]);
        let maker = self.uses.graph.maker_index(origin.value);
        if !origin.in_order || !self.uses.is_pointwise(maker) || self.uses.is_wanted(origin.value) {
            return;
        }
        let from = self.owner(maker);
        let Item::Group(group) = &self.items[from] else { return };
        let is_outside = |node: usize| group.binary_search(&node).is_err();
        let mut others = self.uses.readers(origin.value).iter().filter(|read| is_outside(read.node));
        let only_reader = others.all(|read| (read.node, read.operand) == (node, operand));
        let alone = self.uses.results(group) == [maker];
        // Neither the operand nor the group's result is in memory.
        if !only_reader || !alone || self.own_bindings(node) + self.uses.bindings(group, &[]) > most + 2 {
            return;
        }
        let Item::Group(group) = std::mem::replace(&mut self.items[from], Item::Group(Vec::new())) else { return };
        group.iter().for_each(|&member| self.owners[member] = Some(at));
        self.items[at] = Item::Kernel { node, load: group, store: Vec::new() };
    }

    /// The number of operands, results, and scratch buffers that the least demanding variant may read.
    fn own_bindings(&self, node: usize) -> usize {
        let node = &self.uses.graph.nodes()[node];
        node.inputs.len() + node.types.len() + MOST_SCRATCH
    }

    /// Merges a group into the last kernel that can host it.
    fn epilogue(&mut self, at: usize) {
        let Item::Group(group) = &self.items[at] else { return };
        let mut hosts: Vec<usize> =
            group.iter().flat_map(|&node| self.uses.makers(node)).map(|(maker, _)| self.owner(maker)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let Some(host) = hosts.into_iter().rev().find(|&host| self.can_host(host, at)) else { return };
        let host = std::mem::replace(&mut self.items[host], Item::Group(Vec::new()));
        let group = std::mem::replace(&mut self.items[at], Item::Group(Vec::new()));
        let (Item::Kernel { node, load, store }, Item::Group(group)) = (host, group) else {
            unreachable!("kernels host groups")
        };
        let store = merged(&store, &group);
        // The kernel moves to the place of the group.
        self.items[at] = Item::Kernel { node, load, store };
        self.items[at].nodes().for_each(|node| self.owners[node] = Some(at));
    }

    fn can_host(&self, host: usize, at: usize) -> bool {
        let (Item::Kernel { node, load, store }, Item::Group(group)) = (&self.items[host], &self.items[at]) else {
            return false;
        };
        let kernel = &self.uses.graph.nodes()[*node];
        let Some(op) = self.op(*node) else { return false };
        let may_store = match self.within {
            Host::Native { trains } => {
                let finishes = if trains { op.finishes_in_training() } else { op.finishes() };
                // Gradients that read a kernel's other results read the first one as well.
                let is_alone = kernel.outputs().skip(1).all(|value| !self.uses.is_read_outside(value, &[]));
                let is_arithmetic = |&node: &usize| matches!(self.uses.graph.nodes()[node].source, Source::Op(Op::Pointwise(op)) if op.is_arithmetic());
                let pays = !op.finishes_arithmetic() || group.iter().all(is_arithmetic);
                finishes && is_alone && pays && store.is_empty() && self.uses.results(group).len() == 1
            }
            Host::Launches { units, .. } => {
                let is_costly = |&node: &usize| matches!(self.uses.graph.nodes()[node].source, Source::Op(Op::Pointwise(op)) if op.is_costly());
                let has_room = !(units && op.stores_from_registers() && group.iter().any(is_costly));
                let is_first = store.is_empty() || op.stores_all();
                op.stores() && is_first && kernel.types[0].dtype == DType::F32 && has_room
            }
        };
        if !may_store {
            return false;
        }
        let own: Vec<_> = kernel.outputs().take(if op.stores_all() { usize::MAX } else { 1 }).collect();
        let together = merged(store, group);
        let elementwise = |&input: &ValueId| {
            let Origin { value, in_order } = self.uses.origin(input);
            let maker = self.uses.graph.maker_index(value);
            let is_own = maker == *node || store.binary_search(&maker).is_ok();
            !is_own || (in_order && (maker != *node || own.contains(&value)))
        };
        let mut reads = group.iter().flat_map(|&member| &self.uses.graph.nodes()[member].inputs);
        let kept = own.iter().filter(|&&value| self.uses.is_read_outside(value, &together)).count();
        // Operands loaded through a group are not in memory. Nor are the kernel's results, unless others read them.
        let (loaded, absent) = if load.is_empty() { (0, 0) } else { (self.uses.bindings(load, &[]), 2) };
        let bound = self.own_bindings(*node) + loaded + kept + self.uses.bindings(&together, &own);
        let fits = match self.within {
            Host::Native { .. } => kept == 0,
            Host::Launches { bindings, .. } => bound <= bindings + absent + own.len(),
        };
        reads.all(elementwise) && fits && !self.leads_around(host, at)
    }

    /// `true` if a path leads from one item to another through a third. Kernels up to `to` have already moved, so items
    /// after it lead further on, and never back.
    fn leads_around(&self, from: usize, to: usize) -> bool {
        let mut seen = HashSet::new();
        let mut open = Vec::new();
        self.readers_of(from, |reader| {
            if reader < to && reader != from && seen.insert(reader) {
                open.push(reader);
            }
        });
        while let Some(item) = open.pop() {
            let mut arrived = false;
            self.readers_of(item, |reader| {
                arrived |= reader == to;
                if reader < to && reader != from && seen.insert(reader) {
                    open.push(reader);
                }
            });
            if arrived {
                return true;
            }
        }
        false
    }

    /// Calls `f` with every item that reads results of an item, or waits for it; perhaps several times.
    fn readers_of(&self, item: usize, mut f: impl FnMut(usize)) {
        for value in self.items[item].nodes().flat_map(|node| self.uses.graph.nodes()[node].outputs()) {
            self.uses.readers(value).iter().for_each(|read| f(self.owner(read.node)));
            self.uses.waiting(value).iter().for_each(|&node| f(self.owner(node)));
        }
    }

    /// The items in topological order, otherwise in their previous order.
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

/// The nodes of two sorted lists, sorted.
fn merged(a: &[usize], b: &[usize]) -> Vec<usize> {
    let mut nodes = [a, b].concat();
    nodes.sort_unstable();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::ops::Conv2dOptions;
    use crate::plan::passes::fuse::fuse;
    use crate::{Device, Tape, Tensor, Var};

    /// The graph of a recording on a few `[4, 4]` matrices, and its last value.
    fn recorded(f: impl Fn(&[Var]) -> Var) -> (Graph, ValueId) {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x: Vec<_> = (0..12).map(|_| tape.input(&Tensor::zeros(&device, [4, 4]).expect("fits"))).collect();
        let y = f(&x).id().expect("fits");
        (tape.with_graph(Clone::clone), y)
    }

    /// The operations of each step: `(load → ) kernel ( → store)`.
    fn steps(f: impl Fn(&[Var]) -> Var, bindings: usize) -> Vec<String> {
        steps_within(f, bindings, Host::Launches { bindings, units: false })
    }

    fn steps_within(f: impl Fn(&[Var]) -> Var, bindings: usize, host: Host) -> Vec<String> {
        let (graph, y) = recorded(f);
        let uses = Uses::new(&graph, &[y]);
        let name = |&node: &usize| match &graph.nodes()[node].source {
            Source::Op(op) => op.name(),
            _ => unreachable!("steps compute"),
        };
        let names = |nodes: &[usize]| nodes.iter().map(name).collect::<Vec<_>>().join(" ");
        let spell = |item: &Item| match item {
            Item::Group(nodes) => names(nodes),
            Item::Kernel { node, load, store } => {
                let parts = [names(load), names(&[*node]), names(store)];
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" → ")
            }
            Item::Convert(_) => unreachable!("nothing is converted yet"),
        };
        merge(&uses, fuse(&uses, bindings), host).iter().map(spell).collect()
    }

    #[test]
    fn a_kernel_stores_and_loads_through_groups() {
        assert_eq!(steps(|x| (x[0].matmul(&x[1]) + &x[2]).tanh(), 8), ["matmul → add tanh"]);
        assert_eq!(steps(|x| (&x[0] - &x[1]).square().sum().exp(), 8), ["sub square → sum → exp"]);
        // The product does not store the value that the sum loads.
        assert_eq!(steps(|x| x[0].matmul(&x[1]).tanh().sum(), 8), ["matmul", "tanh → sum"]);
    }

    fn native(f: impl Fn(&[Var]) -> Var) -> Vec<String> {
        steps_within(f, 8, Host::Native { trains: false })
    }

    #[test]
    fn native_kernels_hand_over_one_result() {
        let image = |x: &Var| x.reshape([1, 4, 2, 2]);
        let of = |x: &[Var]| image(&x[0]).conv2d(&x[1].reshape([4, 4, 1, 1]), Conv2dOptions::default());
        assert_eq!(native(|x| (of(x) + image(&x[2])).tanh()), ["conv2d → add tanh"]);
        assert_eq!(native(|x| (of(x) + image(&x[2]).exp()).flip(&[0])), ["conv2d → exp add", "flip"]);
        // Another kernel reads the convolution's own result.
        let twice = |x: &[Var]| {
            let y = of(x);
            y.softmax(1) + y
        };
        assert_eq!(native(twice), ["conv2d", "softmax", "add"]);
        let product = |x: &[Var]| x[0].matmul(&x[1]).tanh();
        assert_eq!(native(product), ["matmul → tanh"]);
        assert_eq!(steps_within(product, 8, Host::Native { trains: true }), ["matmul", "tanh"]);
        // Nothing reads the statistics.
        let normal = |x: &[Var]| {
            let [weight, bias] = [1, 2].map(|k: usize| x[k].slice(0, 0..1).reshape([4]));
            x[0].group_norm(2, 1e-5, &weight, &bias) * &x[3] + &x[4]
        };
        assert_eq!(native(normal), ["group_norm → mul add"]);
        assert_eq!(native(|x| normal(x).tanh()), ["group_norm", "mul add tanh"]);
        // A softmax does not hand over its own.
        assert_eq!(native(|x| x[0].softmax(1).tanh()), ["softmax", "tanh"]);
    }

    #[test]
    fn a_group_merges_into_the_last_of_several_kernels() {
        let two = |x: &[Var]| x[0].matmul(&x[1]) + x[2].matmul(&x[3]).exp();
        assert_eq!(steps(two, 8), ["matmul", "matmul → exp add"]);
    }

    #[test]
    fn a_kernel_that_stores_all_results_hosts_several_groups() {
        let several = |x: &[Var]| {
            let [mean, rest, variance] = x[0].channel_moments();
            Var::concat(&[&(mean + rest).flip(&[0]), &variance.exp().flip(&[0])], 0)
        };
        assert_eq!(steps(several, 16), ["channel_moments → add exp", "flip", "flip", "concat"]);
        // Another invocation stores the neighbour.
        let neighbours = |x: &[Var]| {
            let [mean, rest, _] = x[0].channel_moments();
            let sum = mean + rest;
            sum.slice(0, 0..3) * sum.slice(0, 1..4)
        };
        assert_eq!(steps(neighbours, 16), ["channel_moments → add", "mul"]);
    }

    #[test]
    fn a_detour_keeps_a_group_separate() {
        let softmax = |x: &[Var]| {
            let y = x[0].matmul(&x[1]);
            &y - y.max_keep(&[1])
        };
        assert_eq!(steps(softmax, 8), ["matmul", "max", "sub"]);
        // The transposition needs the whole product.
        let transposed = |x: &[Var]| {
            let y = x[0].matmul(&x[1]);
            &y + y.t()
        };
        assert_eq!(steps(transposed, 8), ["matmul", "add"]);
    }

    #[test]
    fn a_kernel_waits_for_the_operands_of_its_group() {
        // The product now runs after the concatenation, so its other reader moves behind it as well.
        let late = |x: &[Var]| {
            let y = x[0].matmul(&x[1]);
            let other = y.t().softmax(0);
            let z = Var::concat(&[&x[2].slice(0, 0..2), &x[3].slice(0, 0..2)], 0);
            (&y + z).t().softmax(1) * other
        };
        assert_eq!(steps(late, 8), ["concat", "matmul → add", "softmax", "softmax → mul"]);
    }

    #[test]
    fn launches_respect_the_binding_limit() {
        let many = |x: &[Var]| x[3..8].iter().fold(x[0].matmul(&x[1]), |sum, x| sum + x);
        // Bindings: two operands, five more, a result, and the scratch buffers that a variant may read.
        assert_eq!(steps(many, 10), ["matmul → add add add add add"]);
        assert_eq!(steps(many, 9), ["matmul", "add add add add add"]);
        let load = |x: &[Var]| x[1..7].iter().fold(x[0].exp(), |sum, x| sum + x).sum();
        assert_eq!(steps(load, 10), ["exp add add add add add add → sum"]);
        let both =
            |x: &[Var]| x[1..4].iter().fold(x[0].exp(), |sum, x| sum + x).sum_keep(&[0, 1]) + x[4].slice(0, 0..1);
        assert_eq!(steps(both, 10).len(), 2);
    }
}
