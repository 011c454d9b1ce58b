//! The primitive operations: everything the framework knows about each, in one place.
//!
//! An operation is plain data (its attributes) with pure functions: the types it gives, the gradient rule (which
//! appends operations to the tape), the native kernel, and the launches that compute it on a GPU. It holds no device
//! and no values. Engines know operations only through the families below and never name one.
//!
//! | family | what it is | examples |
//! |---|---|---|
//! | [`Pointwise`] | a row of a table; fused freely | add, exp, gelu |
//! | [`View`] | another way to look at the same memory; costs nothing | reshape, permute, expand, slice |
//! | [`Kernel`] | has kernels of its own | matmul, conv2d, group_norm |

mod attention;
mod cast;
mod concat;
mod conv2d;
mod cross_entropy;
mod ctc;
mod cumsum;
mod custom;
mod exchange;
mod flip;
#[cfg(feature = "onnx")]
pub mod form;
mod gather;
mod gather_along;
mod grid_sample;
mod group_norm;
mod iota;
mod label_weights;
mod logcumsumexp;
mod matmul;
mod outer;
mod pad;
mod padding;
mod pointwise;
mod pool;
mod random;
mod reduce;
mod resample;
mod scan;
mod segments;
mod softmax;
mod sort;
mod terms;
mod view;

#[cfg(feature = "testing")]
pub mod case;

use std::fmt;

use smallvec::smallvec;

pub use attention::AttentionOptions;
pub use custom::{Custom, CustomOp};
pub use exchange::Exchange;
pub(crate) use exchange::exchange;
pub use grid_sample::GridSampleOptions;
pub(crate) use outer::OuterProduct;
pub(crate) use pad::sum_of_cotangents;
pub use padding::Padding;
pub use pointwise::Pointwise;
pub use random::philox;
pub use view::View;

pub use self::conv2d::{Conv2dOptions, ConvTranspose2dOptions};

use crate::graph::Types;
use crate::kernel::launch::{Argument, Caps, Channels, Format, LINE, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View as Operand};
use crate::tape::Var;
use crate::{Layout, Result, Shape, TensorType};

/// What every operation says of itself, whatever its family.
pub trait Primitive: fmt::Debug {
    /// The operation's name, as in error messages, dumps and the names of kernels.
    fn name(&self) -> &'static str;

    /// The types of the results. The error says what was expected and what was found; the tape adds the operands.
    ///
    /// # Errors
    ///
    /// If the operands' shapes or element types, or the attributes, do not fit.
    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// The gradient rule: from the operands `x`, the results `y` and the cotangents `dy` of the results (those that
    /// matter), the cotangent of each operand, or `None` where it has none. Appends operations to the operands' tape.
    ///
    /// # Errors
    ///
    /// If the operation has no derivative although one of its operands could have one.
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>>;

    /// Result 0 once more, as elementwise operations on the operands and the other results, if that is possible.
    /// Gradient rules of elementwise operations on the result get it so, and it need not be kept from the forward pass.
    fn again(&self, x: &[Var], y: &[Var]) -> Option<Var> {
        let _ = (x, y);
        None
    }

    /// The multiply-adds of products and convolutions, by their definition: an algorithm that needs fewer changes
    /// nothing. 0 for any other operation. A summary of a model adds them up.
    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let _ = (x, y);
        0
    }

    /// The operation in ONNX: its nodes are appended, and there is a value for each result. `None` where ONNX has no
    /// form of it, as of a gradient.
    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut form::Form) -> Option<form::Results> {
        let _ = (x, y, to);
        None
    }

    /// Examples that tests hold every part of the operation to.
    #[cfg(feature = "testing")]
    fn cases() -> Vec<case::Case>
    where
        Self: Sized;

    /// What the tests do differently with all of these cases.
    #[cfg(feature = "testing")]
    fn special() -> &'static [case::Special]
    where
        Self: Sized,
    {
        &[]
    }
}

/// An operation with kernels of its own.
pub trait Kernel: Primitive {
    /// Whether operand `index` may have any layout; otherwise it is made contiguous first.
    fn reads_strided(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// The operand that every variant reads through `load` of `shared/prologue`. On GPUs the elementwise work that
    /// makes it may run there, as often as the kernel reads an element, instead of on its own: not for operands that
    /// are read many times.
    fn loads(&self) -> Option<usize> {
        None
    }

    /// The part that halves (`Format::Half`) play, where operands and results of these types allow it.
    fn halves(&self, x: &[TensorType], y: &[TensorType], caps: &Caps) -> Option<Halves> {
        let _ = (x, y, caps);
        None
    }

    /// The layout of each operand inside the result, for an operation that only joins its operands. `format` is the
    /// result's; an operand in halves has its own channels innermost. On GPUs, the program that computes an operand may
    /// store it there.
    fn parts(&self, x: &[Shape], format: Format) -> Option<Vec<Layout>> {
        let _ = (x, format);
        None
    }

    /// Whether every variant stores result 0 through `store` of `shared/epilogue`. On GPUs the elementwise work on it
    /// may run there instead of on its own.
    fn stores(&self) -> bool {
        false
    }

    /// What ranks of a world meet for to compute this: each comes with its operands, and leaves with as many results.
    /// On GPUs nothing is launched.
    fn meets(&self) -> Option<&Exchange> {
        None
    }

    /// The native kernel. Results are contiguous and must be written completely. What it needs besides is borrowed from
    /// `scratch`; if that has none, the kernel returns, and the run fails.
    fn cpu<T: Real>(&self, x: &[Operand<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch);

    /// Ways to compute this on a GPU, best first; those on matrix units only where `caps` says that they are to be
    /// used. Never empty.
    fn variants(&self, x: &[Argument], y: &[TensorType], caps: &Caps) -> Vec<Variant>;
}

/// What of a kernel lies in halves: all of this or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Halves {
    /// The order of the elements.
    pub innermost: Innermost,
    /// The operands that are read so.
    pub operands: &'static [usize],
    /// How result 0 is stored.
    pub stores: Stores,
    /// Whether that is worth converting operands for.
    pub wanted: bool,
}

/// The axis along which lines of halves lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Innermost {
    /// The channels of images `[N, C, H, W]`.
    Channels,
    /// The last axis, as in the API. Operands that the kernel reads strided must lie in lines; they are read through
    /// their views, in halves or in `f32`.
    Last,
}

impl Innermost {
    /// The order of the elements of a tensor in halves, if it can be held so.
    #[must_use]
    pub fn order(self, shape: Shape) -> Option<Channels> {
        match self {
            Self::Channels => Channels::of(shape),
            Self::Last => (shape.elements() > 0 && shape.elements().is_multiple_of(LINE)).then_some(Channels::ROWS),
        }
    }
}

/// How a kernel that reads halves stores result 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stores {
    /// As other kernels do, in `f32`, element by element.
    Full,
    /// By lines, through `store_line` of `shared/epilogue_lines`.
    Lines,
    /// As halves, which it writes itself.
    Words,
}

macro_rules! ops {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// Any operation with kernels of its own.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum KernelOp {
            $(#[doc = concat!("See `ops/", stringify!($module), ".rs`.")] $name($module::$name),)+
        }

        $(impl From<$module::$name> for Op {
            fn from(op: $module::$name) -> Self {
                Self::Kernel(KernelOp::$name(op))
            }
        })+

        impl KernelOp {
            fn primitive(&self) -> &dyn Primitive {
                match self { $(Self::$name(op) => op,)+ }
            }

            pub(crate) fn name(&self) -> &'static str {
                self.primitive().name()
            }

            pub(crate) fn reads_strided(&self, index: usize) -> bool {
                match self { $(Self::$name(op) => op.reads_strided(index),)+ }
            }

            pub(crate) fn loads(&self) -> Option<usize> {
                match self { $(Self::$name(op) => op.loads(),)+ }
            }

            pub(crate) fn stores(&self) -> bool {
                match self { $(Self::$name(op) => op.stores(),)+ }
            }

            pub(crate) fn parts(&self, x: &[Shape], format: Format) -> Option<Vec<Layout>> {
                match self { $(Self::$name(op) => op.parts(x, format),)+ }
            }

            pub(crate) fn halves(&self, x: &[TensorType], y: &[TensorType], caps: &Caps) -> Option<Halves> {
                match self { $(Self::$name(op) => op.halves(x, y, caps),)+ }
            }

            pub(crate) fn meets(&self) -> Option<&Exchange> {
                match self { $(Self::$name(op) => op.meets(),)+ }
            }

            pub(crate) fn cpu<T: Real>(&self, x: &[Operand<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
                match self { $(Self::$name(op) => op.cpu(x, y, scratch),)+ }
            }

            pub(crate) fn variants(&self, x: &[Argument], y: &[TensorType], caps: &Caps) -> Vec<Variant> {
                match self { $(Self::$name(op) => op.variants(x, y, caps),)+ }
            }
        }

        /// The cases of every operation, with the operation's name.
        #[cfg(feature = "testing")]
        #[must_use]
        pub fn all_cases() -> Vec<case::Case> {
            let mut cases = Pointwise::cases();
            cases.extend(View::cases());
            $(cases.extend(case::of::<$module::$name>());)+
            cases
        }
    };
}

ops! {
    reduce::Reduce,
    matmul::Matmul,
    conv2d::Conv2d,
    conv2d::Conv2dGradInput,
    conv2d::Conv2dGradWeight,
    group_norm::GroupNorm,
    group_norm::GroupNormGrad,
    pool::MaxPool2d,
    pool::MaxPool2dGrad,
    pool::AvgPool2d,
    pool::AvgPool2dGrad,
    resample::Resample,
    gather::Gather,
    gather::GatherGrad,
    gather_along::GatherAlong,
    gather_along::ScatterAlong,
    concat::Concat,
    pad::Pad,
    flip::Flip,
    cumsum::Cumsum,
    logcumsumexp::LogCumsumExp,
    sort::ArgSort,
    iota::Iota,
    cast::ToFloat,
    cast::ToIndex,
    softmax::Softmax,
    attention::Attention,
    attention::AttentionGrad,
    cross_entropy::CrossEntropy,
    cross_entropy::CrossEntropyGrad,
    ctc::Ctc,
    ctc::CtcGrad,
    label_weights::LabelWeights,
    random::RandomUniform,
    custom::Custom,
    exchange::Exchange,
}

/// Any operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A row of the elementwise table.
    Pointwise(Pointwise),
    /// Another way to look at the operand's memory.
    View(View),
    /// An operation with kernels of its own.
    Kernel(KernelOp),
}

impl From<Pointwise> for Op {
    fn from(op: Pointwise) -> Self {
        Self::Pointwise(op)
    }
}

impl From<View> for Op {
    fn from(op: View) -> Self {
        Self::View(op)
    }
}

impl Op {
    fn primitive(&self) -> &dyn Primitive {
        match self {
            Self::Pointwise(op) => op,
            Self::View(op) => op,
            Self::Kernel(op) => op.primitive(),
        }
    }

    /// The operation's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.primitive().name()
    }

    pub(crate) fn outputs(&self, x: &[TensorType]) -> Result<Types, String> {
        match self {
            Self::Pointwise(op) => op.output(x).map(|ty| smallvec![ty]),
            Self::View(op) => op.output(x).map(|ty| smallvec![ty]),
            Self::Kernel(op) => op.primitive().outputs(x).map(|types| types.into_iter().collect()),
        }
    }

    pub(crate) fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        self.primitive().vjp(x, y, dy)
    }

    pub(crate) fn again(&self, x: &[Var], y: &[Var]) -> Option<Var> {
        self.primitive().again(x, y)
    }

    pub(crate) fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        self.primitive().multiply_adds(x, y)
    }

    #[cfg(feature = "onnx")]
    pub(crate) fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut form::Form) -> Option<form::Results> {
        self.primitive().onnx(x, y, to)
    }
}

/// The name, and the attributes where there are any: `sum{fold: Sum, axes: [0]}`.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Self::Pointwise(_) = self {
            return Ok(());
        }
        // `Name { attributes }`, `Name(attributes)` or `Name`, as derived.
        let debug = format!("{:?}", self.primitive());
        let Some((_, attributes)) = debug.split_once(['{', '(']) else { return Ok(()) };
        let attributes = attributes.strip_suffix(['}', ')']).unwrap_or(attributes);
        write!(f, "{{{}}}", attributes.trim())
    }
}
