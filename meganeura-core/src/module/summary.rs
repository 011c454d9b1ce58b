//! A printable model.

use std::collections::HashMap;
use std::fmt;

use super::at::Segment;
use super::leaves::leaves_of;
use super::{Mode, Module, Role, Slot, Visited};
use crate::TensorType;

/// The tree of a module's parameters and buffers. `{}` prints it, with types, the number of elements in parameters, and
/// the bytes of everything:
///
/// ```text
/// Digits (20,874 parameters, 81.5 KiB)
/// ├─ stem                            320   1,280 B
/// │  ├─ weight  f32[32, 1, 3, 3]     288   1,152 B
/// │  └─ bias    f32[32]               32     128 B
/// ├─ norm                             64     256 B
/// │  ├─ weight  f32[32]               32     128 B
/// │  └─ bias    f32[32]               32     128 B
/// └─ head                         20,490  80.0 KiB
///    ├─ weight  f32[10, 2048]     20,480  80.0 KiB
///    └─ bias    f32[10]               10      40 B
/// ```
///
/// Frozen parameters, buffers and parts in [evaluation](super::ModuleExt::evaluate) are marked. An enum is followed by
/// its variant. Further places of a tied tensor show the path at which it counts. [`depth`](Self::depth) cuts the tree
/// of a large model.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The root first, and children after their parents.
    nodes: Vec<Node>,
    depth: usize,
}

#[derive(Debug, Clone)]
struct Node {
    name: String,
    variant: Option<&'static str>,
    leaf: Option<Printed>,
    /// The mode of a leaf, or of a layer without leaves.
    evaluated: Option<bool>,
    children: Vec<usize>,
    total: Total,
}

#[derive(Debug, Clone)]
enum Printed {
    Leaf(TensorType, Role),
    /// Counted and shown at this path.
    Tied(TensorType, String),
}

/// The sums over a node and everything below it.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    parameters: usize,
    frozen: usize,
    bytes: usize,
    /// The number of leaves with a mode, and of those in evaluation.
    modes: usize,
    evaluated: usize,
    /// The number of leaves and variants, which have lines.
    lines: usize,
}

impl Total {
    /// `true` if everything is in evaluation.
    fn is_evaluated(&self) -> bool {
        self.modes > 0 && self.evaluated == self.modes
    }

    /// A layer with nothing but a mode has a line only if its mode differs from what is already said.
    fn is_shown(&self, said: bool) -> bool {
        self.lines > 0 || self.evaluated > 0 && !said
    }
}

impl Summary {
    pub(super) fn of<M: Module + ?Sized>(module: &M) -> Self {
        Self::of_visited(&module, std::any::type_name::<M>())
    }

    fn of_visited(module: &dyn Visited<'_>, kind: &str) -> Self {
        let leaves: HashMap<_, _> = leaves_of(module).into_iter().map(|leaf| (leaf.cell().id(), leaf)).collect();
        let mut tree = Tree::new(without_paths(kind));
        // The node at which each tensor counts.
        let mut first = HashMap::new();
        module.visit_all(&mut |at, slot| {
            let segments = at.segments();
            if let Slot::Mode(mode) = slot {
                // The mode of the layer that holds it.
                let node = tree.descend(segments.split_last().map_or(&[], |(_, layer)| layer));
                tree.nodes[node].evaluated = Some(mode.is_evaluated());
                return;
            }
            let node = tree.descend(&segments);
            tree.nodes[node].evaluated = slot.mode().map(Mode::is_evaluated);
            match slot {
                Slot::Mode(_) => {}
                Slot::Variant(variant) => tree.nodes[node].variant = Some(variant),
                Slot::Param(_) | Slot::Buffer(_) => {
                    let leaf = slot.cell().map(|cell| &leaves[&cell.id()]).expect("a tensor");
                    tree.nodes[node].leaf = Some(match *first.entry(leaf.cell().id()).or_insert(node) == node {
                        true => Printed::Leaf(leaf.ty(), leaf.role),
                        false => Printed::Tied(leaf.ty(), leaf.path.clone()),
                    });
                }
            }
        });
        Self { nodes: tree.finish(), depth: usize::MAX }
    }

    /// Shows this many levels. Anything below is counted in its part, and not shown.
    #[must_use]
    pub fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// One line: `Digits (20,874 parameters)`, with the other remarks.
    fn headline(&self, more: &str) -> String {
        let Total { parameters, frozen, .. } = self.root().total;
        let noun = if parameters == 1 { "parameter" } else { "parameters" };
        let frozen = match frozen {
            0 => String::new(),
            frozen => format!(", {} frozen", thousands(frozen)),
        };
        let mode = match (self.root().total.is_evaluated(), self.root().total.evaluated) {
            (true, _) => ", evaluated",
            (false, 0) => "",
            (false, _) => ", partly evaluated",
        };
        format!("{} ({} {noun}{frozen}{mode}{more})", self.root().label(), thousands(parameters))
    }

    /// The lines below the headline, as columns: branches and name, type, count, bytes, role.
    fn rows(&self) -> Vec<[String; 5]> {
        let mut rows = Vec::new();
        // The remaining nodes, the next one last: each with its level and the indentation of its branch.
        let mut open: Vec<(usize, usize, String)> = Vec::new();
        // A mode printed for a part applies to everything below: the level at which it was printed.
        let (mut at, mut level, mut indent, mut said) = (0, 0, String::new(), None);
        loop {
            said = said.filter(|&above| above < level).or_else(|| self.nodes[at].total.is_evaluated().then_some(level));
            let is_shown = |child: &&usize| level < self.depth && self.nodes[**child].total.is_shown(said.is_some());
            let children = self.nodes[at].children.iter().rev().filter(is_shown);
            open.extend(children.map(|&child| (child, level + 1, indent.clone())));
            let Some((node, depth, before)) = open.pop() else { return rows };
            let is_last = open.last().is_none_or(|(_, next, _)| *next != depth);
            let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let is_said = said.is_some_and(|above| above < depth);
            rows.push(self.nodes[node].row(format!("{before}{branch}{}", self.nodes[node].label()), is_said));
            (at, level, indent) = (node, depth, before + below);
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline(&format!(", {}", bytes(self.root().total.bytes))))?;
        let rows = self.rows();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (names, types, counts, sizes) = (width(0), width(1), width(2), width(3));
        for [name, ty, count, size, role] in &rows {
            let line = format!("{name:names$}  {ty:types$}  {count:>counts$}  {size:>sizes$}  {role}");
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The body of the derived `Display`: `{}` is the headline, `{:#}` the tree.
#[doc(hidden)]
pub fn fmt_module<M: Module + ?Sized>(module: &M, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let summary = Summary::of(module);
    if f.alternate() { fmt::Display::fmt(&summary, f) } else { f.pad(&summary.headline("")) }
}

/// The nodes of a summary, collected during a visit.
struct Tree {
    nodes: Vec<Node>,
    /// The children of all nodes by their names.
    children: HashMap<(usize, String), usize>,
    /// The path to the last node. The next one is near it.
    way: Vec<(Step, usize)>,
}

/// A [`Segment`] that outlives the visit.
enum Step {
    Field(String),
    Index(usize),
}

impl Tree {
    fn new(name: String) -> Self {
        Self { nodes: vec![Node::new(name)], children: HashMap::new(), way: Vec::new() }
    }

    /// The node at a position, created if it does not exist.
    fn descend(&mut self, segments: &[Segment<'_>]) -> usize {
        let known = self.way.iter().zip(segments).take_while(|((step, _), segment)| step.is(segment)).count();
        self.way.truncate(known);
        for segment in &segments[known..] {
            let parent = self.way.last().map_or(0, |(_, node)| *node);
            let node = self.child(parent, segment.to_string());
            self.way.push((Step::new(segment), node));
        }
        self.way.last().map_or(0, |(_, node)| *node)
    }

    fn child(&mut self, parent: usize, name: String) -> usize {
        if let Some(&known) = self.children.get(&(parent, name.clone())) {
            return known;
        }
        let node = self.nodes.len();
        self.nodes.push(Node::new(name.clone()));
        self.nodes[parent].children.push(node);
        self.children.insert((parent, name), node);
        node
    }

    /// The nodes with their totals.
    fn finish(mut self) -> Vec<Node> {
        for node in (0..self.nodes.len()).rev() {
            // Children come after their parents, so their totals are known.
            let below = self.nodes[node].children.iter().map(|&child| self.nodes[child].total);
            self.nodes[node].total = below.fold(self.nodes[node].own(), |a, b| Total {
                parameters: a.parameters + b.parameters,
                frozen: a.frozen + b.frozen,
                bytes: a.bytes + b.bytes,
                modes: a.modes + b.modes,
                evaluated: a.evaluated + b.evaluated,
                lines: a.lines + b.lines,
            });
        }
        self.nodes
    }
}

impl Step {
    fn new(segment: &Segment<'_>) -> Self {
        match *segment {
            Segment::Index(index) => Self::Index(index),
            ref named => Self::Field(named.to_string()),
        }
    }

    fn is(&self, segment: &Segment<'_>) -> bool {
        match (self, segment) {
            (Self::Field(name), Segment::Field(other)) => name == other,
            (Self::Index(index), Segment::Index(other)) => index == other,
            _ => false,
        }
    }
}

impl Node {
    fn new(name: String) -> Self {
        Self { name, variant: None, leaf: None, evaluated: None, children: Vec::new(), total: Total::default() }
    }

    fn label(&self) -> String {
        self.variant.map_or_else(|| self.name.clone(), |variant| format!("{}: {variant}", self.name))
    }

    /// The total without everything below.
    fn own(&self) -> Total {
        let modes = Total {
            modes: usize::from(self.evaluated.is_some()),
            evaluated: usize::from(self.evaluated == Some(true)),
            lines: usize::from(self.leaf.is_some() || self.variant.is_some()),
            ..Total::default()
        };
        match self.leaf {
            Some(Printed::Leaf(ty, role)) => {
                let count_if = |counted: bool| if counted { ty.shape.elements() } else { 0 };
                Total {
                    parameters: count_if(matches!(role, Role::Trained | Role::Frozen)),
                    frozen: count_if(role == Role::Frozen),
                    bytes: ty.bytes(),
                    ..modes
                }
            }
            Some(Printed::Tied(..)) | None => modes,
        }
    }

    fn row(&self, name: String, said: bool) -> [String; 5] {
        let (ty, mut role) = match &self.leaf {
            None => (String::new(), String::new()),
            Some(Printed::Tied(ty, path)) => (ty.to_string(), format!("= {path}")),
            Some(Printed::Leaf(ty, role)) => {
                let role = match role {
                    Role::Trained => "",
                    Role::Frozen => "frozen",
                    Role::Buffer => "buffer",
                    Role::Constant => "constant",
                };
                (ty.to_string(), role.to_owned())
            }
        };
        if self.total.is_evaluated() && !said {
            role = if role.is_empty() { "evaluated".to_owned() } else { format!("{role}, evaluated") };
        }
        // The elements of a buffer are not parameters, and would not add up.
        let Total { parameters, bytes: size, .. } = self.total;
        let unless_zero = |n: usize, text: fn(usize) -> String| if n == 0 { String::new() } else { text(n) };
        [name, ty, unless_zero(parameters, thousands), unless_zero(size, bytes), role]
    }
}

/// `1234567` as `1,234,567`.
pub(super) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `2048` as `2,048 B`, ten thousand and more as `9.8 KiB`.
pub(super) fn bytes(n: usize) -> String {
    if n < 10_000 {
        return format!("{} B", thousands(n));
    }
    let (mut size, mut unit) = (n as f64 / 1024.0, 0);
    while size >= 1000.0 && unit < 3 {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    format!("{size:.1} {}", ["KiB", "MiB", "GiB", "TiB"][unit])
}

/// Layers of so many axes by their aliases: `meganeura::nn::conv::Conv<2>` as `meganeura::nn::conv::Conv2d`.
fn with_aliases(type_name: &str) -> String {
    const LAYERS: &str = "meganeura::nn::";
    let (mut out, mut rest) = (String::with_capacity(type_name.len()), type_name);
    while let Some(at) = rest.find(LAYERS) {
        let (before, layer) = rest.split_at(at);
        let end = layer.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(layer.len());
        let (path, after) = layer.split_at(end);
        out.extend([before, path]);
        rest = match *after.as_bytes() {
            [b'<', axes @ b'1'..=b'9', b'>', ..] => {
                out.extend([char::from(axes), 'd']);
                &after[3..]
            }
            _ => after,
        };
    }
    out + rest
}

/// `alloc::vec::Vec<net::Block>` as `Vec<Block>`.
pub(super) fn without_paths(type_name: &str) -> String {
    let mut out = String::with_capacity(type_name.len());
    let mut segment = 0;
    for c in with_aliases(type_name).chars() {
        if c == ':' {
            out.truncate(segment);
        } else {
            out.push(c);
            if !(c.is_alphanumeric() || c == '_') {
                segment = out.len();
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
