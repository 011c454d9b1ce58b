//! What is done to a file's nodes before they are recorded: calls of its functions become their nodes, constants of
//! graphs inside nodes become those of the model, and nodes are sorted so that operands come first.

use std::collections::{HashMap, HashSet, VecDeque};

use super::operators::title;
use super::training;
use crate::error::{bail, shortened};
use crate::host::reserve;
use crate::onnx::proto;
use crate::{Error, Result};

/// The deepest nesting of functions, and of graphs inside nodes.
const DEEPEST: usize = 32;

/// The most nodes that calls of functions may become, for each node in the file and function.
const MOST_COPIES: usize = 64;

/// Replaces calls of functions, moves the constants of graphs inside nodes to the model's, and sorts.
pub(super) fn prepared(model: &mut proto::Model) -> Result<()> {
    let mut functions = std::mem::take(&mut model.functions);
    let Some(graph) = &mut model.graph else { return Ok(()) };
    let nodes = functions.iter_mut().flat_map(|function| &mut function.node).chain(&mut graph.node);
    nodes.into_iter().try_for_each(|node| targeted(node, 0))?;
    let mut by_name = HashMap::new();
    for function in &functions {
        if by_name.insert((&function.domain[..], &function.name[..]), function).is_some() {
            bail!(Checkpoint, "two functions have the name `{}`", shortened(&function.name));
        }
    }
    let nodes = graph.node.len() + functions.iter().map(|function| function.node.len()).sum::<usize>();
    let mut inlining =
        Inlining { functions: by_name, sets: &model.opset_import, calls: 0, left: nodes.saturating_mul(MOST_COPIES) };
    graph.node = inlining.nodes(std::mem::take(&mut graph.node), 0)?;
    let mut names = Names { taken: HashSet::new(), count: 0 };
    names.taken.extend(graph.initializer.iter().map(|tensor| tensor.name.clone()));
    let mut hoisted = Vec::new();
    for node in &mut graph.node {
        names.of_bodies(node, &mut hoisted, 0)?;
    }
    graph.initializer.append(&mut hoisted);
    sort(graph, 0)
}

/// The graphs inside a node.
pub(super) fn bodies(node: &proto::Node) -> impl Iterator<Item = &proto::Graph> {
    node.attribute.iter().filter_map(|attribute| attribute.g.as_deref())
}

fn bodies_mut(node: &mut proto::Node) -> impl Iterator<Item = &mut proto::Graph> {
    node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut())
}

/// Makes what gradients are of an operand, also in the graphs inside a node.
fn targeted(node: &mut proto::Node, depth: usize) -> Result<()> {
    expect_shallow(depth)?;
    training::with_target(node).map_err(|error| error.context(format_args!("node {}", title(node))))?;
    bodies_mut(node).flat_map(|body| &mut body.node).try_for_each(|node| targeted(node, depth + 1))
}

fn expect_shallow(depth: usize) -> Result<()> {
    if depth > DEEPEST {
        bail!(Checkpoint, "graphs and functions are nested more than {DEEPEST} deep");
    }
    Ok(())
}

/// Replaces calls of functions.
struct Inlining<'a> {
    functions: HashMap<(&'a str, &'a str), &'a proto::Function>,
    sets: &'a [proto::OperatorSet],
    /// The number of calls so far: a part of the names of their values.
    calls: usize,
    /// The number of nodes that may still be written.
    left: usize,
}

impl Inlining<'_> {
    fn nodes(&mut self, nodes: Vec<proto::Node>, depth: usize) -> Result<Vec<proto::Node>> {
        expect_shallow(depth)?;
        if self.functions.is_empty() {
            return Ok(nodes);
        }
        let mut all = Vec::new();
        reserve(&mut all, nodes.len())?;
        for mut node in nodes {
            for body in bodies_mut(&mut node) {
                body.node = self.nodes(std::mem::take(&mut body.node), depth + 1)?;
            }
            match self.functions.get(&(&node.domain[..], &node.op_type[..])).copied() {
                None => all.push(node),
                Some(function) => {
                    let within = |error: Error| error.context(format_args!("node {}", title(&node)));
                    let body = self.called(&node, function).map_err(within)?;
                    all.append(&mut self.nodes(body, depth + 1)?);
                }
            }
        }
        Ok(all)
    }

    /// The nodes of a call.
    fn called(&mut self, node: &proto::Node, function: &proto::Function) -> Result<Vec<proto::Node>> {
        let differs = |set: &&proto::OperatorSet| {
            self.sets.iter().any(|own| own.domain == set.domain && own.version != set.version)
        };
        if let Some(set) = function.opset_import.iter().find(differs) {
            bail!(Checkpoint, "its function has operator set {}, another than the file", set.version);
        }
        if node.input.len() > function.input.len() || node.output.len() > function.output.len() {
            bail!(
                Checkpoint,
                "its function has {} operands and {} results",
                function.input.len(),
                function.output.len()
            );
        }
        let known = |attribute: &&proto::Attribute| {
            function.attribute.contains(&attribute.name)
                || function.attribute_proto.iter().any(|other| other.name == attribute.name)
        };
        if let Some(attribute) = node.attribute.iter().find(|attribute| !known(attribute)) {
            bail!(Checkpoint, "its function has no attribute `{}`", shortened(&attribute.name));
        }
        let Some(left) = self.left.checked_sub(function.node.len()) else {
            bail!(Checkpoint, "calls of functions become too many nodes");
        };
        self.left = left;
        self.calls += 1;
        let mut names = HashMap::new();
        for (formal, actual) in function.output.iter().zip(&node.output).filter(|(_, actual)| !actual.is_empty()) {
            names.insert(formal.clone(), actual.clone());
        }
        let no_name = String::new();
        for (k, formal) in function.input.iter().enumerate() {
            names.insert(formal.clone(), node.input.get(k).unwrap_or(&no_name).clone());
        }
        let call = self.calls;
        let prefix = format!("{}#{call}/", if node.name.is_empty() { &function.name } else { &node.name });
        let mut body = function.node.clone();
        // A result that is an operand has no node of its own.
        for (formal, actual) in function.output.iter().zip(&node.output) {
            if function.input.contains(formal) && !actual.is_empty() {
                let operand = names[formal].clone();
                body.push(proto::Node {
                    op_type: "Identity".into(),
                    input: vec![operand],
                    output: vec![actual.clone()],
                    ..proto::Node::default()
                });
            }
        }
        let mut each = |name: &mut String| match names.get(name) {
            _ if name.is_empty() => {}
            Some(actual) => name.clone_from(actual),
            None => name.insert_str(0, &prefix),
        };
        let own = function.node.len();
        for inner in &mut body[..own] {
            bind(inner, node, function, 0)?;
            rename(inner, &mut each, 0)?;
            if !inner.name.is_empty() {
                inner.name = format!("{prefix}{}", inner.name);
            }
        }
        Ok(body)
    }
}

/// Gives attributes that refer to those of a function their values; those without a value are left out.
fn bind(inner: &mut proto::Node, call: &proto::Node, function: &proto::Function, depth: usize) -> Result<()> {
    expect_shallow(depth)?;
    let mut bound = Vec::new();
    for mut attribute in std::mem::take(&mut inner.attribute) {
        if let Some(body) = &mut attribute.g {
            body.node.iter_mut().try_for_each(|node| bind(node, call, function, depth + 1))?;
        }
        if attribute.ref_attr_name.is_empty() {
            bound.push(attribute);
            continue;
        }
        let named = |other: &&proto::Attribute| other.name == attribute.ref_attr_name;
        if let Some(value) = call.attribute.iter().find(named).or(function.attribute_proto.iter().find(named)) {
            bound.push(proto::Attribute { name: attribute.name, ..value.clone() });
        }
    }
    inner.attribute = bound;
    Ok(())
}

/// Changes the name of every value of a node, also in the graphs inside it.
fn rename(node: &mut proto::Node, each: &mut dyn FnMut(&mut String), depth: usize) -> Result<()> {
    expect_shallow(depth)?;
    node.input.iter_mut().chain(&mut node.output).for_each(&mut *each);
    for body in bodies_mut(node) {
        body.input.iter_mut().chain(&mut body.output).for_each(|info| each(&mut info.name));
        body.initializer.iter_mut().for_each(|tensor| each(&mut tensor.name));
        body.node.iter_mut().try_for_each(|node| rename(node, each, depth + 1))?;
    }
    Ok(())
}

/// The names of constants.
struct Names {
    taken: HashSet<String>,
    count: usize,
}

impl Names {
    /// Moves the constants of a node's graphs to a list. One whose name is taken gets another one.
    fn of_bodies(&mut self, node: &mut proto::Node, hoisted: &mut Vec<proto::Tensor>, depth: usize) -> Result<()> {
        expect_shallow(depth)?;
        for body in bodies_mut(node) {
            if !body.sparse_initializer.is_empty() {
                bail!(Checkpoint, "sparse tensors are not supported");
            }
            let mut others = HashMap::new();
            for mut tensor in std::mem::take(&mut body.initializer) {
                if !self.taken.insert(tensor.name.clone()) {
                    self.count += 1;
                    let other = format!("{}#{}", tensor.name, self.count);
                    others.insert(std::mem::replace(&mut tensor.name, other.clone()), other);
                }
                hoisted.push(tensor);
            }
            if !others.is_empty() {
                let mut each = |name: &mut String| {
                    if let Some(other) = others.get(name) {
                        name.clone_from(other);
                    }
                };
                body.output.iter_mut().for_each(|info| each(&mut info.name));
                body.node.iter_mut().try_for_each(|node| rename(node, &mut each, depth + 1))?;
            }
            body.node.iter_mut().try_for_each(|node| self.of_bodies(node, hoisted, depth + 1))?;
        }
        Ok(())
    }
}

/// Every value that a node takes: its operands, and what the graphs inside it take from outside.
fn taken<'a>(node: &'a proto::Node, names: &mut Vec<&'a str>) {
    names.extend(node.input.iter().map(String::as_str));
    for body in bodies(node) {
        body.node.iter().for_each(|node| taken(node, names));
        names.extend(body.output.iter().map(|info| &info.name[..]));
    }
}

/// Sorts the nodes of a graph, and of the graphs inside them, so that operands come first. Nodes that nothing forces
/// apart stay in their order. Nodes in a circle come last: what they take is never computed.
fn sort(graph: &mut proto::Graph, depth: usize) -> Result<()> {
    expect_shallow(depth)?;
    for node in &mut graph.node {
        bodies_mut(node).try_for_each(|body| sort(body, depth + 1))?;
    }
    let mut source = HashMap::new();
    for (k, node) in graph.node.iter().enumerate() {
        source.extend(node.output.iter().filter(|name| !name.is_empty()).map(|name| (&name[..], k)));
    }
    let mut waits = vec![0usize; graph.node.len()];
    let mut waiting = vec![Vec::new(); graph.node.len()];
    let mut is_sorted = true;
    for (k, node) in graph.node.iter().enumerate() {
        let mut names = Vec::new();
        taken(node, &mut names);
        let sources: HashSet<_> = names.iter().filter_map(|name| source.get(name).copied()).collect();
        is_sorted &= sources.iter().all(|&before| before < k);
        waits[k] = sources.len();
        sources.into_iter().for_each(|before| waiting[before].push(k));
    }
    if is_sorted {
        return Ok(());
    }
    let mut ready: VecDeque<_> = (0..waits.len()).filter(|&k| waits[k] == 0).collect();
    let mut order = Vec::new();
    while let Some(k) = ready.pop_front() {
        order.push(k);
        waiting[k].sort_unstable();
        for &next in &waiting[k] {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push_back(next);
            }
        }
    }
    order.extend((0..waits.len()).filter(|&k| waits[k] > 0));
    let mut nodes: Vec<_> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|k| nodes[k].take()).collect();
    Ok(())
}
