//! The gradient of a convolution with respect to its weight.

use super::launch;
use super::options::AnyConvOptions;
use super::pass::Pass;
use super::{
    ConvShape, expect_shape, native_depthwise, native_depthwise_weight, native_products, native_weight, native_windows,
    native_winograd,
};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// Of images: `dw[o,c,i,j] = Σ x[n,c,p·s+i·d−pad,q·s+j·d−pad] · dy[n,o,p,q]` over `n, p, q`
///
/// Shapes: `x [N,C,H,W]`, `dy [N,O,P,Q]` → `dw [O,C/g,KH,KW]`; the kernel's extents are given.
/// Gradient: with respect to `x` the input gradient, with respect to `dy` a convolution.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvGradWeight {
    pub(crate) options: AnyConvOptions,
    pub(crate) weight: Shape,
}

impl Primitive for ConvGradWeight {
    fn name(&self) -> &'static str {
        self.options.named(["conv1d_grad_weight", "conv2d_grad_weight", "conv3d_grad_weight"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x, dy] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        let geometry = ConvShape::new(x.shape, self.weight, self.options)?;
        expect_shape("the cotangent", dy.shape, geometry.output())?;
        Ok(vec![x.with_shape(self.weight)])
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        x[1].shape.elements() as u64 * super::kernel_elements(y[0].shape)
    }
}

impl Kernel for ConvGradWeight {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let geometry = ConvShape::new(x[0].shape, self.weight, self.options).expect("checked when recorded");
        launch::bf16(Pass::GradWeight, &geometry, caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let g = ConvShape::new(x[0].layout().shape(), self.weight, self.options).expect("checked when recorded");
        let (x, dy, dw) = (x[0].floats(), x[1].floats(), y[0].floats());
        if let (Some(x), Some(dy), Some(dw)) = (T::singles(x), T::singles(dy), T::singles_mut(dw)) {
            return grad_weight(&g, x, dy, dw, scratch);
        }
        native_products::grad_weight(&g, x, dy, dw, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let geometry = ConvShape::new(x[0].ty.shape, self.weight, self.options).expect("checked when recorded");
        launch::variants(Pass::GradWeight, &geometry, caps)
    }
}

/// `dw` in single precision.
fn grad_weight(g: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &Scratch) {
    if native_winograd::pays(g) {
        native_winograd::grad_weight(g, x, dy, dw, scratch);
    } else if native_depthwise::applies(g) && native_windows::applies(g) {
        native_windows::grad_weight(g, x, dy, dw, scratch);
    } else if native_depthwise::applies(g) {
        native_depthwise_weight::grad_weight(g, x, dy, dw, scratch);
    } else if native_weight::pays(g) {
        native_weight::grad_weight(g, x, dy, dw, scratch);
    } else {
        native_products::grad_weight(g, x, dy, dw, scratch);
    }
}
