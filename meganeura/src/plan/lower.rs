//! Third pass: turns a schedule into steps on storages. Views become layouts here; what a kernel cannot read as it lies is
//! copied first; updates are written in place where nobody reads the old value later.

use std::collections::HashMap;

use super::fuse::{Item, is_read_outside, root};
use super::{Input, Operand, Place, Plan, Program, Step, StorageId, StorageInfo, Work};
use crate::graph::{Exact, Graph, Source, ValueId};
use crate::kernel::launch::Argument;
use crate::ops::Op;
use crate::{DType, Layout, Shape, TensorType};

/// Marks a storage that the placing pass has yet to put somewhere.
const UNPLACED: Place = Place::Slot(usize::MAX);

pub(super) fn lower(graph: &Graph, schedule: &[Item], outputs: &[ValueId], assigns: &[(usize, ValueId)]) -> Plan {
    let roots: Vec<_> = outputs.iter().copied().chain(assigns.iter().map(|&(_, value)| value)).collect();
    let mut lowering = Lowering {
        graph,
        roots: roots.iter().map(|&value| root(graph, value).0).collect(),
        plan: Plan { steps: Vec::new(), storages: Vec::new(), slots: Vec::new(), outputs: Vec::new() },
        storage: HashMap::new(),
        copies: HashMap::new(),
        constants: HashMap::new(),
        leaves: HashMap::new(),
        host: None,
    };
    for item in schedule {
        match item {
            Item::Kernel(node) => lowering.kernel(*node),
            Item::Group(nodes) => lowering.group(nodes),
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
    roots: Vec<ValueId>,
    plan: Plan,
    /// The storage of each computed value.
    storage: HashMap<ValueId, StorageId>,
    /// Contiguous copies made so far.
    copies: HashMap<(StorageId, Layout), StorageId>,
    /// Constants written out so far, for kernels that read memory only.
    constants: HashMap<(Exact, TensorType), StorageId>,
    leaves: HashMap<usize, StorageId>,
    host: Option<StorageId>,
}

/// What an operand turns out to be behind its views.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for a moment; a box would only cost")]
enum Resolved {
    Const(Exact),
    /// A float among the host's words.
    Host(usize),
    Stored(Operand),
}

impl Lowering<'_> {
    fn new_storage(&mut self, ty: TensorType, place: Place) -> StorageId {
        self.plan.storages.push(StorageInfo { dtype: ty.dtype, elements: ty.shape.elements(), place });
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
        let ty = self.graph.ty(value);
        let node = self.graph.maker(value);
        let storage = match &node.source {
            Source::Const(number) => return Resolved::Const(*number),
            Source::Host(at) if ty.dtype.is_float() => return Resolved::Host(*at),
            Source::Host(at) => {
                let words = TensorType::new(DType::U32, Shape::from([at + ty.shape.elements()]));
                let storage = match self.host {
                    Some(storage) => storage,
                    None => self.new_storage(words, Place::Host),
                };
                self.host = Some(storage);
                let info = &mut self.plan.storages[storage];
                info.elements = info.elements.max(words.shape.elements());
                let layout = Layout::contiguous(words.shape).slice(0, *at, ty.shape.elements());
                return Resolved::Stored(Operand { storage, argument: Argument { ty, layout } });
            }
            Source::Leaf(leaf) => self.leaf(*leaf, ty),
            Source::Op(Op::View(view)) => {
                let (view, inner) = (view.clone(), node.inputs[0]);
                return match self.resolve(inner) {
                    Resolved::Stored(operand) => {
                        let argument = |layout| Argument { ty, layout };
                        Resolved::Stored(match view.layout(&operand.argument.layout) {
                            Some(layout) => Operand { storage: operand.storage, argument: argument(layout) },
                            None => {
                                let copy = self.contiguous(operand);
                                let layout =
                                    view.layout(&copy.argument.layout).expect("contiguous values have all views");
                                Operand { storage: copy.storage, argument: argument(layout) }
                            }
                        })
                    }
                    constant => constant,
                };
            }
            Source::Op(_) => self.storage[&value],
        };
        Resolved::Stored(Operand { storage, argument: Argument { ty, layout: Layout::contiguous(ty.shape) } })
    }

    /// The operand as rows without gaps, copied unless it is so already.
    fn contiguous(&mut self, operand: Operand) -> Operand {
        let Argument { ty, layout } = operand.argument;
        let argument = Argument { ty, layout: Layout::contiguous(layout.shape()) };
        if layout.is_contiguous() {
            return Operand { storage: operand.storage, argument };
        }
        if let Some(&storage) = self.copies.get(&(operand.storage, layout)) {
            return Operand { storage, argument };
        }
        let storage = self.new_storage(argument.ty, UNPLACED);
        let operand = Operand { storage: operand.storage, argument: Argument { ty: argument.ty, layout } };
        self.copy(operand, storage);
        self.copies.insert((operand.storage, layout), storage);
        Operand { storage, argument }
    }

    fn copy(&mut self, from: Operand, to: StorageId) {
        let work = Work::Pointwise(Program::copy(from.argument.ty.shape, Input::Operand(0)));
        self.step(work, vec![from], vec![(to, from.argument.ty)]);
    }

    fn step(&mut self, work: Work, inputs: Vec<Operand>, outputs: Vec<(StorageId, TensorType)>) {
        self.plan.steps.push(Step { work, inputs, outputs, scratch: Vec::new(), launches: Vec::new() });
    }

    /// The operand in memory, whatever it is.
    fn stored(&mut self, value: ValueId) -> Operand {
        let ty = self.graph.ty(value);
        let operand = |storage| Operand { storage, argument: Argument { ty, layout: Layout::contiguous(ty.shape) } };
        let number = match self.resolve(value) {
            Resolved::Stored(operand) => return operand,
            Resolved::Const(number) => match self.constants.get(&(number, ty)) {
                Some(&storage) => return operand(storage),
                None => Input::Const(number),
            },
            Resolved::Host(at) => Input::Host(at),
        };
        let storage = self.new_storage(ty, UNPLACED);
        if let Input::Const(number) = number {
            self.constants.insert((number, ty), storage);
        }
        self.step(Work::Pointwise(Program::copy(ty.shape, number)), Vec::new(), vec![(storage, ty)]);
        operand(storage)
    }

    fn kernel(&mut self, node: usize) {
        let node = &self.graph.nodes()[node];
        let Source::Op(Op::Kernel(op)) = &node.source else { unreachable!("the schedule says kernel") };
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (k, &value) in node.inputs.iter().enumerate() {
            let mut operand = self.stored(value);
            if !op.reads_strided(k) {
                operand = self.contiguous(operand);
            }
            inputs.push(operand);
        }
        let outputs = node.outputs().zip(&node.types).map(|(value, &ty)| {
            let storage = self.new_storage(ty, UNPLACED);
            self.storage.insert(value, storage);
            (storage, ty)
        });
        let outputs = outputs.collect();
        self.step(Work::Kernel(op.clone()), inputs, outputs);
    }

    fn group(&mut self, nodes: &[usize]) {
        let shape = self.graph.nodes()[nodes[0]].types[0].shape;
        let mut program = Program { shape, instructions: Vec::new(), results: Vec::new() };
        let mut operands: Vec<Operand> = Vec::new();
        let mut outputs = Vec::new();
        for &index in nodes {
            let node = &self.graph.nodes()[index];
            let Source::Op(Op::Pointwise(op)) = node.source else { unreachable!("the schedule says pointwise") };
            let inputs = node.inputs.iter().map(|&value| {
                if let Some(k) = nodes.iter().position(|&member| self.graph.nodes()[member].first == value) {
                    return Input::Result(k);
                }
                match self.resolve(value) {
                    Resolved::Const(number) => Input::Const(number),
                    Resolved::Host(at) => Input::Host(at),
                    Resolved::Stored(operand) => {
                        let k = operands.iter().position(|known| *known == operand).unwrap_or_else(|| {
                            operands.push(operand);
                            operands.len() - 1
                        });
                        Input::Operand(k)
                    }
                }
            });
            let inputs = inputs.collect();
            program.instructions.push((op, inputs));
            if is_read_outside(self.graph, &self.roots, index, nodes) {
                let storage = self.new_storage(node.types[0], UNPLACED);
                self.storage.insert(node.first, storage);
                program.results.push(Input::Result(program.instructions.len() - 1));
                outputs.push((storage, node.types[0]));
            }
        }
        self.step(Work::Pointwise(program), operands, outputs);
    }

    /// Hands a value out: in its own storage if nothing else claimed that, else as a copy.
    fn output(&mut self, k: usize, value: ValueId) {
        let operand = self.stored(value);
        let free = self.plan.storages[operand.storage].place == UNPLACED && operand.argument.layout.is_contiguous();
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

    /// Makes values the new contents of leaves.
    fn assign(&mut self, assigns: &[(usize, ValueId)]) {
        // All values first: those that are another leaf's old contents are copied before anything is overwritten.
        let mut operands: Vec<_> = assigns.iter().map(|&(_, value)| self.stored(value)).collect();
        for operand in &mut operands {
            if let Place::Leaf(_) = self.plan.storages[operand.storage].place {
                let storage = self.new_storage(operand.argument.ty, UNPLACED);
                self.copy(*operand, storage);
                let argument = Argument { layout: Layout::contiguous(operand.argument.ty.shape), ..operand.argument };
                *operand = Operand { storage, argument };
            }
        }
        for (k, &(leaf, value)) in assigns.iter().enumerate() {
            let target = self.leaf(leaf, self.graph.ty(value));
            let operand = operands[k];
            if !self.can_write_in_place(operand, target) {
                self.copy(operand, target);
                continue;
            }
            let replaced = operand.storage;
            for step in &mut self.plan.steps {
                step.inputs.iter_mut().filter(|i| i.storage == replaced).for_each(|input| input.storage = target);
                step.outputs.iter_mut().filter(|(s, _)| *s == replaced).for_each(|output| output.0 = target);
            }
            operands.iter_mut().filter(|o| o.storage == replaced).for_each(|operand| operand.storage = target);
            self.plan.storages[replaced].elements = 0;
        }
    }

    /// Whether the step that computes `value` may write it into `target` straight away: nobody reads the old contents
    /// later, and the step itself reads of them only the element that it writes.
    fn can_write_in_place(&self, value: Operand, target: StorageId) -> bool {
        let steps = &self.plan.steps;
        let maker = steps.iter().position(|step| step.outputs.iter().any(|(storage, _)| *storage == value.storage));
        let Some(maker) = maker else { return false };
        let elementwise = matches!(steps[maker].work, Work::Pointwise(_));
        let whole =
            |argument: &Argument| argument.layout.is_contiguous() && argument.ty.shape == value.argument.ty.shape;
        self.plan.storages[value.storage].place == UNPLACED
            && whole(&value.argument)
            && elementwise
            && steps[maker].inputs.iter().all(|input| input.storage != target || whole(&input.argument))
            && steps[maker + 1..].iter().all(|step| step.reads().all(|storage| storage != target))
            && !self.plan.outputs.contains(&target)
            && steps.iter().all(|step| step.outputs.iter().all(|(storage, _)| *storage != target))
    }
}
