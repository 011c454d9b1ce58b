//! The ONNX forms: elements gathered from, and scattered to, all columns of a sum.

use super::{Extents, WeightedGather, WeightedGatherGradInput, WeightedGatherGradWeight};
use crate::ops::form::{Attribute, Form, Operand, Results, Value, int, ints, only};
use crate::{Shape, TensorType};

impl Extents {
    /// The indices for each channel, `[N,C,T·K]`. Those past the end become `R`.
    fn index(self, index: Value, to: &mut Form) -> Value {
        let end = to.int(int(self.r));
        let index = to.node("Min", &[index, end], Vec::new());
        let index = to.reshape(index, Shape::from([self.n, 1, self.t * self.k]));
        let all = to.ints(ints(&[self.n, self.c, self.t * self.k]));
        to.node("Expand", &[index, all], Vec::new())
    }

    /// `x[n,c,index[n,t,k]]`, `[N,C,T,K]`.
    fn gathered(self, x: Value, index: Value, ty: TensorType, to: &mut Form) -> Value {
        let zero = to.float(ty.dtype, 0.0);
        let column = to.ints(ints(&[self.n, self.c, 1]));
        let zeros = to.node("Expand", &[zero, column], Vec::new());
        let x = to.node("Concat", &[x, zeros], vec![("axis", Attribute::Int(2))]);
        let index = self.index(index, to);
        let gathered = to.node("GatherElements", &[x, index], vec![("axis", Attribute::Int(2))]);
        to.reshape(gathered, Shape::from([self.n, self.c, self.t, self.k]))
    }

    /// `[N,C,K]` or `[N,T,K]` with an axis of extent 1 for the columns of a sum, or for the channels.
    fn with_one(self, x: Value, axis: usize, extent: usize, to: &mut Form) -> Value {
        let shape = if axis == 1 { [self.n, 1, extent, self.k] } else { [self.n, extent, 1, self.k] };
        to.reshape(x, Shape::from(shape))
    }
}

/// The sum over one axis, which it loses.
fn sum(x: Value, axis: usize, to: &mut Form) -> Value {
    let axis = to.ints(vec![int(axis)]);
    to.node("ReduceSum", &[x, axis], vec![("keepdims", Attribute::Int(0))])
}

impl WeightedGather {
    pub(super) fn form(x: &[Operand], y: TensorType, to: &mut Form) -> Option<Results> {
        let g = Extents::new(x[0].ty.shape, x[1].ty.shape);
        let gathered = g.gathered(x[0].value, x[1].value, y, to);
        let w = g.with_one(x[2].value, 1, g.t, to);
        let terms = to.node("Mul", &[gathered, w], Vec::new());
        only(sum(terms, 2, to))
    }
}

impl WeightedGatherGradInput {
    pub(super) fn form(&self, x: &[Operand], y: TensorType, to: &mut Form) -> Option<Results> {
        let g = Extents::new(y.shape, x[0].ty.shape);
        let (w, dy) = (g.with_one(x[1].value, 1, g.t, to), g.with_one(x[2].value, 2, g.c, to));
        let terms = to.node("Mul", &[w, dy], Vec::new());
        let terms = to.reshape(terms, Shape::from([g.n, g.c, g.t * g.k]));
        let index = g.index(x[0].value, to);
        // Indices past the end go to one more column, which is then sliced off.
        let zero = to.float(y.dtype, 0.0);
        let shape = to.ints(ints(&[g.n, g.c, self.columns + 1]));
        let zeros = to.node("Expand", &[zero, shape], Vec::new());
        let attributes = vec![("axis", Attribute::Int(2)), ("reduction", Attribute::Text("add"))];
        let columns = to.node("ScatterElements", &[zeros, index, terms], attributes);
        let [start, end, axis] = [0, self.columns, 2].map(|number| to.ints(vec![int(number)]));
        only(to.node("Slice", &[columns, start, end, axis], Vec::new()))
    }
}

impl WeightedGatherGradWeight {
    pub(super) fn form(x: &[Operand], y: TensorType, to: &mut Form) -> Option<Results> {
        let g = Extents::new(x[0].ty.shape, x[1].ty.shape);
        let gathered = g.gathered(x[0].value, x[1].value, y, to);
        let dy = g.with_one(x[2].value, 2, g.c, to);
        let terms = to.node("Mul", &[gathered, dy], Vec::new());
        only(sum(terms, 1, to))
    }
}
