//! A model, printed.

use std::fmt;

use super::{At, Module, Slot};

/// The tree of a module's parameters and buffers. `{}` prints it:
///
/// ```text
/// Digits (20,874 parameters)
/// ├─ stem                         320
/// │  ├─ weight  [32, 1, 3, 3]     288
/// │  └─ bias    [32]               32
/// ├─ norm                          64
/// │  ├─ weight  [32]               32
/// │  └─ bias    [32]               32
/// └─ head                      20,490
///    ├─ weight  [10, 2048]     20,480
///    └─ bias    [10]               10
/// ```
#[derive(Debug, Clone)]
pub struct Summary {
    root: Node,
}

#[derive(Debug, Clone)]
struct Node {
    name: String,
    leaf: Option<Leaf>,
    children: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Leaf {
    role: Role,
    shape: String,
    elements: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Trained,
    Frozen,
    Buffer,
}

impl Summary {
    pub(super) fn of<M: Module + ?Sized>(module: &M) -> Self {
        let mut root = Node::new(without_paths(std::any::type_name::<M>()));
        module.visit(At::root(), &mut |at, slot| {
            let (role, shape) = match slot {
                Slot::Param(param) if at.is_frozen() => (Role::Frozen, param.shape()),
                Slot::Param(param) => (Role::Trained, param.shape()),
                Slot::Buffer(buffer) => (Role::Buffer, buffer.shape()),
            };
            root.descend(at.segments()).leaf =
                Some(Leaf { role, shape: shape.to_string(), elements: shape.elements() });
        });
        Self { root }
    }

    /// One line: `Digits (20,874 parameters)`.
    fn headline(&self) -> String {
        let parameters = self.root.parameters();
        let noun = if parameters == 1 { "parameter" } else { "parameters" };
        let frozen = match self.root.count(|role| role == Role::Frozen) {
            0 => String::new(),
            frozen => format!(", {} frozen", thousands(frozen)),
        };
        format!("{} ({} {noun}{frozen})", self.root.name, thousands(parameters))
    }

    /// The lines below the headline, as columns: the branches and the name; the shape; the count; the role.
    fn rows(&self) -> Vec<[String; 4]> {
        fn add(node: &Node, indent: &str, rows: &mut Vec<[String; 4]>) {
            for (index, child) in node.children.iter().enumerate() {
                let (branch, below) =
                    if index + 1 < node.children.len() { ("├─ ", "│  ") } else { ("└─ ", "   ") };
                rows.push(child.row(format!("{indent}{branch}{}", child.name)));
                add(child, &format!("{indent}{below}"), rows);
            }
        }
        let mut rows = Vec::new();
        add(&self.root, "", &mut rows);
        rows
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        let rows = self.rows();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (names, shapes, counts) = (width(0), width(1), width(2));
        for [name, shape, count, role] in &rows {
            let line = format!("{name:names$}  {shape:shapes$}  {count:>counts$}  {role}");
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// What the derived `Display` does: `{}` is the headline, `{:#}` the tree.
#[doc(hidden)]
pub fn fmt_module<M: Module + ?Sized>(module: &M, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let summary = Summary::of(module);
    if f.alternate() { fmt::Display::fmt(&summary, f) } else { f.pad(&summary.headline()) }
}

impl Node {
    fn new(name: String) -> Self {
        Self { name, leaf: None, children: Vec::new() }
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

    fn parameters(&self) -> usize {
        self.count(|role| role != Role::Buffer)
    }

    fn count(&self, counted: fn(Role) -> bool) -> usize {
        let here = self.leaf.as_ref().filter(|leaf| counted(leaf.role)).map_or(0, |leaf| leaf.elements);
        here + self.children.iter().map(|child| child.count(counted)).sum::<usize>()
    }

    fn row(&self, name: String) -> [String; 4] {
        let (shape, role) = match &self.leaf {
            None => (String::new(), ""),
            Some(leaf) => {
                let role = match leaf.role {
                    Role::Trained => "",
                    Role::Frozen => "frozen",
                    Role::Buffer => "buffer",
                };
                (leaf.shape.clone(), role)
            }
        };
        // A buffer's elements are not parameters, and would not add up.
        let count = Some(self.parameters()).filter(|&count| count > 0).map(thousands).unwrap_or_default();
        [name, shape, count, role.to_owned()]
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
Net (1,049,472 parameters, 896 frozen)
├─ stem                       896
│  ├─ 0  [32, 3, 3, 3]        864  frozen
│  └─ 1  [32]                  32  frozen
└─ norm                 1,048,576
   ├─ 0  [4096, 256]    1,048,576
   └─ 1  [1]                       buffer";
        assert_eq!(format!("{:#}", net()), expected);
        assert_eq!(Summary::of(&net()).to_string(), expected);
    }

    #[test]
    fn a_leaf_alone_and_nothing_at_all() {
        let bias = Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
        assert_eq!(Summary::of(&bias).to_string(), "Param (1 parameter)");
        assert_eq!(Summary::of(&Vec::<Param>::new()).to_string(), "Vec<Param> (0 parameters)");
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
