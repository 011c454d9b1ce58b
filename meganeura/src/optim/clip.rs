//! Clipping: by the norm of all gradients, or element by element.

use super::trained::{Trained, expect_some};
use crate::error::{bail, here};
use crate::functions::Scale;
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
        let factor = root.le(&tape.constant(largest)).where_cond(&factor, &tape.constant(f64::NAN));
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
        let largest = |peak: Var, dw: &&Var| peak.maximum(&dw.detach().abs().max());
        let mut peak = here.iter().fold(tape.constant(0.0), largest);
        if let Some(Shards { world, .. }) = self.shards() {
            // The sum is at least the largest, and at most as many times as large as there are ranks.
            peak = peak.all_mean(world) * world.size() as f64;
        }
        let scale = Scale::of(&peak);
        let add = |squares: Var, dw: &&Var| squares + (*dw * &scale.down).square().sum();
        let mut squares = here.iter().fold(tape.constant(0.0), add);
        if let Some(Shards { world, .. }) = self.shards() {
            squares = squares.all_mean(world) * world.size() as f64;
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

#[cfg(test)]
mod tests {
    use meganeura_derive::Module;

    use super::*;
    use crate::optim::{Optimizer, Sgd};
    use crate::{Buffer, Device, ErrorKind, ModuleExt, Param, Tape, Tensor};

    /// The loss is half the sum of squares, so gradients equal values. The trained ones are `(3, 0)` and `(0, 4)`, of
    /// norm 5.
    #[derive(Module)]
    struct Net {
        a: Param,
        b: Param,
        #[module(frozen)]
        frozen: Param,
        buffer: Buffer,
    }

    fn net_and_grads() -> (Net, Grads) {
        let device = Device::cpu();
        let tensor = |data: [f32; 2]| Tensor::from_slice(&device, [2], &data).unwrap();
        let (a, b) = (Param::new(tensor([3.0, 0.0])), Param::new(tensor([0.0, 4.0])));
        let net = Net { a, b, frozen: Param::new(tensor([7.0; 2])), buffer: Buffer::new(tensor([8.0; 2])) };
        let tape = Tape::new(&device);
        let values = [tape.param(&net.a), tape.param(&net.b), tape.param(&net.frozen), tape.buffer(&net.buffer)];
        let loss = Var::concat(&values.each_ref(), 0).square().sum() * 0.5;
        let grads = tape.backward(&loss).unwrap();
        (net, grads)
    }

    fn gradient(grads: &Grads, param: &Param) -> Vec<f32> {
        grads.get(param).unwrap().to_vec().unwrap()
    }

    #[test]
    fn the_norm_covers_all_trained_parameters() {
        let (net, grads) = net_and_grads();
        assert_eq!(grads.norm(&net).item().unwrap(), 5.0);
        let grads = grads.clip_norm(&net, 2.5).unwrap();
        let (da, db) = (gradient(&grads, &net.a), gradient(&grads, &net.b));
        // Clipped separately, they would be (2.5, 0) and (0, 2.5).
        assert!((da[0] - 1.5).abs() < 1e-6 && (db[1] - 2.0).abs() < 1e-6, "{da:?} {db:?}");
        assert!((grads.norm(&net).item().unwrap() - 2.5).abs() < 1e-6);
    }

    #[test]
    fn small_gradients_are_kept() {
        for max_norm in [100.0, f64::INFINITY] {
            let (net, grads) = net_and_grads();
            assert_eq!(gradient(&grads.clip_norm(&net, max_norm).unwrap(), &net.a), [3.0, 0.0]);
        }
    }

    #[test]
    fn parts_are_clipped_on_their_own() {
        let (net, grads) = net_and_grads();
        let grads = grads.clip_norm(&net.a, 1.0).unwrap();
        assert!((gradient(&grads, &net.a)[0] - 1.0).abs() < 1e-6);
        assert_eq!(gradient(&grads, &net.b), [0.0, 4.0]);
    }

    #[test]
    fn a_step_follows_the_clipped_gradients() {
        let (mut net, grads) = net_and_grads();
        let grads = grads.clip_norm(&net, 2.5).unwrap();
        Sgd::new(1.0).step(&mut net, &grads).unwrap();
        assert!((net.a.value().to_vec().unwrap()[0] - 1.5).abs() < 1e-6);
    }

    #[test]
    fn numbers_are_clipped_one_by_one_within_one_plan() {
        for limit in [3.5, 2.0] {
            let (mut net, grads) = net_and_grads();
            let device = grads.tape().device();
            let grads = grads.clip_value(&net, limit).unwrap();
            Sgd::new(1.0).step(&mut net, &grads).unwrap();
            let value = |param: &Param| f64::from(param.value().to_vec().unwrap().into_iter().fold(0.0, f32::max));
            assert_eq!((value(&net.a), value(&net.b)), (3.0 - limit.min(3.0), 4.0 - limit));
            assert_eq!(device.stats().plans, 1);
        }
    }

    #[test]
    fn gradients_of_another_model_are_an_error() {
        let (mut net, grads) = net_and_grads();
        let (other, buffer) = (net_and_grads().0, Buffer::new(net.a.value()));
        net.name_parameters();
        net.freeze("frozen").unwrap();
        for (module, part) in [
            (&other as &dyn Module, "for example `a`; other parameters have, such as `a`"),
            (&other.b, "has a gradient, for example ``"),
            (&net.frozen, "every parameter of the module is frozen"),
            (&buffer, "the module has no parameters"),
        ] {
            let (_, clipped) = net_and_grads();
            let errors = [
                grads.norm(module).item().unwrap_err(),
                clipped.clip_norm(module, 1.0).unwrap_err(),
                net_and_grads().1.clip_value(module, 1.0).unwrap_err(),
            ];
            assert!(errors[0].to_string().contains(part), "{}", errors[0]);
            assert!(errors.iter().all(|error| error.kind() == ErrorKind::NoGradient), "{errors:?}");
            // If nothing is trained, the list is empty, not an error.
            let error = grads.named(module).err();
            assert_eq!(error.map(|error| error.kind()), (module.counts().trained > 0).then_some(ErrorKind::NoGradient));
        }
        // If a pass may leave out all parameters, the norm is 0.
        let unused = net_and_grads().1.allow_unused("**");
        assert!(unused.named(&other).unwrap().is_empty());
        assert_eq!(unused.norm(&other).item().unwrap(), 0.0);
        unused.clip_norm(&other, 1.0).unwrap();
        // Parameters that are frozen by now do not count.
        net.freeze("a").unwrap();
        assert_eq!(grads.norm(&net).item().unwrap(), 4.0);
    }

    #[test]
    fn a_limit_that_is_not_positive_is_an_error() {
        for max_norm in [0.0, -1.0, f64::NAN] {
            let (net, grads) = net_and_grads();
            assert_eq!(grads.clip_norm(&net, max_norm).unwrap_err().kind(), ErrorKind::Argument);
            let (net, grads) = net_and_grads();
            assert_eq!(grads.clip_value(&net, max_norm).unwrap_err().kind(), ErrorKind::Argument);
        }
    }
}
