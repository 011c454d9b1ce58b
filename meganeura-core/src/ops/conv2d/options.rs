//! The settings of convolutions and of transposed convolutions, and the shapes of their results.

use std::fmt;

use crate::Shape;
use crate::ops::window::{INPUTS, Window, axis_name, expect_axes, named};

/// The geometry of a convolution over `D` axes, in the order of the input's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvOptions<const D: usize> {
    /// The distance in the input between neighbouring output elements; at least 1.
    pub stride: [usize; D],
    /// Zeros added at each side of the input.
    pub padding: [usize; D],
    /// The distance in the input between neighbouring weights; at least 1.
    pub dilation: [usize; D],
    /// The number of groups of channels, each convolved on its own; a divisor of both numbers of channels.
    pub groups: usize,
}

/// The geometry of a 1-D convolution.
pub type Conv1dOptions = ConvOptions<1>;

/// The geometry of a 2-D convolution, per axis `[vertical, horizontal]`.
pub type Conv2dOptions = ConvOptions<2>;

/// The geometry of a 3-D convolution, per axis `[depth, height, width]`.
pub type Conv3dOptions = ConvOptions<3>;

impl<const D: usize> Default for ConvOptions<D> {
    fn default() -> Self {
        Self { stride: [1; D], padding: [0; D], dilation: [1; D], groups: 1 }
    }
}

impl<const D: usize> fmt::Debug for ConvOptions<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stride, padding, dilation, groups } = self;
        f.debug_struct(named::<D>(["Conv1dOptions", "Conv2dOptions", "Conv3dOptions"]))
            .field("stride", stride)
            .field("padding", padding)
            .field("dilation", dilation)
            .field("groups", groups)
            .finish()
    }
}

impl<const D: usize> ConvOptions<D> {
    /// The output's shape, or why operands of these shapes have none.
    pub(crate) fn output(self, x: Shape, weight: Shape) -> Result<Shape, String> {
        const WEIGHTS: [&str; 3] = ["[O, C/groups, K]", "[O, C/groups, KH, KW]", "[O, C/groups, KD, KH, KW]"];
        let ([n, c], extents) = expect_axes::<D>("input", &x, INPUTS)?;
        let ([o, per_group], kernel) = expect_axes::<D>("weight", &weight, WEIGHTS)?;
        let Self { stride, padding, dilation, groups } = self;
        if groups == 0 || !c.is_multiple_of(groups) || !o.is_multiple_of(groups) {
            return Err(format!("{groups} groups do not divide {c} input channels and {o} output channels"));
        }
        if per_group * groups != c {
            return Err(format!("the input has {c} channels, the weight expects {}", per_group * groups));
        }
        let mut output = vec![n, o];
        for axis in 0..D {
            let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(|of| of[axis]);
            let window = Window { kernel, stride, padding, dilation };
            output.push(window.slide(axis_name::<D>(axis), extents[axis], false)?);
        }
        Ok(Shape::new(&output))
    }
}

/// The options of a convolution over one, two or three axes, as an operation holds them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AnyConvOptions {
    axes: usize,
    /// Of three axes. Those that the convolution lacks lead, with a stride and a dilation of 1 and no padding.
    all: ConvOptions<3>,
}

impl<const D: usize> From<ConvOptions<D>> for AnyConvOptions {
    fn from(options: ConvOptions<D>) -> Self {
        let ConvOptions { stride, padding, dilation, groups } = options;
        let [stride, padding, dilation] =
            [with_leading(stride, 1), with_leading(padding, 0), with_leading(dilation, 1)];
        Self { axes: D, all: ConvOptions { stride, padding, dilation, groups } }
    }
}

/// The numbers of `D` axes as those of three; `leading` for those that are missing.
fn with_leading<const D: usize>(of: [usize; D], leading: usize) -> [usize; 3] {
    let mut all = [leading; 3];
    all[3 - D..].copy_from_slice(&of);
    all
}

impl AnyConvOptions {
    /// The number of axes.
    pub(super) fn axes(self) -> usize {
        self.axes
    }

    /// The options of all three axes.
    pub(crate) fn all(self) -> ConvOptions<3> {
        self.all
    }

    /// The one of three names that belongs to so many axes.
    pub(super) fn named(self, names: [&'static str; 3]) -> &'static str {
        names[self.axes - 1]
    }

    /// The options of the `D` axes that there are.
    fn of_axes<const D: usize>(self) -> ConvOptions<D> {
        let ConvOptions { stride, padding, dilation, groups } = self.all;
        let [stride, padding, dilation] =
            [stride, padding, dilation].map(|of| std::array::from_fn(|axis| of[3 - D + axis]));
        ConvOptions { stride, padding, dilation, groups }
    }

    /// The output's shape, or why operands of these shapes have none.
    pub(super) fn output(self, x: Shape, weight: Shape) -> Result<Shape, String> {
        match self.axes {
            1 => self.of_axes::<1>().output(x, weight),
            2 => self.of_axes::<2>().output(x, weight),
            _ => self.all.output(x, weight),
        }
    }
}

impl fmt::Debug for AnyConvOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.axes {
            1 => self.of_axes::<1>().fmt(f),
            2 => self.of_axes::<2>().fmt(f),
            _ => self.all.fmt(f),
        }
    }
}

/// The geometry of a transposed convolution over `D` axes, in the order of the input's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvTransposeOptions<const D: usize> {
    /// The distance in the output between neighbouring input elements; at least 1.
    pub stride: [usize; D],
    /// Elements that are cut off each side of the output.
    pub padding: [usize; D],
    /// Extra elements at the end of the output; fewer than the stride or the dilation.
    pub output_padding: [usize; D],
    /// The distance in the output between neighbouring weights; at least 1.
    pub dilation: [usize; D],
    /// The number of groups of channels, each convolved on its own; a divisor of both numbers of channels.
    pub groups: usize,
}

/// The geometry of a transposed 1-D convolution.
pub type ConvTranspose1dOptions = ConvTransposeOptions<1>;

/// The geometry of a transposed 2-D convolution, per axis `[vertical, horizontal]`.
pub type ConvTranspose2dOptions = ConvTransposeOptions<2>;

/// The geometry of a transposed 3-D convolution, per axis `[depth, height, width]`.
pub type ConvTranspose3dOptions = ConvTransposeOptions<3>;

impl<const D: usize> Default for ConvTransposeOptions<D> {
    fn default() -> Self {
        Self { stride: [1; D], padding: [0; D], output_padding: [0; D], dilation: [1; D], groups: 1 }
    }
}

impl<const D: usize> fmt::Debug for ConvTransposeOptions<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stride, padding, output_padding, dilation, groups } = self;
        let names = ["ConvTranspose1dOptions", "ConvTranspose2dOptions", "ConvTranspose3dOptions"];
        f.debug_struct(named::<D>(names))
            .field("stride", stride)
            .field("padding", padding)
            .field("output_padding", output_padding)
            .field("dilation", dilation)
            .field("groups", groups)
            .finish()
    }
}

impl<const D: usize> ConvTransposeOptions<D> {
    /// The convolution that this is the transpose of.
    pub(crate) fn convolution(self) -> ConvOptions<D> {
        let Self { stride, padding, dilation, groups, .. } = self;
        ConvOptions { stride, padding, dilation, groups }
    }

    /// The output's shape, or why operands of these shapes have none.
    pub(crate) fn output(self, x: Shape, weight: Shape) -> Result<Shape, String> {
        const WEIGHTS: [&str; 3] = ["[C, O/groups, K]", "[C, O/groups, KH, KW]", "[C, O/groups, KD, KH, KW]"];
        let ([n, c], extents) = expect_axes::<D>("input", &x, INPUTS)?;
        let ([inputs, per_group], kernel) = expect_axes::<D>("weight", &weight, WEIGHTS)?;
        let Self { stride, padding, output_padding, dilation, groups } = self;
        if groups == 0 || !c.is_multiple_of(groups) {
            return Err(format!("{groups} groups do not divide {c} input channels"));
        }
        if inputs != c {
            return Err(format!("the input has {c} channels, the weight expects {inputs}"));
        }
        let mut output = vec![n, per_group * groups];
        for axis in 0..D {
            let [kernel, stride, padding, dilation] = [kernel, stride, padding, dilation].map(|of| of[axis]);
            let window = Window { kernel, stride, padding, dilation };
            output.push(window.spread(axis_name::<D>(axis), extents[axis], output_padding[axis])?);
        }
        Ok(Shape::new(&output))
    }
}
