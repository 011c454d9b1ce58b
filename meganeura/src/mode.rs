//! The mode of a part of a model: training, or evaluation.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The mode of a layer that has neither parameters nor buffers, as a field of it.
///
/// Every [`Param`](crate::Param) and [`Buffer`](crate::Buffer) has a mode of its own. Only a layer that holds none of
/// them needs a field of this type, if it is to behave otherwise in a part of the model that is
/// [evaluated](crate::ModuleExt::evaluate). The layer asks [`is_training`](crate::ModuleExt::is_training). A clone has
/// the mode of its original.
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
    /// In training: as the tape says.
    #[must_use]
    pub const fn new() -> Self {
        Self { evaluated: AtomicBool::new(false) }
    }

    /// `true` if it is in evaluation, whatever the tape says.
    #[must_use]
    pub fn is_evaluated(&self) -> bool {
        self.evaluated.load(Ordering::Relaxed)
    }

    /// Through a shared reference, since a module may be held by several, in an `Arc`.
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
