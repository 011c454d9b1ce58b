//! Runs: trainings that survive. A folder with checkpoints, metrics and what happened, from which a training that
//! ended, however it did, goes on bit for bit.
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
//! 'training: while let Some(epoch) = run.next_epoch(5) {
//!     for batch in data.batches(16).shuffle(7).epoch(epoch).skip(run.batch()).on(&device) {
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
//! The loop is the program's; a run only remembers. What a checkpoint holds: parameters and buffers, what the optimizer
//! remembers, the position in the data, the device's random seed, the metrics up to there; and in `run.json`, what must
//! not change ([`RunOptions::setting`]). The guide [training and resuming](crate::guide::runs) goes through it.
//!
//! Nothing here knows what is computed in a step.
//!
//! # When something goes wrong
//!
//! These are errors, and lose nothing:
//!
//! | what | what happens |
//! |---|---|
//! | the disk is full | saving is an error that names the file and the last checkpoint, which stays |
//! | another process trains in the folder | an error with its number |
//! | a checkpoint of another model, another optimizer, another format | an error that names what differs; nothing is loaded |
//! | a file of the last checkpoint is missing, cut or changed, by a single bit | an error that names it, and the checkpoint that [`resume_from_last_good`](RunOptions::resume_from_last_good) goes on from |
//! | there are no checkpoints any more | an error that names their folder |
//! | somebody deletes old checkpoints while the run goes on | the others are kept |
//! | somebody deletes or moves the folder, or begins another run there | saving is an error; the other's files are left alone, and no folder is made anew |
//! | `metrics.jsonl` is cut in a line behind the checkpoint, as by a crash | that part is written again |
//! | `metrics.jsonl` is shorter than it was at the checkpoint, or has other bytes | an error: put it back, or rename it to begin a new one |
//! | `run.json` was changed | an error: put it back, or delete its line `checksum` if it was on purpose |
//! | the run was begun with other settings | an error that tells both |
//! | nobody called `restore` | saving is an error, for it would replace the training by another |

mod checksum;
#[cfg(all(test, unix))]
mod crashes;
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
use std::time::Instant;

pub use interrupt::Interrupt;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use json::resealed;
pub use metrics::{Line, Metric, Reading, read_metrics};
use options::Begun;
pub use options::RunOptions;
pub use overview::{Fate, Overview};
pub use parts::Parts;
pub use position::{Best, Position};

use crate::error::{bail, here};
use crate::module::Module;
use crate::optim::Optimizer;
use crate::{Device, Error, Result};
use journal::What;
use ranks::Written;
use store::{Saved, State};

/// What files are called in the folder of a run.
struct Files {
    run: &'static str,
    metrics: &'static str,
    events: &'static str,
    lock: &'static str,
    checkpoints: &'static str,
    /// In that of a checkpoint.
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

/// A training in a folder: where it is, what it logged, its checkpoints. See the [module's page](self).
///
/// Dropped without [`finish`](Self::finish) or [`fail`](Self::fail), as by `?`, it notes that it was left early.
pub struct Run {
    folder: PathBuf,
    device: Device,
    options: RunOptions,
    begun: Begun,
    /// Whether `run.json` says how the run is kept now.
    is_described: bool,
    is_resumed: bool,
    position: Position,
    /// Whether the epoch of the position was handed out.
    has_epoch: bool,
    /// Whether the run had been asked to end when it came to its position.
    is_interrupted: bool,
    /// What this process writes. Of the ranks of a world, the first one does.
    files: Option<Written>,
    /// Whether there were checkpoints.
    has_checkpoint: bool,
    saved_at: Instant,
    /// Whether the time to save had come, by the clock of the first rank, when the run came to its position.
    is_time: bool,
    /// Why ranks did not meet there.
    apart: Option<Error>,
    saved_position: Position,
    /// What nobody took up yet, and the seed that belongs to it.
    restoring: Option<(Parts, u64)>,
    is_over: bool,
    /// Checkpoints that were damaged when the run was resumed.
    set_aside: Vec<PathBuf>,
}

impl Run {
    /// A run in this folder, whose tapes are made on this device: [`RunOptions`] say the rest.
    pub fn at(folder: impl AsRef<Path>, device: &Device) -> RunOptions {
        RunOptions::new(folder.as_ref(), device)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it was there before.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// The damaged checkpoints that [`RunOptions::resume_from_last_good`] passed over when this run was resumed, at
    /// their new paths. Nothing reads them again; delete them when you like.
    #[must_use]
    pub fn set_aside(&self) -> &[PathBuf] {
        &self.set_aside
    }

    /// What the run was begun with: see [`RunOptions::setting`].
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.begun.settings.get(name).map(String::as_str)
    }

    /// Gives model and optimizer what the last checkpoint has, and the device its random seed; `false` if there is no
    /// checkpoint yet, as in a run just begun.
    ///
    /// # Errors
    ///
    /// [`Checkpoint`](crate::ErrorKind::Checkpoint), naming what differs, if it is of another model or optimizer, or
    /// has other parts than [`checkpoint`](Self::checkpoint) saves; what the device meets, as having no memory left.
    /// Nothing has changed then, neither model nor optimizer nor folder.
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

    /// What the last checkpoint has, to be taken out one by one; gives the device its random seed. `None` if there is
    /// no checkpoint yet. [`Parts::finish`] tells what was forgotten.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) the second time.
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

    /// That there never was anything to restore.
    fn expect_no_checkpoint(&self) -> Result<()> {
        if self.is_resumed && self.has_checkpoint {
            bail!(Argument, "the checkpoint was restored already, or has been left behind");
        }
        Ok(())
    }

    /// Where the training is.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// How many steps were made: what a [`Schedule`](crate::optim::Schedule) goes by.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.position.step
    }

    /// How many batches of this epoch were taken: so many are to be skipped.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.position.batch
    }

    /// The epoch to go on with, if it is one of the first so many; the one that was given before is over then.
    pub fn next_epoch(&mut self, epochs: u64) -> Option<u64> {
        if self.has_epoch {
            self.end_epoch();
        }
        self.has_epoch = self.position.epoch < epochs;
        self.has_epoch.then_some(self.position.epoch)
    }

    /// One step and one batch further: to be called after each step, or micro-batch.
    pub fn advance(&mut self) {
        self.position.step += 1;
        self.position.batch += 1;
        self.notice();
    }

    /// The epoch is over. A checkpoint saved from here on goes on with the next one.
    pub fn end_epoch(&mut self) {
        self.position.epoch += 1;
        self.position.batch = 0;
        self.has_epoch = false;
        self.notice();
    }

    /// Notes numbers: a line of `metrics.jsonl` with the step and the time. Tensors are read and lines written once a
    /// second, so that nothing waits for the device.
    ///
    /// A run that is taken up has the lines that were logged before its checkpoint was saved, and no others: log first,
    /// then save.
    ///
    /// # Errors
    ///
    /// If a name is there twice or is `step`, `epoch`, `batch` or `time`, or a tensor has not one element; if the file
    /// cannot be written, or what the device meets.
    #[track_caller]
    pub fn log(&mut self, values: &[(&str, &dyn Metric)]) -> Result<()> {
        here(|| {
            self.expect_together()?;
            let Some(files) = &mut self.files else { return Ok(()) };
            if files.metrics.log(self.position, values)? { files.flush() } else { Ok(()) }
        })
    }

    /// All that was logged, by earlier processes too.
    ///
    /// # Errors
    ///
    /// As [`log`](Self::log) and [`read_metrics`].
    #[track_caller]
    pub fn metrics(&mut self) -> Result<Vec<Line>> {
        here(|| {
            self.files.as_mut().map_or(Ok(()), Written::flush)?;
            read_metrics(&self.folder)
        })
    }

    /// Whether it is time to save: after so many steps or so much time, or because the run was asked to end.
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

    /// Whether somebody asked the run to end, by [`RunOptions::interrupt`], before the last [`advance`](Self::advance)
    /// or [`end_epoch`](Self::end_epoch). So it is the same from one step to the next, and where the loop leaves for
    /// it, [`is_due`](Self::is_due) has said that it is time to save.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Saves model, optimizer and all that the run knows; the path of the checkpoint. Older ones are deleted, but for
    /// those [to be kept](RunOptions::keep_last).
    ///
    /// # Errors
    ///
    /// [`Io`](crate::ErrorKind::Io) if it cannot be written, on a full disk, say: those that were there still are then.
    /// The same if the folder is no longer the one that the run was opened in: it was deleted or moved, and nothing is
    /// written. [`Argument`](crate::ErrorKind::Argument) if the run was taken up and its last checkpoint not restored.
    #[track_caller]
    pub fn checkpoint(&mut self, model: &dyn Module, optimizer: &dyn Optimizer) -> Result<PathBuf> {
        here(|| {
            if self.files.is_none() {
                // Rank 0 may need what this one remembers.
                drop(optimizer.whole_state_of(model)?);
                return self.save(Parts::new());
            }
            let mut parts = Parts::new();
            parts.put_model(MODEL, model)?;
            parts.put_optimizer(OPTIMIZER, optimizer, model)?;
            self.save(parts)
        })
    }

    /// As [`checkpoint`](Self::checkpoint), of other parts than one model and one optimizer.
    ///
    /// # Errors
    ///
    /// As [`checkpoint`](Self::checkpoint).
    #[expect(clippy::needless_pass_by_value, reason = "a checkpoint is of one moment, and so are its parts")]
    #[track_caller]
    pub fn save(&mut self, parts: Parts) -> Result<PathBuf> {
        here(|| {
            if self.restoring.is_some() {
                bail!(Argument, "the run goes on from {}, but nothing was restored: `restore` first", self.position);
            }
            self.expect_together()?;
            let Some(files) = &mut self.files else {
                (self.saved_at, self.saved_position, self.is_time) = (Instant::now(), self.position, false);
                return Ok(self.folder.join(FILES.checkpoints));
            };
            files.lock.expect_held()?;
            let (extent, metrics) = files.metrics.settle(self.position.step)?;
            let (time, seed) = (journal::now(), self.device.seed());
            let (metrics_bytes, metrics_checksum) = (extent.bytes, extent.sum.digits());
            let state = State { position: self.position, time, seed, metrics, metrics_bytes, metrics_checksum };
            let saved = store::write(&self.folder, files.saved.last(), state, &parts, || files.lock.expect_held())?;
            let path = saved.path.clone();
            files.saved.push(saved);
            (self.saved_at, self.saved_position, self.is_time) = (Instant::now(), self.position, false);
            // Not before: who could not restore is not how the run is kept.
            if !self.is_described {
                self.begun.has_saved = true;
                self.options.describe(&self.begun)?;
                self.is_described = true;
            }
            self.prune()?;
            Ok(path)
        })
    }

    /// The best checkpoint so far, by the metric that decides.
    #[must_use]
    pub fn best(&self) -> Option<&Path> {
        self.best_index().map(|index| &*self.saved()[index].path)
    }

    fn best_index(&self) -> Option<usize> {
        let (metric, best) = self.options.keep_best.as_ref()?;
        best.of(self.saved(), metric).map(|(index, ..)| index)
    }

    fn saved(&self) -> &[Saved] {
        self.files.as_ref().map_or(&[], |files| &files.saved)
    }

    /// Deletes the checkpoints that are not to be kept.
    fn prune(&mut self) -> Result<()> {
        // Others may delete some; the best of those that are there is kept.
        if let Some(files) = &mut self.files {
            files.saved.retain(|saved| saved.path.exists());
        }
        let best = self.best_index();
        let Some(Written { saved, .. }) = &mut self.files else { return Ok(()) };
        let old = saved.len().saturating_sub(self.options.keep_last);
        // Last to first, so that indices stay. What is damaged is somebody's to look at.
        for index in (0..old).rev().filter(|&index| Some(index) != best) {
            if saved[index].state.is_ok() {
                store::delete(&saved[index])?;
                saved.remove(index);
            }
        }
        Ok(())
    }

    /// Ends the run, as finished or, if it was asked to end, as interrupted; says how it stands, and how to go on.
    ///
    /// # Errors
    ///
    /// If what was logged last cannot be written.
    #[track_caller]
    pub fn finish(self) -> Result<Overview> {
        here(|| {
            let what = if self.is_interrupted() { What::Interrupted } else { What::Finished };
            self.end(what, "")
        })
    }

    /// Ends the run for a reason, which is noted: an error, a loss that is NaN.
    ///
    /// # Errors
    ///
    /// If what was logged last cannot be written.
    #[track_caller]
    pub fn fail(self, why: impl fmt::Display) -> Result<Overview> {
        here(|| self.end(What::Failed, &why.to_string()))
    }

    fn end(mut self, what: What, note: &str) -> Result<Overview> {
        let together = self.expect_together();
        if let Some(files) = &mut self.files {
            files.flush()?;
            files.journal.write(self.position, what, note)?;
        }
        self.is_over = true;
        together?;
        let folder = self.folder.clone();
        // With its lock: else it would seem to go on.
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
        // Nobody is there to be told.
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
