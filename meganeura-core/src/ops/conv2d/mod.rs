//! Convolution over one, two or three axes, and its two gradients. Each is linear in both operands and the three are
//! closed under differentiation, so second derivatives come for free.
//!
//! Shaders convolve planes: a sequence is a plane of one row, and a volume is a stack of planes. A plane of a volume's
//! result is the sum, over the kernel's depth, of convolutions of the planes that the kernel meets
//! ([`Depth`](crate::ops::window::Depth)). For native kernels, an image is a volume of one layer.

mod convolution;
pub(crate) mod geometry;
mod grad_input;
mod grad_weight;
mod integer;
mod launch;
mod narrow;
mod native_depthwise;
mod native_depthwise_weight;
mod native_direct;
mod native_phases;
mod native_pointwise;
mod native_products;
mod native_weight;
mod native_windows;
mod native_winograd;
mod options;
mod pass;
mod sorted;
mod strips;
mod taps;
mod taps_weight;
mod tile;
mod winograd;

pub(crate) use geometry::ConvShape;
pub use grad_input::ConvGradInput;
pub use grad_weight::ConvGradWeight;
pub use integer::ConvInteger;
pub use options::{
    AnyConvOptions, Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvTranspose1dOptions,
    ConvTranspose2dOptions, ConvTranspose3dOptions, ConvTransposeOptions,
};
use pass::Pass;

use super::{Bf16, Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, Finish, OutView, Plain, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Result, Shape, TensorType};

/// Convolution, of volumes `y[n,o,z,p,q] = Σ x[n,c,z·s+k·d−pad,p·s+i·d−pad,q·s+j·d−pad] · w[o,c,k,i,j]`; of images and
/// sequences without the first axes.
///
/// Shapes: `x [N,C,D,H,W]`, `w [O,C/g,KD,KH,KW]` → `y [N,O,Z,P,Q]`, `Z = (D + 2·pad − d·(KD−1) − 1)/s + 1`.
/// Gradient: `dx` is the transposed convolution of `dy` with `w`; `dw` correlates `x` with `dy`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Conv(pub(crate) AnyConvOptions);

impl Primitive for Conv {
    fn name(&self) -> &'static str {
        self.0.named(["conv1d", "conv2d", "conv3d"])
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x, w] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        if x.dtype != w.dtype || !x.dtype.is_float() {
            return Err(format!("needs floats of one type, not {} and {}", x.dtype, w.dtype));
        }
        let geometry = ConvShape::new(x.shape, w.shape, self.0)?;
        Ok(vec![x.with_shape(geometry.output())])
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        y[0].shape.elements() as u64 * kernel_elements(x[1].shape)
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let attributes = geometry::onnx(self.0, x[1].ty.shape);
        form::only(to.node("Conv", &[x[0].value, x[1].value], attributes))
    }
}

impl Kernel for Conv {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let geometry = ConvShape::new(x[0].shape, x[1].shape, self.0).expect("checked when recorded");
        launch::bf16(Pass::Forward, &geometry, caps)
    }

    fn stores(&self) -> bool {
        true
    }

    fn finishes(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        self.cpu_finishing(x, y, &Plain, scratch);
    }

    fn cpu_finishing<T: Real>(
        &self,
        x: &[View<'_, T>],
        y: &mut [OutView<'_, T>],
        finish: &dyn Finish<T>,
        scratch: &Scratch,
    ) {
        let g = ConvShape::new(x[0].layout().shape(), x[1].layout().shape(), self.0).expect("checked when recorded");
        let (x, w, y) = (x[0].floats(), x[1].floats(), y[0].floats());
        if let (Some(x), Some(w), Some(finish)) = (T::singles(x), T::singles(w), T::single_finish(finish)) {
            let y = T::singles_mut(y).expect("all are of one type");
            return forward(&g, x, w, y, finish, scratch);
        }
        native_products::forward(&g, x, w, y, scratch);
        native::finish_all(y, finish);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let geometry = ConvShape::new(x[0].ty.shape, x[1].ty.shape, self.0).expect("checked when recorded");
        launch::variants(Pass::Forward, &geometry, caps)
    }
}

/// `y` in single precision.
fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>, scratch: &Scratch) {
    if native_depthwise::applies(g) && native_windows::applies(g) {
        return native_windows::forward(g, x, w, y, finish);
    } else if native_depthwise::applies(g) {
        return native_depthwise::forward(g, x, w, y, finish, scratch);
    } else if native_winograd::pays(g) {
        native_winograd::forward(g, x, w, y, scratch);
    } else if native_products::interleaves(g) {
        native_products::forward(g, x, w, y, scratch);
    } else if g.is_pointwise() {
        return native_pointwise::forward(g, x, w, y, finish, scratch);
    } else {
        return native_direct::forward(g, x, w, y, finish, scratch);
    }
    native::finish_all(y, finish);
}

/// The elements of one output channel's kernel, of a weight `[O, C/g, …]`.
fn kernel_elements(weight: Shape) -> u64 {
    weight.dims()[1..].iter().map(|&extent| extent as u64).product()
}

/// Checks that a shape is the expected one; the error names both.
fn expect_shape(what: &str, found: Shape, expected: Shape) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} must be {expected}, it is {found}")) }
}
