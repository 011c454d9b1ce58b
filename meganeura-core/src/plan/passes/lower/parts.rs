//! Lowering of operations that only join their operands, such as a concatenation. Where possible, the program that
//! computes an operand stores it directly into its part of the result. Other operands are copied.
//!
//! Native kernels and programs store results in order. So an operand has its part if that is a range, as of channels of
//! one image; and if all operands do, there is nothing left to join.

use std::collections::{HashMap, HashSet};

use super::Lowering;
use crate::Layout;
use crate::graph::{Graph, Node, Source, ValueId};
use crate::kernel::launch::Format;
use crate::ops::Op;
use crate::plan::passes::format::Formats;
use crate::plan::passes::fuse::Item;
use crate::plan::passes::uses::{Origin, Uses};
use crate::plan::{Input, Program, Work};

/// The most buffers of a launch that copies. Drivers permit up to a million, but one did not compile a kernel with a
/// thousand within a minute.
const MOST: usize = 32;

/// Values that can be stored into a part of another. Their only reader joins its operands, and its result has their
/// format. For each value, that result and the value's place in it.
pub(super) fn parts(uses: &Uses<'_>, formats: &Formats) -> HashMap<ValueId, (ValueId, Layout)> {
    let mut parts = HashMap::new();
    for node in uses.graph.nodes() {
        let Some(layouts) = joined(uses.graph, node, formats.of(node.first)) else { continue };
        // The value that a program stores, perhaps reshaped, and its place.
        let placed = |(&value, layout): (&ValueId, Layout)| {
            let Origin { value: origin, in_order } = uses.origin(value);
            let alike = match (formats.of(origin), formats.of(node.first)) {
                (part, whole @ (Format::Full | Format::Bf16)) => part == whole,
                // The value's own channels must be innermost, not those of an image that it was reshaped from.
                (part, _) => origin == value && Format::images(uses.graph.ty(value).shape) == Some(part),
            };
            let is_own = in_order && uses.is_computed(uses.graph.maker_index(origin));
            let may = is_own && alike && !uses.is_wanted(origin) && uses.readers(origin).len() == 1;
            let layout = if origin == value { layout } else { layout.reshape(uses.graph.ty(origin).shape)? };
            may.then_some((origin, (node.first, layout)))
        };
        // `assign.rs` may move a wanted result into a leaf, and expects one writer of each storage.
        if !uses.is_wanted(node.first) {
            parts.extend(node.inputs.iter().zip(layouts).filter_map(placed));
        }
    }
    parts
}

/// Likewise for native steps: the values of nodes that join ranges of their result, each computed by a step of its own.
pub(super) fn ranges(uses: &Uses<'_>, schedule: &[Item]) -> HashMap<ValueId, (ValueId, usize)> {
    let mut makers = HashMap::new();
    for (at, item) in schedule.iter().enumerate() {
        makers.extend(item.nodes().map(|node| (node, at)));
    }
    let mut ranges = HashMap::new();
    for node in uses.graph.nodes() {
        let Some(layouts) = joined(uses.graph, node, Format::Full) else { continue };
        let placed = |(&value, layout): (&ValueId, Layout)| {
            let Origin { value: origin, in_order } = uses.origin(value);
            let maker = uses.graph.maker_index(origin);
            let is_own = in_order && uses.is_computed(maker) && !uses.is_wanted(origin);
            let is_range = layout.collapse().strides().iter().all(|&stride| stride == 1);
            // What joins or exchanges values has its own rules for their places.
            let maker = &uses.graph.nodes()[maker];
            let exchanges = matches!(&maker.source, Source::Op(Op::Kernel(op)) if op.collective().is_some());
            let is_alone = !exchanges && joined(uses.graph, maker, Format::Full).is_none();
            let may = is_own && is_range && is_alone && uses.readers(origin).len() == 1;
            may.then_some((origin, (node.first, layout.offset())))
        };
        let places: Option<Vec<_>> = node.inputs.iter().zip(layouts).map(placed).collect();
        let Some(places) = places.filter(|_| !uses.is_wanted(node.first)) else { continue };
        let steps: HashSet<_> = places.iter().map(|&(value, _)| makers[&uses.graph.maker_index(value)]).collect();
        if steps.len() == places.len() {
            ranges.extend(places);
        }
    }
    ranges
}

/// The places of a node's operands in its result, if it only joins them.
fn joined(graph: &Graph, node: &Node, format: Format) -> Option<Vec<Layout>> {
    let Source::Op(Op::Kernel(op)) = &node.source else { return None };
    let shapes: Vec<_> = node.inputs.iter().map(|&input| graph.ty(input).shape).collect();
    op.parts(&shapes, format)
}

impl Lowering<'_> {
    /// Redirects a program's results that are parts of other values into those values. Several results may go into one.
    pub(super) fn store_parts(&mut self, program: &mut Program, results: &[ValueId]) {
        for (value, place) in results.iter().zip(&mut program.places) {
            let Some(&(whole, layout)) = self.parts.get(value) else { continue };
            let (storage, _) = self.result(whole);
            self.storage.insert(*value, storage);
            *place = Some(layout);
        }
    }

    /// Joins the operands of a node that does nothing else: copies those that are not yet stored in its result. One
    /// launch copies operands of one shape, as many as it can bind. `false` if the node does more.
    pub(super) fn assemble(&mut self, node: &Node) -> bool {
        let origin = |value: ValueId| self.uses.origin(value).value;
        let Some(most) = self.bindings else {
            // All operands are ranges of the result, or none is.
            let first = node.inputs.first().and_then(|&value| self.ranges.get(&origin(value)));
            return first.is_some_and(|(whole, _)| *whole == node.first);
        };
        let Some(layouts) = joined(self.graph, node, self.formats.of(node.first)) else { return false };
        let most = most.min(MOST) - 1;
        let (storage, _) = self.result(node.first);
        let left = node.inputs.iter().zip(layouts);
        let left = left.filter(|(value, _)| self.storage.get(&origin(**value)) != Some(&storage));
        let left: Vec<_> = left.map(|(&value, layout)| (self.graph.ty(value), value, layout)).collect();
        for alike in left.chunk_by(|(one, ..), (other, ..)| one == other).flat_map(|alike| alike.chunks(most)) {
            let (ty, format) = (alike[0].0, self.formats.of(node.first));
            let order = match format {
                Format::Full | Format::Bf16 => format,
                _ => Format::images(ty.shape).unwrap_or_default(),
            };
            let operand = |&(_, value, _): &(_, ValueId, _)| self.lines(value).unwrap_or_else(|| self.stored(value));
            let operands: Vec<_> = alike.iter().map(operand).collect();
            let copies = Program {
                order,
                results: (0..alike.len()).map(Input::Operand).collect(),
                formats: vec![format; alike.len()],
                places: alike.iter().map(|(.., layout)| Some(*layout)).collect(),
                ..Program::copy(ty.shape, Input::Operand(0))
            };
            self.step(Work::Pointwise(copies), operands, vec![(storage, ty); alike.len()]);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::Conv2dOptions;
    use crate::plan::{Plan, Request, Target};
    use crate::{Device, Result, Tape, Tensor, Var};

    type Recorded<'a> = &'a dyn Fn(&Var, &Var) -> Vec<Var>;

    /// The plan of a function of images `[n, 2, 3, 3]` and weights `[2, 2, 1, 1]`, for the CPU.
    fn planned(n: usize, f: impl Fn(&Var, &Var) -> Vec<Var>) -> Result<Plan> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [n, 2, 3, 3])?);
        let w = tape.input(&Tensor::zeros(&device, [2, 2, 1, 1])?);
        let outputs = f(&x, &w).iter().map(Var::id).collect::<Result<Vec<_>>>()?;
        tape.with_graph(|graph| Plan::new(&Request { graph, outputs: &outputs, assigns: &[] }, Target::Cpu))
    }

    fn convolved(x: &Var, w: &Var) -> Var {
        x.conv2d(w, Conv2dOptions::default())
    }

    /// The places of the results that are ranges of others; `None` if a step joins some.
    fn begins(plan: &Plan) -> Option<Vec<usize>> {
        let begins = plan.steps.iter().flat_map(|step| step.binding_offsets.iter().map(|&(_, begin)| begin));
        (!plan.to_string().contains("concat")).then(|| begins.collect())
    }

    #[test]
    fn native_steps_store_ranges_of_joined_results() -> Result<()> {
        let joined = |x: &Var, w: &Var| {
            let parts = [convolved(x, w), convolved(&x.flip(&[3]), w).tanh().reshape([x.shape()[0], 2, 9, 1]), x.cos()];
            let [a, b, c] = parts.map(|part| part.reshape(x.shape()));
            Var::concat(&[&a, &b, &c], 1).softmax(1)
        };
        let plan = planned(1, |x, w| vec![joined(x, w)])?;
        assert_eq!(begins(&plan).map(|begins| begins.len()), Some(3), "{plan}");
        let plan = planned(1, |x, w| vec![Var::concat(&[&convolved(x, w), &x.cos()], 1).softmax(1)])?;
        let mut found = begins(&plan).unwrap_or_default();
        found.sort_unstable();
        assert_eq!(found, [0, 18], "{plan}");
        // Channels of several images lie apart.
        assert_eq!(begins(&planned(2, |x, w| vec![joined(x, w)])?), None);
        let plan = planned(2, |x, w| vec![Var::concat(&[&convolved(x, w), &x.cos()], 0).softmax(1)])?;
        assert_eq!(begins(&plan).map(|begins| begins.len()), Some(2), "{plan}");
        Ok(())
    }

    #[test]
    fn values_that_are_wanted_or_read_elsewhere_are_joined_by_a_step() -> Result<()> {
        let join = |a: &Var, b: &Var| Var::concat(&[a, b], 1).softmax(1);
        let part_is_wanted = |x: &Var, w: &Var| {
            let y = convolved(x, w);
            vec![join(&y, &x.cos()), y]
        };
        let part_is_read = |x: &Var, w: &Var| {
            let y = convolved(x, w);
            vec![join(&y, &x.cos()) + y.sum()]
        };
        let twice = |x: &Var, w: &Var| {
            let y = convolved(x, w);
            vec![join(&y, &y)]
        };
        let whole_is_wanted = |x: &Var, w: &Var| vec![Var::concat(&[&convolved(x, w), &x.cos()], 1)];
        let leaf = |x: &Var, w: &Var| vec![join(&convolved(x, w), x)];
        // One step computes both.
        let together = |x: &Var, _: &Var| {
            let y = x.exp();
            vec![join(&y.cos(), &y.sin())]
        };
        let of_joined = |x: &Var, w: &Var| vec![join(&Var::concat(&[&convolved(x, w), x], 1), &x.cos())];
        let cases: [Recorded<'_>; 7] =
            [&part_is_wanted, &part_is_read, &twice, &whole_is_wanted, &leaf, &together, &of_joined];
        for (at, f) in cases.into_iter().enumerate() {
            let plan = planned(1, f)?;
            assert_eq!(begins(&plan), None, "case {at}: {plan}");
        }
        Ok(())
    }
}
