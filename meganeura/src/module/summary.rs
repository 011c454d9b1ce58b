//! A model, printed.

use std::collections::HashMap;
use std::fmt;

use super::leaves::leaves;
use super::{At, Module, Role, Slot};
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
/// Frozen parameters and buffers are marked, an enum is followed by the variant that is there, and where a tied tensor stands
/// again there is the path under which it counts. [`depth`](Self::depth) cuts the tree of a large model.
#[derive(Debug, Clone)]
pub struct Summary {
    root: Node,
    depth: usize,
}

#[derive(Debug, Clone)]
struct Node {
    name: String,
    variant: Option<&'static str>,
    leaf: Option<Printed>,
    children: Vec<Node>,
}

#[derive(Debug, Clone)]
enum Printed {
    Leaf(TensorType, Role),
    /// Counted and shown at this path.
    Tied(TensorType, String),
}

/// What a node and all below it come to.
#[derive(Clone, Copy, Default)]
struct Total {
    parameters: usize,
    frozen: usize,
    bytes: usize,
}

impl Summary {
    pub(super) fn of<M: Module + ?Sized>(module: &M) -> Self {
        let leaves: HashMap<_, _> = leaves(module).into_iter().map(|leaf| (leaf.cell().id(), leaf)).collect();
        let mut root = Node::new(without_paths(std::any::type_name::<M>()));
        module.visit(At::root(), &mut |at, slot| {
            let node = root.descend(at.segments());
            match slot {
                Slot::Variant(variant) => node.variant = Some(variant),
                Slot::Param(_) | Slot::Buffer(_) => {
                    let leaf = slot.cell().map(|cell| &leaves[&cell.id()]).expect("a tensor");
                    let is_first = leaf.path == at.path();
                    node.leaf = Some(match is_first {
                        true => Printed::Leaf(leaf.ty(), leaf.role),
                        false => Printed::Tied(leaf.ty(), leaf.path.clone()),
                    });
                }
            }
        });
        Self { root, depth: usize::MAX }
    }

    /// The same, of this many levels: what is below is counted in its place, not shown.
    #[must_use]
    pub fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// One line: `Digits (20,874 parameters)`, and what else there is to say.
    fn headline(&self, more: &str) -> String {
        let Total { parameters, frozen, .. } = self.root.total();
        let noun = if parameters == 1 { "parameter" } else { "parameters" };
        let frozen = match frozen {
            0 => String::new(),
            frozen => format!(", {} frozen", thousands(frozen)),
        };
        format!("{} ({} {noun}{frozen}{more})", self.root.label(), thousands(parameters))
    }

    /// The lines below the headline, as columns: the branches and the name; the type; the count; the bytes; the role.
    fn rows(&self) -> Vec<[String; 5]> {
        fn add(node: &Node, depth: usize, indent: &str, rows: &mut Vec<[String; 5]>) {
            let Some(below_child) = depth.checked_sub(1) else { return };
            for (index, child) in node.children.iter().enumerate() {
                let (branch, below) =
                    if index + 1 < node.children.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
                rows.push(child.row(format!("{indent}{branch}{}", child.label())));
                add(child, below_child, &format!("{indent}{below}"), rows);
            }
        }
        let mut rows = Vec::new();
        add(&self.root, self.depth, "", &mut rows);
        rows
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline(&format!(", {}", bytes(self.root.total().bytes))))?;
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

impl Node {
    fn new(name: String) -> Self {
        Self { name, variant: None, leaf: None, children: Vec::new() }
    }

    /// The node at the end of `segments`, made if it is not there.
    fn descend(&mut self, segments: Vec<String>) -> &mut Self {
        segments.into_iter().fold(self, |node, name| {
            let index = node.children.iter().rposition(|child| child.name == name).unwrap_or_else(|| {
                node.children.push(Self::new(name));
                node.children.len() - 1
            });
            &mut node.children[index]
        })
    }

    fn label(&self) -> String {
        self.variant.map_or_else(|| self.name.clone(), |variant| format!("{}: {variant}", self.name))
    }

    fn total(&self) -> Total {
        let here = match self.leaf {
            Some(Printed::Leaf(ty, role)) => {
                let count_if = |counted: bool| if counted { ty.shape.elements() } else { 0 };
                Total {
                    parameters: count_if(matches!(role, Role::Trained | Role::Frozen)),
                    frozen: count_if(role == Role::Frozen),
                    bytes: ty.bytes(),
                }
            }
            Some(Printed::Tied(..)) | None => Total::default(),
        };
        self.children.iter().map(Self::total).fold(here, |a, b| Total {
            parameters: a.parameters + b.parameters,
            frozen: a.frozen + b.frozen,
            bytes: a.bytes + b.bytes,
        })
    }

    fn row(&self, name: String) -> [String; 5] {
        let (ty, role) = match &self.leaf {
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
        // A buffer's elements are not parameters, and would not add up.
        let Total { parameters, bytes: size, .. } = self.total();
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
