//! The mode of a part of a model: training or evaluation.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The mode of a layer without parameters and buffers, stored as a field.
///
/// Every [`Param`](crate::Param) and [`Buffer`](crate::Buffer) has a mode of its own. A layer without any needs this
/// field only if it behaves differently in a part of the model that is in [evaluation
/// mode](crate::ModuleExt::evaluate). The layer asks [`is_training`](crate::ModuleExt::is_training). A clone has the
/// mode of its original.
///
/// ```
/// use meganeura::module::Mode;
/// use meganeura::prelude::*;
///
/// /// Adds uniform noise in training.
/// #[derive(Module, Debug)]
/// struct Noise {
///     #[module(skip, init = 0.1)]
///     width: f64,
///     #[module(init)]
///     mode: Mode,
/// }
///
/// impl Layer for Noise {
///     fn forward(&self, x: &Var) -> Var {
///         match self.is_training(x.tape()) {
///             true => x + x.random_uniform() * self.width,
///             false => x.clone(),
///         }
///     }
/// }
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let mut noise = Noise::init(&device, 42)?;
/// noise.evaluate("**")?;
/// let x = Tensor::zeros(&device, [3])?;
/// assert_eq!(noise.forward(&Tape::new(&device).input(&x)).to_vec()?, [0.0; 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Mode {
    evaluated: AtomicBool,
}

impl Mode {
    /// Training mode, which leaves the choice to the tape.
    #[must_use]
    pub const fn new() -> Self {
        Self { evaluated: AtomicBool::new(false) }
    }

    /// `true` in evaluation mode, regardless of the tape's mode.
    #[must_use]
    pub fn is_evaluated(&self) -> bool {
        self.evaluated.load(Ordering::Relaxed)
    }

    /// Takes a shared reference, since several owners may hold a module in an `Arc`.
    pub(crate) fn set_evaluated(&self, evaluated: bool) {
        self.evaluated.store(evaluated, Ordering::Relaxed);
    }
}

impl Clone for Mode {
    fn clone(&self) -> Self {
        Self { evaluated: AtomicBool::new(self.is_evaluated()) }
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_evaluated() { "Mode(evaluation)" } else { "Mode(training)" })
    }
}
