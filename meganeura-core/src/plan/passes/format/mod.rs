//! Decides which values are stored as bf16 ([`Format::Bf16`]), and in which order each step counts its elements.
//!
//! Kernels declare which operands and results they take as bf16. Those that gain from bf16, convolutions and large
//! products on matrix units, always read them. Other kernels follow their operands. A group of elementwise operations
//! follows its operands, or else its readers: it knows no axes, so all its elements have one order. `f32` in the order
//! of the API is kept for leaves and their new values, numbers of the host, results that only the caller wants, and the
//! operands and results of kernels without a bf16 form. `convert.rs` inserts conversions, one for each value.
//!
//! Rows that are no whole lines are padded with zeros, where a kernel reads or stores rows along the last axis. Other
//! bf16 in the order of the API is not padded.
//!
//! Ranks exchange bf16 where they may, where their GPUs are linked, and where a kernel stores the values by lines of
//! rows without padding. No value is converted for an exchange.

mod convert;
mod rounded;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

pub(super) use convert::{Converted, convert};

use super::fuse::Item;
use super::uses::{Origin, Read, Uses};
use crate::graph::{Node, Source, ValueId};
use crate::kernel::format::{Channels, lies_in_lines};
use crate::kernel::launch::{Caps, Format, LINE};
use crate::ops::{Bf16, Innermost, KernelOp, Op, Stores, View};
use crate::{DType, Layout, TensorType};

/// The format of every value, and the element order of every item.
pub(super) struct Formats {
    /// The storage format of each value that is not a view.
    values: Vec<Format>,
    /// The orders of each item of the schedule.
    orders: Vec<Orders>,
    /// For each item of the schedule, the operands and results of its kernel that are bf16.
    kernels: Vec<Option<Bf16>>,
}

/// The formats by which the elementwise work of an item counts elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Orders {
    /// Of the work that loads a kernel's operand.
    pub(super) load: Format,
    /// Of a group, or of the work that stores a kernel's result.
    pub(super) store: Format,
}

impl Formats {
    /// Every value in `f32`.
    pub(super) fn full(uses: &Uses<'_>, items: &[Item]) -> Self {
        let values = vec![Format::Full; uses.graph.values()];
        Self { values, orders: vec![Orders::default(); items.len()], kernels: vec![None; items.len()] }
    }

    /// Chooses formats. The new value of a leaf, one of `assigned`, is not rounded, because it accumulates from run to
    /// run. Neither are the values from which elementwise work computes it, such as a weight's gradient. With `all`,
    /// every capable kernel reads and stores bf16.
    pub(super) fn new(uses: &Uses<'_>, items: &[Item], assigned: &[ValueId], caps: &Caps, all: bool) -> Self {
        let mut formats = Self::full(uses, items);
        if !caps.bf16 {
            return formats;
        }
        let kept = added_up(uses, assigned);
        let kernels = items.iter().filter_map(|item| match item {
            Item::Kernel { node, .. } => {
                let bf16 = bf16(uses, *node, caps)?;
                // Nothing is stored as bf16 yet, so this takes operands for lines of rows.
                formats.reads_lines(uses, *node, &bf16).then_some((*node, bf16))
            }
            Item::Group(_) | Item::Convert(_) => None,
        });
        let mut kernels: HashMap<usize, Bf16> =
            kernels.map(|(node, bf16)| (node, Bf16 { wanted: bf16.wanted || all, ..bf16 })).collect();
        let wants = wants(uses, &kernels);
        let exchanged = if caps.linked { rounded::values(uses, items, &kept) } else { HashSet::new() };
        for (at, item) in items.iter().enumerate() {
            let (order, stores) = match item {
                Item::Group(group) => (formats.of_group(uses, group, &wants), Stores::Lines),
                Item::Kernel { node, load, .. } => {
                    for (value, sum) in rounded::sums(uses, *node) {
                        if exchanged.contains(&value) && formats.of(value) == Format::Bf16 {
                            formats.values[sum.index()] = formats.of(value);
                        }
                    }
                    let Some(bf16) = kernels.get_mut(node) else { continue };
                    formats.choose_order(uses, *node, bf16);
                    let mut others = uses.graph.nodes()[*node].outputs().skip(1).filter(|_| bf16.others);
                    if others.any(|value| kept.contains(&value)) {
                        continue;
                    }
                    (formats.of_kernel(uses, *node, bf16, load), bf16.stores)
                }
                Item::Convert(_) => unreachable!("conversions come after this"),
            };
            let Some(order) = order else { continue };
            // `true` if another item may read the value as bf16, or if ranks exchange it so. New values of leaves are
            // not rounded. Values that the caller wants are rounded only where a kernel gains from it.
            let is_bf16 = |value: ValueId, inside: &dyn Fn(usize) -> bool| {
                let is_wanted = uses.is_wanted(value);
                let may_read = |read: &&Read| {
                    let of_kernel = |bf16: &Bf16| bf16.operands.contains(&read.operand) && (bf16.wanted || !is_wanted);
                    uses.is_pointwise(read.node) && !is_wanted || kernels.get(&read.node).is_some_and(of_kernel)
                };
                let mut readers = uses.readers(value).iter().filter(may_read);
                let is_read = readers.any(|read| !inside(read.node)) && !kept.contains(&value);
                let is_exchanged = exchanged.contains(&value);
                match stores {
                    Stores::Full => false,
                    Stores::FullOrLines => is_exchanged || is_read && all,
                    Stores::Lines | Stores::Words => is_read || is_exchanged && order == Format::Bf16,
                }
            };
            let (node, group) = match item {
                Item::Group(group) => (None, &group[..]),
                Item::Kernel { node, store, .. } => (Some(*node), &store[..]),
                Item::Convert(_) => unreachable!("conversions come after this"),
            };
            let inside = |reader: usize| Some(reader) == node || group.binary_search(&reader).is_ok();
            let results = node.into_iter().chain(group.iter().copied()).map(|own| uses.graph.nodes()[own].first);
            let bf16 = results.filter(|&value| uses.graph.ty(value).dtype == DType::F32 && is_bf16(value, &inside));
            let bf16: Vec<_> = bf16.collect();
            if stores == Stores::Words && bf16.is_empty() {
                continue;
            }
            let stored = if stores == Stores::FullOrLines { Format::Bf16 } else { order };
            bf16.iter().for_each(|value| formats.values[value.index()] = stored);
            let store = match stores {
                Stores::Lines => order,
                Stores::FullOrLines if !bf16.is_empty() => Format::Bf16,
                Stores::Full | Stores::FullOrLines | Stores::Words => Format::Full,
            };
            let loads_bf16 = node.is_none_or(|node| {
                let loads = kernel_op(&uses.graph.nodes()[node]).and_then(KernelOp::loads);
                loads.is_none_or(|operand| kernels.get(&node).is_some_and(|bf16| bf16.operands.contains(&operand)))
            });
            formats.orders[at] = Orders { load: if loads_bf16 { order } else { Format::Full }, store };
            formats.kernels[at] = node.and_then(|node| kernels.get(&node).cloned());
            if let Some((node, _)) = node.and_then(|node| kernels.get_key_value(&node)).filter(|(_, bf16)| bf16.others)
            {
                let others = uses.graph.nodes()[*node].outputs().skip(1);
                others.for_each(|value| formats.values[value.index()] = Format::Bf16);
            }
        }
        formats
    }

    /// The storage format of a value that is not a view.
    pub(super) fn of(&self, value: ValueId) -> Format {
        self.values[value.index()]
    }

    pub(super) fn orders(&self, item: usize) -> Orders {
        self.orders[item]
    }

    pub(super) fn bf16(&self, item: usize) -> Option<&Bf16> {
        self.kernels[item].as_ref()
    }

    /// The format of a value that is stored in lines of bf16, entirely or as a range of channels of such a value; and
    /// the layout of its elements in the order of the memory, as [`Format::in_memory`]. The lines of a range may be
    /// parts of two lines each, and other channels may follow in the place of its padding. Or, where the value shows
    /// such memory in another order whose innermost axis has whole lines, the layout of its elements in its own order.
    pub(super) fn lines(&self, uses: &Uses<'_>, value: ValueId) -> Option<(Format, Layout)> {
        self.in_memory(uses, value).or_else(|| {
            let origin = uses.origin(value).value;
            let (behind, own) = (uses.graph.ty(origin).shape, uses.graph.ty(value).shape);
            let format = Some(self.of(origin)).filter(|format| format.is_bf16())?;
            let layout = uses.view_of(value, format.layout(behind)?)?;
            let is_along = layout.strides().last() == Some(&1) && own.dims().last()?.is_multiple_of(LINE);
            let own = Format::flat(own).filter(|_| is_along && lies_in_lines(&layout, Format::Bf16))?;
            Some((own, layout))
        })
    }

    fn in_memory(&self, uses: &Uses<'_>, value: ValueId) -> Option<(Format, Layout)> {
        let mut slices = Vec::new();
        let mut behind = value;
        while !uses.origin(behind).in_order {
            let node = uses.graph.maker(behind);
            match &node.source {
                Source::Op(Op::View(View::Slice { axis: 1, start, len }))
                    if Channels::of(node.types[0].shape).is_some() =>
                {
                    slices.push((uses.graph.ty(node.inputs[0]).shape, *start, *len));
                }
                Source::Op(Op::View(View::Detach | View::After)) => {}
                _ => return None,
            }
            behind = node.inputs[0];
        }
        let origin = uses.origin(behind).value;
        let mut format = self.of(origin);
        let mut layout = format.in_memory(uses.graph.ty(origin).shape.elements());
        for (from, start, len) in slices.into_iter().rev() {
            let channels = Channels::of(from).filter(|&channels| format == Format::ChannelsLast(channels))?;
            format = Format::ChannelsLast(Channels { channels: len, ..channels });
            layout = layout.slice(1, start, len.next_multiple_of(LINE));
        }
        format.is_bf16().then_some((format, layout))
    }

    fn held(&self, uses: &Uses<'_>, value: ValueId) -> Option<Format> {
        self.lines(uses, value).map(|(format, _)| format)
    }

    /// Takes the other order that a kernel offers, if an operand lies so, and none in the first order.
    fn choose_order(&self, uses: &Uses<'_>, node: usize, bf16: &mut Bf16) {
        let Some(otherwise) = bf16.otherwise else { return };
        let is_held = |innermost: Innermost| {
            bf16.operands.iter().any(|&k| {
                let input = uses.graph.nodes()[node].inputs[k];
                let format = innermost.format(uses.graph.ty(input).shape);
                format.is_some() && self.held(uses, input) == format
            })
        };
        if is_held(otherwise) && !is_held(bf16.innermost) {
            bf16.innermost = otherwise;
        }
    }

    fn of_kernel(&self, uses: &Uses<'_>, index: usize, bf16: &Bf16, load: &[usize]) -> Option<Format> {
        let &Bf16 { innermost, operands, stores, wanted, .. } = bf16;
        let node = &uses.graph.nodes()[index];
        let op = kernel_op(node)?;
        let ty = |k: usize| uses.graph.ty(node.inputs[k]);
        let where_they_lie = |k: usize| innermost == Innermost::Last && op.reads_strided(k);
        if !self.reads_lines(uses, index, bf16) {
            return None;
        }
        // Operands in `f32` that are not converted must lie in lines as they are.
        let is_left = |k: usize| {
            let input = node.inputs[k];
            let is_converted = wanted && uses.shows_most(input);
            let is_full = self.of(uses.origin(input).value) == Format::Full && !is_converted;
            is_full && !is_number(uses, input) && row_format(uses, input) != Some(Format::Bf16)
        };
        if operands.iter().any(|&k| where_they_lie(k) && is_left(k)) {
            return None;
        }
        let loads_bf16 = op.loads().is_some_and(|loads| operands.contains(&loads));
        // Only a kernel that reads strided operands takes lines in any order.
        let suits = |k: usize, format: Format| {
            let any = stores.in_order() && innermost == Innermost::Channels && op.reads_strided(k);
            any || Some(format) == innermost.format(ty(k).shape)
        };
        let loaded = || {
            let format = self.of_group(uses, load, &[]).filter(|_| loads_bf16)?;
            let suited = !stores.in_order() || op.loads().is_some_and(|k| suits(k, format));
            suited.then_some(format)
        };
        let held = |&k: &usize| {
            if where_they_lie(k) {
                let format = self.of(uses.origin(node.inputs[k]).value);
                return format.is_bf16().then_some(format);
            }
            let held = self.held(uses, node.inputs[k]);
            held.filter(|&held| suits(k, held))
        };
        let held = match innermost {
            // The statistics of the rows were computed from the first operand in its stored format.
            Innermost::Last | Innermost::Flat if !where_they_lie(operands[0]) => held(&operands[0]),
            _ => operands.iter().find_map(held).or_else(loaded),
        };
        // Images are always converted, matrices only where the kernel reads most of one.
        let shows_most = || operands.iter().any(|&k| uses.shows_most(node.inputs[k]));
        let wanted = wanted && (innermost == Innermost::Channels || shows_most());
        let order = match stores {
            Stores::Full | Stores::FullOrLines => held.or_else(|| innermost.format(ty(operands[0]).shape)),
            Stores::Lines | Stores::Words => innermost.format(node.types[0].shape),
        };
        let order = order.filter(|_| wanted || held.is_some())?;
        // Strides must be able to express the order of the elements that a program loads.
        let says = |k: usize| order.layout(ty(k).shape).is_some();
        op.loads().filter(|_| loads_bf16).is_none_or(says).then_some(order)
    }

    /// `true` if all operands that the kernel reads through views are stored in lines.
    fn reads_lines(&self, uses: &Uses<'_>, node: usize, bf16: &Bf16) -> bool {
        let node = &uses.graph.nodes()[node];
        let lies_so = |&k: &usize| {
            let reads_views = kernel_op(node).is_some_and(|op| op.reads_strided(k));
            // A cotangent that is a number, as that of a sum, is stored as such rows.
            let is_filled = bf16.others && is_number(uses, node.inputs[k]);
            let is_whole =
                || uses.graph.ty(node.inputs[k]).shape.dims().last().is_some_and(|len| len.is_multiple_of(LINE));
            !reads_views || is_filled && is_whole() || self.lies_in_lines(uses, node.inputs[k], bf16.turned)
        };
        bf16.innermost != Innermost::Last || bf16.operands.iter().all(lies_so)
    }

    /// `true` if a kernel can read lines of an operand through its views, converted or not; `turned` if they may lie
    /// along the axis before the last.
    fn lies_in_lines(&self, uses: &Uses<'_>, value: ValueId, turned: bool) -> bool {
        let origin = uses.origin(value).value;
        let format = match self.of(origin) {
            Format::Full => row_format(uses, value),
            format => Some(format).filter(|&format| is_in_lines(uses, value, format)),
        };
        let layout = format.and_then(|format| format.layout(uses.graph.ty(origin).shape));
        let is_along = |layout: Layout| turned || layout.strides().last() == Some(&1);
        !is_number(uses, value) && layout.and_then(|layout| uses.view_of(value, layout)).is_some_and(is_along)
    }

    fn of_group(&self, uses: &Uses<'_>, group: &[usize], wants: &[Format]) -> Option<Format> {
        let nodes = uses.graph.nodes();
        let elements = nodes[*group.first()?].types[0].shape.elements();
        let fits = |format: &Format| format.is_bf16() && format.fits(elements);
        let inputs = group.iter().flat_map(|&node| &nodes[node].inputs);
        let whole = inputs.filter(|input| uses.graph.ty(**input).shape.elements() == elements);
        let held = whole.filter_map(|&input| self.held(uses, input)).find(fits);
        held.or_else(|| group.iter().filter_map(|&node| wants.get(nodes[node].first.index()).copied()).find(fits))
    }
}

fn kernel_op(node: &Node) -> Option<&KernelOp> {
    match &node.source {
        Source::Op(Op::Kernel(op)) => Some(op),
        _ => None,
    }
}

/// `true` if a value is a number, which has no memory behind its views.
fn is_number(uses: &Uses<'_>, value: ValueId) -> bool {
    matches!(uses.graph.maker(uses.origin(value).value).source, Source::Const(_) | Source::Host(_))
}

/// `true` if a value is in lines where the memory behind its views has a format.
fn is_in_lines(uses: &Uses<'_>, value: ValueId, format: Format) -> bool {
    let behind = format.layout(uses.graph.ty(uses.origin(value).value).shape);
    let layout = behind.and_then(|behind| uses.view_of(value, behind));
    layout.is_some_and(|layout| lies_in_lines(&layout, format))
}

/// The format in which the memory behind a value's views can be stored so that the value is in lines: without padding
/// if that is possible, else with that of its own rows, or of the rows of the value behind.
fn row_format(uses: &Uses<'_>, value: ValueId) -> Option<Format> {
    let Origin { value: origin, in_order } = uses.origin(value);
    let shape = |value: ValueId| uses.graph.ty(value).shape;
    let own = if in_order { value } else { origin };
    let formats = [Format::flat(shape(origin)), Format::rows(shape(own))];
    formats.into_iter().flatten().find(|&format| is_in_lines(uses, value, format))
}

/// The operands and results that a kernel takes as bf16.
fn bf16(uses: &Uses<'_>, node: usize, caps: &Caps) -> Option<Bf16> {
    let node = &uses.graph.nodes()[node];
    let types: Vec<TensorType> = node.inputs.iter().map(|&input| uses.graph.ty(input)).collect();
    kernel_op(node)?.bf16(&types, &node.types, caps)
}

/// For each value, the format in which a kernel that gains from bf16 reads it, element by element.
fn wants(uses: &Uses<'_>, kernels: &HashMap<usize, Bf16>) -> Vec<Format> {
    let mut wants = vec![Format::Full; uses.graph.values()];
    for (&node, bf16) in kernels.iter().filter(|(_, bf16)| bf16.wanted) {
        for &operand in bf16.operands {
            let reader = &uses.graph.nodes()[node];
            let input = reader.inputs[operand];
            let Origin { value, in_order } = uses.origin(input);
            // Images are stored by the channels that this kernel sees, rows in the order of their producer.
            let format = match bf16.innermost {
                Innermost::Channels if in_order => Format::images(uses.graph.ty(input).shape),
                Innermost::Channels => None,
                Innermost::Last if kernel_op(reader).is_some_and(|op| op.reads_strided(operand)) => {
                    row_format(uses, input)
                }
                Innermost::Last if in_order => Format::rows(uses.graph.ty(input).shape),
                Innermost::Last => None,
                Innermost::Flat => Format::flat(uses.graph.ty(value).shape),
            };
            // The order of images, or the greatest of several, so that the sequence of nodes does not matter.
            let wanted = &mut wants[value.index()];
            *wanted = (*wanted).max(format.unwrap_or_default());
        }
    }
    wants
}

/// The assigned values, and all values from which elementwise work alone computes them.
fn added_up(uses: &Uses<'_>, assigned: &[ValueId]) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    let mut left: Vec<_> = assigned.iter().map(|&value| uses.origin(value).value).collect();
    while let Some(value) = left.pop() {
        let maker = uses.graph.maker_index(value);
        if found.insert(value) && uses.is_pointwise(maker) {
            left.extend(uses.graph.nodes()[maker].inputs.iter().map(|&input| uses.origin(input).value));
        }
    }
    found
}
