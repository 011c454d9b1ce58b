//! The reverse sweep: appends gradient operations to the tape, and gathers what belongs to one value into one sum.
//!
//! Names no operation: rules come from `Op::vjp`. Un-broadcasting is the gradient rule of the broadcasting view.
//!
//! The sweep goes only where gradients are wanted: in a backward pass to parameters that are trained, and to values
//! that the caller holds. Below a frozen part of a model it stops, unless the caller holds what went in.
//!
//! What an operation can make again elementwise, from its operands and small results, the rules of elementwise
//! operations on it get so: there it is fused into what they compute and costs arithmetic, where keeping it would cost
//! memory. The rules of others get the value itself.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::graph::{Operands, Source, ValueId};
use crate::ops::{Op, OuterProduct, sum_of_cotangents};
use crate::tape::{Region, Tape, Var};
use crate::{Error, ErrorKind, Result};

/// The cotangents of all values on the way from those of `seeds`, each with its own, to those that are `wanted`,
/// through no node before number `first`.
pub(super) fn sweep(
    tape: &Tape,
    first: usize,
    seeds: &[(ValueId, ValueId)],
    mut wanted: Vec<bool>,
) -> Result<HashMap<ValueId, ValueId>> {
    // Cotangents are names of values, while rules record and perhaps read.
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
    // Of values that are made before the first node.
    let mut left: Vec<_> = sweep.products.keys().copied().collect();
    debug_assert!(first > 0 || left.is_empty(), "a value is made before it is used");
    left.sort_unstable();
    left.into_iter().try_for_each(|value| sweep.settle(value))?;
    drop((open, pin));
    Ok(sweep.cotangents)
}

pub(super) struct Sweep<'a> {
    pub(super) tape: &'a Tape,
    /// Whether a value's cotangent leads anywhere.
    wanted: Vec<bool>,
    pub(super) cotangents: HashMap<ValueId, ValueId>,
    /// Products that are part of a leaf's cotangent too, each with the node that it came from. Their sum will be one
    /// product.
    products: HashMap<ValueId, Vec<(usize, ValueId)>>,
    /// What gradient rules get in the place of values that can be made again.
    again: HashMap<ValueId, ValueId>,
    /// The recomputed region that the sweep has reached last.
    pub(super) region: Option<Region>,
    /// The values of such regions, each with its copy.
    pub(super) replayed: HashMap<ValueId, ValueId>,
}

impl<'a> Sweep<'a> {
    fn new(tape: &'a Tape, wanted: Vec<bool>) -> Self {
        Self {
            tape,
            wanted,
            cotangents: HashMap::new(),
            products: HashMap::new(),
            again: HashMap::new(),
            region: None,
            replayed: HashMap::new(),
        }
    }

    /// Adds to the cotangent of a value what comes from a node.
    fn add(&mut self, value: ValueId, node: usize, dx: &Var) -> Result<()> {
        let sum = match self.cotangents.get(&value) {
            Some(&sum) => self.tape.on_behalf_of(node, || sum_of_cotangents(&self.tape.var(sum), dx)).id()?,
            None => dx.id()?,
        };
        self.cotangents.insert(value, sum);
        Ok(())
    }

    /// Adds to the cotangent of a value the products that belong to it.
    fn settle(&mut self, value: ValueId) -> Result<()> {
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

    /// Leaves and views of leaves, among them weights, which many steps of a layer may use. Products that belong to
    /// other values would grow from layer to layer if they were joined.
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

    /// Sends the cotangents of a node's results on to its operands.
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
        self.enter_region(index);
        let x: SmallVec<[_; 4]> = match op {
            Op::Pointwise(_) => inputs.iter().map(|&v| self.again(self.replayed(v))).collect(),
            Op::View(_) | Op::Kernel(_) => inputs.iter().map(|&v| self.tape.var(self.replayed(v))).collect(),
        };
        let y: SmallVec<[_; 1]> = outputs.iter().map(|&v| self.tape.var(self.replayed(v))).collect();
        let dy: SmallVec<[_; 1]> =
            outputs.iter().map(|v| self.cotangents.get(v).map(|&dy| self.tape.var(dy))).collect();
        let here = |error: Error| error.in_op(op.name()).at(self.tape.origin_of(index));
        let dx = self.tape.on_behalf_of(index, || op.vjp(&x, &y, &dy)).map_err(here)?;
        if dx.len() != x.len() {
            let message = format!("the gradient rule gives {} gradients for {} operands", dx.len(), x.len());
            return Err(here(Error::new(ErrorKind::Argument, message)));
        }
        for ((value, x), dx) in inputs.into_iter().zip(&x).zip(dx) {
            let Some(dx) = dx else { continue };
            if !self.tape.same(dx.tape()) {
                let message = "the gradient rule gives a value of another tape";
                return Err(here(Error::new(ErrorKind::Argument, message)));
            }
            if dx.error().is_none() && dx.ty() != x.ty() {
                let message = format!("the gradient rule gives a gradient {} for an operand {}", dx.ty(), x.ty());
                return Err(here(Error::new(ErrorKind::Shape, message)));
            }
            if !self.wanted[value.index()] {
                continue;
            }
            match OuterProduct::of(&dx).filter(|_| self.is_of_leaf(value)) {
                Some(_) => self.products.entry(value).or_default().push((index, dx.id()?)),
                None => self.add(value, index, &dx)?,
            }
        }
        Ok(())
    }

    /// A value, made again if its operation can do that.
    fn again(&mut self, value: ValueId) -> Var {
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
            self.tape.on_behalf_of(node, || op.again(&vars(inputs), &vars(outputs)))?.id().ok()
        });
        let again = again.unwrap_or(value);
        self.again.insert(value, again);
        self.tape.var(again)
    }
}
