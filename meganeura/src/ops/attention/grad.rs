//! The gradient of attention by queries, keys and values.

use super::{Attention, launch, native};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Kernel, Primitive};
use crate::tape::Var;
use crate::{Error, ErrorKind, Result, TensorType};

/// `dq`, `dk` and `dv` of [`Attention`].
///
/// Shapes: `q`, `k`, `v`, `spread [B…, L]`, `drift [B…, L]`, `dy [B…, L, E]`, and where there is one the bias → as `q`, `k` and `v`. The
/// drift is `Σ dy·y − dspread`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttentionGrad {
    pub(super) forward: Attention,
}

impl Primitive for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [q, k, v, spread, drift, dy, bias @ ..] = x else {
            return Err(format!("takes six or seven operands, not {}", x.len()));
        };
        let forward = self.forward.check(&[&[*q, *k, *v], bias].concat())?;
        if forward != [*dy, *spread] || drift != spread {
            return Err(format!("needs results {} and {}, not {dy}, {spread} and {drift}", forward[0], forward[1]));
        }
        Ok(vec![*q, *k, *v])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Err(Error::new(ErrorKind::Argument, "has no derivative: attention is differentiated once"))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<crate::ops::case::Case> {
        // Those of attention have its gradients.
        Vec::new()
    }
}

impl Kernel for AttentionGrad {
    /// `q`, `k`, `v` and the bias.
    fn reads_strided(&self, index: usize) -> bool {
        index < 3 || index == 6
    }

    fn loads(&self) -> Option<usize> {
        None
    }

    fn stores(&self) -> bool {
        false
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::backward(&self.forward, x, y, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        launch::backward(&self.forward, x, caps)
    }
}
