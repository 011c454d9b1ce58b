//! Runs: training that survives crashes. A run is a folder with checkpoints, metrics and events, from which training
//! resumes bit for bit, however it ended.
//!
//! ```
//! use meganeura::prelude::*;
//! use meganeura::run::Run;
//!
//! # fn main() -> meganeura::Result<()> {
//! let device = Device::cpu();
//! # let directory = tempfile::tempdir().unwrap();
//! let folder = "runs/parity";
//! # let folder = directory.path().join(folder);
//! let data = Dataset::new((0..64u8).map(f32::from).collect(), [1], (0..64).map(|i| i % 2).collect::<Vec<_>>())?;
//! let mut net = Linear::new(1, 2).init(&device, Seed::new(42))?;
//! let mut optimizer = AdamW::new(1e-3);
//!
//! let mut run = Run::at(folder, &device).setting("batch", 16).every_steps(100).open()?; // begun, or taken up
//! run.restore(&mut net, &mut optimizer)?; // nothing, if it was begun
//! let batches = data.batches(16).shuffle(7);
//! 'training: while let Some(epoch) = run.next_epoch_of(&batches, 5) {
//!     for batch in epoch {
//!         let batch = batch?;
//!         let tape = Tape::new(&device);
//!         let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
//!         let grads = tape.backward(&loss)?;
//!         optimizer.step(&mut net, &grads)?;
//!         run.advance(); // one step and one batch further
//!         run.log(&[("loss", &loss.to_tensor()?)])?;
//!         if run.is_due() {
//!             run.checkpoint(&net, &optimizer)?;
//!         }
//!         if run.is_interrupted() {
//!             break 'training;
//!         }
//!     }
//!     run.end_epoch();
//!     run.checkpoint(&net, &optimizer)?;
//! }
//! println!("{}", run.finish()?);
//! # assert_eq!(meganeura::run::read_metrics(directory.path().join("runs/parity"))?.len(), 20);
//! # Ok(())
//! # }
//! ```
//!
//! The loop belongs to the program; a run only remembers. A checkpoint holds parameters and buffers, the optimizer's
//! state, the position in the data, the device's random seed, and the metrics so far. `run.json` holds the settings
//! that must not change ([`RunOptions::setting`]). The guide [training and resuming](crate::guide::runs) explains it
//! step by step.
//!
//! Runs do not know what a step computes.
//!
//! # When something goes wrong
//!
//! These are errors, and nothing is lost:
//!
//! | problem | effect |
//! |---|---|
//! | the disk is full | saving is an error that names the file and the last checkpoint, which stays |
//! | another process trains in the folder | an error with its process ID |
//! | this process trains in the folder already | an error that says so: drop the other `Run` first |
//! | a file of the run, `checkpoints` or `tensorboard` is a symbolic link | an error: what it leads to may belong to others, and a run deletes and truncates what is its own. Link the whole folder instead |
//! | a file of the run is a named pipe or a device | an error that says so |
//! | a checkpoint of another model, another optimizer, another format | an error that names the difference; nothing is loaded |
//! | a file of the last checkpoint is missing, truncated or changed, even by one bit | an error that names it, and the checkpoint from which [`resume_from_last_good`](RunOptions::resume_from_last_good) would resume |
//! | no checkpoint is left | an error that names the folder of the checkpoints |
//! | somebody deletes old checkpoints during the run | the others are kept |
//! | somebody deletes or moves the folder, or begins another run there | saving is an error; the other run's files are left alone, and no folder is created |
//! | `metrics.jsonl` is cut in a line after the checkpoint, for example by a crash | that part is written again |
//! | `metrics.jsonl` is shorter than at the checkpoint, or has other bytes | an error: put it back, or rename it to begin a new one |
//! | `run.json` was changed | an error: put it back, or delete its line `checksum` if it was on purpose |
//! | the run was begun with other settings | an error that names both values |
//! | the metric of `keep_best` was not logged, or after the checkpoint | saving is an error that names the metrics that were, once everything is saved |
//! | `restore` was not called | saving is an error, because it would replace the training by another |
//! | a resumed loop does not skip the batches that the run had taken from the epoch | logging and saving are errors |

mod best;
mod checksum;
#[cfg(all(test, unix))]
mod crashes;
mod epochs;
mod held;
mod interrupt;
mod journal;
mod json;
mod lines;
mod lock;
mod metrics;
mod options;
mod overview;
mod parts;
mod position;
mod ranks;
#[cfg(feature = "ctrlc")]
mod signals;
mod store;
#[cfg(feature = "tensorboard")]
mod tensorboard;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use checksum::checksum_of;
pub use interrupt::Interrupt;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use json::resealed;
pub use metrics::{Line, Metric, Reading, read_metrics};
use options::Begun;
pub use options::RunOptions;
pub use overview::{Overview, Status};
pub use parts::Parts;
pub use position::{Best, Position};

use crate::data::Record;
use crate::error::{bail, here};
use crate::module::Module;
use crate::optim::Optimizer;
use crate::{Device, Error, Result};
use journal::What;
use ranks::Written;
use store::{Saved, State};

/// The names of files in the folder of a run.
struct Files {
    run: &'static str,
    metrics: &'static str,
    events: &'static str,
    lock: &'static str,
    checkpoints: &'static str,
    /// In the folder of a checkpoint.
    state: &'static str,
}

const FILES: Files = Files {
    run: "run.json",
    metrics: "metrics.jsonl",
    events: "events.jsonl",
    lock: "lock",
    checkpoints: "checkpoints",
    state: "state.json",
};

/// A training run in a folder: its position, its metrics, its checkpoints. See the [module's page](self).
///
/// If it is dropped without [`finish`](Self::finish) or [`fail`](Self::fail), for example by `?`, it records that it
/// was left early.
pub struct Run {
    folder: PathBuf,
    device: Device,
    options: RunOptions,
    begun: Begun,
    /// `true` if `run.json` has the current options.
    is_described: bool,
    is_resumed: bool,
    position: Position,
    /// The examples in the batches of the position.
    taken: Record,
    /// `true` if the epoch of the position was handed out.
    has_epoch: bool,
    /// `true` if this process has ended an epoch.
    has_ended_epoch: bool,
    /// `true` if the run was resumed in the middle of an epoch, and nobody asked for the batches to skip.
    unasked: AtomicBool,
    /// The position of the resumption, if the loop then began the epoch anew.
    begun_anew: Option<Position>,
    /// `true` if a stop had been requested when the run reached its position.
    is_interrupted: bool,
    /// The files that this process writes. In a world, only the first rank has them.
    files: Option<Written>,
    /// `true` if there were checkpoints.
    has_checkpoint: bool,
    /// `true` if a checkpoint had the metric of [`RunOptions::keep_best`].
    has_best: bool,
    /// A step where that metric was logged after the checkpoint.
    late: Option<u64>,
    saved_at: Instant,
    /// `true` if it was time to save, by the clock of the first rank, when the run reached its position.
    is_time: bool,
    /// The reason why the ranks did not meet there.
    apart: Option<Error>,
    saved_position: Position,
    /// The parts that have yet to be restored, and their seed.
    restoring: Option<(Parts, u64)>,
    is_over: bool,
    /// Checkpoints that were found damaged when the run was resumed.
    set_aside: Vec<PathBuf>,
}

impl Run {
    /// The options for a run in this folder, whose tapes are created on this device.
    pub fn at(folder: impl AsRef<Path>, device: &Device) -> RunOptions {
        RunOptions::new(folder.as_ref(), device)
    }

    /// The options for a run without a folder, which keeps nothing: to try something out. It has a position, and goes
    /// through epochs; what is logged and saved is ignored.
    pub fn unkept(device: &Device) -> RunOptions {
        let mut options = RunOptions::new(Path::new(""), device);
        options.is_kept = false;
        options
    }

    /// The folder; empty for a run [without one](Self::unkept).
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `true` if the run existed before.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// The damaged checkpoints that [`RunOptions::resume_from_last_good`] skipped when this run was resumed, at their
    /// new paths. Nothing reads them again; you may delete them.
    #[must_use]
    pub fn set_aside(&self) -> &[PathBuf] {
        &self.set_aside
    }

    /// A setting with which the run was begun: see [`RunOptions::setting`].
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.begun.settings.get(name).map(String::as_str)
    }

    /// Restores model and optimizer from the last checkpoint, and the device's random seed. Returns `false` if there is
    /// no checkpoint yet, as in a new run.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint), which names the difference, if the checkpoint is of
    /// another model or optimizer, or has other parts than [`checkpoint`](Self::checkpoint) saves. Fails if the device
    /// does, for example without memory. On error, nothing changes: neither model, optimizer nor folder.
    #[track_caller]
    pub fn restore(&mut self, model: &mut dyn Module, optimizer: &mut dyn Optimizer) -> Result<bool> {
        here(|| {
            if let Some((parts, seed)) = &self.restoring {
                parts.restore((MODEL, model), (OPTIMIZER, optimizer))?;
                self.device.set_seed(*seed);
                self.restoring = None;
                return Ok(true);
            }
            self.expect_no_checkpoint()?;
            Ok(false)
        })
    }

    /// The parts of the last checkpoint, to be taken one by one. Restores the device's random seed. `None` if there is
    /// no checkpoint yet. [`Parts::finish`] reports forgotten parts.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument) at the second call.
    #[track_caller]
    pub fn restore_parts(&mut self) -> Result<Option<Parts>> {
        here(|| {
            if let Some((parts, seed)) = self.restoring.take() {
                self.device.set_seed(seed);
                return Ok(Some(parts));
            }
            self.expect_no_checkpoint()?;
            Ok(None)
        })
    }

    /// Fails if there was a checkpoint to restore.
    fn expect_no_checkpoint(&self) -> Result<()> {
        if self.is_resumed && self.has_checkpoint {
            bail!(Argument, "the checkpoint was restored already; `restore` and `restore_parts` work once");
        }
        Ok(())
    }

    /// The position of the training.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The number of steps so far, the argument of a [`Schedule`](crate::optim::Schedule).
    #[must_use]
    pub fn step(&self) -> u64 {
        self.position.step
    }

    /// Logs metrics: a line of `metrics.jsonl` with the step and the time. Tensors are read and lines are written at
    /// most once a second, so only that call waits for the device.
    ///
    /// A resumed run has exactly the lines that were logged before its checkpoint was saved: log first, then save.
    ///
    /// # Errors
    ///
    /// Fails if a name occurs twice or is `step`, `epoch`, `batch` or `time`, if a tensor does not have exactly one
    /// element, if the file cannot be written, or if the device fails.
    #[track_caller]
    pub fn log(&mut self, values: &[(&str, &dyn Metric)]) -> Result<()> {
        here(|| {
            self.expect_together()?;
            self.expect_skipped()?;
            let Some(files) = &mut self.files else { return Ok(()) };
            let is_time = files.metrics.log(self.position, values)?;
            self.notice_late(values);
            match &mut self.files {
                Some(files) if is_time => files.flush(),
                _ => Ok(()),
            }
        })
    }

    /// All metrics, including those of earlier processes.
    ///
    /// # Errors
    ///
    /// Fails like [`log`](Self::log) and [`read_metrics`].
    #[track_caller]
    pub fn metrics(&mut self) -> Result<Vec<Line>> {
        here(|| {
            if !self.is_kept() {
                return Ok(Vec::new());
            }
            self.files.as_mut().map_or(Ok(()), Written::flush)?;
            read_metrics(&self.folder)
        })
    }

    /// `true` if it is time to save: after some steps or some time, or because a stop was requested.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let every = self.options.every_steps;
        let is_new = self.position != self.saved_position;
        let steps = self.position.step / every > self.saved_position.step / every;
        let is_time = match self.options.world.is_alone() {
            true => self.saved_at.elapsed() >= self.options.every,
            false => self.is_time,
        };
        is_new && (steps || is_time || self.is_interrupted())
    }

    /// `true` if a stop was requested, by [`RunOptions::interrupt`], before the last [`advance`](Self::advance) or
    /// [`end_epoch`](Self::end_epoch). So the answer does not change within a step, and if the loop ends because of it,
    /// [`is_due`](Self::is_due) has said that it is time to save.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Saves model, optimizer and the state of the run, and returns the path of the checkpoint. Older checkpoints are
    /// deleted, except those [to be kept](RunOptions::keep_last).
    ///
    /// # Errors
    ///
    /// Fails with [`Io`](crate::ErrorKind::Io) if it cannot be written, for example on a full disk; earlier checkpoints
    /// are then still there. Fails in the same way if the folder is no longer the one in which the run was opened,
    /// because it was deleted or moved; nothing is then written. Fails with [`Argument`](crate::ErrorKind::Argument) if
    /// the run was resumed and its last checkpoint was not restored, and, after saving, if
    /// [`keep_best`](RunOptions::keep_best) has nothing to compare.
    #[track_caller]
    pub fn checkpoint(&mut self, model: &dyn Module, optimizer: &dyn Optimizer) -> Result<PathBuf> {
        here(|| {
            if self.files.is_none() {
                // Rank 0 may need the state of this rank.
                drop(optimizer.whole_state_of(model)?);
                return self.save_parts(&Parts::new());
            }
            let mut parts = Parts::new();
            parts.put_model(MODEL, model)?;
            parts.put_optimizer(OPTIMIZER, optimizer, model)?;
            self.save_parts(&parts)
        })
    }

    /// Like [`checkpoint`](Self::checkpoint), for other parts than one model and one optimizer.
    ///
    /// # Errors
    ///
    /// Fails like [`checkpoint`](Self::checkpoint).
    #[expect(clippy::needless_pass_by_value, reason = "a checkpoint is of one moment, and so are its parts")]
    #[track_caller]
    pub fn save(&mut self, parts: Parts) -> Result<PathBuf> {
        here(|| self.save_parts(&parts))
    }

    fn save_parts(&mut self, parts: &Parts) -> Result<PathBuf> {
        if self.restoring.is_some() {
            bail!(Argument, "the run goes on from {}, but nothing was restored: `restore` first", self.position);
        }
        self.expect_together()?;
        self.expect_skipped()?;
        let Some(files) = &mut self.files else {
            (self.saved_at, self.saved_position, self.is_time) = (Instant::now(), self.position, false);
            return Ok(self.folder.join(FILES.checkpoints));
        };
        files.lock.expect_held()?;
        let (extent, metrics) = files.metrics.settle(self.position.step)?;
        let (time, seed) = (journal::now(), self.device.seed());
        let (metrics_bytes, metrics_checksum) = (extent.bytes, extent.sum.digits());
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let state = State { position: self.position, taken, time, seed, metrics, metrics_bytes, metrics_checksum };
        let saved = store::write(&self.folder, files.saved.last(), state, parts, || files.lock.expect_held())?;
        let path = saved.path.clone();
        files.saved.push(saved);
        let is_due = self.is_due();
        (self.saved_at, self.saved_position, self.is_time) = (Instant::now(), self.position, false);
        // Not earlier: a program that could not restore must not change the run's description.
        if !self.is_described {
            self.begun.has_saved = true;
            self.options.describe(&self.begun)?;
            self.is_described = true;
        }
        self.prune()?;
        self.expect_best(is_due)?;
        Ok(path)
    }

    fn saved(&self) -> &[Saved] {
        self.files.as_ref().map_or(&[], |files| &files.saved)
    }

    /// Ends the run as finished, or as interrupted if a stop was requested. Returns its state, and how to resume it.
    ///
    /// # Errors
    ///
    /// Fails if the last metrics cannot be written.
    #[track_caller]
    pub fn finish(self) -> Result<Overview> {
        here(|| {
            let what = if self.is_interrupted() { What::Interrupted } else { What::Finished };
            self.end(what, "")
        })
    }

    /// Ends the run for a reason, which is recorded: an error, a loss that is NaN.
    ///
    /// # Errors
    ///
    /// Fails if the last metrics cannot be written.
    #[track_caller]
    pub fn fail(self, why: impl fmt::Display) -> Result<Overview> {
        here(|| self.end(What::Failed, &why.to_string()))
    }

    fn end(mut self, what: What, note: &str) -> Result<Overview> {
        let together = self.expect_together();
        if !self.is_kept() {
            self.is_over = true;
            together?;
            return Ok(Overview::unkept(what, note, self.position));
        }
        if let Some(files) = &mut self.files {
            files.flush()?;
            files.journal.write(self.position, what, note)?;
        }
        self.is_over = true;
        together?;
        let folder = self.folder.clone();
        // Along with its lock: otherwise it would seem to be active.
        drop(self);
        Overview::of(folder)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let note = if std::thread::panicking() { "a panic" } else { "the program left early, by an error or a return" };
        let Some(files) = &mut self.files else { return };
        // There is nobody to report an error to.
        drop(files.flush());
        drop(files.journal.write(self.position, What::Failed, note));
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run {{ {}, {} }}", self.folder.display(), self.position)
    }
}

/// The names of the parts that [`Run::checkpoint`] saves.
const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer";

#[cfg(test)]
mod tests;
