//! Turns a schedule into steps on storages. Views become layouts here, and an operand whose layout a kernel
//! cannot read is copied first. `parts.rs` joins values without a copy; `exchange.rs` lets ranks exchange values in
//! place; `assign.rs` does the last part, the new contents of leaves.

mod assign;
mod exchange;
mod parts;

use std::collections::HashMap;

pub(super) use assign::added_up;

use super::format::Formats;
use super::fuse::Item;
use super::uses::{Origin, Uses};
use crate::graph::{Exact, Graph, Node, Source, ValueId};
use crate::kernel::launch::{Argument, Channels, Format};
use crate::ops::{Bf16, Innermost, KernelOp, Op, Stores, View};
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
        order: None,
        plan: Plan { steps: Vec::new(), storages: Vec::new(), slots: Vec::new(), outputs: Vec::new() },
        storage: HashMap::new(),
        views: HashMap::new(),
        copies: HashMap::new(),
        converted: HashMap::new(),
        constants: HashMap::new(),
        leaves: HashMap::new(),
        host: None,
        parts: if programs { parts::parts(uses, formats) } else { HashMap::new() },
    };
    for (at, item) in schedule.iter().enumerate() {
        lowering.order = formats.order(at);
        match item {
            Item::Kernel { node, load, store } => lowering.kernel(*node, formats.bf16(at), load, store),
            Item::Group(nodes) => lowering.group(nodes),
        }
    }
    lowering.order = None;
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
    /// The channels by which the current step counts its elements; `None` if it counts them in the order of the API.
    order: Option<Channels>,
    plan: Plan,
    /// The storage of each computed value.
    storage: HashMap<ValueId, StorageId>,
    /// Views resolved so far.
    views: HashMap<ValueId, Operand>,
    /// Contiguous copies made so far.
    copies: HashMap<(StorageId, Layout), StorageId>,
    /// The storages that have been converted: storage, new format, and number of contiguous elements from the first on.
    converted: HashMap<(StorageId, Format, usize), StorageId>,
    /// Constants stored so far, for kernels that read only memory.
    constants: HashMap<(Exact, TensorType), StorageId>,
    leaves: HashMap<usize, StorageId>,
    host: Option<StorageId>,
    /// Values that programs may store into a part of another: that value, and the place in it.
    parts: HashMap<ValueId, (ValueId, Layout)>,
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
        self.plan.storages.push(StorageInfo { dtype: ty.dtype, format, elements: ty.shape.elements(), place });
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
            Source::Op(_) => match self.formats.of(value) {
                Format::Full => self.storage[&value],
                from @ Format::Bf16(_) => self.convert(self.storage[&value], ty, from, Format::Full),
            },
        };
        Resolved::Stored(Operand { storage, argument: Argument::contiguous(ty) })
    }

    /// A contiguous value in another format, converted once.
    fn convert(&mut self, storage: StorageId, ty: TensorType, from: Format, to: Format) -> StorageId {
        // A part of a tensor may start where the tensor does.
        let key = (storage, to, ty.shape.elements());
        if let Some(&converted) = self.converted.get(&key) {
            return converted;
        }
        let converted = self.new_storage_in(to, ty, Place::Unplaced);
        let order = [from, to].into_iter().find_map(Format::channels);
        let work = Program { order, formats: vec![to], ..Program::copy(ty.shape, Input::Operand(0)) };
        let mut argument = Argument { format: from, ..Argument::contiguous(ty) };
        if let Some(Channels { channels, .. }) = from.channels() {
            argument.layout = Layout::contiguous(Shape::from([ty.shape.elements() / channels, channels]));
        }
        let operand = Operand { storage, argument };
        self.step(Work::Pointwise(work), vec![operand], vec![(converted, ty)]);
        self.converted.insert(key, converted);
        converted
    }

    /// The memory of a value that is stored in lines of bf16 with these channels, or as a range of channels of such a
    /// value. Elementwise work reads a value that is stored in `f32` from there, even if a copy as bf16 exists for a
    /// kernel, so it keeps full precision.
    fn in_bf16(&self, value: ValueId, channels: Channels) -> Option<Operand> {
        let (found, layout) = self.formats.lines(self.uses, value)?;
        let argument = Argument { ty: self.graph.ty(value), layout, format: Format::Bf16(channels) };
        (found == channels).then(|| Operand { storage: self.storage[&self.uses.origin(value).value], argument })
    }

    /// The operand of a kernel that reads bf16, converted if it is stored in `f32`. A kernel that reads strided
    /// operands gets any view that strides can express: of a value stored as bf16, or of a converted one if the
    /// kernel gains from bf16 and reads at least half of it.
    fn bf16(&mut self, value: ValueId, bf16: &Bf16, strided: bool) -> Option<Operand> {
        let ty = self.graph.ty(value);
        if strided {
            let origin = self.uses.origin(value).value;
            let of_origin = self.graph.ty(origin);
            let (order, held) = match self.formats.of(origin) {
                Format::Bf16(order) => (order, true),
                Format::Full if bf16.innermost == Innermost::Last && bf16.wanted && self.uses.shows_most(value) => {
                    (Channels::ROWS, false)
                }
                Format::Full => return None,
            };
            let (layout, format) = (self.uses.view_of(value, order.layout(of_origin.shape)?)?, Format::Bf16(order));
            let storage = if held {
                self.storage[&origin]
            } else {
                let full = self.stored(origin);
                self.convert(full.storage, of_origin, Format::Full, format)
            };
            return Some(Operand { storage, argument: Argument { ty, layout, format } });
        }
        let channels = bf16.innermost.order(ty.shape)?;
        let format = Format::Bf16(channels);
        let storage = match self.in_bf16(value, channels) {
            Some(operand) => self.contiguous_lines(operand),
            None => {
                let full = self.stored(value);
                let full = self.contiguous(full);
                self.convert(full.storage, ty, Format::Full, format)
            }
        };
        Some(Operand { storage, argument: Argument { ty, layout: channels.layout(ty.shape)?, format } })
    }

    /// The memory of lines that are contiguous, pixel after pixel; a copy unless they already are.
    fn contiguous_lines(&mut self, operand: Operand) -> StorageId {
        let Argument { ty, layout, format } = operand.argument;
        if layout.is_contiguous() {
            return operand.storage;
        }
        if let Some(&storage) = self.copies.get(&(operand.storage, layout)) {
            return storage;
        }
        let storage = self.new_storage_in(format, ty, Place::Unplaced);
        let copy = Program::copy(ty.shape, Input::Operand(0));
        let copy = Program { order: format.channels(), formats: vec![format], ..copy };
        self.step(Work::Pointwise(copy), vec![operand], vec![(storage, ty)]);
        self.copies.insert((operand.storage, layout), storage);
        storage
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
        let (scratch, launches, offered, begins) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        self.plan.steps.push(Step { work, inputs, outputs, scratch, variant: "", offered, launches, begins });
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

    fn kernel(&mut self, node: usize, bf16: Option<&Bf16>, load: &[usize], store: &[usize]) {
        let node = &self.graph.nodes()[node];
        if self.assemble(node) {
            return;
        }
        let Source::Op(Op::Kernel(op)) = &node.source else { unreachable!("the schedule says kernel") };
        let number = op.loads().filter(|_| self.programs).and_then(|operand| self.number(node.inputs[operand]));
        let loaded = op.loads().filter(|_| !load.is_empty() || number.is_some());
        let others = (0..node.inputs.len()).filter(|&k| Some(k) != loaded);
        let mut inputs: Vec<_> = others.map(|k| self.operand_of(node, op, k, bf16)).collect();
        let load = loaded.map(|operand| {
            let value = node.inputs[operand];
            let ty = self.graph.ty(value);
            let program = match number {
                Some(number) => Program { order: self.order, ..Program::copy(ty.shape, number) },
                None => self.program(load, None, &mut inputs).0,
            };
            let mut argument = Argument::contiguous(ty);
            if let Some(channels) = program.order {
                let layout = channels.layout(ty.shape).expect("the formats say so");
                argument = Argument { ty, layout, format: Format::Bf16(channels) };
            }
            Load { operand, argument, program }
        });
        let elementwise = inputs.len();
        if op.meets().is_some() {
            self.exchange_in_place(node, &inputs);
        }
        let (store, values) = self.stored_by(node, op, bf16, store, &mut inputs);
        let outputs = values.into_iter().map(|value| self.result(value)).collect();
        let (operands, types) = (node.inputs.len(), node.types.to_vec());
        let work = KernelWork { op: op.clone(), operands, types, load, store, elementwise };
        self.step(Work::Kernel(Box::new(work)), inputs, outputs);
    }

    /// Operand `k` of a kernel that reads it from memory.
    fn operand_of(&mut self, node: &Node, op: &KernelOp, k: usize, bf16: Option<&Bf16>) -> Operand {
        let value = node.inputs[k];
        let in_bf16 = match bf16.filter(|bf16| bf16.operands.contains(&k)) {
            Some(bf16) => {
                let strided = bf16.stores.in_order() || bf16.innermost == Innermost::Last;
                self.bf16(value, bf16, strided && op.reads_strided(k))
            }
            // A mean over ranks has the format of its operand.
            None if op.meets().is_some() => {
                let mean = node.outputs().nth(k).expect("a mean of each");
                self.formats.of(mean).channels().and_then(|channels| self.in_bf16(value, channels))
            }
            None => None,
        };
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
        bf16: Option<&Bf16>,
        store: &[usize],
        inputs: &mut Vec<Operand>,
    ) -> (Option<Program>, Vec<ValueId>) {
        let mut values: Vec<_> = node.outputs().collect();
        let mut stored = values.iter().chain(store.iter().map(|&node| &self.graph.nodes()[node].first));
        self.order = match bf16.map(|bf16| bf16.stores) {
            Some(Stores::Lines) => self.order,
            Some(Stores::Rows) if stored.any(|&value| self.formats.of(value) != Format::Full) => Some(Channels::ROWS),
            _ => None,
        };
        if !store.is_empty() {
            let (program, results) = self.program(store, Some(node.first), inputs);
            // The program's first result replaces the kernel's first, the others follow.
            values.splice(..1, results[..1].iter().copied());
            values.extend(&results[1..]);
            return (Some(program), values);
        }
        if self.order.is_none() && !(op.stores() && self.parts.contains_key(&node.first)) {
            return (None, values);
        }
        let formats = vec![self.formats.of(node.first)];
        let copy = Program::copy(node.types[0].shape, Input::Kernel);
        let mut program = Program { order: self.order, formats, ..copy };
        self.store_parts(&mut program, &values[..1]);
        (Some(program), values)
    }

    fn group(&mut self, nodes: &[usize]) {
        let mut operands = Vec::new();
        let (program, results) = self.program(nodes, None, &mut operands);
        let outputs = results.into_iter().map(|value| self.result(value)).collect();
        self.step(Work::Pointwise(program), operands, outputs);
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

    /// The program of a group and the values that it stores. Appends its operands to those of the step. As an epilogue,
    /// it reads the kernel's result `kernel`.
    fn program(
        &mut self,
        nodes: &[usize],
        kernel: Option<ValueId>,
        operands: &mut Vec<Operand>,
    ) -> (Program, Vec<ValueId>) {
        let shape = self.graph.nodes()[nodes[0]].types[0].shape;
        let order = self.order;
        let mut program = Program { order, results: Vec::new(), ..Program::copy(shape, Input::Kernel) };
        let mut results = Vec::new();
        let own = operands.len();
        if let Some(value) = kernel.filter(|&value| self.uses.is_read_outside(value, nodes)) {
            program.results.push(Input::Kernel);
            results.push(value);
        }
        for &index in nodes {
            let node = &self.graph.nodes()[index];
            let Source::Op(Op::Pointwise(op)) = node.source else { unreachable!("the schedule says pointwise") };
            let inputs = node.inputs.iter().map(|&input| {
                let Origin { value, in_order } = self.uses.origin(input);
                if Some(value) == kernel {
                    return Input::Kernel;
                }
                if let (true, Ok(k)) = (in_order, nodes.binary_search(&self.graph.maker_index(value))) {
                    return Input::Result(k);
                }
                let in_bf16 = order.and_then(|channels| self.in_bf16(input, channels));
                match in_bf16.map_or_else(|| self.resolve(input), Resolved::Stored) {
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
