//! Resampling in ONNX: the operator `Resize` where it matches, else a product with a matrix on each side.

use super::Resample;
use super::axis::{Axis, Rule};
use crate::ops::form::{self, Attribute, Form, Results, Value};
use crate::{DType, Shape, TensorType};

impl Resample {
    pub(super) fn form(&self, x: Value, dtype: DType, to: &mut Form) -> Option<Results> {
        let (mode, corners) = match self.rule {
            Rule::Linear { corners } if !self.transposed => ("linear", corners),
            Rule::Cubic { corners } if !self.transposed => ("cubic", corners),
            _ => return form::only(self.products(x, dtype, to)),
        };
        let places = if corners { "align_corners" } else { "half_pixel" };
        let attributes = vec![
            ("axes", Attribute::Ints(vec![2, 3])),
            ("coordinate_transformation_mode", Attribute::Text(places)),
            ("cubic_coeff_a", Attribute::Float(super::axis::CUBIC)),
            ("mode", Attribute::Text(mode)),
        ];
        let size = to.ints(form::ints(&self.axes.map(|axis| axis.outputs)));
        form::only(to.optional("Resize", vec![Some(x), None, None, Some(size)], 1, attributes)[0])
    }

    /// `y = A·x·Bᵀ`, with the weights of rows in `A` and of columns in `B`.
    fn products(&self, x: Value, dtype: DType, to: &mut Form) -> Value {
        let [rows, columns] = self.axes;
        let (inputs, outputs) = self.extents();
        let left = self.shares(rows);
        let left = to.floats(TensorType::new(dtype, Shape::from([outputs[0], inputs[0]])), left);
        let right = self.shares(columns);
        let right =
            (0..inputs[1] * outputs[1]).map(|at| right[at % outputs[1] * inputs[1] + at / outputs[1]]).collect();
        let right = to.floats(TensorType::new(dtype, Shape::from([inputs[1], outputs[1]])), right);
        let half = to.node("MatMul", &[x, right], Vec::new());
        to.node("MatMul", &[left, half], Vec::new())
    }

    /// The weight of each position of the operand, `[out, in]`.
    fn shares(&self, axis: Axis) -> Vec<f64> {
        let extent = if self.transposed { axis.outputs } else { axis.inputs };
        let dense = |(first, shares): (usize, Vec<f64>)| {
            (0..extent).map(move |at| at.checked_sub(first).and_then(|at| shares.get(at).copied()).unwrap_or(0.0))
        };
        self.taps::<f64>(axis).into_iter().flat_map(dense).collect()
    }
}
