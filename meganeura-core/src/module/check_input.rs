//! The check in the derived `init` of a struct with `#[module(input = […])]`: records the forward pass once, only for
//! its types.

use super::forward_summary::RecordedForward;
use super::{Layer, ModuleExt};
use crate::error::{bail, here};
use crate::{DType, Device, MAX_RANK, Result, Shape, TensorType};

/// A model whose `init` can record a forward pass.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`input` needs a layer, but `{Self}` is not one",
    label = "`init` cannot record its forward pass",
    note = "with one input and one result, it becomes a layer by `#[module(sequential)]` or `impl Layer for {Self}`",
    note = "with several, remove `input`, and have a test record it: `net.summary_by(([2, 3], [2, 4]), |net, (x, y)| net.forward(x, y))`"
)]
pub trait TakesInput: Layer {}

impl<L: Layer + ?Sized> TakesInput for L {}

/// Records the forward pass of an input with these extents, floats or indices, on the device of the model.
#[doc(hidden)]
#[track_caller]
pub fn check_input<M: TakesInput + ?Sized>(
    model: &M,
    device: &Device,
    extents: &[usize],
    is_index: bool,
) -> Result<()> {
    // Messages name parameters by their paths.
    model.name_parameters();
    here(|| match extents.len() {
        0..=MAX_RANK => Ok(()),
        rank => bail!(Shape, "`input` has {rank} axes; there are at most {MAX_RANK}"),
    })?;
    let shape = Shape::new(extents);
    let recorded = match is_index {
        true => RecordedForward::new(device, &TensorType::new(DType::U32, shape))?,
        false => RecordedForward::new(device, &shape)?,
    };
    let y = model.forward(&recorded.inputs);
    here(|| recorded.expect_fit(model, &[y]))
}
