//! Clipping: by the norm of all gradients, or element by element.

use super::trained::{Trained, expect_some};
use crate::error::{bail, here};
use crate::functions::{Scale, all_sum};
use crate::module::Module;
use crate::world::Shards;
use crate::{DType, Grads, Result, Var};

impl Grads {
    /// The norm of a model's gradients as one vector: `√Σ dw²` over all elements of all parameters that are not frozen.
    /// No square overflows.
    ///
    /// The norm is a value on the gradients' tape. Hold it across the step and read it afterwards: the step's run
    /// computes it. Reading it is an error if none of the module's parameters has a gradient here, for example if it is
    /// another model.
    #[must_use]
    #[track_caller]
    pub fn norm(&self, module: &dyn Module) -> Var {
        match expect_some(module, self) {
            Ok(trained) => {
                let ScaledNorm { root, scale } = self.norm_of(&trained);
                root * scale.up
            }
            Err(error) => self.tape().constant(0.0).fail(error.in_op("norm")),
        }
    }

    /// Scales a model's gradients down by one factor, so that their [`norm`](Self::norm) is at most `max_norm`:
    /// `dw·min(1, max_norm/(norm + 1e-6))`
    ///
    /// One factor for all gradients keeps the direction of the step; the norms of single tensors are not clipped.
    /// [Pascanu et al., 2013](https://arxiv.org/abs/1211.5063).
    ///
    /// No square overflows, so gradients of 1e30 are clipped like any others. If a gradient is infinite or NaN, all are
    /// NaN, which `check_finite` finds.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let weight = Param::new(Tensor::from_slice(&device, [2], &[3.0, 4.0])?);
    /// let tape = Tape::new(&device);
    /// let loss = tape.param(&weight).square().sum() * 0.5;
    /// let grads = tape.backward(&loss)?.clip_norm(&weight, 1.0)?;
    /// let clipped = grads.get(&weight).unwrap().to_vec()?;
    /// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if `max_norm` is not above 0, and with [`NoGradient`](crate::ErrorKind::NoGradient) if none of the
    /// module's parameters has a gradient here, for example if it is another model.
    #[doc(alias = "clip_grad_norm_")]
    #[track_caller]
    pub fn clip_norm(self, module: &dyn Module, max_norm: f64) -> Result<Self> {
        let trained = here(|| {
            expect_above_0("the norm ", max_norm)?;
            expect_some(module, &self)
        })?;
        let tape = self.tape();
        let ScaledNorm { root, scale: Scale { down, up } } = self.norm_of(&trained);
        // Of scaled gradients, because the factor for unscaled ones could be too small for a float.
        let factor = (tape.scalar(max_norm) / (&root + down.scale(1e-6))).minimum(&up);
        // NaN if the norm is infinite: a factor of 0 would hide that from checks.
        let largest = if root.ty().dtype == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
        let factor = root.le(tape.constant(largest)).where_cond(&factor, &tape.constant(f64::NAN));
        let mut clipped = Vec::with_capacity(trained.len());
        for Trained { cell, dw, .. } in trained {
            clipped.push((cell, &factor * (&down * dw)));
        }
        Ok(self.with_entries(clipped))
    }

    /// Limits each element of a model's gradients to `−limit ..= limit`.
    ///
    /// Unlike [`clip_norm`](Self::clip_norm), this changes the direction of the step. NaN stays NaN.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let weight = Param::new(Tensor::from_slice(&device, [2], &[3.0, -0.5])?);
    /// let tape = Tape::new(&device);
    /// let loss = tape.param(&weight).square().sum() * 0.5;
    /// let grads = tape.backward(&loss)?.clip_value(&weight, 1.0)?;
    /// assert_eq!(grads.get(&weight).unwrap().to_vec()?, [1.0, -0.5]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if `limit` is not above 0, and like [`clip_norm`](Self::clip_norm) with
    /// [`NoGradient`](crate::ErrorKind::NoGradient).
    #[doc(alias = "clip_grad_value_")]
    #[track_caller]
    pub fn clip_value(self, module: &dyn Module, limit: f64) -> Result<Self> {
        let trained = here(|| {
            expect_above_0("", limit)?;
            expect_some(module, &self)
        })?;
        let (low, high) = (self.tape().scalar(-limit), self.tape().scalar(limit));
        let mut clipped = Vec::with_capacity(trained.len());
        for Trained { cell, dw, .. } in trained {
            clipped.push((cell, dw.maximum(&low).minimum(&high)));
        }
        Ok(self.with_entries(clipped))
    }

    #[track_caller]
    fn norm_of(&self, trained: &[Trained]) -> ScaledNorm {
        let tape = self.tape();
        let is_here = |trained: &&Trained| self.shards().is_none_or(|shards| shards.is_own(trained.cell.id()));
        let here: Vec<_> = trained.iter().filter(is_here).map(|trained| &trained.dw).collect();
        let largest = |peak: Var, dw: &&Var| peak.maximum(dw.detach().abs().max());
        let mut peak = here.iter().fold(tape.constant(0.0), largest);
        if let Some(Shards { world, .. }) = self.shards() {
            // The sum is at least the largest, and at most as many times as large as there are ranks.
            peak = all_sum(&[&peak], world, false).swap_remove(0);
        }
        let scale = Scale::of(&peak);
        let add = |squares: Var, dw: &&Var| squares + (*dw * &scale.down).square().sum();
        let mut squares = here.iter().fold(tape.constant(0.0), add);
        if let Some(Shards { world, .. }) = self.shards() {
            squares = all_sum(&[&squares], world, false).swap_remove(0);
        }
        ScaledNorm { root: squares.root_or_zero(), scale }
    }
}

/// A norm, `root·scale.up`. Neither factor overflows where the norm does not.
struct ScaledNorm {
    root: Var,
    scale: Scale,
}

fn expect_above_0(what: &str, limit: f64) -> Result<()> {
    if limit.is_nan() || limit <= 0.0 {
        bail!(Argument, "gradients cannot be clipped to {what}{limit}; it must be above 0");
    }
    Ok(())
}
