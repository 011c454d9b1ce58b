//! The gradient of a convolution with respect to its input: the transposed convolution.

use super::launch;
use super::native_phases::Phases;
use super::options::AnyConvOptions;
use super::pass::Pass;
use super::{ConvShape, expect_shape, native_depthwise, native_products, native_windows, native_winograd};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::ConvOptions;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// Of images: `dx[n,c,h,w] = Σ dy[n,o,p,q] · w[o,c,i,j]` over all `p·s + i·d − pad = h`, `q·s + j·d − pad = w`
///
/// Shapes: `dy [N,O,P,Q]`, `w [O,C/g,KH,KW]` → `dx [N,C,H,W]`; H and W are given, as several inputs share an output
/// shape. Sequences have one such axis, volumes three. Gradient: with respect to `dy` a convolution, with respect to
/// `w` the weight gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvGradInput {
    pub(crate) options: AnyConvOptions,
    pub(crate) input: Shape,
}

impl Primitive for ConvGradInput {
    fn name(&self) -> &'static str {
        self.options.named(["conv1d_grad_input", "conv2d_grad_input", "conv3d_grad_input"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [dy, w] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        let geometry = ConvShape::new(self.input, w.shape, self.options)?;
        expect_shape("the cotangent", dy.shape, geometry.output())?;
        Ok(vec![dy.with_shape(self.input)])
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let _ = y;
        x[0].shape.elements() as u64 * super::kernel_elements(x[1].shape)
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let ConvOptions { stride, padding, dilation, .. } = self.options.all();
        let (dy, weight, missing) = (x[0].ty.shape, x[1].ty.shape, 3 - self.options.axes());
        // The result's extent beyond that of the smallest input of such a convolution.
        let more = |axis: usize| {
            let at = axis - missing + 2;
            let least = (dy[at] - 1) * stride[axis] + dilation[axis] * (weight[at] - 1) + 1;
            self.input[at] + 2 * padding[axis] - least
        };
        let mut attributes = super::geometry::onnx(self.options, weight);
        let more: Vec<_> = (missing..3).map(more).collect();
        attributes.push(("output_padding", form::Attribute::Ints(form::ints(&more))));
        form::only(to.node("ConvTranspose", &[x[0].value, x[1].value], attributes))
    }
}

impl Kernel for ConvGradInput {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let geometry = ConvShape::new(self.input, x[1].shape, self.options).expect("checked when recorded");
        launch::bf16(Pass::GradInput, &geometry, caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = ConvShape::new(self.input, x[1].layout().shape(), self.options).expect("checked when recorded");
        let (dy, w, dx) = (x[0].floats(), x[1].floats(), y[0].floats());
        if let (Some(dy), Some(w), Some(dx)) = (T::singles(dy), T::singles(w), T::singles_mut(dx)) {
            return grad_input(&g, dy, w, dx, scratch);
        }
        native_products::grad_input(&g, dy, w, dx, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let geometry = ConvShape::new(self.input, x[1].ty.shape, self.options).expect("checked when recorded");
        launch::variants(Pass::GradInput, &geometry, caps)
    }
}

/// `dx` in single precision.
fn grad_input(g: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32], scratch: &Scratch) {
    if native_winograd::pays(g) {
        native_winograd::grad_input(g, dy, w, dx, scratch);
    } else if native_depthwise::applies(g) && native_windows::applies(g) && native_windows::applies_to_grad_input(g) {
        native_windows::grad_input(g, dy, w, dx);
    } else if let Some(phases) = Phases::new(g).filter(Phases::pay) {
        phases.grad_input(dy, w, dx, scratch);
    } else {
        native_products::grad_input(g, dy, w, dx, scratch);
    }
}
