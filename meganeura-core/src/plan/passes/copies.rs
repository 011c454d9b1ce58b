//! Computes what no layout expresses, such as a reshape of heads that were permuted. Elsewhere lowering copies such a
//! value in `f32`; as an elementwise operation, the copy has a format like any other value.

use std::collections::HashMap;

use crate::Layout;
use crate::graph::{Exact, Graph, Operands, Source, ValueId};
use crate::ops::{Op, Pointwise, View};

/// Puts a copy before each view of a value whose layout the view cannot rearrange: a product with 1, which is the same
/// number. Returns the new graph, and the names of the roots in it.
pub(super) fn copies(graph: &Graph, roots: &[ValueId]) -> (Graph, Vec<ValueId>) {
    let mut out = Graph::default();
    let mut renamed: Vec<ValueId> = Vec::with_capacity(graph.values());
    // By value of the new graph. Numbers have no memory, so any view of them is free.
    let mut layouts: Vec<Option<Layout>> = Vec::with_capacity(graph.values());
    let mut copied: HashMap<ValueId, ValueId> = HashMap::new();
    for node in graph.nodes() {
        let mut inputs: Operands = node.inputs.iter().map(|input| renamed[input.index()]).collect();
        let mut layout_of = |out: &mut Graph, inputs: &mut Operands, view: &View| {
            let known = layouts[inputs[0].index()]?;
            let (from, ty) = (inputs[0], out.ty(inputs[0]));
            view.layout(&known).or_else(|| {
                inputs[0] = *copied.entry(from).or_insert_with(|| {
                    let one = out.push(Source::Const(Exact(1.0)), [], [ty]);
                    out.push(Source::Op(Pointwise::Mul.into()), [from, one], [ty])
                });
                layouts.resize(out.values(), Some(Layout::contiguous(ty.shape)));
                view.layout(&Layout::contiguous(ty.shape))
            })
        };
        let layout = match &node.source {
            Source::Op(Op::View(view)) => layout_of(&mut out, &mut inputs, view),
            Source::Const(_) | Source::Host(_) => None,
            _ => Some(Layout::contiguous(node.types[0].shape)),
        };
        let first = out.push(node.source.clone(), inputs, node.types.iter().copied());
        layouts.push(layout);
        layouts.extend(node.types[1..].iter().map(|ty| Some(Layout::contiguous(ty.shape))));
        renamed.extend((0..node.types.len() as u32).map(|k| ValueId(first.0 + k)));
    }
    (out, roots.iter().map(|root| renamed[root.index()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Shape, TensorType};

    #[test]
    fn only_views_that_no_layout_expresses_read_copies() {
        let ty = |dims: &[usize]| TensorType::new(DType::F32, Shape::new(dims));
        let mut g = Graph::default();
        let x = g.push(Source::Leaf(0), [], [ty(&[2, 3, 4])]);
        let view = |g: &mut Graph, view: View, of, dims: &[usize]| g.push(Source::Op(view.into()), [of], [ty(dims)]);
        let turned = view(&mut g, View::Permute(vec![1, 0, 2]), x, &[3, 2, 4]);
        let flat = view(&mut g, View::Reshape(Shape::from([6, 4])), turned, &[6, 4]);
        let again = view(&mut g, View::Reshape(Shape::from([24])), turned, &[24]);
        let free = view(&mut g, View::Reshape(Shape::from([6, 4])), x, &[6, 4]);
        let (out, roots) = copies(&g, &[flat, again, free, turned]);
        let products = out.nodes().iter().filter(|node| matches!(node.source, Source::Op(Op::Pointwise(_)))).count();
        assert_eq!((products, roots.len()), (1, 4));
        assert_eq!(
            roots.iter().map(|&root| out.ty(root)).collect::<Vec<_>>(),
            [&[6, 4][..], &[24], &[6, 4], &[3, 2, 4]].map(ty)
        );
    }
}
