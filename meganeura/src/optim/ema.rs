//! The moving average of a model.

use std::fmt;

use crate::error::{bail, here};
use crate::module::{Leaf, Module, ModuleExt, Role};
use crate::{Error, ErrorKind, Result};

/// The exponential moving average of a model's parameters, which often evaluates better than the model:
///
/// ```text
/// a ← a + (1 − d)·(w − a)      with the decay d, or, with warm-up, min(d, (1 + t)/(10 + t)) after t updates
/// ```
///
/// Buffers are copied. [Polyak and Juditsky, 1992](https://doi.org/10.1137/0330046). The warm-up, with which the
/// average forgets the start, is that of TensorFlow's `ExponentialMovingAverage`.
///
/// ```
/// use meganeura::optim::Ema;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(1, 1).init(&device, Seed::new(1))?;
/// let mut optimizer = Sgd::new(0.1);
/// let mut ema = Ema::new(&net, 0.99)?.warmup(true);
/// let x = Tensor::full(&device, [16, 1], 1.0)?;
/// for _ in 0..8 {
///     let tape = Tape::new(&device);
///     let grads = tape.backward(&net.forward(&tape.input(&x)).square().mean())?;
///     optimizer.step(&mut net, &grads)?;
///     ema.update(&net)?;
/// }
/// let tape = Tape::inference(&device);
/// let averaged = ema.model().forward(&tape.input(&x)); // or `ema.swap(&mut net)?`, before and after
/// # averaged.to_vec()?;
/// # Ok::<(), meganeura::Error>(())
/// ```
#[must_use]
pub struct Ema<M> {
    average: M,
    decay: f64,
    warmup: bool,
    updates: u64,
}

impl<M: Module + Clone> Ema<M> {
    /// An average that starts at the model's current values, with this decay between 0 and 1: 0.999, for example.
    ///
    /// # Errors
    ///
    /// Fails if the decay is not between 0 and 1, if a clone of the model cannot be tied like the model, or if both
    /// share a trained parameter in an `Arc`, which would be its own average.
    #[track_caller]
    pub fn new(model: &M, decay: f64) -> Result<Self> {
        here(|| {
            let mut average = model.clone();
            average.tie_like(model)?;
            let shared =
                |(own, other): &(Leaf<'_>, Leaf<'_>)| own.role == Role::Trained && own.cell().id() == other.cell().id();
            if let Some((leaf, _)) = average.zip(model)?.iter().find(|pair| shared(pair)) {
                return Err(is_shared().context(&leaf.path));
            }
            average.name_parameters();
            Self::resume(average, decay, 0)
        })
    }
}

impl<M: Module> Ema<M> {
    /// Continues this average after `updates` updates: from a file, or for a model that cannot be cloned.
    ///
    /// # Errors
    ///
    /// Fails if the decay is not between 0 and 1.
    #[track_caller]
    pub fn resume(average: M, decay: f64, updates: u64) -> Result<Self> {
        here(|| {
            if !(0.0..=1.0).contains(&decay) {
                bail!(Argument, "ema: the decay is {decay}, not between 0 and 1");
            }
            Ok(Self { average, decay, warmup: false, updates })
        })
    }

    /// Starts with a small decay if `true`; `false` by default.
    pub fn warmup(self, warmup: bool) -> Self {
        Self { warmup, ..self }
    }

    /// The decay of the next update.
    #[must_use]
    pub fn decay(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
        let t = self.updates as f64;
        if self.warmup { self.decay.min((1.0 + t) / (10.0 + t)) } else { self.decay }
    }

    /// The number of updates so far.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    pub(crate) fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Moves the average towards the model, in one run on the device. Call it after each step.
    ///
    /// # Errors
    ///
    /// Fails if the model has changed its structure or its device, or shares a trained parameter with the average.
    /// On error, nothing changes.
    #[track_caller]
    pub fn update(&mut self, model: &M) -> Result<()> {
        here(|| {
            let rate = 1.0 - self.decay();
            self.average.zip_with(model, |leaf, average, new| match leaf.role {
                Role::Buffer => new.clone(),
                Role::Trained if average.id().ok() == new.id().ok() => average.fail(is_shared()),
                _ => average + (new - average) * rate,
            })?;
            // Only floats are averaged.
            for (own, other) in self.average.zip(model)? {
                if own.role == Role::Buffer && !own.ty().dtype.is_float() {
                    own.cell().set(other.value());
                }
            }
            self.updates += 1;
            Ok(())
        })
    }

    /// The averaged model, to evaluate and to save.
    #[must_use]
    pub fn model(&self) -> &M {
        &self.average
    }

    /// The averaged model, to load a file into or to move to another device.
    #[must_use]
    pub fn model_mut(&mut self) -> &mut M {
        &mut self.average
    }

    /// Swaps the values of the model and the average. A second swap restores both.
    ///
    /// # Errors
    ///
    /// Fails if the model has changed its structure, or if a device fails. On error, nothing changes.
    #[track_caller]
    pub fn swap(&mut self, model: &mut M) -> Result<()> {
        here(|| {
            let pairs = self.average.zip(model)?;
            let mut values = Vec::with_capacity(pairs.len());
            for (own, other) in &pairs {
                let (average, value) = (own.value(), other.value());
                values.push((value.to_device(average.device())?, average.to_device(value.device())?));
            }
            for ((own, other), (to_own, to_other)) in pairs.iter().zip(values) {
                own.cell().set(to_own);
                other.cell().set(to_other);
            }
            Ok(())
        })
    }

    /// Copies the averages into the model, for good.
    ///
    /// # Errors
    ///
    /// Fails like [`swap`](Self::swap).
    #[track_caller]
    pub fn apply(&self, model: &mut M) -> Result<()> {
        here(|| model.copy_from(&self.average))
    }
}

fn is_shared() -> Error {
    let message = "the average shares a parameter with the model, because cloning an `Arc` does not copy its module; hold the module \
                   without `Arc`, or build a second model and pass it to `Ema::resume`";
    Error::new(ErrorKind::Argument, message)
}

impl<M> fmt::Debug for Ema<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decay, warmup, updates, .. } = self;
        write!(f, "Ema {{ decay: {decay}, warmup: {warmup}, updates: {updates} }}")
    }
}

#[cfg(test)]
mod tests {
    use meganeura_derive::Module;

    use super::*;
    use crate::{Buffer, Device, Param, Tensor};

    #[derive(Module, Clone)]
    struct Net {
        first: Param,
        second: Param,
        mean: Buffer,
        count: Buffer,
    }

    fn tensor(value: f32) -> Tensor {
        Tensor::full(&Device::cpu(), [2], value).unwrap()
    }

    fn count(value: u32) -> Tensor {
        Tensor::indices(&Device::cpu(), [1], &[value]).unwrap()
    }

    fn net(value: f32) -> Net {
        let first = Param::new(tensor(value));
        let second = first.tied();
        Net { first, second, mean: Buffer::new(tensor(value)), count: Buffer::new(count(0)) }
    }

    fn values(net: &Net) -> [f32; 3] {
        [net.first.value(), net.second.value(), net.mean.value()].map(|tensor| tensor.to_vec().unwrap()[1])
    }

    fn set(net: &mut Net, value: f32) {
        net.first.set(tensor(value)).unwrap();
        net.mean.set(tensor(value)).unwrap();
        net.count.set(count(7)).unwrap();
    }

    #[test]
    fn parameters_are_averaged_and_buffers_copied() {
        let mut net = net(0.0);
        let mut ema = Ema::new(&net, 0.75).unwrap();
        assert!(ema.model().second.is_tied_to(&ema.model().first), "ties are kept, so tied parameters move once");
        set(&mut net, 4.0);
        ema.update(&net).unwrap();
        assert_eq!(values(ema.model()), [1.0, 1.0, 4.0]);
        ema.update(&net).unwrap();
        assert_eq!((values(ema.model()), ema.updates()), ([1.75, 1.75, 4.0], 2));
        let again = Ema::resume(ema.model().clone(), 0.9, ema.updates()).unwrap().warmup(true);
        assert_eq!((values(again.model()), again.decay()), ([1.75, 1.75, 4.0], 3.0 / 12.0));
        assert_eq!(ema.model().count.value().to_u32_vec().unwrap(), [7]);
        assert_eq!(values(&net), [4.0; 3]);
    }

    #[test]
    fn the_decay_warms_up_without_new_plans() {
        let net = net(1.0);
        let device = net.first.value().device().clone();
        let mut ema = Ema::new(&net, 0.5).unwrap().warmup(true);
        let before = device.stats().plans;
        let mut decays = Vec::new();
        for _ in 0..9 {
            decays.push(ema.decay());
            ema.update(&net).unwrap();
        }
        assert_eq!((decays[0], decays[1], decays[7], decays[8]), (0.1, 2.0 / 11.0, 8.0 / 17.0, 0.5));
        assert_eq!(device.stats().plans - before, 1);
        // The average of a constant is that constant, bit for bit.
        assert_eq!(values(ema.model()), [1.0; 3]);
    }

    #[test]
    fn averages_are_lent_and_given() {
        let mut net = net(0.0);
        let mut ema = Ema::new(&net, 0.75).unwrap();
        set(&mut net, 4.0);
        ema.update(&net).unwrap();
        ema.swap(&mut net).unwrap();
        assert_eq!((values(&net), values(ema.model())), ([1.0, 1.0, 4.0], [4.0; 3]));
        ema.swap(&mut net).unwrap();
        assert_eq!((values(&net), values(ema.model())), ([4.0; 3], [1.0, 1.0, 4.0]));
        ema.apply(&mut net).unwrap();
        assert_eq!(values(&net), [1.0, 1.0, 4.0]);
    }

    #[test]
    fn shared_parameters_have_no_average() {
        use std::sync::Arc;
        let shared = Arc::new(Param::new(tensor(1.0)));
        let mut model = (Param::new(tensor(2.0)), Arc::clone(&shared));
        let error = Ema::new(&model, 0.5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().starts_with("1: the average shares a parameter with the model"), "{error}");
        let mut ema = Ema::resume((Param::new(tensor(4.0)), shared), 0.5, 0).unwrap();
        let error = ema.update(&model).unwrap_err();
        assert!(error.to_string().starts_with("1: the average shares a parameter"), "{error}");
        assert_eq!((ema.updates(), ema.model().0.value().to_vec().unwrap()), (0, vec![4.0; 2]));
        // Parameters that are not trained may be shared.
        model.freeze("1").unwrap();
        ema.update(&model).unwrap();
        assert_eq!(ema.model().0.value().to_vec().unwrap(), [3.0; 2]);
        let _ = Ema::new(&model, 0.5).unwrap();
    }

    #[test]
    fn misuse_is_an_error() {
        for decay in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Ema::new(&net(0.0), decay).unwrap_err().kind(), ErrorKind::Argument);
        }
        let mut ema = Ema::new(&net(0.0), 0.5).unwrap();
        let wide = Net { mean: Buffer::new(Tensor::zeros(&Device::cpu(), [3]).unwrap()), ..net(1.0) };
        assert_eq!(ema.update(&wide).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!((ema.updates(), values(ema.model())), (0, [0.0; 3]));
    }
}
