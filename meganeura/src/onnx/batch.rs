//! Export with an open batch size: finds the parts of a recorded function that depend on it.
//!
//! The same function is recorded for three sizes. Its nodes must be the same. Integers that differ are functions
//! `a·N + b` of the size, determined by the first two recordings, and the third must agree.

use std::collections::HashMap;

use super::export::ExportedFunction;
use crate::error::bail;
use crate::ops::form::{Constant, Value};
use crate::{Error, ErrorKind, Result, Shape};

/// `factor·N + more`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Affine {
    pub(super) factor: i64,
    pub(super) more: i64,
}

/// The integers that depend on the batch size.
#[derive(Debug)]
pub(super) struct Symbolic {
    /// The elements of constants of which at least one depends on the size.
    pub(super) constants: HashMap<Value, Vec<Affine>>,
    /// The extents of each output.
    pub(super) outputs: Vec<Vec<Affine>>,
}

impl Affine {
    /// The function with these values at these sizes; `None` if it is not linear.
    fn through(sizes: [usize; 3], values: [i64; 3]) -> Option<Self> {
        let [n, m, last] = sizes.map(|size| i64::try_from(size).expect("extents are far below 2^63"));
        let rise = values[1].checked_sub(values[0])?;
        let factor = (rise % (m - n) == 0).then(|| rise / (m - n))?;
        let affine = Self { factor, more: values[0].checked_sub(factor.checked_mul(n)?)? };
        (factor.checked_mul(last)?.checked_add(affine.more)? == values[2]).then_some(affine)
    }

    pub(super) fn is_fixed(self) -> bool {
        self.factor == 0
    }
}

/// The differences between recordings of one function for these sizes.
pub(super) fn compare(all: &[ExportedFunction], sizes: [usize; 3]) -> Result<Symbolic> {
    let [first, rest @ ..] = all else { unreachable!("there are three") };
    for other in rest {
        same_nodes(first, other)?;
        let types = |recorded: &ExportedFunction| {
            recorded.leaves.iter().map(|(value, _, ty)| (*value, *ty)).collect::<Vec<_>>()
        };
        let (known, found) = (types(first), types(other));
        let is_input = |at: usize| matches!(first.leaves[at].1, crate::tape::TraceLeaf::Input(_));
        let differs = |&(at, (a, b)): &(usize, (_, _))| a != b && !is_input(at);
        if let Some((_, (a, b))) = known.iter().zip(&found).enumerate().find(differs) {
            bail!(Argument, "a tensor that the function captures depends on the batch: {} and {}", a.1, b.1);
        }
    }
    let mut constants = HashMap::new();
    for (at, (value, constant)) in first.form.constants.iter().enumerate() {
        let others = [&rest[0].form.constants[at].1, &rest[1].form.constants[at].1];
        if others.iter().all(|other| *other == constant) {
            continue;
        }
        let symbolic = match (constant, others) {
            (Constant::Ints(shape, a), [Constant::Ints(s, b), Constant::Ints(t, c)])
                if shape.rank() == 1 && shape == s && shape == t =>
            {
                let each = a.iter().zip(b).zip(c).map(|((&a, &b), &c)| Affine::through(sizes, [a, b, c]));
                each.collect::<Option<Vec<_>>>()
            }
            _ => None,
        };
        let Some(symbolic) = symbolic else { return Err(misfit(first, *value)) };
        constants.insert(*value, symbolic);
    }
    let mut outputs = Vec::new();
    for (k, (_, ty)) in first.outputs.iter().enumerate() {
        let shapes = [ty.shape, rest[0].outputs[k].1.shape, rest[1].outputs[k].1.shape];
        let extents = extents(sizes, shapes);
        let Some(extents) = extents else {
            bail!(
                Argument,
                "the shape of output {k} does not grow linearly with the batch: {}, {}",
                shapes[0],
                shapes[1]
            );
        };
        outputs.push(extents);
    }
    Ok(Symbolic { constants, outputs })
}

fn extents(sizes: [usize; 3], shapes: [Shape; 3]) -> Option<Vec<Affine>> {
    let extent = |axis: usize| {
        let values = shapes.map(|shape| shape.dims().get(axis).and_then(|&extent| i64::try_from(extent).ok()));
        Affine::through(sizes, [values[0]?, values[1]?, values[2]?])
    };
    (0..shapes[0].rank()).map(extent).collect()
}

/// Refuses a recording for another size whose nodes differ.
fn same_nodes(one: &ExportedFunction, other: &ExportedFunction) -> Result<()> {
    let pairs = one.form.nodes.iter().zip(&other.form.nodes).zip(&one.lines);
    let differs = pairs.into_iter().find(|((a, b), _)| a != b);
    let counts = one.form.nodes.len() != other.form.nodes.len()
        || one.form.constants.len() != other.form.constants.len()
        || one.leaves.len() != other.leaves.len()
        || one.outputs.len() != other.outputs.len();
    match differs {
        Some(((a, _), line)) => {
            let message = format!("the computation depends on the size of the batch, beginning with a node `{}`", a.op);
            Err(Error::new(ErrorKind::Argument, message).at(line))
        }
        None if counts => bail!(Argument, "the computation depends on the size of the batch"),
        None => Ok(()),
    }
}

/// The error for a constant that is not a linear function of the size.
fn misfit(recorded: &ExportedFunction, value: Value) -> Error {
    let reader = recorded.form.nodes.iter().position(|node| node.inputs.contains(&Some(value)));
    let op = reader.map_or("a node", |at| recorded.form.nodes[at].op);
    let message = format!(
        "a constant operand of `{op}` does not grow linearly with the batch, for example the divisor of a mean over it; export \
         for a fixed size instead"
    );
    let error = Error::new(ErrorKind::Argument, message);
    match reader {
        Some(at) => error.at(recorded.lines[at]),
        None => error,
    }
}
