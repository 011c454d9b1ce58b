//! The layers of a traced forward pass as a tree, with the path of each, and the summary's rows made from it.

use std::collections::{HashMap, HashSet};

use super::super::at::joined;
use super::super::enter::held;
use super::super::leaves::Leaf;
use super::super::summary::without_paths;
use super::super::{Module, Role};
use super::LayerRow;
use crate::graph::{Graph, Source};
use crate::tape::{EnteredModule, Event, Held, Place, What};
use crate::{TensorType, Var};

/// The paths of the tensors and modes of the whole model.
#[derive(Default)]
struct Known {
    /// By the address of the `Param`, `Buffer` or `Mode`, which has several paths if it is shared by an `Arc`.
    addresses: HashMap<usize, Vec<String>>,
    /// By the identity of the tensor, for a layer that is created from tied parameters while it is called. A tied
    /// tensor has several paths.
    cells: HashMap<u64, Vec<String>>,
}

/// The entered layers, each before those inside it. The first one is the model.
pub(super) struct Scopes {
    all: Vec<Scope>,
    /// The path of the layer with the first error.
    pub(super) failed: Option<String>,
}

struct Scope {
    path: Option<String>,
    place: Place,
    /// The number of nodes at entry.
    begin: usize,
    output: TensorType,
    /// `true` if the layer itself named its output.
    is_said: bool,
    multiply_adds: u64,
    children: Vec<usize>,
}

impl Scope {
    fn new(part: &EnteredModule, path: Option<String>, begin: usize) -> Self {
        let EnteredModule { place, input, .. } = *part;
        Self { path, place, begin, output: input, is_said: false, multiply_adds: 0, children: Vec::new() }
    }

    /// `true` if a part entered inside this scope is the scope's own layer again: its holder enters it first, by its
    /// name, then its own `forward` does, and each `Box` or `Arc` in between.
    fn is(&self, part: &EnteredModule, path: Option<&String>) -> bool {
        let has_own_path = part.name.is_some() || path.is_some() && path != self.path.as_ref();
        let is_here = self.place.is(&part.place) || part.pointer.is_some_and(|pointer| self.place.is(&pointer));
        is_here && !has_own_path
    }
}

impl Scopes {
    pub(super) fn new<M: Module + ?Sized>(model: &M, input: TensorType, events: &[Event], graph: &Graph) -> Self {
        let known = Known::of(model);
        let begin = events.first().map_or(0, |event| event.node);
        let mut scopes = vec![Scope::new(&EnteredModule::new(model, input), Some(String::new()), begin)];
        let mut open = vec![0];
        let mut failed = None;
        let mut node = 0;
        for event in events {
            let top = open[open.len() - 1];
            scopes[top].multiply_adds += multiply_adds(graph, node..event.node);
            node = event.node;
            match &event.what {
                What::Entered(part) => {
                    let path = known.path(part, &scopes[top]);
                    if scopes[top].is(part, path.as_ref()) {
                        scopes[top].place = part.place;
                        open.push(top);
                        continue;
                    }
                    let number = scopes.len();
                    scopes[top].children.push(number);
                    scopes.push(Scope::new(part, path, event.node));
                    open.push(number);
                }
                What::Failed if failed.is_none() => {
                    failed = open.iter().rev().find_map(|&scope| scopes[scope].path.clone());
                }
                What::Failed => {}
                What::Left(given) => {
                    open.pop();
                    let begin = scopes[top].begin;
                    let last = graph.nodes()[begin..event.node].iter().rev();
                    let mut made = last.filter(|node| matches!(node.source, Source::Op(_)));
                    match (given, made.next()) {
                        (Some(ty), _) => (scopes[top].output, scopes[top].is_said) = (*ty, true),
                        (None, Some(made)) if !scopes[top].is_said => scopes[top].output = made.types[0],
                        (None, _) => {}
                    }
                }
            }
        }
        let end = graph.nodes().len();
        scopes[open[open.len() - 1]].multiply_adds += multiply_adds(graph, node..end);
        // The work of a layer includes that of the layers inside.
        for at in (0..scopes.len()).rev() {
            let below: u64 = scopes[at].children.iter().map(|&child| scopes[child].multiply_adds).sum();
            scopes[at].multiply_adds += below;
        }
        Self { all: scopes, failed }
    }

    /// The rows of a model with these tensors.
    pub(super) fn rows(mut self, leaves: &[Leaf<'_>], outputs: &[Var]) -> Vec<LayerRow> {
        if let Some(y) = outputs.first() {
            self.all[0].output = y.ty();
        }
        let mut rows = Rows { scopes: &self.all, leaves, rows: Vec::new(), counted: HashSet::new() };
        rows.scope(0, 0, "");
        rows.rows
    }
}

impl Known {
    fn of<M: Module + ?Sized>(model: &M) -> Self {
        let mut known = Self::default();
        for Held { path, address, cell } in held(&model) {
            if let Some(cell) = cell {
                known.cells.entry(cell).or_default().push(path.clone());
            }
            known.addresses.entry(address).or_default().push(path);
        }
        known
    }

    /// The path of a part in the model: from its name in the part around it, or from the tensors it holds.
    fn path(&self, part: &EnteredModule, around: &Scope) -> Option<String> {
        if let Some(name) = &part.name {
            return Some(joined(around.path.as_ref()?, name));
        }
        let (first, others) = part.held.split_first()?;
        let fits = |path: &&str| others.iter().all(|held| self.holders(held).contains(path));
        let found: Vec<_> = self.holders(first).into_iter().filter(fits).collect();
        let is_within = |path: &&&str| around.path.as_ref().is_some_and(|around| below(path, around).is_some());
        found.iter().find(is_within).or(found.first()).map(|&path| path.to_owned())
    }

    /// The paths of the parts that may hold this tensor at its path within them.
    fn holders(&self, held: &Held) -> Vec<&str> {
        let by_cell = || self.cells.get(&held.cell?);
        let paths = self.addresses.get(&held.address).or_else(by_cell);
        paths.into_iter().flatten().filter_map(|path| above(path, &held.path)).collect()
    }
}

/// The path of the part that holds `local`, given the path of `local` in the model; `None` if `path` does not end in
/// it.
fn above<'a>(path: &'a str, local: &str) -> Option<&'a str> {
    match path.strip_suffix(local)? {
        "" => Some(""),
        holder if local.is_empty() => Some(holder),
        holder => holder.strip_suffix('.'),
    }
}

/// The rest of a path below that of a part; `None` if it is elsewhere.
fn below<'a>(path: &'a str, part: &str) -> Option<&'a str> {
    match path.strip_prefix(part)? {
        rest if part.is_empty() || rest.is_empty() => Some(rest),
        rest => rest.strip_prefix('.'),
    }
}

fn multiply_adds(graph: &Graph, nodes: std::ops::Range<usize>) -> u64 {
    let of = |node: &crate::graph::Node| match &node.source {
        Source::Op(op) => {
            let operands: Vec<_> = node.inputs.iter().map(|&value| graph.ty(value)).collect();
            op.multiply_adds(&operands, &node.types)
        }
        _ => 0,
    };
    graph.nodes()[nodes].iter().map(of).sum()
}

struct Rows<'a> {
    scopes: &'a [Scope],
    leaves: &'a [Leaf<'a>],
    rows: Vec<LayerRow>,
    /// The indices of the leaves whose parameters were counted by finished layers.
    counted: HashSet<usize>,
}

/// The parameters of a row.
#[derive(Clone, Copy, Default)]
struct Use {
    /// `true` if there are any, counted before or not.
    has_parameters: bool,
    /// The number of elements in those that no earlier row counted.
    new: usize,
}

impl Use {
    fn and(self, other: Self) -> Self {
        Self { has_parameters: self.has_parameters || other.has_parameters, new: self.new + other.new }
    }
}

impl LayerRow {
    fn uses(&mut self, used: Use) {
        (self.parameters, self.is_again) = (used.new, used.has_parameters && used.new == 0);
    }
}

impl Rows<'_> {
    /// Adds the row of a layer and the rows below. Returns the parameters of all.
    fn scope(&mut self, number: usize, depth: usize, label: &str) -> Use {
        let scope = &self.scopes[number];
        let held = scope.path.as_deref().map(|path| self.parameters_in(path));
        let own = held.as_deref().map(|held| self.count(held));
        let at = self.rows.len();
        let entered = row(scope.path.clone(), without_paths(scope.place.kind), depth, label, scope.output);
        self.rows.push(LayerRow { multiply_adds: scope.multiply_adds, is_leaf: scope.children.is_empty(), ..entered });
        let places = self.places(scope);
        let mut within = Use::default();
        // The parts around the last child that did not enter themselves: the row, the name and the parameters of each.
        let mut open: Vec<(usize, &str, Use)> = Vec::new();
        for (&child, parts) in scope.children.iter().zip(&places) {
            let names: Vec<&str> = parts.split('.').filter(|name| !name.is_empty()).collect();
            let kept = open.iter().zip(&names).take_while(|((_, name, _), other)| name == *other).count();
            open.truncate(kept);
            for name in &names[kept..] {
                let parts = open.iter().map(|(_, name, _)| *name).chain([*name]).collect::<Vec<_>>().join(".");
                let path = joined(scope.path.as_deref().unwrap_or_default(), &parts);
                let output = self.scopes[child].output;
                let part = row(Some(path), String::new(), depth + 1 + open.len(), name, output);
                open.push((self.rows.len(), name, Use::default()));
                self.rows.push(part);
            }
            let child_scope = &self.scopes[child];
            let label = child_scope.path.as_deref().map_or("", |path| {
                let rest = scope.path.as_deref().and_then(|around| below(path, around));
                rest.map_or(path, |rest| rest.rsplit_once('.').map_or(rest, |(_, name)| name))
            });
            let used = self.scope(child, depth + 1 + open.len(), label);
            within = within.and(used);
            for (row, _, part) in &mut open {
                *part = part.and(used);
                let row = &mut self.rows[*row];
                row.uses(*part);
                row.multiply_adds += child_scope.multiply_adds;
                (row.output, row.bytes) = (child_scope.output, child_scope.output.bytes());
            }
        }
        self.counted.extend(held.into_iter().flatten());
        // A layer without a path holds nothing, and uses the parameters of the layers inside.
        let used = own.unwrap_or(within);
        self.rows[at].uses(used);
        used
    }

    /// The indices of the leaves that are the parameters of a part.
    fn parameters_in(&self, part: &str) -> Vec<usize> {
        let is_in = |leaf: &Leaf<'_>| {
            let is_parameter = matches!(leaf.role, Role::Trained | Role::Frozen);
            is_parameter && leaf.paths().any(|path| below(path, part).is_some())
        };
        (0..self.leaves.len()).filter(|&leaf| is_in(&self.leaves[leaf])).collect()
    }

    fn count(&self, parameters: &[usize]) -> Use {
        let new = parameters.iter().filter(|leaf| !self.counted.contains(leaf));
        let new = new.map(|&leaf| self.leaves[leaf].ty().shape.elements()).sum();
        Use { has_parameters: !parameters.is_empty(), new }
    }

    /// For each layer in a scope, the parts in between, joined by dots. A layer without a path is placed with its
    /// neighbours.
    fn places(&self, scope: &Scope) -> Vec<String> {
        let parts = |child: &usize| {
            let rest = below(self.scopes[*child].path.as_deref()?, scope.path.as_deref()?)?;
            Some(rest.rsplit_once('.').map_or("", |(parts, _)| parts).to_owned())
        };
        let known: Vec<Option<String>> = scope.children.iter().map(parts).collect();
        let place = |at: usize| {
            known[at].clone().unwrap_or_else(|| {
                let before = known[..at].iter().rev().flatten().next();
                let after = known[at + 1..].iter().flatten().next();
                let (Some(before), Some(after)) = (before, after) else { return String::new() };
                let shared = before.split('.').zip(after.split('.')).take_while(|(a, b)| a == b);
                shared.map(|(name, _)| name).collect::<Vec<_>>().join(".")
            })
        };
        (0..known.len()).map(place).collect()
    }
}

/// A row without parameters so far.
fn row(path: Option<String>, kind: String, depth: usize, label: &str, output: TensorType) -> LayerRow {
    LayerRow {
        path,
        kind,
        depth,
        output,
        parameters: 0,
        is_again: false,
        multiply_adds: 0,
        bytes: output.bytes(),
        is_leaf: false,
        label: label.to_owned(),
    }
}
