//! Operations: the options of [`Var`](crate::Var)'s methods, and [`CustomOp`] for operations of your own.

#[cfg(feature = "testing")]
pub use meganeura_core::functions::case::{self, all_cases};
#[doc(inline)]
pub use meganeura_core::functions::{
    AttentionOptions, CustomOp, GridSampleMode, GridSampleOptions, GridSamplePadding, Mask, Padding,
};
#[doc(inline)]
pub use meganeura_core::ops::{
    Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvTranspose1dOptions, ConvTranspose2dOptions,
    ConvTranspose3dOptions, ConvTransposeOptions,
};

// For other modules of this crate, and for tests.
#[doc(hidden)]
pub use meganeura_core::functions::{RecurrentOptions, all_mean};
#[cfg(feature = "onnx")]
#[doc(hidden)]
pub use meganeura_core::ops::form;
#[doc(hidden)]
pub use meganeura_core::ops::integer_products::Bytes;
#[doc(hidden)]
pub use meganeura_core::ops::recurrent::RecurrentFormula;
#[doc(hidden)]
pub use meganeura_core::ops::{Divisor, Op, Pointwise, Pool, View, window};
