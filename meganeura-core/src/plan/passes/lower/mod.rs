//! Turns a schedule into steps on storages. Views become layouts here, and an operand whose layout a kernel
//! cannot read is copied first. `parts.rs` joins values without a copy; `in_place.rs` lets results take the memory of
//! operands; `assign.rs` does the last part, the new contents of leaves.

mod assign;
mod in_place;
mod parts;

use std::collections::HashMap;

use super::format::{Formats, Orders};
use super::fuse::Item;
use super::uses::{Origin, Uses};
use crate::graph::{Exact, Graph, Node, Source, ValueId};
use crate::kernel::launch::{Argument, Binding, Format};
use crate::ops::{KernelOp, Op, View};
use crate::plan::{Input, KernelWork, Load, Operand, Place, Plan, Program, Step, StorageId, StorageInfo, Work};
use crate::{DType, Layout, Shape, TensorType};

/// `bindings` is the number of buffers that a launch may bind; native programs have no launches and no such limit. With
/// `programs`, kernels also load host numbers through programs.
pub(super) fn lower(
    uses: &Uses<'_>,
    schedule: &[Item],
    formats: &Formats,
    outputs: &[ValueId],
    assigns: &[(usize, ValueId)],
    bindings: Option<usize>,
    programs: bool,
) -> Plan {
    let mut lowering = Lowering {
        graph: uses.graph,
        uses,
        formats,
        bindings,
        programs,
        plan: Plan { steps: Vec::new(), storages: Vec::new(), slots: Vec::new(), outputs: Vec::new(), once: false },
        lowered: vec![false; uses.graph.nodes().len()],
        storage: HashMap::new(),
        views: HashMap::new(),
        copies: HashMap::new(),
        constants: HashMap::new(),
        leaves: HashMap::new(),
        host: None,
        parts: if programs { parts::parts(uses, formats) } else { HashMap::new() },
        ranges: if bindings.is_none() { parts::ranges(uses, schedule) } else { HashMap::new() },
    };
    for (at, item) in schedule.iter().enumerate() {
        let orders = formats.orders(at);
        item.nodes().for_each(|node| lowering.lowered[node] = true);
        match item {
            Item::Kernel { node, load, store } => lowering.kernel(*node, orders, load, store),
            Item::Group(nodes) => lowering.group(nodes, orders.store),
            Item::Convert(node) => lowering.convert(*node),
        }
    }
    for (k, &value) in outputs.iter().enumerate() {
        lowering.output(k, value);
    }
    lowering.assign(assigns);
    lowering.plan
}

struct Lowering<'a> {
    graph: &'a Graph,
    uses: &'a Uses<'a>,
    formats: &'a Formats,
    /// The most buffers of a launch; `None` for native programs.
    bindings: Option<usize>,
    programs: bool,
    plan: Plan,
    /// For each node, `true` once a step computes it.
    lowered: Vec<bool>,
    /// The storage of each computed value.
    storage: HashMap<ValueId, StorageId>,
    /// Views resolved so far.
    views: HashMap<ValueId, Operand>,
    /// Contiguous copies made so far.
    copies: HashMap<(StorageId, Layout), StorageId>,
    /// Constants stored so far, for kernels that read only memory.
    constants: HashMap<(Exact, TensorType), StorageId>,
    leaves: HashMap<usize, StorageId>,
    host: Option<StorageId>,
    /// Values that programs may store into a part of another: that value, and the place in it.
    parts: HashMap<ValueId, (ValueId, Layout)>,
    /// Values that native steps store into a range of another: that value, and the first element in it.
    ranges: HashMap<ValueId, (ValueId, usize)>,
}

/// An operand behind its views.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for a moment; a box would only cost")]
enum Resolved {
    Const(Exact),
    /// A float in the host's words.
    Host(usize),
    Stored(Operand),
}

impl Lowering<'_> {
    fn new_storage(&mut self, ty: TensorType, place: Place) -> StorageId {
        self.new_storage_in(Format::Full, ty, place)
    }

    fn new_storage_in(&mut self, format: Format, ty: TensorType, place: Place) -> StorageId {
        let elements = format.stored(ty.shape.elements());
        self.plan.storages.push(StorageInfo { dtype: ty.dtype, format, elements, place });
        self.plan.storages.len() - 1
    }

    fn leaf(&mut self, leaf: usize, ty: TensorType) -> StorageId {
        if let Some(&storage) = self.leaves.get(&leaf) {
            return storage;
        }
        let storage = self.new_storage(ty, Place::Leaf(leaf));
        self.leaves.insert(leaf, storage);
        storage
    }

    fn resolve(&mut self, value: ValueId) -> Resolved {
        let mut views = Vec::new();
        let mut behind = value;
        let mut resolved = loop {
            if let Some(operand) = self.views.get(&behind) {
                break Resolved::Stored(*operand);
            }
            let node = self.graph.maker(behind);
            let Source::Op(Op::View(view)) = &node.source else { break self.source(behind) };
            views.push((behind, view));
            behind = node.inputs[0];
        };
        while let (Some((value, view)), Resolved::Stored(operand)) = (views.pop(), &resolved) {
            let operand = self.view(view, *operand, self.graph.ty(value));
            self.views.insert(value, operand);
            resolved = Resolved::Stored(operand);
        }
        resolved
    }

    /// A value that is not a view.
    fn source(&mut self, value: ValueId) -> Resolved {
        let ty = self.graph.ty(value);
        let storage = match self.graph.maker(value).source {
            Source::Const(number) => return Resolved::Const(number),
            Source::Host(at) if ty.dtype.is_float() => return Resolved::Host(at),
            Source::Host(at) => {
                let words = TensorType::new(DType::U32, Shape::from([at + ty.shape.elements()]));
                let storage = match self.host {
                    Some(storage) => storage,
                    None => self.new_storage(words, Place::Host),
                };
                self.host = Some(storage);
                let info = &mut self.plan.storages[storage];
                info.elements = info.elements.max(words.shape.elements());
                let layout = Layout::contiguous(words.shape).slice(0, at, ty.shape.elements());
                let argument = Argument { layout, ..Argument::contiguous(ty) };
                return Resolved::Stored(Operand { storage, argument });
            }
            Source::Leaf(leaf) => self.leaf(leaf, ty),
            Source::Op(_) | Source::Converted => self.storage[&value],
        };
        debug_assert_eq!(self.formats.of(value), Format::Full, "{value:?}: bf16 is read by lines");
        Resolved::Stored(Operand { storage, argument: Argument::contiguous(ty) })
    }

    /// Stores a value anew, contiguously, in the format of the node's result.
    fn convert(&mut self, node: usize) {
        let node = &self.graph.nodes()[node];
        let (ty, to) = (node.types[0], self.formats.of(node.first));
        let operand = match self.lines(node.inputs[0]) {
            Some(operand) => operand,
            None => {
                let operand = self.stored(node.inputs[0]);
                self.contiguous(operand)
            }
        };
        let order = if to.is_bf16() { to } else { operand.argument.format };
        let program = Program { order, formats: vec![to], ..Program::copy(ty.shape, Input::Operand(0)) };
        let output = self.result(node.first);
        self.step(Work::Pointwise(program), vec![operand], vec![output]);
    }

    /// The lines of a value in bf16, or of a range of channels of one, as elementwise work in the order of its format
    /// reads them.
    fn lines(&self, value: ValueId) -> Option<Operand> {
        let (format, layout) = self.formats.lines(self.uses, value)?;
        let argument = Argument { ty: self.graph.ty(value), layout, format };
        Some(Operand { storage: self.storage[&self.uses.origin(value).value], argument })
    }

    /// A value in bf16, as a kernel reads it.
    fn bf16(&self, value: ValueId) -> Option<Operand> {
        let (ty, origin) = (self.graph.ty(value), self.uses.origin(value).value);
        let format = Some(self.formats.of(origin)).filter(|format| format.is_bf16())?;
        let behind = format.layout(self.graph.ty(origin).shape);
        let view = behind.and_then(|behind| self.uses.view_of(value, behind));
        let layout = view.or_else(|| format.layout(ty.shape)).expect("the formats say so");
        Some(Operand { storage: self.storage[&origin], argument: Argument { ty, layout, format } })
    }

    /// A view of an operand, or of a contiguous copy where layouts cannot express it.
    fn view(&mut self, view: &View, operand: Operand, ty: TensorType) -> Operand {
        if let Some(layout) = view.layout(&operand.argument.layout) {
            return Operand { storage: operand.storage, argument: Argument { layout, ..Argument::contiguous(ty) } };
        }
        let copy = self.contiguous(operand);
        let layout = view.layout(&copy.argument.layout).expect("contiguous values have all views");
        Operand { storage: copy.storage, argument: Argument { layout, ..Argument::contiguous(ty) } }
    }

    /// The operand in contiguous row-major order; a copy unless it already is.
    fn contiguous(&mut self, operand: Operand) -> Operand {
        let Argument { ty, layout, format } = operand.argument;
        let argument = Argument { ty, layout: Layout::contiguous(layout.shape()), format };
        if layout.is_contiguous() {
            return Operand { storage: operand.storage, argument };
        }
        if let Some(&storage) = self.copies.get(&(operand.storage, layout)) {
            return Operand { storage, argument };
        }
        let storage = self.new_storage(argument.ty, Place::Unplaced);
        self.copy(operand, storage);
        self.copies.insert((operand.storage, layout), storage);
        Operand { storage, argument }
    }

    fn copy(&mut self, from: Operand, to: StorageId) {
        let work = Work::Pointwise(Program::copy(from.argument.ty.shape, Input::Operand(0)));
        self.step(work, vec![from], vec![(to, from.argument.ty)]);
    }

    fn step(&mut self, work: Work, inputs: Vec<Operand>, outputs: Vec<(StorageId, TensorType)>) {
        let (scratch, launches, offered, binding_offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        self.plan.steps.push(Step { work, inputs, outputs, scratch, variant: "", offered, launches, binding_offsets });
    }

    /// A step with these results, which may be ranges of others.
    fn step_of(&mut self, work: Work, inputs: Vec<Operand>, values: &[ValueId]) {
        let mut begins = Vec::new();
        let outputs = values.iter().enumerate().map(|(k, &value)| {
            if let Some(&(whole, begin)) = self.ranges.get(&value) {
                let (storage, _) = self.result(whole);
                self.storage.insert(value, storage);
                begins.push((Binding::Output(k), begin));
            }
            self.result(value)
        });
        let outputs = outputs.collect();
        self.step(work, inputs, outputs);
        self.plan.steps.last_mut().expect("the step").binding_offsets = begins;
    }

    /// The number that fills a value, if it is a constant or a number of the host.
    fn number(&self, value: ValueId) -> Option<Input> {
        match self.graph.maker(self.uses.origin(value).value).source {
            Source::Const(number) => Some(Input::Const(number)),
            Source::Host(at) if self.graph.ty(value).dtype.is_float() => Some(Input::Host(at)),
            _ => None,
        }
    }

    /// The operand in memory, even if it is a number.
    fn stored(&mut self, value: ValueId) -> Operand {
        let ty = self.graph.ty(value);
        let operand = |storage| Operand { storage, argument: Argument::contiguous(ty) };
        let number = match self.resolve(value) {
            Resolved::Stored(operand) => return operand,
            Resolved::Const(number) => match self.constants.get(&(number, ty)) {
                Some(&storage) => return operand(storage),
                None => Input::Const(number),
            },
            Resolved::Host(at) => Input::Host(at),
        };
        let storage = self.new_storage(ty, Place::Unplaced);
        if let Input::Const(number) = number {
            self.constants.insert((number, ty), storage);
        }
        self.step(Work::Pointwise(Program::copy(ty.shape, number)), Vec::new(), vec![(storage, ty)]);
        operand(storage)
    }

    fn kernel(&mut self, node: usize, orders: Orders, load: &[usize], store: &[usize]) {
        let node = &self.graph.nodes()[node];
        if self.assemble(node) {
            return;
        }
        let Source::Op(Op::Kernel(op)) = &node.source else { unreachable!("the schedule says kernel") };
        let number = op.loads().filter(|_| self.programs).and_then(|operand| self.number(node.inputs[operand]));
        let loaded = op.loads().filter(|_| !load.is_empty() || number.is_some());
        let others = (0..node.inputs.len()).filter(|&k| Some(k) != loaded);
        let mut inputs: Vec<_> = others.map(|k| self.operand_of(node, op, k)).collect();
        let load = loaded.map(|operand| {
            let value = node.inputs[operand];
            let ty = self.graph.ty(value);
            let program = match number {
                Some(number) => Program { order: orders.load, ..Program::copy(ty.shape, number) },
                None => self.program(load, &[], orders.load, &mut inputs).0,
            };
            let layout = orders.load.layout(ty.shape).expect("the formats say so");
            Load { operand, argument: Argument { ty, layout, format: orders.load }, program }
        });
        let elementwise = inputs.len();
        if op.collective().is_some() {
            self.exchange_in_place(node, &inputs);
        }
        let (store, values) = self.stored_by(node, op, orders.store, store, &mut inputs);
        self.overwrite(node, op, &inputs, values[0]);
        let (operands, types) = (node.inputs.len(), node.types.to_vec());
        let read = node.outputs().map(|value| self.uses.is_read_outside(value, &[])).collect();
        let work = KernelWork { op: op.clone(), operands, types, read, load, store, elementwise };
        self.step_of(Work::Kernel(Box::new(work)), inputs, &values);
    }

    /// Operand `k` of a kernel that reads it from memory.
    fn operand_of(&mut self, node: &Node, op: &KernelOp, k: usize) -> Operand {
        let value = node.inputs[k];
        let in_bf16 = if op.collective().is_some() { self.lines(value) } else { self.bf16(value) };
        match in_bf16 {
            Some(operand) => operand,
            None if op.reads_strided(k) => self.stored(value),
            None => {
                let operand = self.stored(value);
                self.contiguous(operand)
            }
        }
    }

    /// The program that stores a kernel's first result, if it does more than that, and the results of the step. `store`
    /// are the nodes that are merged into it.
    fn stored_by(
        &mut self,
        node: &Node,
        op: &KernelOp,
        order: Format,
        store: &[usize],
        inputs: &mut Vec<Operand>,
    ) -> (Option<Program>, Vec<ValueId>) {
        let mut values: Vec<_> = node.outputs().collect();
        if op.stores_all() {
            if !store.is_empty() {
                let (program, results) = self.program(store, &values, order, inputs);
                return (Some(program), results);
            }
            if !values.iter().any(|value| self.parts.contains_key(value)) {
                return (None, values);
            }
            let mut program = Program::copies(node.types[0].shape, values.len());
            self.store_parts(&mut program, &values);
            return (Some(program), values);
        }
        if !store.is_empty() {
            let (program, results) = self.program(store, &[node.first], order, inputs);
            // The program's first result replaces the kernel's first, the others follow.
            values.splice(..1, results[..1].iter().copied());
            values.extend(&results[1..]);
            return (Some(program), values);
        }
        let stores_part = op.stores() && self.parts.contains_key(&node.first);
        if !order.is_bf16() && !stores_part {
            return (None, values);
        }
        let formats = vec![self.formats.of(node.first)];
        let copy = Program::copy(node.types[0].shape, Input::Kernel(0));
        let mut program = Program { order, formats, ..copy };
        self.store_parts(&mut program, &values[..1]);
        (Some(program), values)
    }

    fn group(&mut self, nodes: &[usize], order: Format) {
        let mut operands = Vec::new();
        let (program, results) = self.program(nodes, &[], order, &mut operands);
        self.step_of(Work::Pointwise(program), operands, &results);
    }

    /// Memory for the value to be computed next, which may be a part of another's.
    fn result(&mut self, value: ValueId) -> (StorageId, TensorType) {
        let ty = self.graph.ty(value);
        let storage = match self.storage.get(&value) {
            Some(&storage) => storage,
            None => self.new_storage_in(self.formats.of(value), ty, Place::Unplaced),
        };
        self.storage.insert(value, storage);
        (storage, ty)
    }

    /// The program of a group that counts elements in an order, and the values that it stores. Appends its operands to
    /// those of the step. As an epilogue, it reads the kernel's results `kernel`.
    fn program(
        &mut self,
        nodes: &[usize],
        kernel: &[ValueId],
        order: Format,
        operands: &mut Vec<Operand>,
    ) -> (Program, Vec<ValueId>) {
        let shape = self.graph.nodes()[nodes[0]].types[0].shape;
        let mut program = Program { order, results: Vec::new(), ..Program::copy(shape, Input::Kernel(0)) };
        let mut results = Vec::new();
        let own = operands.len();
        for (k, &value) in kernel.iter().enumerate().filter(|&(_, &value)| self.uses.is_read_outside(value, nodes)) {
            program.results.push(Input::Kernel(k));
            results.push(value);
        }
        for &index in nodes {
            let node = &self.graph.nodes()[index];
            let Source::Op(Op::Pointwise(op)) = node.source else { unreachable!("the schedule says pointwise") };
            let inputs = node.inputs.iter().map(|&input| {
                let Origin { value, in_order } = self.uses.origin(input);
                if let Some(k) = kernel.iter().position(|&own| own == value) {
                    return Input::Kernel(k);
                }
                if let (true, Ok(k)) = (in_order, nodes.binary_search(&self.graph.maker_index(value))) {
                    return Input::Result(k);
                }
                match self.lines(input).map_or_else(|| self.resolve(input), Resolved::Stored) {
                    Resolved::Const(number) => Input::Const(number),
                    Resolved::Host(at) => Input::Host(at),
                    Resolved::Stored(operand) => {
                        let known = operands[own..].iter().position(|known| *known == operand);
                        Input::Operand(known.map_or_else(
                            || {
                                operands.push(operand);
                                operands.len() - 1
                            },
                            |k| own + k,
                        ))
                    }
                }
            });
            let inputs = inputs.collect();
            program.instructions.push((op, inputs));
            if self.uses.is_read_outside(node.first, nodes) {
                program.results.push(Input::Result(program.instructions.len() - 1));
                results.push(node.first);
            }
        }
        program.formats = results.iter().map(|&value| self.formats.of(value)).collect();
        program.places = vec![None; results.len()];
        self.store_parts(&mut program, &results);
        (program, results)
    }

    /// Hands a value out: in its own storage if no other output claims it, else as a copy.
    fn output(&mut self, k: usize, value: ValueId) {
        let operand = self.stored(value);
        let free =
            self.plan.storages[operand.storage].place == Place::Unplaced && operand.argument.layout.is_contiguous();
        let storage = if free && self.plan.storages[operand.storage].elements == operand.argument.ty.shape.elements() {
            self.plan.storages[operand.storage].place = Place::Output(k);
            operand.storage
        } else {
            let storage = self.new_storage(operand.argument.ty, Place::Output(k));
            self.copy(operand, storage);
            storage
        };
        self.plan.outputs.push(storage);
    }
}
