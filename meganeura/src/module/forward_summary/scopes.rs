//! From what a tape noted to the rows of a summary: which layer is in which, and how each is called.

use std::collections::{HashMap, HashSet};

use super::super::enter::held;
use super::super::leaves::Leaf;
use super::super::summary::without_paths;
use super::super::{Module, Role};
use super::LayerRow;
use crate::graph::{Graph, Source};
use crate::tape::{Event, Identity, Part, What};
use crate::{TensorType, Var};

/// The paths of the tensors and modes of the whole model. A tied one has several.
type Known = HashMap<Identity, Vec<String>>;

/// The layers that were entered, each before those that it entered itself. The first one is the model.
pub(super) struct Scopes {
    all: Vec<Scope>,
    /// The path of the layer that met an error first.
    pub(super) failed: Option<String>,
}

struct Scope {
    path: Option<String>,
    kind: &'static str,
    place: (usize, usize),
    /// The number of nodes when it was entered.
    begin: usize,
    output: TensorType,
    /// The layer itself said what it gives.
    is_said: bool,
    multiply_adds: u64,
    children: Vec<usize>,
}

impl Scope {
    fn new(part: &Part, path: Option<String>, begin: usize) -> Self {
        let Part { kind, place, input, .. } = *part;
        Self { path, kind, place, begin, output: input, is_said: false, multiply_adds: 0, children: Vec::new() }
    }
}

impl Scopes {
    pub(super) fn new<M: Module + ?Sized>(model: &M, input: TensorType, events: &[Event], graph: &Graph) -> Self {
        let mut known = Known::new();
        for (path, identity) in held(model) {
            known.entry(identity).or_default().push(path);
        }
        let place = (std::ptr::from_ref(model).cast::<()>().addr(), size_of_val(model));
        let root = Part { name: None, kind: std::any::type_name::<M>(), place, held: Vec::new(), input };
        let begin = events.first().map_or(0, |event| event.node);
        let mut scopes = vec![Scope::new(&root, Some(String::new()), begin)];
        let mut open = vec![0];
        let mut failed = None;
        let mut node = 0;
        for event in events {
            let top = open[open.len() - 1];
            scopes[top].multiply_adds += multiply_adds(graph, node..event.node);
            node = event.node;
            match &event.what {
                What::Entered(part) => {
                    let around = &scopes[top];
                    let path = path(part, around, &known);
                    let tells_more = part.name.is_some() || path.is_some() && path != around.path;
                    if part.place == around.place && !tells_more {
                        // The same, which was named by what is around it.
                        scopes[top].kind = part.kind;
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
        // A layer's work is also that of what it is in.
        for at in (0..scopes.len()).rev() {
            let below: u64 = scopes[at].children.iter().map(|&child| scopes[child].multiply_adds).sum();
            scopes[at].multiply_adds += below;
        }
        Self { all: scopes, failed }
    }

    /// The rows, of a model with these tensors.
    pub(super) fn rows(mut self, leaves: &[Leaf<'_>], outputs: &[Var]) -> Vec<LayerRow> {
        if let Some(y) = outputs.first() {
            self.all[0].output = y.ty();
        }
        let mut rows = Rows { scopes: &self.all, leaves, rows: Vec::new(), seen: HashSet::new() };
        rows.scope(0, 0, "");
        rows.rows
    }
}

/// The path of a part in the model: by its name in what is around it, or by what it holds.
fn path(part: &Part, around: &Scope, known: &Known) -> Option<String> {
    if let Some(name) = &part.name {
        let around = around.path.as_ref()?;
        return Some(if around.is_empty() { name.clone() } else { format!("{around}.{name}") });
    }
    let (local, identity) = part.held.first()?;
    let prefix = |path: &String, local: &str| match path.strip_suffix(local)? {
        "" => Some(String::new()),
        prefix if local.is_empty() => Some(prefix.to_owned()),
        prefix => prefix.strip_suffix('.').map(str::to_owned),
    };
    let paths = |local: &str, identity| -> Vec<String> {
        known.get(&identity).into_iter().flatten().filter_map(|path| prefix(path, local)).collect()
    };
    let fits = |path: &String| part.held.iter().all(|(local, identity)| paths(local, *identity).contains(path));
    let found: Vec<_> = paths(local, *identity).into_iter().filter(fits).collect();
    let is_within = |path: &&String| around.path.as_ref().is_some_and(|around| below(path, around).is_some());
    found.iter().find(is_within).or(found.first()).cloned()
}

/// What follows of a path after that of a part; `None` if it is elsewhere.
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
    /// The paths with parameters that have a row.
    seen: HashSet<String>,
}

impl Rows<'_> {
    /// The row of a layer, and those below.
    fn scope(&mut self, number: usize, depth: usize, label: &str) {
        let scope = &self.scopes[number];
        let row = self.row(scope.path.clone(), without_paths(scope.kind), depth, label, scope.output);
        self.rows.push(LayerRow { multiply_adds: scope.multiply_adds, is_leaf: scope.children.is_empty(), ..row });
        let places = self.places(scope);
        // The parts that the last child is in, which no layer told of: the row and the path of each.
        let mut open: Vec<(usize, &str)> = Vec::new();
        for (&child, parts) in scope.children.iter().zip(&places) {
            let names: Vec<&str> = parts.split('.').filter(|name| !name.is_empty()).collect();
            let kept = open.iter().zip(&names).take_while(|((_, name), other)| name == *other).count();
            open.truncate(kept);
            for name in &names[kept..] {
                let path = open.iter().map(|(_, name)| *name).chain([*name]).collect::<Vec<_>>().join(".");
                let path = match scope.path.as_deref() {
                    Some("") | None => path,
                    Some(around) => format!("{around}.{path}"),
                };
                let output = self.scopes[child].output;
                let row = self.row(Some(path), String::new(), depth + 1 + open.len(), name, output);
                open.push((self.rows.len(), name));
                self.rows.push(row);
            }
            let own = &self.scopes[child];
            for &(row, _) in &open {
                let row = &mut self.rows[row];
                row.multiply_adds += own.multiply_adds;
                (row.output, row.bytes) = (own.output, own.output.bytes());
            }
            let label = own.path.as_deref().map_or("", |path| {
                let rest = scope.path.as_deref().and_then(|around| below(path, around));
                rest.map_or(path, |rest| rest.rsplit_once('.').map_or(rest, |(_, name)| name))
            });
            self.scope(child, depth + 1 + open.len(), label);
        }
    }

    /// For each layer in a scope the parts between, joined by dots. A layer without a path is where those around it
    /// are.
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

    fn row(&mut self, path: Option<String>, kind: String, depth: usize, label: &str, output: TensorType) -> LayerRow {
        let is_in = |leaf: &Leaf<'_>, part: &str| leaf.paths().any(|path| below(path, part).is_some());
        let parameters = path.as_deref().map_or(0, |part| {
            let trained = self.leaves.iter().filter(|leaf| matches!(leaf.role, Role::Trained | Role::Frozen));
            trained.filter(|leaf| is_in(leaf, part)).map(|leaf| leaf.ty().shape.elements()).sum()
        });
        let is_again = parameters > 0 && path.as_ref().is_some_and(|path| !self.seen.insert(path.clone()));
        LayerRow {
            path,
            kind,
            depth,
            output,
            parameters,
            is_again,
            multiply_adds: 0,
            bytes: output.bytes(),
            is_leaf: false,
            label: label.to_owned(),
        }
    }
}
