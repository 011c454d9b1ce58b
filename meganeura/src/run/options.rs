//! Options of runs, and opening them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::journal::{self, Journal, What};
use super::json::{self, FORMAT, Object, Seal, VERSION};
use super::lock::Lock;
use super::metrics::Metrics;
use super::ranks::Written;
use super::store::{self, Saved, State};
use super::{Best, FILES, Interrupt, Overview, Parts, Position, Run};
use crate::data::Count;
use crate::error::{bail, here};
use crate::io::{disk, io_error};
use crate::world::World;
use crate::{Device, Result};

/// The options of a run; [`create`](Self::create), [`resume`](Self::resume) or [`open`](Self::open) opens it.
#[derive(Clone, Debug)]
#[must_use]
pub struct RunOptions {
    pub(super) folder: PathBuf,
    pub(super) device: Device,
    settings: BTreeMap<String, String>,
    /// The settings that replace others.
    changed: BTreeMap<String, String>,
    /// `false` for a run without a folder.
    pub(super) is_kept: bool,
    pub(super) keep_last: usize,
    pub(super) keep_best: Option<(String, Best)>,
    pub(super) every: Duration,
    pub(super) every_steps: u64,
    resume_command: Option<String>,
    pub(super) interrupt: Interrupt,
    from_last_good: bool,
    pub(super) world: World,
    #[cfg(feature = "tensorboard")]
    tensorboard: bool,
}

/// The fixed properties of a run.
pub(super) struct Begun {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) settings: BTreeMap<String, String>,
    /// `true` if there were checkpoints.
    pub(super) has_saved: bool,
    /// The settings that changed on purpose, in words.
    pub(super) changes: Vec<String>,
}

/// A checkpoint that was read.
type Whole = (State, Parts);

/// The expected contents of the folder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Nothing,
    Run,
    Either,
}

impl RunOptions {
    pub(super) fn new(folder: &Path, device: &Device) -> Self {
        Self {
            folder: folder.to_owned(),
            device: device.clone(),
            settings: BTreeMap::new(),
            changed: BTreeMap::new(),
            is_kept: true,
            keep_last: 3,
            keep_best: None,
            every: Duration::from_mins(10),
            every_steps: u64::MAX,
            resume_command: None,
            interrupt: Interrupt::new(),
            from_last_good: false,
            world: World::alone(),
            #[cfg(feature = "tensorboard")]
            tensorboard: false,
        }
    }

    /// Sets a value that must stay the same when the run is resumed: the seed of the shuffle, the batch size, a
    /// [`Schedule`](crate::optim::Schedule), the model's config as JSON.
    ///
    /// It is stored in `run.json`, and [`Run::setting`] reads it. Resuming with another value is an error that names
    /// both.
    pub fn setting(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.settings.insert(name.into(), value.to_string());
        self
    }

    /// Like [`setting`](Self::setting), but replaces the value that the run was begun with: to change it on purpose.
    /// `events.jsonl` reports the change.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let device = Device::cpu();
    /// let at = |epochs: u64| Schedule::cosine(1e-3, 100 * epochs, 0.0);
    /// let run = Run::at(folder.path(), &device).setting("schedule", at(10)).create()?;
    /// # drop(run);
    /// // Ten epochs later:
    /// let run = Run::at(folder.path(), &device).change_setting("schedule", at(15)).resume()?;
    /// assert_eq!(run.setting("schedule"), Some(&*at(15).to_string()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn change_setting(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.changed.insert(name.into(), value.to_string());
        self
    }

    /// The number of latest checkpoints that are kept; 3 by default. Older ones are deleted.
    pub fn keep_last(self, count: usize) -> Self {
        Self { keep_last: count, ..self }
    }

    /// Also keeps the checkpoint with the lowest or highest value of a metric: the one that was logged at its step,
    /// before it was saved. NaN is never the best.
    ///
    /// [`Run::checkpoint`] returns an error, after saving, while no checkpoint has such a value. Checkpoints in the
    /// middle of the first epoch for which [`Run::is_due`] was true need none, unless the metric is logged too late.
    pub fn keep_best(self, metric: impl Into<String>, best: Best) -> Self {
        Self { keep_best: Some((metric.into(), best)), ..self }
    }

    /// The time from a save until [`Run::is_due`] returns `true`; 10 minutes by default.
    pub fn every(self, time: Duration) -> Self {
        Self { every: time, ..self }
    }

    /// Also makes [`Run::is_due`] return `true` at every multiple of `steps`.
    pub fn every_steps(self, steps: u64) -> Self {
        Self { every_steps: steps, ..self }
    }

    /// The command that resumes the run, which an [`Overview`](super::Overview) shows:
    /// `train --run runs/digits --resume`
    pub fn resume_command(self, command: impl Into<String>) -> Self {
        Self { resume_command: Some(command.into()), ..self }
    }

    /// The flag that asks the run to stop. See [`Interrupt`].
    pub fn interrupt(self, interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), ..self }
    }

    /// Resumes from the last undamaged checkpoint, if newer ones are damaged.
    ///
    /// Without this, a damaged last checkpoint is an error. The steps since then are repeated. The damaged folders are
    /// kept, and renamed to end in `.damaged`: see [`Run::set_aside`].
    pub fn resume_from_last_good(self, is_allowed: bool) -> Self {
        Self { from_last_good: is_allowed, ..self }
    }

    /// Lets the ranks of a [world](crate::world) train in this run.
    ///
    /// All of them open it, in a folder that all of them can access. The first rank writes checkpoints, metrics and
    /// events; whatever the others log and save is ignored. The others read the checkpoint that the first rank resumes
    /// from, so a run may resume with another number of ranks. A request to stop at one rank stops all of them at the
    /// same step.
    ///
    /// Log values that cover all ranks: the [mean](crate::Var::all_mean) or the [sum](World::sum) over the ranks.
    pub fn world(self, world: &World) -> Self {
        Self { world: world.clone(), ..self }
    }

    /// Also writes [logged](Run::log) metrics for TensorBoard, into the run's folder `tensorboard`; `false` by default.
    /// Then `tensorboard --logdir runs` shows the curves of all runs below `runs`, while they train.
    ///
    /// A resumed run writes the file anew, from the metrics up to its checkpoint. So no point occurs twice, and the
    /// history of a run that was begun without this is included. A run that is resumed without this leaves an earlier
    /// file as it is, and its curves end there; the next resume with it brings them up to date.
    ///
    /// An event file that cannot be written does not end the training; a line `warned` in `events.jsonl` reports it,
    /// once.
    #[cfg(feature = "tensorboard")]
    pub fn tensorboard(self, is_on: bool) -> Self {
        Self { tensorboard: is_on, ..self }
    }

    /// Begins a run.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument) if the folder already has a run, or if a setting is invalid;
    /// with [`Io`](crate::ErrorKind::Io) if the folder cannot be written, or if another process trains there. On error,
    /// at most the folder, its lock and an empty metrics file are new.
    #[track_caller]
    pub fn create(self) -> Result<Run> {
        here(|| self.start(Expected::Nothing))
    }

    /// Resumes a run at its last checkpoint, or at its beginning if it has none yet. [`Run::restore`] then restores
    /// model and optimizer.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument) if the folder has no run, or if it was begun with other
    /// [settings](Self::setting); with [`Checkpoint`](crate::ErrorKind::Checkpoint), which names the file and the
    /// remedy, if it is damaged or of another version; with [`Io`](crate::ErrorKind::Io) if another process trains
    /// there, or if the folder cannot be read or written. On error, the run stays as it is.
    #[track_caller]
    pub fn resume(self) -> Result<Run> {
        here(|| self.start(Expected::Run))
    }

    /// Resumes a run if there is one, else begins it: for programs that are restarted automatically.
    ///
    /// # Errors
    ///
    /// Fails like [`create`](Self::create) and [`resume`](Self::resume).
    #[track_caller]
    pub fn open(self) -> Result<Run> {
        here(|| self.start(Expected::Either))
    }

    fn start(self, expected: Expected) -> Result<Run> {
        if self.keep_last == 0 || self.every_steps == 0 {
            bail!(Argument, "a run keeps at least 1 checkpoint, and saves every 1 or more steps");
        }
        let world = self.world.clone();
        if !self.is_kept {
            let begun =
                Begun { time: journal::now(), settings: self.own_settings(), has_saved: false, changes: Vec::new() };
            return Ok(self.run(begun, false, (Position::default(), Vec::new()), None));
        }
        // The other ranks open it once the first one has.
        let own = if world.is_first() { self.clone().write(expected).map(Some) } else { Ok(None) };
        let own = world.expect_all(own)?;
        let [is_resumed] = world.agree([own.as_ref().is_some_and(|run| run.is_resumed)])?;
        let run = match own {
            Some(run) => Ok(run),
            None => self.follow(is_resumed),
        };
        let run = world.expect_all(run)?;
        let seed = run.restoring.as_ref().map(|(_, seed)| seed);
        world.expect_same("the last checkpoint", &format!("{} of seed {seed:?}", run.position))?;
        Ok(run)
    }

    /// The run as the other ranks see it, while the first one writes.
    fn follow(self, is_resumed: bool) -> Result<Run> {
        let folder = self.folder.as_path();
        let begun = self.begun(&folder.join(FILES.run))?;
        let (last, _) = self.last_good(&mut store::list(folder)?)?;
        let position = last.as_ref().map_or_else(Position::default, |(state, _)| state.position);
        let taken = last.as_ref().map_or_else(Vec::new, |(state, _)| state.taken.clone());
        let restoring = last.map(|(state, parts)| (parts, state.seed));
        Ok(self.run(begun, is_resumed, (position, taken), restoring))
    }

    /// The run as the rank sees it that writes.
    fn write(self, expected: Expected) -> Result<Run> {
        let folder = self.folder.as_path();
        let file = folder.join(FILES.run);
        if expected == Expected::Run && !file.exists() {
            bail!(Argument, "there is no run to resume in {}: {} is missing", folder.display(), file.display());
        }
        disk::create_folders(folder).map_err(|error| io_error("created", folder, error))?;
        let lock = Lock::take(folder)?;
        let is_resumed = file.exists();
        if is_resumed && expected == Expected::Nothing {
            drop(lock);
            let found = Overview::of(folder).map_or_else(|error| error.to_string(), |overview| overview.to_string());
            bail!(
                Argument,
                "there is a run in {} already; resume it, or begin another in another folder\n{found}",
                folder.display()
            );
        }
        let (begun, mut saved) = self.examine(is_resumed)?;
        let (last, damaged) = self.last_good(&mut saved)?;
        let position = last.as_ref().map_or_else(Position::default, |(state, _)| state.position);
        let extent = last.as_ref().map_or((0, ""), |(state, _)| (state.metrics_bytes, &*state.metrics_checksum));
        let mut metrics = Metrics::open_at(folder, extent)?;
        // Up to here, at most the folder, the lock and an empty metrics file were created.
        store::sweep(folder)?;
        if !is_resumed {
            self.describe(&begun)?;
        }
        let set_aside = damaged.iter().map(store::set_aside).collect::<Result<Vec<_>>>()?;
        #[cfg(feature = "tensorboard")]
        if self.tensorboard {
            metrics.show(folder)?;
        }
        let journal = self.journal(position, is_resumed, &set_aside, &begun.changes)?;
        let taken = last.as_ref().map_or_else(Vec::new, |(state, _)| state.taken.clone());
        let restoring = last.map(|(state, parts)| {
            metrics.recall(position.step, state.metrics);
            (parts, state.seed)
        });
        let mut run = self.run(begun, is_resumed, (position, taken), restoring);
        (run.is_described, run.has_checkpoint) = (false, !saved.is_empty());
        run.set_aside = set_aside;
        run.files = Some(Written { metrics, journal, saved, lock });
        Ok(run)
    }

    /// The beginning of the run and its checkpoints. Refuses a folder from which files are missing.
    fn examine(&self, is_resumed: bool) -> Result<(Begun, Vec<Saved>)> {
        let folder = self.folder.as_path();
        let begun = if is_resumed {
            self.begun(&folder.join(FILES.run))?
        } else {
            Begun { time: journal::now(), settings: self.own_settings(), has_saved: false, changes: Vec::new() }
        };
        let saved = store::list(folder)?;
        if begun.has_saved && saved.is_empty() {
            bail!(
                Checkpoint,
                "the run in {} was saved, but there is no checkpoint in {}: put them back, or begin another run in another folder",
                folder.display(),
                folder.join(FILES.checkpoints).display()
            );
        }
        let has_metrics = fs::metadata(folder.join(FILES.metrics)).is_ok_and(|file| file.len() > 0);
        if !is_resumed && (!saved.is_empty() || has_metrics) {
            bail!(
                Checkpoint,
                "{} has parts of a run but no {}: put that back, or take another folder",
                folder.display(),
                FILES.run
            );
        }
        Ok((begun, saved))
    }

    /// The settings of a run that begins.
    fn own_settings(&self) -> BTreeMap<String, String> {
        let all = self.settings.iter().chain(&self.changed);
        all.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The log of events, with a line that the run begins or resumes.
    fn journal(
        &self,
        position: Position,
        is_resumed: bool,
        set_aside: &[PathBuf],
        changes: &[String],
    ) -> Result<Journal> {
        let mut journal = Journal::open(&self.folder)?;
        let mut note = self.device.to_string();
        for change in changes {
            note += &format!("; {change}");
        }
        for path in set_aside {
            note += &format!("; not from the damaged checkpoint that is now {}", path.display());
        }
        journal.write(position, if is_resumed { What::Resumed } else { What::Began }, &note)?;
        Ok(journal)
    }

    /// A run without files.
    fn run(
        self,
        begun: Begun,
        is_resumed: bool,
        (position, taken): (Position, Vec<Count>),
        restoring: Option<(Parts, u64)>,
    ) -> Run {
        Run {
            folder: self.folder.clone(),
            device: self.device.clone(),
            begun,
            is_described: true,
            is_resumed,
            position,
            taken: Arc::new(Mutex::new(taken)),
            has_epoch: false,
            has_ended_epoch: false,
            unasked: AtomicBool::new(position.batch > 0),
            begun_anew: None,
            is_interrupted: false,
            files: None,
            has_checkpoint: restoring.is_some(),
            has_best: false,
            late: None,
            saved_at: Instant::now(),
            is_time: false,
            apart: None,
            saved_position: position,
            set_aside: Vec::new(),
            restoring,
            is_over: false,
            options: self,
        }
    }

    /// The checkpoint to resume from, and the damaged ones after it, which are removed from `saved`.
    fn last_good(&self, saved: &mut Vec<Saved>) -> Result<(Option<Whole>, Vec<Saved>)> {
        let whole = |saved: &Saved| Ok((saved.state.clone()?, store::read_parts(saved)?));
        let last = match saved.last() {
            None => return Ok((None, Vec::new())),
            Some(last) => whole(last),
        };
        match last {
            Ok(last) => Ok((Some(last), Vec::new())),
            Err(error) => {
                let good = (0..saved.len()).rev().find_map(|index| Some((index, whole(&saved[index]).ok()?)));
                let Some((index, good)) = good.filter(|_| self.from_last_good) else {
                    return Err(store::unusable(saved, &error));
                };
                Ok((Some(good), saved.split_off(index + 1)))
            }
        }
    }

    /// The properties of the run in this file, if the settings are the same.
    fn begun(&self, file: &Path) -> Result<Begun> {
        let object = read_run(file)?;
        let (time, has_saved) = (object.number("began")?, object.truth("saved")?);
        let mut settings = object.texts("settings")?;
        let fixed = self.settings.iter().filter(|(name, _)| !self.changed.contains_key(*name));
        let wrong = differences(&settings, fixed);
        if !wrong.is_empty() {
            bail!(Argument, "the run in {} was begun with other settings: {}", self.folder.display(), wrong.join(", "));
        }
        let changes = differences(&settings, self.changed.iter());
        settings.extend(self.changed.clone());
        Ok(Begun { time, settings, has_saved, changes })
    }

    /// Writes the run's properties and its current options.
    pub(super) fn describe(&self, begun: &Begun) -> Result<()> {
        let Begun { time, settings, has_saved, .. } = begun;
        let best = self.keep_best.as_ref().map(|(metric, best)| json!({ "metric": metric, "which": best.name() }));
        // Arguments that are not text are of no use in a message.
        let command: Vec<Value> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned().into()).collect();
        let object = json!({
            "format": FORMAT,
            "meganeura": VERSION,
            "began": time,
            "saved": has_saved,
            "settings": settings,
            "keep_best": best,
            "resume_command": self.resume_command,
            "command": command,
        });
        let file = self.folder.join(FILES.run);
        disk::replace_file(&file, &json::sealed(&object)).map_err(|error| io_error("written", &file, error))
    }
}

/// The settings that are not as they were, in words.
pub(super) fn differences<'a>(
    then: &BTreeMap<String, String>,
    now: impl Iterator<Item = (&'a String, &'a String)>,
) -> Vec<String> {
    let differs = |(name, now): (&String, &String)| match then.get(name) {
        Some(then) if then == now => None,
        Some(then) => Some(format!("`{name}` was {then} and is {now}")),
        None => Some(format!("`{name}` was not set and is {now}")),
    };
    now.filter_map(differs).collect()
}

/// The description of a run.
pub(super) fn read_run(file: &Path) -> Result<Object> {
    let text = disk::read(file).map_err(|error| io_error("read", file, error))?;
    let object = Object::parse(file.display().to_string(), &text)?;
    // Without its checksum it is accepted as it is: users may change settings on purpose.
    if Seal::of(&text) == Seal::Broken {
        bail!(
            Checkpoint,
            "{} is damaged: it has other bytes than were written. Put it back; if somebody changed it on purpose, delete its \
             line `checksum`",
            file.display()
        );
    }
    object.expect_format()?;
    Ok(object)
}
