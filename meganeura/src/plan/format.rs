//! Pass for GPUs, after merging: decides which values lie in memory as halves, with channels innermost ([`Format::Half`]), and in which
//! order each step counts its elements.
//!
//! Kernels say what they read and store so. Those that gain from it, the products of convolutions, always do. Other kernels follow
//! what they read, and a group of elementwise operations follows its operands, or else its readers: its elements all lie in one
//! order, since it knows no axes. What is wanted outside, leaves, numbers of the host, and whatever a kernel without such a form reads
//! or makes is `f32` in the order of the API. Lowering converts where the two meet, each value once.

use super::fuse::Item;
use super::uses::{Origin, Read, Uses};
use crate::graph::{Node, Source, ValueId};
use crate::kernel::launch::{Caps, Channels, Format, LINE};
use crate::ops::{Halves, KernelOp, Op, Stores, View};
use crate::{DType, Layout, Shape, TensorType};

/// What lies how.
pub(super) struct Formats {
    /// By value: how its memory holds it, unless it is a view.
    values: Vec<Format>,
    /// By item of the schedule: where the channels of the elements are that it stores, or else loads, if it counts those in the order
    /// of [`Format::Half`].
    orders: Vec<Option<Channels>>,
    /// By item of the schedule: what of a kernel lies in halves.
    kernels: Vec<Option<Halves>>,
}

impl Formats {
    /// All in `f32`.
    pub(super) fn full(uses: &Uses<'_>, items: &[Item]) -> Self {
        let values = vec![Format::Full; uses.graph.values()];
        Self { values, orders: vec![None; items.len()], kernels: vec![None; items.len()] }
    }

    /// With `all`, every kernel that can reads and stores halves.
    pub(super) fn new(uses: &Uses<'_>, items: &[Item], caps: &Caps, all: bool) -> Self {
        let mut formats = Self::full(uses, items);
        if !caps.half {
            return formats;
        }
        let halves_of = |node| halves(uses, node, caps).map(|halves| Halves { wanted: halves.wanted || all, ..halves });
        let wants = wants(uses, items, halves_of);
        for (at, item) in items.iter().enumerate() {
            match item {
                Item::Group(group) => {
                    formats.orders[at] = formats.of_group(uses, group, &wants);
                    formats.store(uses, item, formats.orders[at], halves_of);
                }
                Item::Kernel { node, load, .. } => {
                    let Some(halves) = halves_of(*node) else { continue };
                    formats.orders[at] = formats.of_kernel(uses, *node, &halves, load);
                    match halves.stores {
                        Stores::Full => {}
                        Stores::Lines => formats.store(uses, item, formats.orders[at], halves_of),
                        Stores::Words => {
                            formats.values[uses.graph.nodes()[*node].first.index()] =
                                formats.orders[at].map_or(Format::Full, Format::Half);
                        }
                    }
                    formats.kernels[at] = formats.orders[at].and(Some(halves));
                }
            }
        }
        formats
    }

    /// How a value that is no view is held.
    pub(super) fn of(&self, value: ValueId) -> Format {
        self.values[value.index()]
    }

    pub(super) fn order(&self, item: usize) -> Option<Channels> {
        self.orders[item]
    }

    pub(super) fn halves(&self, item: usize) -> Option<&Halves> {
        self.kernels[item].as_ref()
    }

    /// Notes which results of an item are stored as halves: `f32`s that another item reads, which may read them so. What the caller
    /// alone wants is not rounded.
    fn store(
        &mut self,
        uses: &Uses<'_>,
        item: &Item,
        channels: Option<Channels>,
        halves: impl Fn(usize) -> Option<Halves>,
    ) {
        let Some(channels) = channels else { return };
        let (node, group) = match item {
            Item::Group(group) => (None, group),
            Item::Kernel { node, store, .. } => (Some(*node), store),
        };
        for own in node.into_iter().chain(group.iter().copied()) {
            let first = uses.graph.nodes()[own].first;
            let is_outside = |reader: usize| Some(reader) != node && group.binary_search(&reader).is_err();
            let may_read = |read: &&Read| {
                uses.is_pointwise(read.node)
                    || halves(read.node).is_some_and(|halves| halves.operands.contains(&read.operand))
            };
            let is_read = uses.readers(first).iter().filter(may_read).any(|read| is_outside(read.node));
            if is_read && uses.graph.ty(first).dtype == DType::F32 {
                self.values[first.index()] = Format::Half(channels);
            }
        }
    }

    /// The channels of a value that lies in memory in lines of halves, as a whole or as some channels of what is held so; and where its
    /// elements are, pixel after pixel.
    pub(super) fn lines(&self, uses: &Uses<'_>, value: ValueId) -> Option<(Channels, Layout)> {
        let Origin { value: origin, in_order } = uses.origin(value);
        if in_order {
            let channels = self.of(origin).channels()?;
            let pixels = uses.graph.ty(origin).shape.elements() / channels.channels;
            return Some((channels, Layout::contiguous(Shape::from([pixels, channels.channels]))));
        }
        let node = uses.graph.maker(value);
        let Source::Op(Op::View(view)) = &node.source else { return None };
        let (channels, layout) = self.lines(uses, node.inputs[0])?;
        match *view {
            View::Slice { axis: 1, start, len } => {
                let whole = Channels::of(uses.graph.ty(node.inputs[0]).shape) == Some(channels);
                let by_lines = start.is_multiple_of(LINE) && len.is_multiple_of(LINE);
                (whole && by_lines).then(|| (Channels { channels: len, ..channels }, layout.slice(1, start, len)))
            }
            View::Detach => Some((channels, layout)),
            _ => None,
        }
    }

    fn channels(&self, uses: &Uses<'_>, value: ValueId) -> Option<Channels> {
        self.lines(uses, value).map(|(channels, _)| channels)
    }

    fn of_kernel(&self, uses: &Uses<'_>, node: usize, halves: &Halves, load: &[usize]) -> Option<Channels> {
        let &Halves { operands, stores, wanted } = halves;
        let node = &uses.graph.nodes()[node];
        let ty = |k: usize| uses.graph.ty(node.inputs[k]);
        let loaded = || self.of_group(uses, load, &[]);
        let held = operands.iter().find_map(|&k| self.channels(uses, node.inputs[k])).or_else(loaded);
        let order = match stores {
            Stores::Full => held.or_else(|| Channels::of(ty(operands[0]).shape)),
            Stores::Lines | Stores::Words => Channels::of(node.types[0].shape),
        };
        let order = order.filter(|_| wanted || held.is_some())?;
        // The order of what a program loads must be one that strides can say.
        let says = |k: usize| order.layout(ty(k).shape).is_some();
        op(node).is_none_or(|op| op.loads().is_none_or(says)).then_some(order)
    }

    fn of_group(&self, uses: &Uses<'_>, group: &[usize], wants: &[Option<Channels>]) -> Option<Channels> {
        let nodes = uses.graph.nodes();
        let elements = nodes[*group.first()?].types[0].shape.elements();
        let fits = |channels: &Channels| elements.is_multiple_of(channels.channels * channels.pixels);
        let inputs = group.iter().flat_map(|&node| &nodes[node].inputs);
        let whole = inputs.filter(|input| uses.graph.ty(**input).shape.elements() == elements);
        let held = whole.filter_map(|&input| self.channels(uses, input)).find(fits);
        held.or_else(|| group.iter().filter_map(|&node| *wants.get(nodes[node].first.index())?).find(fits))
    }
}

fn op(node: &Node) -> Option<&KernelOp> {
    match &node.source {
        Source::Op(Op::Kernel(op)) => Some(op),
        _ => None,
    }
}

/// The part that halves play in a kernel.
fn halves(uses: &Uses<'_>, node: usize, caps: &Caps) -> Option<Halves> {
    let node = &uses.graph.nodes()[node];
    let types: Vec<TensorType> = node.inputs.iter().map(|&input| uses.graph.ty(input)).collect();
    op(node)?.halves(&types, &node.types, caps)
}

/// By value: the channels by which a kernel that gains from halves reads it, element by element.
fn wants(uses: &Uses<'_>, items: &[Item], halves: impl Fn(usize) -> Option<Halves>) -> Vec<Option<Channels>> {
    let mut wants = vec![None; uses.graph.values()];
    for item in items {
        let Item::Kernel { node, .. } = item else { continue };
        let Some(Halves { operands, wanted: true, .. }) = halves(*node) else { continue };
        for &operand in operands {
            let input = uses.graph.nodes()[*node].inputs[operand];
            let Origin { value, in_order } = uses.origin(input);
            if in_order {
                wants[value.index()] = Channels::of(uses.graph.ty(input).shape);
            }
        }
    }
    wants
}

#[cfg(test)]
mod tests {
    use crate::kernel::launch::{Caps, Format};
    use crate::ops::Conv2dOptions;
    use crate::plan::{Plan, Preferences, Request, Target};
    use crate::{Device, Result, Tape, Tensor, Var};

    /// The plan of a large GPU with matrix units for the gradients of what is recorded on images `[8, 16, 6, 6]` and weights.
    fn planned(f: impl Fn(&Var, &[Var]) -> Var) -> Result<Plan> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let image = tape.input(&Tensor::zeros(&device, [8, 16, 6, 6])?);
        let weights = [[24, 16, 3, 3], [40, 24, 3, 3], [16, 48, 3, 3]];
        let weights =
            weights.iter().map(|&shape| Ok(tape.input(&Tensor::zeros(&device, shape)?))).collect::<Result<Vec<_>>>()?;
        let grads = tape.backward(&f(&image, &weights).square().sum())?;
        let outputs =
            weights.iter().filter_map(|weight| grads.of(weight)).map(|dw| dw.id()).collect::<Result<Vec<_>>>()?;
        let caps = Caps { matrix: true, half: true, ..Caps::DISCRETE };
        let preferences = Preferences::default();
        tape.with_graph(|graph| {
            let request = Request { graph, outputs: &outputs, assigns: &[] };
            Plan::new(&request, Target::Gpu { caps, preferences: &preferences })
        })
    }

    fn conversions(plan: &Plan) -> usize {
        plan.launched().filter(|launched| launched.kernel == "convert").count()
    }

    fn convolved(x: &Var, w: &Var) -> Var {
        x.conv2d(w, Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() })
    }

    #[test]
    fn the_input_alone_is_converted_where_all_can_be_halves() -> Result<()> {
        let chain = planned(|x, w| convolved(&convolved(x, &w[0]).silu(), &w[1]))?;
        assert_eq!(conversions(&chain), 1, "{chain}");
        let images = |ty: &crate::TensorType| ty.shape.rank() == 4 && ty.shape[2] * ty.shape[3] == 36;
        let results = chain.steps.iter().flat_map(|step| &step.outputs).filter(|(_, ty)| images(ty));
        for (storage, ty) in results {
            assert_ne!(chain.storages[*storage].format, Format::Full, "{ty}: {chain}");
        }
        Ok(())
    }

    #[test]
    fn channels_side_by_side_and_parts_of_them_stay_halves() -> Result<()> {
        let sides = planned(|x, w| {
            let y = convolved(x, &w[0]).relu();
            convolved(&Var::concat(&[&y, &y.sigmoid()], 1), &w[2])
        })?;
        assert_eq!(conversions(&sides), 1, "{sides}");
        Ok(())
    }

    #[test]
    fn what_nobody_can_read_as_halves_is_none() -> Result<()> {
        let pooled = planned(|x, w| convolved(x, &w[0]).max_pool2d([2, 2], [2, 2], [0, 0], [1, 1]))?;
        let images = pooled.steps.iter().filter(|step| step.outputs.iter().any(|(_, ty)| ty.shape.rank() == 4));
        let stored = images.flat_map(|step| &step.outputs).filter(|(s, _)| pooled.storages[*s].format != Format::Full);
        // The input and the cotangent of the product that reads both, converted.
        assert_eq!((stored.count(), conversions(&pooled)), (2, 2), "{pooled}");
        Ok(())
    }

    #[test]
    fn what_knows_f32_alone_gets_it() -> Result<()> {
        // Converted once for all that reads it so, and the gradient once in the other direction.
        let pooled = planned(|x, w| {
            let y = convolved(x, &w[0]).relu();
            y.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1]) + y.avg_pool2d([2, 2], [2, 2], [0, 0], false)
        })?;
        assert_eq!(conversions(&pooled), 3, "{pooled}");
        Ok(())
    }
}
