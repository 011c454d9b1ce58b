//! A model, printed.

use std::collections::HashMap;
use std::fmt;

use super::at::Segment;
use super::leaves::leaves;
use super::{At, Mode, Module, Role, Slot};
use crate::TensorType;

/// The tree of a module's parameters and buffers. `{}` prints it, with the types, how many numbers are parameters, and the
/// bytes that all of it takes:
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
/// Frozen parameters and buffers are marked, so are parts in [evaluation](super::ModuleExt::evaluate), an enum is
/// followed by the variant that is there, and where a tied tensor stands again there is the path under which it counts. [`depth`](Self::depth) cuts the tree of a large model.
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

/// The sums of a node and all below it.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    parameters: usize,
    frozen: usize,
    bytes: usize,
    /// Leaves that have a mode, and those in evaluation.
    modes: usize,
    evaluated: usize,
    /// Leaves and variants: what makes a line.
    lines: usize,
}

impl Total {
    /// All of it is in evaluation.
    fn is_evaluated(&self) -> bool {
        self.modes > 0 && self.evaluated == self.modes
    }

    /// A layer that has nothing but a mode is a line only where that is news.
    fn is_shown(&self, said: bool) -> bool {
        self.lines > 0 || self.evaluated > 0 && !said
    }
}

impl Summary {
    pub(super) fn of<M: Module + ?Sized>(module: &M) -> Self {
        let leaves: HashMap<_, _> = leaves(module).into_iter().map(|leaf| (leaf.cell().id(), leaf)).collect();
        let mut tree = Tree::new(without_paths(std::any::type_name::<M>()));
        // The node at which each tensor counts.
        let mut first = HashMap::new();
        module.visit(At::root(), &mut |at, slot| {
            let segments = at.segments();
            if let Slot::Mode(mode) = slot {
                // That of the layer which holds it.
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

    /// The same, of this many levels: what is below is counted in its place, not shown.
    #[must_use]
    pub fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// One line: `Digits (20,874 parameters)`, and what else there is to say.
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

    /// The lines below the headline, as columns: the branches and the name; the type; the count; the bytes; the role.
    fn rows(&self) -> Vec<[String; 5]> {
        let mut rows = Vec::new();
        // What is still to be written, the next line last: nodes, each with its level and what stands before its branch.
        let mut open: Vec<(usize, usize, String)> = Vec::new();
        // The mode that is said of a part is that of all below: down to which level it has been said.
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

/// What the derived `Display` does: `{}` is the headline, `{:#}` the tree.
#[doc(hidden)]
pub fn fmt_module<M: Module + ?Sized>(module: &M, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let summary = Summary::of(module);
    if f.alternate() { fmt::Display::fmt(&summary, f) } else { f.pad(&summary.headline("")) }
}

/// The nodes of a summary while a visit meets them.
struct Tree {
    nodes: Vec<Node>,
    /// The children of all nodes by their names.
    children: HashMap<(usize, String), usize>,
    /// The way to the last node that was met. The next one is near it.
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

    /// The node at a place, made if it is not there.
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
            // Children come after their parents, so theirs are there.
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

    /// Without what is below.
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
        // A buffer's elements are not parameters, and would not add up.
        let Total { parameters, bytes: size, .. } = self.total;
        let unless_zero = |n: usize, text: fn(usize) -> String| if n == 0 { String::new() } else { text(n) };
        [name, ty, unless_zero(parameters, thousands), unless_zero(size, bytes), role]
    }
}

/// `1234567` as `1,234,567`.
fn thousands(n: usize) -> String {
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
fn bytes(n: usize) -> String {
    if n < 10_000 {
        return format!("{} B", thousands(n));
    }
    let (mut size, mut unit) = (n as f64 / 1024.0, 0);
    while size >= 1000.0 && unit < 3 {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    format!("{size:.1} {}", ["KiB", "MiB", "GiB", "TiB"][unit])
}

/// `alloc::vec::Vec<net::Block>` as `Vec<Block>`.
fn without_paths(type_name: &str) -> String {
    let mut out = String::with_capacity(type_name.len());
    let mut segment = 0;
    for c in type_name.chars() {
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
mod tests {
    use super::*;
    use crate::module::SlotMut;
    use crate::{Buffer, Device, Param, Tensor};

    struct Net {
        stem: Vec<Param>,
        norm: (Param, Buffer),
    }

    impl Module for Net {
        fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
            self.stem.visit(at.field("stem").frozen(), f);
            self.norm.visit(at.field("norm"), f);
        }

        fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
    }

    impl fmt::Display for Net {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            fmt_module(self, f)
        }
    }

    fn net() -> Net {
        let tensor = |shape: &[usize]| Tensor::zeros(&Device::cpu(), crate::Shape::new(shape)).unwrap();
        Net {
            stem: vec![Param::new(tensor(&[32, 3, 3, 3])), Param::new(tensor(&[32]))],
            norm: (Param::new(tensor(&[4096, 256])), Buffer::new(tensor(&[1]))),
        }
    }

    #[test]
    fn a_model_in_one_line() {
        assert_eq!(net().to_string(), "Net (1,049,472 parameters, 896 frozen)");
        assert_eq!(format!("{:45}|", net()), "Net (1,049,472 parameters, 896 frozen)       |");
    }

    #[test]
    fn a_model_as_a_tree() {
        let expected = "\
Net (1,049,472 parameters, 896 frozen, 4.0 MiB)
├─ stem                          896  3,584 B
│  ├─ 0  f32[32, 3, 3, 3]        864  3,456 B  frozen
│  └─ 1  f32[32]                  32    128 B  frozen
└─ norm                    1,048,576  4.0 MiB
   ├─ 0  f32[4096, 256]    1,048,576  4.0 MiB
   └─ 1  f32[1]                           4 B  buffer";
        assert_eq!(format!("{:#}", net()), expected);
        assert_eq!(Summary::of(&net()).to_string(), expected);
        let expected = "\
Net (1,049,472 parameters, 896 frozen, 4.0 MiB)
├─ stem          896  3,584 B
└─ norm    1,048,576  4.0 MiB";
        assert_eq!(Summary::of(&net()).depth(1).to_string(), expected);
        assert_eq!(Summary::of(&net()).depth(0).to_string(), "Net (1,049,472 parameters, 896 frozen, 4.0 MiB)");
    }

    #[test]
    fn a_leaf_alone_and_nothing_at_all() {
        let bias = Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
        assert_eq!(Summary::of(&bias).to_string(), "Param (1 parameter, 4 B)");
        assert_eq!(Summary::of(&Vec::<Param>::new()).to_string(), "Vec<Param> (0 parameters, 0 B)");
    }

    enum Norm {
        Affine(Param, Param),
    }

    impl Module for Norm {
        fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
            f(at, Slot::Variant("Affine"));
            let Self::Affine(scale, shift) = self;
            scale.visit(at.index(0), f);
            shift.visit(at.index(1), f);
        }

        fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
    }

    #[test]
    fn ties_variants_and_constants_show() {
        let zeros = || Tensor::zeros(&Device::cpu(), [2]).unwrap();
        let (w, table) = (Param::new(zeros()), Buffer::constant(zeros()));
        let net = vec![
            (Norm::Affine(w.tied(), Param::new(zeros())), table),
            (Norm::Affine(w.tied(), w), Buffer::new(zeros())),
        ];
        let expected = "\
Vec<(Norm, Buffer)> (4 parameters, 32 B)
├─ 0                     4  24 B
│  ├─ 0: Affine          4  16 B
│  │  ├─ 0       f32[2]  2   8 B
│  │  └─ 1       f32[2]  2   8 B
│  └─ 1          f32[2]      8 B  constant
└─ 1                         8 B
   ├─ 0: Affine
   │  ├─ 0       f32[2]           = 0.0.0
   │  └─ 1       f32[2]           = 0.0.0
   └─ 1          f32[2]      8 B  buffer";
        let shown = Summary::of(&net).to_string();
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn a_large_model_is_summed_up_in_one_walk() {
        const COUNT: usize = 100_000;
        let bias = Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
        let other = Param::new(bias.value());
        // Every second place is another tie.
        let net: Vec<_> =
            (0..COUNT / 2).map(|_| (bias.tied(), Param::new(bias.value()))).chain([(other, bias.tied())]).collect();
        let shown = Summary::of(&net).to_string();
        assert!(shown.starts_with("Vec<(Param, Param)> (50,002 parameters, 195.3 KiB)"), "{}", &shown[..80]);
        assert_eq!(shown.lines().count(), 1 + 3 * (COUNT / 2 + 1));
        assert_eq!(shown.matches("= 0.0\n").count(), COUNT / 2 - 1);
        assert!(shown.ends_with("= 0.0"));
        assert_eq!(Summary::of(&net).depth(1).to_string().lines().count(), COUNT / 2 + 2);
    }

    #[test]
    fn children_are_one_by_their_names() {
        struct Scattered(Vec<Param>);
        impl Module for Scattered {
            fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
                // Back to a branch that was left, once by its number and once by its name.
                f(at.field("a").index(0), Slot::Param(&self.0[0]));
                f(at.field("b"), Slot::Param(&self.0[1]));
                f(at.field("a").field("1"), Slot::Param(&self.0[2]));
                f(at.field("a").field("0").field("c"), Slot::Param(&self.0[3]));
            }

            fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
        }
        let param = || Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
        let expected = "\
Scattered (8 parameters, 32 B)
├─ a                6  24 B
│  ├─ 0     f32[2]  4  16 B
│  │  └─ c  f32[2]  2   8 B
│  └─ 1     f32[2]  2   8 B
└─ b        f32[2]  2   8 B";
        let shown = Summary::of(&Scattered((0..4).map(|_| param()).collect())).to_string();
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn evaluated_parts_show_once() {
        use crate::ModuleExt;
        use crate::nn::Dropout;
        let param = || Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
        let block = || (param(), Dropout::new(0.5), param());
        let mut net = vec![(block(), Dropout::new(0.1)), (block(), Dropout::new(0.1))];
        let shown = |net: &Vec<_>| Summary::of(net).to_string().lines().map(str::to_owned).collect::<Vec<_>>();
        let plain = shown(&net);
        assert!(!plain.join("").contains("evaluated") && plain.len() == 9, "{plain:#?}");
        net.evaluate("0").unwrap();
        net.evaluate("1.0.1").unwrap();
        net.evaluate("1.1").unwrap();
        let expected = "\
Vec<((Param, Dropout, Param), Dropout)> (8 parameters, partly evaluated, 32 B)
├─ 0                4  16 B  evaluated
│  └─ 0             4  16 B
│     ├─ 0  f32[2]  2   8 B
│     └─ 2  f32[2]  2   8 B
└─ 1                4  16 B
   ├─ 0             4  16 B
   │  ├─ 0  f32[2]  2   8 B
   │  ├─ 1                   evaluated
   │  └─ 2  f32[2]  2   8 B
   └─ 1                      evaluated";
        assert_eq!(shown(&net).join("\n"), expected, "\n{}", shown(&net).join("\n"));
        net.evaluate("**").unwrap();
        let all = shown(&net);
        assert!(all[0].ends_with("(8 parameters, evaluated, 32 B)") && all[1..] == plain[1..], "{all:#?}");
    }

    #[test]
    fn bytes_have_units() {
        let cases =
            [(0, "0 B"), (9_999, "9,999 B"), (10_240, "10.0 KiB"), (1_023_999, "1000.0 KiB"), (5 << 30, "5.0 GiB")];
        assert_eq!(cases.map(|(n, _)| bytes(n)), cases.map(|(_, text)| text.to_owned()));
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [0, 999, 1000, 12_345, 123_456, 1_234_567].map(thousands),
            ["0", "999", "1,000", "12,345", "123,456", "1,234,567"]
        );
    }

    #[test]
    fn type_names_lose_their_paths() {
        assert_eq!(without_paths("alloc::vec::Vec<net::Block<core::option::Option<u8>>>"), "Vec<Block<Option<u8>>>");
        assert_eq!(without_paths("(a::B, [c::D; 4], dyn e::F)"), "(B, [D; 4], dyn F)");
        assert_eq!(without_paths("Digits"), "Digits");
    }
}
