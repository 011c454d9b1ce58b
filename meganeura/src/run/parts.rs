//! The parts of a checkpoint, in memory.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{bail, here};
use crate::io::{Checkpoint, read_exactly};
use crate::module::{Module, ModuleExt};
use crate::optim::{self, Ema, Lbfgs, Optimizer, OptimizerState};
use crate::{Device, Error, ErrorKind, Precision, Result};

/// The parts of a checkpoint: models, states of optimizers, and texts, each under a name.
///
/// [`Run::checkpoint`](super::Run::checkpoint) and [`Run::restore`](super::Run::restore) are for one model and one
/// optimizer. With more, put them in and take them out one by one:
///
/// ```
/// use meganeura::optim::Ema;
/// use meganeura::prelude::*;
/// use meganeura::run::{Parts, Run};
///
/// let device = Device::cpu();
/// # let directory = tempfile::tempdir().unwrap();
/// let folder = "runs/average";
/// # let folder = directory.path().join(folder);
/// let mut run = Run::at(folder, &device).open()?;
/// let mut net = Linear::new(2, 1).init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-3);
/// let mut average = Ema::new(&net, 0.99)?;
/// let mut seen = 0;
/// if let Some(mut parts) = run.restore_parts()? {
///     parts.take_model("model", &mut net)?;
///     parts.take_optimizer("optimizer", &mut optimizer, &net)?;
///     parts.take_ema("average", &mut average)?;
///     seen = parts.take_text("seen")?.parse().expect("a number");
///     parts.finish()?; // an error if something was forgotten
/// }
/// // … train …
/// let mut parts = Parts::new();
/// parts.put_model("model", &net)?;
/// parts.put_optimizer("optimizer", &optimizer, &net)?;
/// parts.put_ema("average", &average)?;
/// parts.put_text("seen", seen + 1)?;
/// run.save(parts)?;
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Parts {
    /// Their origin, for messages.
    pub(super) source: String,
    /// Each is a file with this name and the extension `.safetensors`.
    pub(super) files: BTreeMap<String, Vec<u8>>,
    pub(super) texts: BTreeMap<String, String>,
}

impl Parts {
    /// An empty set of parts.
    pub fn new() -> Self {
        Self { source: "the checkpoint".into(), ..Self::default() }
    }

    /// Adds the parameters and buffers of a model.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](ErrorKind::Argument) if there is a part with this name, or if the name cannot be a file
    /// name. Fails like [`Checkpoint::to_safetensors`].
    #[track_caller]
    pub fn put_model(&mut self, name: &str, model: &dyn Module) -> Result<()> {
        here(|| {
            self.expect_free(name)?;
            let bytes = model.to_safetensors().map_err(|error| error.context(name))?;
            self.files.insert(name.to_owned(), bytes);
            Ok(())
        })
    }

    /// Adds the state that an optimizer keeps for a model. If it is [sharded](crate::Grads::average_to_owners), all
    /// ranks call this together.
    ///
    /// # Errors
    ///
    /// Fails like [`put_model`](Self::put_model), and with [`Argument`](ErrorKind::Argument) if the optimizer has made
    /// steps, but none with this model.
    #[track_caller]
    pub fn put_optimizer(&mut self, name: &str, optimizer: &dyn Optimizer, model: &dyn Module) -> Result<()> {
        here(|| {
            self.expect_free(name)?;
            if optim::is_of_another(optimizer, model) {
                bail!(Argument, "{name}: the optimizer has stepped another model, and has no state of this one");
            }
            let state = optimizer.whole_state_of(model).map_err(|error| error.context(name))?;
            let bytes = state.to_safetensors().map_err(|error| error.context(name))?;
            self.files.insert(name.to_owned(), bytes);
            Ok(())
        })
    }

    /// Adds a moving average, with its number of updates.
    ///
    /// # Errors
    ///
    /// Fails like [`put_model`](Self::put_model).
    #[track_caller]
    pub fn put_ema<M: Module>(&mut self, name: &str, average: &Ema<M>) -> Result<()> {
        here(|| {
            self.put_model(name, average.model())?;
            self.put_text(&updates(name), average.updates())
        })
    }

    /// Adds the history of L-BFGS.
    ///
    /// # Errors
    ///
    /// Fails like [`put_model`](Self::put_model).
    #[track_caller]
    pub fn put_lbfgs(&mut self, name: &str, lbfgs: &Lbfgs) -> Result<()> {
        here(|| {
            self.expect_free(name)?;
            let bytes = lbfgs.state().and_then(|state| state.to_safetensors()).map_err(|error| error.context(name))?;
            self.files.insert(name.to_owned(), bytes);
            Ok(())
        })
    }

    /// Adds any value that can be written as text.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](ErrorKind::Argument) if there is a part with this name, or if the name cannot be a file
    /// name.
    #[track_caller]
    pub fn put_text(&mut self, name: &str, text: impl fmt::Display) -> Result<()> {
        here(|| {
            self.expect_free(name)?;
            self.texts.insert(name.to_owned(), text.to_string());
            Ok(())
        })
    }

    /// Restores the values of a model.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if there is no such part, or if it is of another model. On
    /// error, the model stays.
    #[track_caller]
    pub fn take_model(&mut self, name: &str, model: &mut dyn Module) -> Result<()> {
        here(|| {
            let bytes = self.take_file(name)?;
            let loaded = read_exactly(model, &bytes).and_then(|loaded| loaded.put(model));
            loaded.map(drop).map_err(|error| self.named(name, error))
        })
    }

    /// Restores the state that an optimizer keeps for a model, whose own values were restored before.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if there is no such part, or if it is of another optimizer or
    /// another model. On error, the optimizer stays.
    #[track_caller]
    pub fn take_optimizer(&mut self, name: &str, optimizer: &mut dyn Optimizer, model: &dyn Module) -> Result<()> {
        here(|| {
            let bytes = self.take_file(name)?;
            let state = state_of(model, &bytes);
            state.and_then(|state| optimizer.load_state(model, &state)).map_err(|error| self.named(name, error))
        })
    }

    /// Restores a model and an optimizer that [`put_model`](Self::put_model) and [`put_optimizer`](Self::put_optimizer)
    /// saved under these names, if there are no other parts. Restores everything, or nothing if it fails.
    pub(super) fn restore(
        &self,
        (model_name, model): (&str, &mut dyn Module),
        (optimizer_name, optimizer): (&str, &mut dyn Optimizer),
    ) -> Result<()> {
        let file = |name: &str| self.files.get(name).ok_or_else(|| self.missing(name));
        let loaded = read_exactly(model, file(model_name)?).map_err(|error| self.named(model_name, error))?;
        let in_optimizer = |error| self.named(optimizer_name, error);
        let state = state_of(model, file(optimizer_name)?).map_err(in_optimizer)?;
        optim::fits(optimizer, model, &state).map_err(in_optimizer)?;
        self.expect_no_others(&[model_name, optimizer_name])?;
        drop(loaded.put(model).map_err(|error| self.named(model_name, error))?);
        // After the model, because restoring its ties may exchange its parameters.
        optimizer.load_state(model, &state).map_err(in_optimizer)
    }

    /// Restores the values of a moving average.
    ///
    /// # Errors
    ///
    /// Fails like [`take_model`](Self::take_model).
    #[track_caller]
    pub fn take_ema<M: Module>(&mut self, name: &str, average: &mut Ema<M>) -> Result<()> {
        here(|| {
            let text = self.take_text(&updates(name))?;
            let Ok(count) = text.parse() else {
                bail!(Checkpoint, "{}: `{}` is `{text}`, which is not a count", self.source, updates(name));
            };
            self.take_model(name, average.model_mut())?;
            average.set_updates(count);
            Ok(())
        })
    }

    /// Restores the history of L-BFGS.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if there is no such part, or if it is of another optimizer. On
    /// error, the history stays.
    #[track_caller]
    pub fn take_lbfgs(&mut self, name: &str, lbfgs: &mut Lbfgs) -> Result<()> {
        here(|| {
            let bytes = self.take_file(name)?;
            // Histories are in double precision, whatever the model is in.
            let state = OptimizerState::from_safetensors(&bytes, &Device::cpu_with(Precision::Double));
            state.and_then(|state| lbfgs.load_state(&state)).map_err(|error| self.named(name, error))
        })
    }

    /// Takes a text.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](ErrorKind::Checkpoint) if there is none with this name.
    #[track_caller]
    pub fn take_text(&mut self, name: &str) -> Result<String> {
        here(|| self.texts.remove(name).ok_or_else(|| self.missing(name)))
    }

    /// The names of the remaining parts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().chain(self.texts.keys()).map(String::as_str)
    }

    /// Checks that every part was taken: a part that was saved and not taken would be missing from the resumed
    /// training.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](ErrorKind::Checkpoint), which names the remaining parts.
    #[track_caller]
    pub fn finish(self) -> Result<()> {
        here(|| self.expect_no_others(&[]))
    }

    fn expect_no_others(&self, taken: &[&str]) -> Result<()> {
        let left: Vec<_> = self.names().filter(|name| !taken.contains(name)).collect();
        if !left.is_empty() {
            bail!(Checkpoint, "{} has parts that the program did not take: {}", self.source, listed(&left));
        }
        Ok(())
    }

    fn take_file(&mut self, name: &str) -> Result<Vec<u8>> {
        self.files.remove(name).ok_or_else(|| self.missing(name))
    }

    fn expect_free(&self, name: &str) -> Result<()> {
        if !is_name(name) {
            bail!(Argument, "a part cannot be called `{name}`: names are of letters, digits, `_`, `-` and `.`");
        }
        // On some systems, names that differ only in case are one file.
        if self.names().any(|known| known.eq_ignore_ascii_case(name)) {
            bail!(Argument, "there is a part called `{name}` already");
        }
        Ok(())
    }

    fn named(&self, name: &str, error: Error) -> Error {
        error.context(format_args!("{}, `{name}`", self.source))
    }

    fn missing(&self, name: &str) -> Error {
        let there_is = listed(&self.names().collect::<Vec<_>>());
        let message = format!("{} has no part called `{name}`; there is {there_is}", self.source);
        Error::new(ErrorKind::Checkpoint, message)
    }
}

/// `true` if a part can have this name: its file must be inside the folder of the checkpoint.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain)
}

fn listed(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// An optimizer's state of a model. Each tensor moves to the device of its parameter later.
fn state_of(model: &dyn Module, bytes: &[u8]) -> Result<OptimizerState> {
    let device = model.leaves().first().map(|leaf| leaf.value().device().clone());
    OptimizerState::from_safetensors(bytes, &device.unwrap_or_else(Device::cpu))
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts {{ {} }}", listed(&self.names().collect::<Vec<_>>()))
    }
}

fn updates(name: &str) -> String {
    format!("{name}.updates")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::Sgd;
    use crate::{Param, Tape, Tensor};

    #[test]
    fn the_history_of_lbfgs_is_restored() {
        let mut net = Param::new(Tensor::full(&Device::cpu(), [2], 3.0).unwrap());
        let loss = |net: &Param| Ok(Tape::new(&Device::cpu()).param(net).square().square().sum());
        let mut lbfgs = Lbfgs::new(1.0).iterations(3);
        lbfgs.step(&mut net, loss).unwrap();
        let mut parts = Parts::new();
        parts.put_lbfgs("lbfgs", &lbfgs).unwrap();
        let (mut twin, mut later) = (net.clone(), Lbfgs::new(1.0).iterations(3));
        parts.take_lbfgs("lbfgs", &mut later).unwrap();
        parts.finish().unwrap();
        assert_eq!(lbfgs.step(&mut net, loss).unwrap(), later.step(&mut twin, loss).unwrap());
        assert_eq!(net.value().to_vec().unwrap(), twin.value().to_vec().unwrap());
        let mut parts = Parts::new();
        parts.put_optimizer("lbfgs", &Sgd::new(0.1), &net).unwrap();
        let error = parts.take_lbfgs("lbfgs", &mut later).unwrap_err();
        assert!(error.to_string().contains("the state is of sgd, not of lbfgs"), "{error}");
    }

    #[test]
    fn an_optimizer_of_another_model_is_not_saved_as_nothing() {
        let device = Device::cpu();
        let [mut net, other] = [1.0, 2.0].map(|value| Param::new(Tensor::full(&device, [2], value).unwrap()));
        let mut sgd = Sgd::new(0.1).momentum(0.9);
        // Before the first step, the optimizer has no state to lose.
        Parts::new().put_optimizer("optimizer", &sgd, &other).unwrap();
        let tape = Tape::new(&device);
        let grads = tape.backward(&tape.param(&net).square().sum()).unwrap();
        sgd.step(&mut net, &grads).unwrap();
        let error = Parts::new().put_optimizer("optimizer", &sgd, &other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().starts_with("optimizer: the optimizer has stepped another model"), "{error}");
        Parts::new().put_optimizer("optimizer", &sgd, &[net.tied(), other]).unwrap();
    }
}
