//! Flattening of images to vectors.

use meganeura_derive::Module;

use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// Joins all axes but the first: images become vectors, and no data moves.
///
/// Shapes: `[N, C, H, W]` → `[N, C·H·W]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::zeros(&device, [4, 8, 2, 2])?);
/// assert_eq!(Flatten.forward(&x).shape(), Shape::from([4, 32]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flatten;

impl Init for Flatten {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        Ok(self)
    }
}

impl Layer for Flatten {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.flatten()
    }
}
