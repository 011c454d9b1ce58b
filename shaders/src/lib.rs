//! The WGSL kernels of meganeura, and the preprocessor that specialises them.
//!
//! A kernel is a text file under `wgsl/`, written for one operation and any shape. [`expand`] turns it into the WGSL of
//! one launch: shapes, strides and variants are *defines*, and end up as constants that the driver's compiler can fold.
//!
//! ```
//! let wgsl = meganeura_shaders::expand("attention_join", &[("WG", "64"), ("ROWS", "35")])?;
//! assert!(wgsl.contains("const WG: u32 = 64;"));
//! # Ok::<(), meganeura_shaders::ExpandError>(())
//! ```
//!
//! # Conventions
//!
//! * The entry point is `main`. All bindings are in group 0: first the kernel's own, inputs (`read`) before outputs
//!   (`read_write`), then those that the host declares for the prologue and the epilogue. The head comment of each file
//!   gives the formula, the bindings and the defines.
//! * A kernel that includes `shared/epilogue` stores each element of its first output once: with `store(i, value)`, or,
//!   to overlap the reads of merged work, with `epilogue(i)` for several elements and then `finish(epilogue, value)`
//!   for each. The host declares that output, along with any work that it merges into the store.
//! * A kernel that includes `shared/prologue` reads an operand through `load(i)` in the same way.
//! * Kernels that work on lines, eight neighbouring channels (`shared/bf16`), include `shared/epilogue_lines` and
//!   `shared/prologue_lines` instead. They call `store_line(i, line)` or `finish(epilogue, line)`, and `load_line(i)`,
//!   with i a multiple of 8.
//! * Workgroups are counted linearly. A count above the limit of one dimension is folded into x and y. The fold may
//!   round up, so workgroups past the end do nothing.
//! * `WG` is the workgroup size. Where a workgroup reduces in a tree, it must be a power of two.
//! * Sizes that the host needs as well are defines: of tiles and their pitches, of workgroup memory, the numbers of
//!   tiles and parts. A kernel derives only what nobody else needs.
//! * Every element of an output is written, with the same bits in every run: sums have a fixed order, and no result
//!   depends on the order of atomics.
//! * NaN propagates, unless a kernel's head says otherwise.
//! * A workgroup has at most 256 invocations, and 16 KB of workgroup memory. Large tiles take up to 48 KB, on devices
//!   that have as much. Kernels on matrix units need f16, cooperative matrices and subgroups; with `BF16_UNITS`, the
//!   host has the kernel's f16 compiled as bf16 (`shared/units`), or its matrices A and B of f32 (`matmul_bf16`). All
//!   others run on baseline WebGPU, except some tilings and the packing of weights to f16.
//! * The constant `EXACT_SUMS` (`shared/bf16`) is `false`. The host sets it if the device is certain to add
//!   floats in the order in which they are written.
//! * An element's index fits in a `u32`.
//! * Kernels for which [`is_trusted`] holds need no checks at run time: whatever numbers they read, they stay inside
//!   their bindings, end their loops, and write workgroup memory before they read it.
//!
//! # The preprocessor
//!
//! | line | meaning |
//! |---|---|
//! | `#include "shared/grid"` | the text of `wgsl/shared/grid.wgsl`, the first time; nothing after that |
//! | `#macro step(H)` … `#endmacro` | defines a macro of the lines between; `${H}` stands for an argument |
//! | `#insert step(0)` | the lines of that macro: statements rather than declarations. An argument that names a define or a counter stands for its value; any other is literal text |
//! | `#if NAME` … `#else` … `#endif` | keeps the first part where `NAME` is defined, else the second; nests |
//! | `#elif NAME` | another part, kept if its condition holds and no earlier part was kept |
//! | `#if !NAME` | where `NAME` is not defined |
//! | `#if NAME == value`, `#if NAME != value` | the same, by the value of `NAME`, which must be defined |
//! | `#if NAME == A * B + 2`, `#if A + 1 == B * 2` | the same, by sums of products of numbers and names |
//! | `#for I in COUNT` … `#endfor` | repeats the lines between for `I` = 0, 1, … below `COUNT` (a number, or the name of one); nests |
//! | `${NAME}`, anywhere in a line | the value of `NAME`, verbatim: a number, an expression, several lines |
//!
//! A value is not expanded again. A define that no line mentions is an error, as is a hole without a define, so that no
//! misspelt name goes unnoticed. A mention in a part that `#if` leaves out counts.

mod preprocess;
mod sources;

#[doc(hidden)]
pub use preprocess::expand as expand_from;
pub use preprocess::{ExpandError, Location};
pub use sources::{expand, is_trusted, kernels};
