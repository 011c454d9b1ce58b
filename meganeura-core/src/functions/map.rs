//! Functions of tensors.

use crate::error::here;
use crate::{Result, Tape, Tensor, Var};

impl Tensor {
    /// Applies a function of [`Var`]s to this tensor, without a visible tape.
    ///
    /// The function may use every operation and layer. It runs in evaluation mode, like
    /// [`Tape::inference`](crate::Tape::inference).
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let x = Tensor::from_slice(&Device::cpu(), [3], &[1.0, 3.0, 2.0])?;
    /// assert_eq!(x.map(|x| x.argmax(0))?.to_u32_vec()?, [1]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Any error of the function's operations, or of the device.
    #[track_caller]
    pub fn map(&self, f: impl FnOnce(&Var) -> Var) -> Result<Self> {
        let tape = Tape::inference(self.device());
        let result = f(&tape.input(self));
        here(|| result.to_tensor())
    }
}
