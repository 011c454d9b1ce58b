//! Operations: what plans and executors know of each, and the options of some.
//!
//! An operation is plain data (its attributes) with pure functions: the types of its results, the native kernel, the
//! launches on a GPU and the ONNX form. It holds no device and no values, and knows no tape: the methods that record it
//! and its gradient rule are in [`functions`](crate::functions). Executors know operations through the families below;
//! the only operation that they name is the exchange between ranks.
//!
//! | family | what it is | examples |
//! |---|---|---|
//! | `Pointwise` | a row of a table; fused freely | add, exp, gelu |
//! | `View` | another way to read the same memory; costs nothing | reshape, permute, expand, slice |
//! | `Kernel` | has kernels of its own | matmul, conv2d, group_norm |

pub(crate) mod arg_reduce;
pub(crate) mod attention;
mod bf16;
pub(crate) mod cast;
pub(crate) mod channels;
pub(crate) mod collective;
pub(crate) mod concat;
pub(crate) mod conv2d;
pub(crate) mod cross_entropy;
pub(crate) mod ctc;
pub(crate) mod cumsum;
pub(crate) mod custom;
pub(crate) mod embedding;
mod exact;
pub(crate) mod flip;
#[cfg(feature = "onnx")]
#[doc(hidden)]
pub mod form;
pub(crate) mod gather;
pub(crate) mod group_norm;
pub(crate) mod integer;
#[doc(hidden)]
pub mod integer_products;
pub(crate) mod iota;
pub(crate) mod label_weights;
pub(crate) mod logcumsumexp;
pub(crate) mod matmul;
pub(crate) mod matmul_integer;
mod matmul_weights;
pub(crate) mod pad;
pub(crate) mod pointwise;
pub(crate) mod pool;
pub(crate) mod random;
#[doc(hidden)]
pub mod recurrent;
pub(crate) mod reduce;
pub(crate) mod resample;
mod scan;
mod segments;
pub(crate) mod softmax;
pub(crate) mod sort;
mod terms;
mod totals;
pub(crate) mod view;
pub(crate) mod weighted_gather;
#[doc(hidden)]
pub mod window;

use std::fmt;

use smallvec::{SmallVec, smallvec};

pub(crate) use bf16::{Bf16, Innermost, Stores};
pub use collective::CollectiveOp;
pub use exact::Exact;
#[doc(hidden)]
pub use pointwise::Pointwise;
#[doc(hidden)]
pub use pool::{Divisor, Pool};
pub(crate) use reduce::as_f64;
#[doc(hidden)]
pub use view::View;

pub use self::conv2d::{
    Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvTranspose1dOptions, ConvTranspose2dOptions,
    ConvTranspose3dOptions, ConvTransposeOptions,
};

use crate::kernel::launch::{Argument, Caps, Format, Variant};
use crate::kernel::native::{Finish, OutView, Real, Scratch, View as Operand, finish_all};
use crate::{DType, Layout, Result, Shape, TensorType};

/// The types of an operation's results. Few operations have more than one.
pub(crate) type Types = SmallVec<[TensorType; 1]>;

/// The interface of every operation, in any family.
pub(crate) trait Primitive {
    /// The operation's name, as in error messages, dumps and the names of kernels.
    fn name(&self) -> &'static str;

    /// The types of the results. The error states the requirement and what was found; the tape adds the operands.
    ///
    /// # Errors
    ///
    /// Fails if the operands' shapes or element types, or the attributes, do not fit.
    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// The multiply-adds of products and convolutions, by definition: an algorithm that needs fewer does not count. 0
    /// for any other operation. A model's summary adds them up.
    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let _ = (x, y);
        0
    }

    /// The ONNX form of the operation: appends its nodes and returns a value for each result. `None` if it has no ONNX
    /// form, such as a gradient.
    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut form::Form) -> Option<form::Results> {
        let _ = (x, y, to);
        None
    }
}

/// An operation with kernels of its own.
pub(crate) trait Kernel: Primitive {
    /// Whether operand `index` may have any layout; otherwise it is made contiguous first.
    fn reads_strided(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// The operand that every variant reads through `load` of `shared/prologue`. On GPUs the elementwise work that
    /// computes this operand may run inside the kernel, once for each read of an element. So this is not for operands
    /// that are read many times.
    fn loads(&self) -> Option<usize> {
        None
    }

    /// The operands and results that are bf16 (`Format::is_bf16`), if operands and results of these types allow it.
    fn bf16(&self, x: &[TensorType], y: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let _ = (x, y, caps);
        None
    }

    /// The layout of each operand in the result, for an operation that only joins its operands. `format` is that of the
    /// result; an operand in bf16 has its own channels innermost. On GPUs nothing else is launched: the program that
    /// computes an operand stores it there, or the operand is copied.
    fn parts(&self, x: &[Shape], format: Format) -> Option<Vec<Layout>> {
        let _ = (x, format);
        None
    }

    /// `true` if every variant stores result 0 through `store` of `shared/epilogue`. On GPUs the elementwise work on it
    /// may run inside the kernel.
    fn stores(&self) -> bool {
        false
    }

    /// `true` if every variant stores element `i` of all results together, through `store_all` of
    /// `shared/epilogue_all`: four results at most, of one shape. On GPUs the elementwise work on any of them may run
    /// inside the kernel. Such a kernel also [`stores`](Kernel::stores).
    fn stores_all(&self) -> bool {
        false
    }

    /// The operand whose memory result 0 may take, on GPUs: every variant reads a part of it only to store the same
    /// part of the result, in one launch that binds the operand last. The kernel gets the define `X`, the operand's
    /// name: `x`, which it then declares itself, or that of the result.
    fn overwrites(&self) -> Option<usize> {
        None
    }

    /// `true` if a result is stored while all sums of a tile are in registers, on matrix units. There is no room for
    /// costly functions then, and elementwise work with any is faster in a launch of its own.
    fn stores_from_registers(&self) -> bool {
        false
    }

    /// The exchange between ranks that computes this, if it is one: each rank contributes its operands, and gets as
    /// many results. Nothing is launched on GPUs.
    fn collective(&self) -> Option<&CollectiveOp> {
        None
    }

    /// `true` if each run must compute this anew, though the operands are the same.
    fn varies(&self) -> bool {
        self.collective().is_some()
    }

    /// The native kernel. Results are contiguous and must be written completely. Temporary memory is borrowed from
    /// `scratch`; if there is none left, the kernel returns and the run fails.
    fn cpu<T: Real>(&self, x: &[Operand<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch);

    /// `true` if the native kernel hands its results to [`Finish`] while they are in the cache. On the CPU the
    /// elementwise work on result 0 may then run inside the kernel.
    fn finishes(&self) -> bool {
        false
    }

    /// Likewise in plans that update leaves.
    fn finishes_in_training(&self) -> bool {
        self.finishes()
    }

    /// `true` if that pays for arithmetic alone: functions are faster in a step of their own.
    fn finishes_arithmetic(&self) -> bool {
        false
    }

    /// The native kernel, with elementwise work on result 0.
    fn cpu_finishing<T: Real>(
        &self,
        x: &[Operand<'_, T>],
        y: &mut [OutView<'_, T>],
        finish: &dyn Finish<T>,
        scratch: &Scratch,
    ) {
        self.cpu(x, y, scratch);
        finish_all(y[0].floats(), finish);
    }

    /// The variants that compute this on a GPU, best first. Variants on matrix units are included only if `caps` allows
    /// them. Never empty, unless `parts` joins the operands.
    fn variants(&self, x: &[Argument], y: &[TensorType], caps: &Caps) -> Vec<Variant>;
}

/// Passes the operations that have kernels of their own to a macro.
macro_rules! each_kernel_op {
    ($then:ident) => {
        $then! {
            reduce::Reduce,
            arg_reduce::ArgReduce,
            matmul::Matmul,
            matmul_integer::MatmulInteger,
            conv2d::Conv,
            conv2d::ConvGradInput,
            conv2d::ConvGradWeight,
            conv2d::ConvInteger,
            group_norm::GroupNorm,
            group_norm::GroupNormGrad,
            channels::ChannelMoments,
            channels::ChannelSums,
            pool::MaxPool,
            pool::MaxPoolGrad,
            pool::AvgPool,
            pool::AvgPoolGrad,
            resample::Resample,
            embedding::Embedding,
            embedding::EmbeddingGrad,
            gather::Gather,
            gather::ScatterAlong,
            weighted_gather::WeightedGather,
            weighted_gather::WeightedGatherGradInput,
            weighted_gather::WeightedGatherGradWeight,
            concat::Concat,
            pad::Pad,
            flip::Flip,
            cumsum::Cumsum,
            logcumsumexp::LogCumsumExp,
            sort::ArgSort,
            iota::Iota,
            cast::Cast,
            cast::ToIndex,
            integer::Integer,
            softmax::Softmax,
            attention::Attention,
            attention::AttentionGrad,
            attention::AttentionWeights,
            cross_entropy::CrossEntropy,
            cross_entropy::CrossEntropyGrad,
            ctc::Ctc,
            ctc::CtcGrad,
            label_weights::LabelWeights,
            random::RandomUniform,
            recurrent::Recurrent,
            recurrent::RecurrentGrad,
            custom::Custom,
            collective::CollectiveOp,
        }
    };
}
pub(crate) use each_kernel_op;

macro_rules! operations {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// Any operation with kernels of its own.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum KernelOp {
            $(#[doc = concat!("See `ops::", stringify!($module), "`.")] $name($module::$name),)+
        }

        $(impl From<$module::$name> for Op {
            fn from(op: $module::$name) -> Self {
                Self::Kernel(KernelOp::$name(op))
            }
        })+

        /// The derived `Debug`, with the operation's name in place of the type's.
        impl fmt::Display for KernelOp {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (ty, text) = match self { $(Self::$name(op) => (stringify!($name), format!("{op:?}")),)+ };
                write!(f, "{}{}", self.name(), text.strip_prefix(ty).unwrap_or(&text))
            }
        }

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

            pub(crate) fn stores_all(&self) -> bool {
                match self { $(Self::$name(op) => op.stores_all(),)+ }
            }

            pub(crate) fn stores_from_registers(&self) -> bool {
                match self { $(Self::$name(op) => op.stores_from_registers(),)+ }
            }

            pub(crate) fn overwrites(&self) -> Option<usize> {
                match self { $(Self::$name(op) => op.overwrites(),)+ }
            }

            pub(crate) fn parts(&self, x: &[Shape], format: Format) -> Option<Vec<Layout>> {
                match self { $(Self::$name(op) => op.parts(x, format),)+ }
            }

            pub(crate) fn bf16(&self, x: &[TensorType], y: &[TensorType], caps: &Caps) -> Option<Bf16> {
                // Integers are stored as they are.
                y.iter().find(|y| y.dtype.is_float())?;
                match self { $(Self::$name(op) => op.bf16(x, y, caps),)+ }
            }

            pub(crate) fn collective(&self) -> Option<&CollectiveOp> {
                match self { $(Self::$name(op) => op.collective(),)+ }
            }

            fn varies(&self) -> bool {
                match self { $(Self::$name(op) => op.varies(),)+ }
            }

            pub(crate) fn cpu<T: Real>(&self, x: &[Operand<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
                match self { $(Self::$name(op) => op.cpu(x, y, scratch),)+ }
            }

            pub(crate) fn finishes(&self) -> bool {
                match self { $(Self::$name(op) => op.finishes(),)+ }
            }

            pub(crate) fn finishes_in_training(&self) -> bool {
                match self { $(Self::$name(op) => op.finishes_in_training(),)+ }
            }

            pub(crate) fn finishes_arithmetic(&self) -> bool {
                match self { $(Self::$name(op) => op.finishes_arithmetic(),)+ }
            }

            pub(crate) fn cpu_finishing<T: Real>(
                &self,
                x: &[Operand<'_, T>],
                y: &mut [OutView<'_, T>],
                finish: &dyn Finish<T>,
                scratch: &Scratch,
            ) {
                match self { $(Self::$name(op) => op.cpu_finishing(x, y, finish, scratch),)+ }
            }

            pub(crate) fn variants(&self, x: &[Argument], y: &[TensorType], caps: &Caps) -> Vec<Variant> {
                match self { $(Self::$name(op) => op.variants(x, y, caps),)+ }
            }
        }
    };
}

each_kernel_op!(operations);

/// Any operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[doc(hidden)]
pub enum Op {
    /// A row of the elementwise table.
    Pointwise(Pointwise),
    /// Another way to read the operand's memory.
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
    /// The operation for operands of these types: arithmetic of integers has kernels of its own. `floats` is the type
    /// of the device's floats.
    pub(crate) fn for_types(self, x: &[TensorType], floats: DType) -> Self {
        match self {
            Self::Pointwise(row) => integer::Integer::of(row, x, floats).map_or(self, Self::from),
            Self::View(_) | Self::Kernel(_) => self,
        }
    }

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

    /// `true` if each run must compute this anew, though the operands are the same.
    pub(crate) fn varies(&self) -> bool {
        matches!(self, Self::Kernel(op) if op.varies())
    }

    pub(crate) fn outputs(&self, x: &[TensorType]) -> Result<Types, String> {
        match self {
            Self::Pointwise(op) => op.output(x).map(|ty| smallvec![ty]),
            Self::View(op) => op.output(x).map(|ty| smallvec![ty]),
            Self::Kernel(op) => op.primitive().outputs(x).map(|types| types.into_iter().collect()),
        }
    }

    pub(crate) fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        self.primitive().multiply_adds(x, y)
    }

    #[cfg(feature = "onnx")]
    #[doc(hidden)]
    pub fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut form::Form) -> Option<form::Results> {
        self.primitive().onnx(x, y, to)
    }
}

/// The name, and the attributes if there are any: `sum { fold: Sum, axes: [0] }`.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointwise(_) => f.write_str(self.name()),
            Self::View(view) => view.fmt(f),
            Self::Kernel(op) => op.fmt(f),
        }
    }
}
