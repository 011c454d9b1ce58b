//! The reverse sweep: appends gradient operations to the tape, and accumulates the contributions to each cotangent.
//!
//! It names no operation: rules come from `functions::rule`. Un-broadcasting is the gradient rule of the broadcasting
//! view.
//!
//! The sweep goes only where gradients are wanted. In a backward pass those are trained parameters, and values that the
//! caller holds. The sweep stops at a frozen part of a model, unless the caller holds its input.
//!
//! Some operations can recompute their result elementwise, from their operands and small results. The rules of
//! elementwise operations get the recomputed value: it is fused into their work and costs arithmetic, where the
//! original would cost memory. Other rules get the original.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::outer::OuterProduct;
use super::parts::{is_part, sum_of_parts};
use crate::functions::rule;
use crate::graph::{Operands, Source, ValueId};
use crate::ops::Op;
use crate::tape::{Region, Tape, Var};
use crate::{Error, ErrorKind, Result};

/// Propagates cotangents from the seeds, pairs of a value and its cotangent, to the `wanted` values, through nodes
/// number `first` and higher. Returns the cotangents of all values on the way.
pub(super) fn sweep(
    tape: &Tape,
    first: usize,
    seeds: &[(ValueId, ValueId)],
    mut wanted: Vec<bool>,
) -> Result<HashMap<ValueId, ValueId>> {
    // Cotangents are bare names of values, and rules may record nodes and run the tape.
    let pin = tape.pin();
    let open = tape.interrupt_region();
    let last = tape.with_graph(|graph| seeds.iter().map(|&(value, _)| graph.maker_index(value)).max());
    let nodes = first..last.map_or(first, |last| first.max(last + 1));
    tape.with_graph(|graph| {
        for node in &graph.nodes()[nodes.clone()] {
            if node.inputs.iter().any(|x| wanted[x.index()]) {
                node.outputs().for_each(|y| wanted[y.index()] = true);
            }
        }
    });
    let mut sweep = Sweep::new(tape, wanted);
    for &(value, cotangent) in seeds {
        sweep.add(value, tape.with_graph(|graph| graph.maker_index(value)), &tape.var(cotangent))?;
    }
    nodes.rev().try_for_each(|node| sweep.node(node))?;
    // Terms for values from before the first node.
    let mut left: Vec<_> = sweep.products.keys().chain(sweep.parts.keys()).copied().collect();
    debug_assert!(first > 0 || left.is_empty(), "a value is made before it is used");
    left.sort_unstable();
    left.dedup();
    left.into_iter().try_for_each(|value| sweep.settle(value))?;
    drop((open, pin));
    Ok(sweep.cotangents)
}

/// Terms of a cotangent, each with the node that it came from.
type Terms = Vec<(usize, ValueId)>;

pub(super) struct Sweep<'a> {
    pub(super) tape: &'a Tape,
    /// For each value, `true` if its cotangent leads to a wanted one.
    wanted: Vec<bool>,
    pub(super) cotangents: HashMap<ValueId, ValueId>,
    /// Products to add to each leaf's cotangent. They become one product.
    products: HashMap<ValueId, Terms>,
    /// Parts to add to each value's cotangent, such as those of its slices. They are joined at once: one by one, each
    /// sum would be as large as the value.
    parts: HashMap<ValueId, Terms>,
    /// For values that can be recomputed, the values that gradient rules get instead.
    again: HashMap<ValueId, ValueId>,
    /// The recomputed region that the sweep reached last.
    pub(super) region: Option<Region>,
    /// The values of recomputed regions, each with its copy.
    pub(super) replayed: HashMap<ValueId, ValueId>,
}

impl<'a> Sweep<'a> {
    fn new(tape: &'a Tape, wanted: Vec<bool>) -> Self {
        Self {
            tape,
            wanted,
            cotangents: HashMap::new(),
            products: HashMap::new(),
            parts: HashMap::new(),
            again: HashMap::new(),
            region: None,
            replayed: HashMap::new(),
        }
    }

    /// Adds a node's contribution to the cotangent of a value.
    fn add(&mut self, value: ValueId, node: usize, dx: &Var) -> Result<()> {
        let sum = match self.cotangents.get(&value) {
            Some(&sum) => self.tape.on_behalf_of(node, || self.tape.var(sum) + dx).id()?,
            None => dx.id()?,
        };
        self.cotangents.insert(value, sum);
        Ok(())
    }

    /// Adds the pending parts and products to the cotangent of a value.
    pub(super) fn settle(&mut self, value: ValueId) -> Result<()> {
        if let Some(parts) = self.parts.remove(&value) {
            let (node, _) = *parts.last().expect("one at least");
            let parts: Vec<_> = parts.iter().map(|&(_, part)| self.tape.var(part)).collect();
            let sum = self.tape.on_behalf_of(node, || sum_of_parts(&parts));
            self.add(value, node, &sum)?;
        }
        let Some(products) = self.products.remove(&value) else { return Ok(()) };
        let (node, last) = *products.last().expect("one at least");
        let sum = match &products[..] {
            [_] => self.tape.var(last),
            all => {
                let outer = all.iter().map(|&(_, product)| OuterProduct::of(&self.tape.var(product)));
                let outer: Vec<_> = outer.collect::<Option<_>>().expect("others are not among them");
                self.tape.on_behalf_of(node, || OuterProduct::sum(&outer))
            }
        };
        self.add(value, node, &sum)
    }

    /// `true` for leaves and views of leaves. They include weights, which many steps of a layer may share. If the
    /// products of other values were joined as well, they would grow from layer to layer.
    fn is_of_leaf(&self, mut value: ValueId) -> bool {
        self.tape.with_graph(|graph| {
            loop {
                let node = graph.maker(value);
                match &node.source {
                    Source::Op(Op::View(_)) => value = node.inputs[0],
                    Source::Op(_) => return false,
                    _ => return true,
                }
            }
        })
    }

    /// Propagates the cotangents of a node's results to its operands.
    fn node(&mut self, index: usize) -> Result<()> {
        let outputs: Operands = self.tape.with_graph(|graph| graph.nodes()[index].outputs().collect());
        outputs.iter().try_for_each(|&y| self.settle(y))?;
        let step = self.tape.with_graph(|graph| {
            let node = &graph.nodes()[index];
            match &node.source {
                Source::Op(op)
                    if node.inputs.iter().any(|x| self.wanted[x.index()])
                        && outputs.iter().any(|y| self.cotangents.contains_key(y)) =>
                {
                    Some((op.clone(), node.inputs.clone()))
                }
                _ => None,
            }
        });
        let Some((op, inputs)) = step else { return Ok(()) };
        self.enter_region(index)?;
        let x: SmallVec<[_; 4]> = match op {
            Op::Pointwise(_) => inputs.iter().map(|&v| self.rematerialized(self.replayed(v))).collect(),
            Op::View(_) | Op::Kernel(_) => inputs.iter().map(|&v| self.tape.var(self.replayed(v))).collect(),
        };
        let y: SmallVec<[_; 1]> = outputs.iter().map(|&v| self.tape.var(self.replayed(v))).collect();
        let dy: SmallVec<[_; 1]> =
            outputs.iter().map(|v| self.cotangents.get(v).map(|&dy| self.tape.var(dy))).collect();
        let here = |error: Error| error.in_op(op.name()).at(self.tape.origin_of(index));
        let dx = self.tape.on_behalf_of(index, || rule(&op).vjp(&x, &y, &dy)).map_err(here)?;
        if dx.len() != x.len() {
            let message = format!("the gradient rule returns {} gradients for {} operands", dx.len(), x.len());
            return Err(here(Error::new(ErrorKind::Argument, message)));
        }
        for ((value, x), dx) in inputs.into_iter().zip(&x).zip(dx) {
            let Some(dx) = dx else { continue };
            if !self.tape.same(dx.tape()) {
                let message = "the gradient rule returns a value on another tape";
                return Err(here(Error::new(ErrorKind::Argument, message)));
            }
            if dx.error().is_none() && dx.ty() != x.ty() {
                let message = format!("the gradient rule returns a gradient {} for an operand {}", dx.ty(), x.ty());
                return Err(here(Error::new(ErrorKind::Shape, message)));
            }
            if !self.wanted[value.index()] {
                continue;
            }
            match OuterProduct::of(&dx).filter(|_| self.is_of_leaf(value)) {
                Some(_) => self.products.entry(value).or_default().push((index, dx.id()?)),
                None if is_part(&dx) => self.parts.entry(value).or_default().push((index, dx.id()?)),
                None => self.add(value, index, &dx)?,
            }
        }
        Ok(())
    }

    /// A value, recomputed if its operation can do that.
    fn rematerialized(&mut self, value: ValueId) -> Var {
        if let Some(&again) = self.again.get(&value) {
            return self.tape.var(again);
        }
        let (node, step) = self.tape.with_graph(|graph| {
            let node = graph.maker(value);
            let step = match &node.source {
                Source::Op(op) if node.first == value => {
                    Some((op.clone(), node.inputs.clone(), node.outputs().collect::<Operands>()))
                }
                _ => None,
            };
            (graph.maker_index(value), step)
        });
        let again = step.and_then(|(op, inputs, outputs)| {
            let vars = |values: Operands| values.into_iter().map(|v| self.tape.var(v)).collect::<SmallVec<[_; 4]>>();
            self.tape.on_behalf_of(node, || rule(&op).rematerialized(&vars(inputs), &vars(outputs)))?.id().ok()
        });
        let again = again.unwrap_or(value);
        self.again.insert(value, again);
        self.tape.var(again)
    }
}
