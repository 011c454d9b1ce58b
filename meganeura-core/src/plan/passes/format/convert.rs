//! Inserts the conversions that chosen formats need, as nodes of their own.
//!
//! | reader | reads |
//! |---|---|
//! | elementwise work | `f32` through any view; bf16 in the order by which it counts |
//! | a kernel's bf16 operand | lines of the kernel's format, or views of lines if it reads strided operands |
//! | everything else | `f32` |
//!
//! The graph is rebuilt in the order of the schedule, so that each conversion comes just before its first reader.

use std::collections::HashMap;

use super::{Formats, Orders, kernel_op, row_format};
use crate::graph::{Graph, Node, Source, ValueId};
use crate::kernel::launch::Format;
use crate::ops::{Bf16, Innermost, KernelOp, Op, View};
use crate::plan::passes::fuse::Item;
use crate::plan::passes::uses::Uses;

/// A graph whose operands all lie as their readers need them, with its schedule and formats.
pub(in crate::plan::passes) struct Converted {
    pub(in crate::plan::passes) graph: Graph,
    pub(in crate::plan::passes) schedule: Vec<Item>,
    pub(in crate::plan::passes) formats: Formats,
    /// The wanted values.
    pub(in crate::plan::passes) roots: Vec<ValueId>,
}

/// Bytes that a GPU moves in the time of a launch: a microsecond on a large one.
const LAUNCH_BYTES: usize = 1 << 20;

impl Converted {
    /// `false` if the largest values of all launches are so small that conversions alone take longer than to move half
    /// of their bytes, which bf16 saves.
    pub(in crate::plan::passes) fn may_pay(&self) -> bool {
        let (mut conversions, mut bytes) = (0_usize, 0_usize);
        for item in &self.schedule {
            let (first, last) = match item {
                Item::Convert(_) => {
                    conversions += 1;
                    continue;
                }
                Item::Group(group) => (group.first().copied(), group.last().copied()),
                Item::Kernel { node, store, .. } => (Some(*node), store.last().copied().or(Some(*node))),
            };
            let node = |at: Option<usize>| at.map(|at| &self.graph.nodes()[at]);
            let read = node(first).map_or(&[][..], |first| &first.inputs).iter().map(|&input| self.graph.ty(input));
            let made = node(last).map_or(&[][..], |last| &last.types).iter().copied();
            let largest = read.chain(made).map(|ty| ty.bytes()).max().unwrap_or(0);
            bytes = bytes.saturating_add(largest);
        }
        bytes / 2 >= conversions.saturating_mul(LAUNCH_BYTES)
    }
}

/// Inserts conversions into a graph with formats, whose wanted values are `roots`.
pub(in crate::plan::passes) fn convert(
    uses: &Uses<'_>,
    schedule: &[Item],
    formats: &Formats,
    roots: &[ValueId],
) -> Converted {
    let empty = Formats { values: Vec::new(), orders: Vec::new(), kernels: Vec::new() };
    let new = Converted { graph: Graph::default(), schedule: Vec::new(), formats: empty, roots: Vec::new() };
    let mut pass = Pass { uses, formats, new, shown: HashMap::new(), stored: HashMap::new() };
    for (at, item) in schedule.iter().enumerate() {
        let Orders { load: loads, store: stores } = formats.orders(at);
        let item = match item {
            Item::Group(group) => Item::Group(pass.group(group, None, stores)),
            Item::Kernel { node, load, store } => {
                let load = pass.group(load, None, loads);
                let node = pass.kernel(*node, formats.bf16(at), &load);
                let own = pass.new.graph.nodes()[node].first;
                Item::Kernel { node, load, store: pass.group(store, Some(own), stores) }
            }
            Item::Convert(_) => unreachable!("this pass makes them"),
        };
        pass.schedule(item, formats.orders(at), formats.bf16(at).cloned());
    }
    pass.new.roots = roots.iter().map(|&root| pass.in_full(root)).collect();
    pass.new
}

struct Pass<'a> {
    uses: &'a Uses<'a>,
    formats: &'a Formats,
    new: Converted,
    /// The new value of each value, over memory of a format; with `None`, over that of the value behind the views.
    shown: HashMap<(ValueId, Option<Format>), ValueId>,
    /// Values that were stored anew, contiguously, in a format.
    stored: HashMap<(ValueId, Format), ValueId>,
}

impl Pass<'_> {
    fn schedule(&mut self, item: Item, orders: Orders, bf16: Option<Bf16>) {
        self.new.schedule.push(item);
        self.new.formats.orders.push(orders);
        self.new.formats.kernels.push(bf16);
    }

    /// Appends a node. Its results have these formats.
    fn push(&mut self, node: &Node, inputs: Vec<ValueId>, formats: impl Iterator<Item = Format>) -> ValueId {
        let first = self.new.graph.push(node.source.clone(), inputs, node.types.iter().copied());
        self.new.formats.values.extend(formats);
        first
    }

    /// Appends an operation, and returns its index.
    fn operation(&mut self, node: &Node, inputs: Vec<ValueId>) -> usize {
        let first = self.push(node, inputs, node.outputs().map(|value| self.formats.of(value)));
        for (k, value) in node.outputs().enumerate() {
            self.shown.insert((value, None), ValueId(first.0 + u32::try_from(k).expect("nodes have few outputs")));
        }
        self.new.graph.maker_index(first)
    }

    /// Appends a group that counts its elements in an order. `kernel` is the new result that it is merged with.
    fn group(&mut self, group: &[usize], kernel: Option<ValueId>, order: Format) -> Vec<usize> {
        let each = |&index: &usize| {
            let node = &self.uses.graph.nodes()[index];
            let inputs = node.inputs.iter().map(|&input| {
                let value = self.uses.origin(input).value;
                let is_own = group.binary_search(&self.uses.graph.maker_index(value)).is_ok()
                    || kernel.is_some() && self.shown.get(&(value, None)).copied() == kernel;
                if is_own { self.shown(input, None) } else { self.read_in(input, order) }
            });
            let inputs = inputs.collect();
            self.operation(node, inputs)
        };
        group.iter().map(each).collect()
    }

    /// Appends a kernel. `load` is the new group that loads one of its operands, if any.
    fn kernel(&mut self, index: usize, bf16: Option<&Bf16>, load: &[usize]) -> usize {
        let node = &self.uses.graph.nodes()[index];
        let op = kernel_op(node).expect("the schedule says kernel");
        let shapes: Vec<_> = node.inputs.iter().map(|&input| self.uses.graph.ty(input).shape).collect();
        let joined = op.parts(&shapes, self.formats.of(node.first)).is_some();
        let loaded = op.loads().filter(|_| !load.is_empty());
        let operand = |(k, &input): (usize, &ValueId)| {
            if loaded == Some(k) {
                return self.shown(input, None);
            }
            if joined {
                // Elementwise work copies the operands that are not stored in place.
                let order = match self.formats.of(node.first) {
                    format @ (Format::Full | Format::Bf16) => format,
                    _ => Format::images(shapes[k]).unwrap_or_default(),
                };
                return self.read_in(input, order);
            }
            if op.collective().is_some() {
                let mean = node.outputs().nth(k).expect("a result of each");
                return self.read_in(input, self.formats.of(mean));
            }
            let bf16 = bf16.filter(|bf16| bf16.operands.contains(&k));
            bf16.and_then(|bf16| self.bf16(op, k, input, bf16)).unwrap_or_else(|| self.in_full(input))
        };
        let inputs = node.inputs.iter().enumerate().map(operand).collect();
        self.operation(node, inputs)
    }

    /// Operand `k` of a kernel that takes it as bf16. A kernel that reads strided operands gets any view that strides
    /// express: of a value that is stored as bf16, or of a converted one if the kernel gains from bf16 and reads at
    /// least half of it. `None` if it must read `f32`.
    fn bf16(&mut self, op: &KernelOp, k: usize, value: ValueId, bf16: &Bf16) -> Option<ValueId> {
        let Uses { graph, .. } = self.uses;
        if op.reads_strided(k) && (bf16.stores.in_order() || bf16.innermost == Innermost::Last) {
            let origin = self.uses.origin(value).value;
            let format = match self.formats.of(origin) {
                Format::Full if bf16.innermost == Innermost::Last && bf16.wanted && self.uses.shows_most(value) => {
                    row_format(self.uses, value)?
                }
                Format::Full => return None,
                format => format,
            };
            self.uses.view_of(value, format.layout(graph.ty(origin).shape)?)?;
            return Some(self.shown(value, Some(format)));
        }
        let format = bf16.innermost.format(graph.ty(value).shape)?;
        let origin = self.uses.origin(value).value;
        Some(match self.formats.lines(self.uses, value) {
            // Other channels than those of a slice are no padding.
            Some((found, layout)) if found == format && layout.is_contiguous() && self.formats.of(origin) == format => {
                self.shown(value, None)
            }
            Some((found, _)) if found == format => self.stored(value, format, |pass| pass.shown(value, None)),
            _ => self.stored(value, format, |pass| pass.in_full(value)),
        })
    }

    /// A value for elementwise work that counts in an order.
    fn read_in(&mut self, value: ValueId, order: Format) -> ValueId {
        let lies_so = order.is_bf16() && self.formats.lines(self.uses, value).is_some_and(|(found, _)| found == order);
        if lies_so { self.shown(value, None) } else { self.in_full(value) }
    }

    fn in_full(&mut self, value: ValueId) -> ValueId {
        self.shown(value, Some(Format::Full))
    }

    /// The value over memory of a format: views of the value behind it, which is converted if it is stored in another.
    fn shown(&mut self, value: ValueId, format: Option<Format>) -> ValueId {
        let origin = self.uses.origin(value).value;
        let format = format.filter(|&format| format != self.formats.of(origin));
        if let Some(&shown) = self.shown.get(&(value, format)) {
            return shown;
        }
        // The views that are not there yet, from the outermost on.
        let (mut views, mut at) = (Vec::new(), value);
        let mut shown = loop {
            if let Some(&shown) = self.shown.get(&(at, format)) {
                break shown;
            }
            let node = self.uses.graph.maker(at);
            match (&node.source, format) {
                (Source::Op(Op::View(_)), _) => views.push(at),
                (_, Some(format)) => break self.stored(at, format, |pass| pass.shown(at, None)),
                (Source::Op(_) | Source::Converted, None) => unreachable!("operands are scheduled first"),
                (_, None) => break self.push(node, Vec::new(), node.types.iter().map(|_| Format::Full)),
            }
            at = node.inputs[0];
        };
        self.shown.insert((at, format), shown);
        while let Some(view) = views.pop() {
            let node = self.uses.graph.maker(view);
            let waits = node.inputs[1..].iter().map(|&other| self.shown(other, None));
            let inputs = std::iter::once(shown).chain(waits).collect();
            shown = self.push(node, inputs, std::iter::once(Format::Full));
            self.shown.insert((view, format), shown);
        }
        shown
    }

    /// The value, stored contiguously in a format, once. `from` is what is converted.
    fn stored(&mut self, value: ValueId, format: Format, from: impl FnOnce(&mut Self) -> ValueId) -> ValueId {
        // A reshape lies as the value behind it does.
        let origin = self.uses.origin(value);
        let key = (if origin.in_order { origin.value } else { value }, format);
        let ty = self.uses.graph.ty(value);
        if let Some(&stored) = self.stored.get(&key) {
            if self.new.graph.ty(stored) == ty {
                return stored;
            }
            self.new.formats.values.push(Format::Full);
            return self.new.graph.push(Source::Op(View::Reshape(ty.shape).into()), [stored], [ty]);
        }
        let from = from(self);
        let stored = self.new.graph.push(Source::Converted, [from], [ty]);
        self.new.formats.values.push(format);
        let item = Item::Convert(self.new.graph.maker_index(stored));
        self.schedule(item, Orders::default(), None);
        self.stored.insert(key, stored);
        stored
    }
}
