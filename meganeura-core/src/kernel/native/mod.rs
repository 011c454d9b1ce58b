//! The building blocks of native kernels: element types, operands, loops in threads, matrix products.

mod activation;
mod affine;
mod block;
mod bytes;
mod cascade;
mod element;
mod erfinv;
mod exponentials;
mod fast;
mod finish;
mod finished;
mod gather;
mod gelu;
mod gemm;
mod loops;
mod moments;
mod places;
mod prefetch;
mod real;
mod scratch;
mod shared;
mod transpose;
mod view;
mod windows;
mod windows_grad;

pub(crate) use activation::{Activation, HardSwish, SQRT_2_OVER_PI, gelu_tanh, sigmoid, silu};
pub use affine::Affine;
pub(crate) use affine::{Bound, NONE, Number};
pub(crate) use block::Block;
pub(crate) use bytes::{BYTES, ONES, sum_of, words};
pub(crate) use cascade::{Cascade, by_halves};
pub use element::Element;
pub(crate) use element::Integer;
pub(crate) use exponentials::{COLUMNS, Columns, make_weights, peak, peak_and_mass, weights};
pub use finish::{Finish, Run};
pub(crate) use finish::{Plain, finish_all};
pub(crate) use finished::{Finished, Gaps};
pub(crate) use gather::{gather, map, map_three};
pub(crate) use gemm::{Accumulate, Matrix, Threads, gemm};
pub(crate) use loops::{
    copy_strided, dot_by, grain, parallel, parallel_scratch, parallel_zip, real, sum, sum_by, sums_by, tasks,
    threads_for,
};
pub(crate) use moments::moments;
pub(crate) use places::{Apart, Lines, Places, STRIP, Strips};
pub(crate) use prefetch::{prefetch, prefetch_line};
pub use real::Real;
pub use scratch::Scratch;
pub(crate) use scratch::{Borrowed, Buffers};
pub use shared::Shared;
pub(crate) use transpose::{Transposed, transpose};
pub(crate) use view::{OfType, Slice, of_one_type};
pub use view::{OutView, View};
pub(crate) use windows::{Plane, WIDEST, Window};
pub(crate) use windows_grad::{Correlated, Spread};
