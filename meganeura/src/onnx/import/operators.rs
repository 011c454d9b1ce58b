//! The operators by name, and what is refused before a model is recorded: unknown ones, and wrong numbers of operands.

use std::collections::HashSet;

use super::call::{Operator, Operators};
use super::{
    attention, control, elementwise, eras, fold, graph, grids, images, learned, losses, matrices, microsoft, norms,
    numeric, places, quantize, recurrent, regions, scatter, sequences, shapes, signal, signature, stateful, texts,
    training, unique,
};
use crate::error::{bail, shortened};
use crate::onnx::proto;
use crate::ops::Pointwise;
use crate::{Error, ErrorKind, Result};

/// `true` for ONNX's own domain.
pub(super) fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// All operators by name.
pub(super) fn tables() -> [Operators; 21] {
    [
        attention::OPERATORS,
        control::OPERATORS,
        losses::OPERATORS,
        elementwise::OPERATORS,
        grids::OPERATORS,
        images::OPERATORS,
        matrices::OPERATORS,
        norms::OPERATORS,
        numeric::OPERATORS,
        places::OPERATORS,
        quantize::OPERATORS,
        recurrent::OPERATORS,
        regions::OPERATORS,
        scatter::OPERATORS,
        sequences::OPERATORS,
        shapes::OPERATORS,
        signal::OPERATORS,
        stateful::OPERATORS,
        texts::OPERATORS,
        unique::OPERATORS,
        fold::OPERATORS,
    ]
}

/// The operator of a node, or an error if it is not supported.
pub(super) fn find(node: &proto::Node) -> Result<Operator> {
    for (domain, operators) in [
        (learned::DOMAIN, learned::OPERATORS),
        (microsoft::DOMAIN, microsoft::OPERATORS),
        (training::DOMAIN, training::OPERATORS),
    ] {
        if node.domain != domain {
            continue;
        }
        return match operators.iter().find(|(name, _)| *name == node.op_type) {
            Some((_, operator)) => Ok(*operator),
            None => bail!(
                Checkpoint,
                "node {}: the operator `{}` of {domain} is not supported",
                title(node),
                shortened(&node.op_type)
            ),
        };
    }
    let mut rows = tables().into_iter().flatten();
    match rows.find(|(name, _)| *name == node.op_type && is_own(&node.domain)) {
        Some((_, operator)) => Ok(*operator),
        None if is_own(&node.domain) && Pointwise::of_operator(&node.op_type).is_some() => Ok(elementwise::row),
        None if is_own(&node.domain) => {
            bail!(Checkpoint, "node {}: the operator `{}` is not supported", title(node), shortened(&node.op_type))
        }
        None if matches!(&node.domain[..], "ai.onnx.preview" | "ai.onnx.training") => bail!(
            Checkpoint,
            "node {}: its operator belongs to the domain `{}` of ONNX, which is not supported",
            title(node),
            node.domain
        ),
        None => bail!(
            Checkpoint,
            "node {}: operators of `{}` are not supported; they are not part of ONNX",
            title(node),
            shortened(&node.domain)
        ),
    }
}

/// Refuses a node whose operator, or one inside it, is not supported.
pub(super) fn findable(node: &proto::Node) -> Result<()> {
    find(node)?;
    graph::bodies(node).flat_map(|graph| &graph.node).try_for_each(findable)
}

/// Refuses a node, also inside of one, with too few or too many operands, and names that are taken.
pub(super) fn check<'a>(node: &'a proto::Node, opset: i64, names: &mut HashSet<&'a str>) -> Result<()> {
    let within = |error: Error| error.context(format_args!("node {}", title(node)));
    if let Some(signature) = signature::of(node) {
        signature.check(opset, &node.input).map_err(within)?;
    }
    eras::check(node, opset).map_err(within)?;
    for graph in graph::bodies(node) {
        // Graphs inside a node do not see each other's values.
        let mut inner = names.clone();
        inner.extend(graph.input.iter().map(|info| &info.name[..]));
        graph.node.iter().try_for_each(|node| check(node, opset, &mut inner)).map_err(within)?;
    }
    for name in node.output.iter().filter(|name| !name.is_empty()) {
        if !names.insert(name) {
            let message = format!("its result `{}` has the name of another value", shortened(name));
            return Err(within(Error::new(ErrorKind::Checkpoint, message)));
        }
    }
    Ok(())
}

/// The name of a node in messages.
pub(super) fn title(node: &proto::Node) -> String {
    let name = [&node.name].into_iter().chain(&node.output).find(|name| !name.is_empty());
    format!("`{}` ({})", shortened(name.map_or("", String::as_str)), shortened(&node.op_type))
}
