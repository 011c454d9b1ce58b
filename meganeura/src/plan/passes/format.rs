//! Decides which values are stored as halves ([`Format::Half`]), and in which order each step counts its elements.
//!
//! Kernels declare which operands and results they take as halves. Those that gain from halves, convolutions and large
//! products on matrix units, always read them. Other kernels follow their operands. A group of elementwise operations
//! follows its operands, or else its readers: it knows no axes, so all its elements have one order. `f32` in the order
//! of the API is kept for leaves and their new values, numbers of the host, results that only the caller wants, and the
//! operands and results of kernels without a halves form. Lowering inserts conversions for kernels, one for each value.
//!
//! A mean over ranks is computed from halves if it may be rounded, the GPUs are linked, and the kernel that computes the
//! values can store them so. No value is converted for it.

use std::collections::{HashMap, HashSet};

use super::fuse::Item;
use super::lower::added_up;
use super::uses::{Origin, Read, Uses};
use crate::graph::{Node, Source, ValueId};
use crate::kernel::launch::{Caps, Channels, Format, LINE, lies_in_lines};
use crate::ops::{Halves, Innermost, KernelOp, Op, Stores, View};
use crate::{DType, Layout, Shape, TensorType};

/// The format of every value, and the element order of every item.
pub(super) struct Formats {
    /// The storage format of each value that is not a view.
    values: Vec<Format>,
    /// For each item of the schedule, the position of the channels among the elements that it stores, or else loads;
    /// `None` if it counts them in the order of the API.
    orders: Vec<Option<Channels>>,
    /// For each item of the schedule, the operands and results of its kernel that are halves.
    kernels: Vec<Option<Halves>>,
}

impl Formats {
    /// Every value in `f32`.
    pub(super) fn full(uses: &Uses<'_>, items: &[Item]) -> Self {
        let values = vec![Format::Full; uses.graph.values()];
        Self { values, orders: vec![None; items.len()], kernels: vec![None; items.len()] }
    }

    /// Chooses formats. The new value of a leaf, one of `assigned`, is not rounded, because it accumulates from run to
    /// run. Neither are the values from which elementwise work computes it, such as a weight's gradient. With `all`,
    /// every capable kernel reads and stores halves.
    pub(super) fn new(uses: &Uses<'_>, items: &[Item], assigned: &[ValueId], caps: &Caps, all: bool) -> Self {
        let mut formats = Self::full(uses, items);
        if !caps.half {
            return formats;
        }
        let kept = added_up(uses, assigned);
        let kernels = items.iter().filter_map(|item| match item {
            Item::Kernel { node, .. } => {
                let halves = halves(uses, *node, caps)?;
                // Nothing is stored as halves yet, so this takes operands for lines of rows.
                formats.reads_lines(uses, *node, &halves).then_some((*node, halves))
            }
            Item::Group(_) => None,
        });
        let kernels: HashMap<usize, Halves> =
            kernels.map(|(node, halves)| (node, Halves { wanted: halves.wanted || all, ..halves })).collect();
        let wants = wants(uses, &kernels);
        let rounded =
            |item: &Item| if let Item::Kernel { node, .. } = item { rounded(uses, *node) } else { Vec::new() };
        let exchanged = items.iter().filter(|_| caps.linked).flat_map(rounded).map(|(value, _)| value);
        let exchanged: HashSet<ValueId> = exchanged.filter(|value| !kept.contains(value)).collect();
        for (at, item) in items.iter().enumerate() {
            let (order, stores) = match item {
                Item::Group(group) => (formats.of_group(uses, group, &wants), Stores::Lines),
                Item::Kernel { node, load, .. } => {
                    for (value, mean) in rounded(item) {
                        if exchanged.contains(&value) && formats.of(value) == Format::Half(Channels::ROWS) {
                            formats.values[mean.index()] = formats.of(value);
                        }
                    }
                    let Some(halves) = kernels.get(node) else { continue };
                    (formats.of_kernel(uses, *node, halves, load), halves.stores)
                }
            };
            let Some(channels) = order else { continue };
            // `true` if another item may read the value as halves. New values of leaves are not rounded. Values that
            // the caller wants are rounded only where a kernel gains from it.
            let is_read = |value: ValueId, inside: &dyn Fn(usize) -> bool| {
                let is_wanted = uses.is_wanted(value);
                let may_read = |read: &&Read| {
                    let of_kernel =
                        |halves: &Halves| halves.operands.contains(&read.operand) && (halves.wanted || !is_wanted);
                    uses.is_pointwise(read.node) && !is_wanted || kernels.get(&read.node).is_some_and(of_kernel)
                };
                let mut readers = uses.readers(value).iter().filter(may_read);
                let is_read = readers.any(|read| !inside(read.node));
                match stores {
                    Stores::Full => false,
                    Stores::Rows => exchanged.contains(&value) || all && is_read && !kept.contains(&value),
                    _ => !kept.contains(&value) && is_read || channels == Channels::ROWS && exchanged.contains(&value),
                }
            };
            let (node, group) = match item {
                Item::Group(group) => (None, &group[..]),
                Item::Kernel { node, store, .. } => (Some(*node), &store[..]),
            };
            let inside = |reader: usize| Some(reader) == node || group.binary_search(&reader).is_ok();
            let results = node.into_iter().chain(group.iter().copied()).map(|own| uses.graph.nodes()[own].first);
            let halves = results.filter(|&value| uses.graph.ty(value).dtype == DType::F32 && is_read(value, &inside));
            let halves: Vec<_> = halves.collect();
            if stores == Stores::Words && halves.is_empty() {
                continue;
            }
            let channels = if stores == Stores::Rows { Channels::ROWS } else { channels };
            halves.iter().for_each(|value| formats.values[value.index()] = Format::Half(channels));
            formats.orders[at] = order;
            formats.kernels[at] = node.and_then(|node| kernels.get(&node).cloned());
        }
        formats
    }

    /// The storage format of a value that is not a view.
    pub(super) fn of(&self, value: ValueId) -> Format {
        self.values[value.index()]
    }

    pub(super) fn order(&self, item: usize) -> Option<Channels> {
        self.orders[item]
    }

    pub(super) fn halves(&self, item: usize) -> Option<&Halves> {
        self.kernels[item].as_ref()
    }

    /// The channels of a value that is stored in lines of halves, entirely or as a range of channels of such a value;
    /// and the layout of its elements, pixel after pixel.
    pub(super) fn lines(&self, uses: &Uses<'_>, value: ValueId) -> Option<(Channels, Layout)> {
        let mut slices = Vec::new();
        let mut behind = value;
        while !uses.origin(behind).in_order {
            let node = uses.graph.maker(behind);
            match &node.source {
                Source::Op(Op::View(View::Slice { axis: 1, start, len }))
                    if start.is_multiple_of(LINE) && len.is_multiple_of(LINE) =>
                {
                    slices.push((uses.graph.ty(node.inputs[0]).shape, *start, *len));
                }
                Source::Op(Op::View(View::Detach | View::After)) => {}
                _ => return None,
            }
            behind = node.inputs[0];
        }
        let origin = uses.origin(behind).value;
        let mut channels = self.of(origin).channels()?;
        let pixels = uses.graph.ty(origin).shape.elements() / channels.channels;
        let mut layout = Layout::contiguous(Shape::from([pixels, channels.channels]));
        for (from, start, len) in slices.into_iter().rev() {
            if Channels::of(from) != Some(channels) {
                return None;
            }
            (channels, layout) = (Channels { channels: len, ..channels }, layout.slice(1, start, len));
        }
        Some((channels, layout))
    }

    fn channels(&self, uses: &Uses<'_>, value: ValueId) -> Option<Channels> {
        self.lines(uses, value).map(|(channels, _)| channels)
    }

    fn of_kernel(&self, uses: &Uses<'_>, index: usize, halves: &Halves, load: &[usize]) -> Option<Channels> {
        let &Halves { innermost, operands, stores, wanted } = halves;
        let node = &uses.graph.nodes()[index];
        let op = op(node)?;
        let ty = |k: usize| uses.graph.ty(node.inputs[k]);
        let where_they_lie = |k: usize| innermost == Innermost::Last && op.reads_strided(k);
        if !self.reads_lines(uses, index, halves) {
            return None;
        }
        let loaded = || self.of_group(uses, load, &[]);
        let held = |&k: &usize| {
            if where_they_lie(k) {
                return self.of(uses.origin(node.inputs[k]).value).channels();
            }
            let held = self.channels(uses, node.inputs[k]);
            held.filter(|&held| stores.in_order() || Some(held) == innermost.order(ty(k).shape))
        };
        let held = match innermost {
            // The statistics of the rows were computed from the first operand in its stored format.
            Innermost::Last if !where_they_lie(operands[0]) => held(&operands[0]),
            _ => operands.iter().find_map(held).or_else(loaded),
        };
        // Images are always converted, matrices only where the kernel reads most of one.
        let shows_most = || operands.iter().any(|&k| uses.shows_most(node.inputs[k]));
        let wanted = wanted && (innermost == Innermost::Channels || shows_most());
        let order = match stores {
            Stores::Full | Stores::Rows => held.or_else(|| innermost.order(ty(operands[0]).shape)),
            Stores::Lines | Stores::Words => innermost.order(node.types[0].shape),
        };
        let order = order.filter(|_| wanted || held.is_some())?;
        // Strides must be able to express the order of the elements that a program loads.
        let says = |k: usize| order.layout(ty(k).shape).is_some();
        op.loads().is_none_or(says).then_some(order)
    }

    /// `true` if all operands that the kernel reads through views are stored in lines.
    fn reads_lines(&self, uses: &Uses<'_>, node: usize, halves: &Halves) -> bool {
        let node = &uses.graph.nodes()[node];
        let lies_so = |&k: &usize| {
            let reads_views = op(node).is_some_and(|op| op.reads_strided(k));
            !reads_views || self.lies_in_lines(uses, node.inputs[k])
        };
        halves.innermost != Innermost::Last || halves.operands.iter().all(lies_so)
    }

    /// `true` if a kernel can read lines of an operand through its views, converted or not.
    fn lies_in_lines(&self, uses: &Uses<'_>, value: ValueId) -> bool {
        let origin = uses.origin(value).value;
        let shape = uses.graph.ty(origin).shape;
        let order = self.of(origin).channels().or_else(|| Innermost::Last.order(shape));
        let layout = order.and_then(|order| order.layout(shape)).and_then(|layout| uses.view_of(value, layout));
        let is_number = matches!(uses.graph.maker(origin).source, Source::Const(_) | Source::Host(_));
        !is_number && layout.is_some_and(|layout| lies_in_lines(&layout))
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

/// The values that ranks may exchange as halves in a node, each with its mean.
fn rounded(uses: &Uses<'_>, node: usize) -> Vec<(ValueId, ValueId)> {
    let node = &uses.graph.nodes()[node];
    if op(node).and_then(KernelOp::meets).is_none_or(|exchange| !exchange.rounded) {
        return Vec::new();
    }
    let may = |(&input, mean): (&ValueId, ValueId)| {
        let Origin { value, in_order } = uses.origin(input);
        (in_order && !uses.is_wanted(mean)).then_some((value, mean))
    };
    node.inputs.iter().zip(node.outputs()).filter_map(may).collect()
}

/// The operands and results that a kernel takes as halves.
fn halves(uses: &Uses<'_>, node: usize, caps: &Caps) -> Option<Halves> {
    let node = &uses.graph.nodes()[node];
    let types: Vec<TensorType> = node.inputs.iter().map(|&input| uses.graph.ty(input)).collect();
    op(node)?.halves(&types, &node.types, caps)
}

/// For each value, the channels by which a kernel that gains from halves reads it, element by element.
fn wants(uses: &Uses<'_>, kernels: &HashMap<usize, Halves>) -> Vec<Option<Channels>> {
    let mut wants = vec![None; uses.graph.values()];
    for (&node, halves) in kernels.iter().filter(|(_, halves)| halves.wanted) {
        for &operand in halves.operands {
            let input = uses.graph.nodes()[node].inputs[operand];
            let Origin { value, in_order } = uses.origin(input);
            // Images are stored by the channels that this kernel sees, rows in the order of their producer.
            let order = match halves.innermost {
                Innermost::Channels if in_order => Innermost::Channels.order(uses.graph.ty(input).shape),
                Innermost::Channels => None,
                Innermost::Last => Innermost::Last.order(uses.graph.ty(value).shape),
            };
            // The order of images, or the greatest of several, so that the sequence of nodes does not matter.
            let wanted = &mut wants[value.index()];
            *wanted = (*wanted).max(order);
        }
    }
    wants
}

#[cfg(test)]
mod tests {
    use crate::kernel::launch::{Caps, Format};
    use crate::ops::Conv2dOptions;
    use crate::plan::{Place, Plan, Preferences, Request, Target};
    use crate::{Device, Result, Tape, Tensor, Var};

    #[test]
    fn new_values_of_leaves_are_not_rounded() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let image = tape.input(&Tensor::zeros(&device, [8, 16, 6, 6])?);
        let weight = tape.input(&Tensor::zeros(&device, [16, 16, 3, 3])?);
        // A leaf that is read as halves, updated, and read as halves again.
        let updated = &image - convolved(&image, &weight) * 0.1;
        let outputs = [convolved(&updated, &weight).id()?];
        let assigns = [(0, updated.id()?)];
        let caps = Caps { matrix: true, half: true, ..Caps::DISCRETE };
        let plan = tape.with_graph(|graph| {
            let request = Request { graph, outputs: &outputs, assigns: &assigns };
            Plan::new(&request, Target::Gpu { caps, preferences: &Preferences::default() })
        })?;
        let is_leaf = |storage: usize| plan.storages[storage].place == Place::Leaf(0);
        let update = plan.steps.iter().find(|step| step.outputs.iter().any(|&(storage, _)| is_leaf(storage)));
        let update = update.expect("a step writes the leaf");
        assert!(update.inputs.iter().any(|input| is_leaf(input.storage)), "{plan}");
        Ok(())
    }

    /// The plan of a large GPU with matrix units for the gradients of a recording on images `[8, 16, 6, 6]` and
    /// weights.
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
    fn only_the_input_is_converted_if_all_values_can_be_halves() -> Result<()> {
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
    fn reshaped_images_are_stored_by_the_channels_of_the_convolution() -> Result<()> {
        let flat = planned(|x, w| convolved(&x.reshape([8, 576]).relu().reshape([8, 16, 6, 6]), &w[0]))?;
        assert_eq!(conversions(&flat), 0, "{flat}");
        Ok(())
    }

    #[test]
    fn a_convolution_of_images_with_few_channels_stores_halves() -> Result<()> {
        let colours =
            planned(|x, w| convolved(&convolved(&x.slice(1, 0..3), &w[0].slice(1, 0..3)).silu(), &w[1]).silu())?;
        let images = |ty: &crate::TensorType| ty.shape.rank() == 4 && ty.shape[1] >= 8 && ty.shape[2] == 6;
        let results: Vec<_> =
            colours.steps.iter().flat_map(|step| &step.outputs).filter(|(_, ty)| images(ty)).collect();
        assert!(results.len() >= 4, "{colours}");
        for (storage, ty) in results {
            assert_ne!(colours.storages[*storage].format, Format::Full, "{ty}: {colours}");
        }
        Ok(())
    }

    #[test]
    fn values_without_readers_of_halves_stay_f32() -> Result<()> {
        let padded = planned(|x, w| convolved(x, &w[0]).pad(&[(0, 0), (0, 0), (1, 0), (0, 1)], 0.0))?;
        let images = padded.steps.iter().filter(|step| step.outputs.iter().any(|(_, ty)| ty.shape.rank() == 4));
        let stored = images.flat_map(|step| &step.outputs).filter(|(s, _)| padded.storages[*s].format != Format::Full);
        // Two conversions: of the input, and of the cotangent for the product that reads both.
        assert_eq!((stored.count(), conversions(&padded)), (2, 2), "{padded}");
        Ok(())
    }

    #[test]
    fn kernels_that_need_f32_get_f32() -> Result<()> {
        // Two conversions: of the input, and of `y`, once for both pads. The gradients of the pads are elementwise and
        // read the stored `f32`.
        let padded = planned(|x, w| {
            let y = convolved(x, &w[0]).relu();
            let pad = |value| y.pad(&[(0, 0), (0, 0), (1, 0), (0, 1)], value);
            pad(0.0) + pad(1.0)
        })?;
        assert_eq!(conversions(&padded), 2, "{padded}");
        Ok(())
    }

    #[test]
    fn pooling_and_resampling_read_and_store_halves() -> Result<()> {
        let pooled = planned(|x, w| {
            let y = convolved(x, &w[0]).relu();
            let small = y.max_pool2d([2, 2], [2, 2], [0, 0], [1, 1]) + y.avg_pool2d([2, 2], [2, 2], [0, 0], false);
            small.resize_bilinear([5, 7], true)
        })?;
        // Only the input is converted.
        assert_eq!(conversions(&pooled), 1, "{pooled}");
        let launched: Vec<_> = pooled.launched().filter(|launched| launched.variant == "lines").collect();
        assert_eq!(launched.len(), 6, "{pooled}");
        Ok(())
    }

    /// The plan of a large GPU with matrix units for values that `f` computes from matrices of these shapes.
    fn of_matrices(shapes: &[&[usize]], f: impl Fn(&[Var]) -> Result<Vec<Var>>) -> Result<Plan> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let input = |shape: &&[usize]| Ok(tape.input(&Tensor::zeros(&device, crate::Shape::new(shape))?));
        let outputs = f(&shapes.iter().map(input).collect::<Result<Vec<_>>>()?)?;
        let outputs = outputs.iter().map(Var::id).collect::<Result<Vec<_>>>()?;
        let caps = Caps { matrix: true, half: true, ..Caps::DISCRETE };
        let preferences = Preferences::default();
        tape.with_graph(|graph| {
            let request = Request { graph, outputs: &outputs, assigns: &[] };
            Plan::new(&request, Target::Gpu { caps, preferences: &preferences })
        })
    }

    fn launches(plan: &Plan, kernel: &str) -> usize {
        plan.launched().filter(|launched| launched.kernel == kernel).count()
    }

    #[test]
    fn products_read_halves_through_views_and_convert_each_weight_once() -> Result<()> {
        let plan = of_matrices(&[&[1024, 512], &[512, 512], &[512, 512]], |x| {
            let y = x[0].matmul(&x[1].t()).relu().matmul(&x[2].t());
            let grads = x[0].tape().backward(&y.square().sum())?;
            Ok([1, 2].iter().filter_map(|&k| grads.of(&x[k])).collect())
        })?;
        // Two products forward; backward, one for the hidden cotangent and one for each weight. The three leaves are
        // converted.
        assert_eq!((launches(&plan, "matmul_halves"), launches(&plan, "gemm")), (5, 0), "{plan}");
        let converted = plan.steps.iter().filter(|step| step.outputs.iter().all(|(s, _)| is_copy(&plan, *s)));
        assert_eq!(converted.count(), 3, "{plan}");
        Ok(())
    }

    /// `true` if a storage is a copy of a leaf as halves.
    fn is_copy(plan: &Plan, storage: usize) -> bool {
        let made = plan.steps.iter().find(|step| step.outputs.iter().any(|&(made, _)| made == storage));
        let of_leaf = |input: &crate::plan::Operand| matches!(plan.storages[input.storage].place, Place::Leaf(_));
        plan.storages[storage].format != Format::Full && made.is_some_and(|step| step.inputs.iter().all(of_leaf))
    }

    #[test]
    fn the_gradient_of_a_weight_is_not_rounded() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let [x, w, dy] = [0, 1, 2].map(|_| Tensor::zeros(&device, [1024, 1024]).map(|zeros| tape.input(&zeros)));
        let (x, w, dy) = (x?, w?, dy?);
        // The gradient is clipped by its norm, so it is stored before it is used.
        let gradient = dy.t().matmul(&x);
        let norm = gradient.square().sum();
        let updated = &w - &gradient / norm.expand([1024, 1024]);
        let assigns = [(1, updated.id()?)];
        let caps = Caps { matrix: true, half: true, ..Caps::DISCRETE };
        let plan = tape.with_graph(|graph| {
            let request = Request { graph, outputs: &[], assigns: &assigns };
            Plan::new(&request, Target::Gpu { caps, preferences: &Preferences::default() })
        })?;
        let product =
            plan.steps.iter().find(|step| step.launches.iter().any(|launch| launch.kernel == "matmul_halves"));
        let (storage, _) = product.expect("it is large").outputs[0];
        assert_eq!(plan.storages[storage].format, Format::Full, "{plan}");
        Ok(())
    }

    #[test]
    fn attention_stays_in_halves() -> Result<()> {
        let plan = of_matrices(&[&[4, 256, 512], &[512, 1536]], |x| {
            let heads = |part: usize, qkv: &Var| {
                qkv.slice(2, 512 * part..512 * (part + 1)).reshape([4, 256, 8, 64]).permute(&[0, 2, 1, 3])
            };
            let qkv = x[0].matmul(&x[1]);
            let [q, k, v] = [0, 1, 2].map(|part| heads(part, &qkv));
            Ok(vec![q.matmul(&k.t()).scale(0.125).softmax(3).matmul(&v).square()])
        })?;
        assert_eq!((launches(&plan, "matmul_halves"), launches(&plan, "gemm")), (3, 0), "{plan}");
        let softmax = plan.launched().find(|launched| launched.kernel == "softmax").expect("there is one");
        assert_eq!(softmax.variant, "lines", "{plan}");
        Ok(())
    }

    #[test]
    fn a_gradient_that_the_caller_wants_is_not_rounded() -> Result<()> {
        let plan = of_matrices(&[&[1024, 512], &[1024, 512]], |x| {
            let gradient = x[0].t().matmul(&x[1]);
            let norm = gradient.square().sum();
            Ok(vec![gradient, norm])
        })?;
        assert_eq!(launches(&plan, "matmul_halves"), 1, "{plan}");
        assert_eq!(plan.storages[plan.outputs[0]].format, Format::Full);
        let made = plan.steps.iter().find(|step| step.outputs[0].0 == plan.outputs[0]).expect("a step makes it");
        assert!(made.launches[0].kernel == "matmul_halves", "{plan}");
        Ok(())
    }

    #[test]
    fn a_slice_is_read_without_converting_its_whole_leaf() -> Result<()> {
        let plan = of_matrices(&[&[16_384, 512], &[512, 512]], |x| Ok(vec![x[0].slice(0, 0..1024).matmul(&x[1])]))?;
        assert_eq!(launches(&plan, "matmul_halves"), 1, "{plan}");
        assert!(plan.storages.iter().all(|s| s.format == Format::Full || s.elements == 512 * 512), "{plan}");
        Ok(())
    }

    #[test]
    fn unaligned_operands_are_multiplied_in_f32() -> Result<()> {
        let plan = of_matrices(&[&[1024, 1024], &[1024, 1027]], |x| Ok(vec![x[0].matmul(&x[1].slice(1, 3..1027))]))?;
        assert_eq!((launches(&plan, "matmul_halves"), launches(&plan, "gemm")), (0, 1), "{plan}");
        Ok(())
    }
}
