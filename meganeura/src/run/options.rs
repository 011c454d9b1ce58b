//! How a run is begun or taken up again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::journal::{self, Journal, What};
use super::json::{self, FORMAT, Object, Seal, VERSION};
use super::lock::Lock;
use super::metrics::Metrics;
use super::ranks::Written;
use super::store::{self, Saved, State};
use super::{Best, FILES, Interrupt, Overview, Parts, Position, Run};
use crate::error::{bail, here};
use crate::io::{disk, io_error};
use crate::world::World;
use crate::{Device, Result};

/// How a run is kept; [`create`](Self::create), [`resume`](Self::resume) or [`open`](Self::open) opens it.
#[derive(Clone, Debug)]
#[must_use]
pub struct RunOptions {
    folder: PathBuf,
    device: Device,
    settings: BTreeMap<String, String>,
    pub(super) keep_last: usize,
    pub(super) keep_best: Option<(String, Best)>,
    pub(super) every: Duration,
    pub(super) every_steps: u64,
    go_on: Option<String>,
    pub(super) interrupt: Interrupt,
    from_last_good: bool,
    pub(super) world: World,
    #[cfg(feature = "tensorboard")]
    tensorboard: bool,
}

/// What a run is from its beginning on.
pub(super) struct Begun {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) settings: BTreeMap<String, String>,
    /// Whether there were checkpoints.
    pub(super) has_saved: bool,
}

/// A checkpoint that was read.
type Whole = (State, Parts);

/// What may be in the folder.
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
            keep_last: 3,
            keep_best: None,
            every: Duration::from_mins(10),
            every_steps: u64::MAX,
            go_on: None,
            interrupt: Interrupt::new(),
            from_last_good: false,
            world: World::alone(),
            #[cfg(feature = "tensorboard")]
            tensorboard: false,
        }
    }

    /// Something that must stay as it is when the run goes on: the seed of the shuffle, the batch size, a
    /// [`Schedule`](crate::optim::Schedule), the model's config as JSON. It is kept in `run.json`, where
    /// [`Run::setting`] reads it; a run that is taken up with another value is an error that tells both.
    pub fn setting(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.settings.insert(name.into(), value.to_string());
        self
    }

    /// How many checkpoints are kept, the last ones; 3 by default. Older ones are deleted.
    pub fn keep_last(self, count: usize) -> Self {
        Self { keep_last: count, ..self }
    }

    /// Keeps the checkpoint with the lowest or highest value of a metric as well: of what was logged at its step,
    /// before it was saved. NaN is never the best.
    pub fn keep_best(self, metric: impl Into<String>, best: Best) -> Self {
        Self { keep_best: Some((metric.into(), best)), ..self }
    }

    /// How much time may pass until [`Run::is_due`] says that it is time to save; 10 minutes by default.
    pub fn every(self, time: Duration) -> Self {
        Self { every: time, ..self }
    }

    /// Lets [`Run::is_due`] say so at every multiple of so many steps as well.
    pub fn every_steps(self, steps: u64) -> Self {
        Self { every_steps: steps, ..self }
    }

    /// The command that takes the run up again, for who comes back and asks: `train --run runs/digits --resume`
    pub fn go_on_with(self, command: impl Into<String>) -> Self {
        Self { go_on: Some(command.into()), ..self }
    }

    /// What tells the run that it should end. See [`Interrupt`].
    pub fn interrupt(self, interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), ..self }
    }

    /// Resumes from the last checkpoint that is whole, if newer ones are damaged. Without this, a damaged last
    /// checkpoint is an error. The steps since then are made again. The damaged folders are kept, renamed to end in
    /// `.damaged`: see [`Run::set_aside`].
    pub fn resume_from_last_good(self, is_allowed: bool) -> Self {
        Self { from_last_good: is_allowed, ..self }
    }

    /// Lets the ranks of a [world](crate::world) train in this run. All open it, in a folder that all of them see. The
    /// first one writes checkpoints, metrics and events; what the others log and save is left out. They read the
    /// checkpoint that the first one takes up, so a run may go on with another number of ranks. One that is asked to
    /// end ends all of them at the same step.
    ///
    /// Log what counts for all: the [mean](crate::Var::all_mean) or the [sum](World::sum) over the ranks.
    pub fn world(self, world: &World) -> Self {
        Self { world: world.clone(), ..self }
    }

    /// Also writes what is [logged](Run::log) for TensorBoard, into the folder `tensorboard` of the run; not by
    /// default. Then `tensorboard --logdir runs` shows the curves of all runs below `runs`, while they train.
    ///
    /// A run that is resumed writes the file anew, from the metrics up to its checkpoint. So no point is there twice,
    /// and the history of a run that was begun without this is there as well. A run that is resumed without this leaves
    /// an earlier file as it is, and its curves end there; the next resume with it brings them up to date.
    ///
    /// An event file that cannot be written ends no training: a line `warned` in `events.jsonl` says so, once.
    #[cfg(feature = "tensorboard")]
    pub fn tensorboard(self, is_on: bool) -> Self {
        Self { tensorboard: is_on, ..self }
    }

    /// Begins a run.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if there is one in the folder already, or a setting makes no sense;
    /// [`Io`](crate::ErrorKind::Io) if the folder cannot be written, or another process trains there. Nothing was
    /// changed then.
    #[track_caller]
    pub fn create(self) -> Result<Run> {
        here(|| self.start(Expected::Nothing))
    }

    /// Takes a run up at its last checkpoint, or at its beginning if it has none yet; [`Run::restore`] then gives model
    /// and optimizer their values.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if there is no run in the folder, or it was begun with other
    /// [settings](Self::setting); [`Checkpoint`](crate::ErrorKind::Checkpoint) if it is damaged, or of another version,
    /// with the file and what to do; [`Io`](crate::ErrorKind::Io) if another process trains there, or the folder cannot
    /// be read or written. Nothing was changed then.
    #[track_caller]
    pub fn resume(self) -> Result<Run> {
        here(|| self.start(Expected::Run))
    }

    /// Takes a run up if there is one, else begins it: for programs that a machine starts again and again.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`resume`](Self::resume).
    #[track_caller]
    pub fn open(self) -> Result<Run> {
        here(|| self.start(Expected::Either))
    }

    fn start(self, expected: Expected) -> Result<Run> {
        if self.keep_last == 0 || self.every_steps == 0 {
            bail!(Argument, "a run keeps at least 1 checkpoint, and saves every 1 or more steps");
        }
        let world = self.world.clone();
        // The others once the first rank has opened it.
        let own = if world.is_first() { self.clone().write(expected).map(Some) } else { Ok(None) };
        let run = match world.expect_all(own)? {
            Some(run) => Ok(run),
            None => self.follow(),
        };
        let run = world.expect_all(run)?;
        let seed = run.restoring.as_ref().map(|(_, seed)| seed);
        world.expect_same("the last checkpoint", &format!("{} of seed {seed:?}", run.position))?;
        Ok(run)
    }

    /// The run in which the first rank writes, as the others see it.
    fn follow(self) -> Result<Run> {
        let folder = self.folder.as_path();
        let begun = self.begun(&folder.join(FILES.run))?;
        let (last, _) = self.last_good(&mut store::list(folder)?)?;
        let position = last.as_ref().map_or_else(Position::default, |(state, _)| state.position);
        Ok(Run {
            folder: self.folder.clone(),
            device: self.device.clone(),
            begun,
            is_described: true,
            is_resumed: last.is_some(),
            position,
            has_epoch: false,
            is_interrupted: false,
            files: None,
            has_checkpoint: last.is_some(),
            saved_at: Instant::now(),
            is_time: false,
            apart: None,
            saved_position: position,
            set_aside: Vec::new(),
            restoring: last.map(|(state, parts)| (parts, state.seed)),
            is_over: false,
            options: self,
        })
    }

    fn write(self, expected: Expected) -> Result<Run> {
        let folder = self.folder.as_path();
        let file = folder.join(FILES.run);
        if expected == Expected::Run && !file.exists() {
            bail!(Argument, "there is no run in {} to go on with: {} is missing", folder.display(), file.display());
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
        let begun = if is_resumed {
            self.begun(&file)?
        } else {
            Begun { time: journal::now(), settings: self.settings.clone(), has_saved: false }
        };
        let mut saved = store::list(folder)?;
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
        let (last, damaged) = self.last_good(&mut saved)?;
        let position = last.as_ref().map_or_else(Position::default, |(state, _)| state.position);
        let extent = last.as_ref().map_or((0, ""), |(state, _)| (state.metrics_bytes, &*state.metrics_checksum));
        let mut metrics = Metrics::open_at(folder, extent)?;
        // Nothing was changed up to here.
        store::sweep(folder)?;
        if !is_resumed {
            self.describe(&begun)?;
        }
        let set_aside = damaged.iter().map(store::set_aside).collect::<Result<Vec<_>>>()?;
        #[cfg(feature = "tensorboard")]
        if self.tensorboard {
            metrics.show(folder)?;
        }
        let mut journal = Journal::open(folder)?;
        let mut note = self.device.to_string();
        for path in &set_aside {
            note += &format!("; not from the damaged checkpoint that is now {}", path.display());
        }
        journal.write(position, if is_resumed { What::Resumed } else { What::Began }, &note)?;
        let restoring = last.map(|(state, parts)| {
            metrics.recall(position.step, state.metrics);
            (parts, state.seed)
        });
        Ok(Run {
            folder: self.folder.clone(),
            device: self.device.clone(),
            begun,
            is_described: false,
            is_resumed,
            position,
            has_epoch: false,
            is_interrupted: false,
            has_checkpoint: !saved.is_empty(),
            files: Some(Written { metrics, journal, saved, lock }),
            saved_at: Instant::now(),
            is_time: false,
            apart: None,
            saved_position: position,
            set_aside,
            restoring,
            is_over: false,
            options: self,
        })
    }

    /// The checkpoint to resume from, and the damaged ones behind it, which are taken out of `saved`.
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

    /// What is known of the run in this file, if the settings are the same.
    fn begun(&self, file: &Path) -> Result<Begun> {
        let object = read_run(file)?;
        let (time, settings, has_saved) = (object.number("began")?, object.texts("settings")?, object.truth("saved")?);
        let differs = |(name, now): (&String, &String)| match settings.get(name) {
            Some(then) if then == now => None,
            Some(then) => Some(format!("`{name}` was {then} and is {now}")),
            None => Some(format!("`{name}` was not set and is {now}")),
        };
        let differences: Vec<_> = self.settings.iter().filter_map(differs).collect();
        if !differences.is_empty() {
            bail!(
                Argument,
                "the run in {} was begun with other settings: {}",
                self.folder.display(),
                differences.join(", ")
            );
        }
        Ok(Begun { time, settings, has_saved })
    }

    /// Writes what the run is, and how it is kept now.
    pub(super) fn describe(&self, begun: &Begun) -> Result<()> {
        let Begun { time, settings, has_saved } = begun;
        let best = self.keep_best.as_ref().map(|(metric, best)| json!({ "metric": metric, "which": best.name() }));
        // What is no text is of no use in a message.
        let command: Vec<Value> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned().into()).collect();
        let object = json!({
            "format": FORMAT,
            "meganeura": VERSION,
            "began": time,
            "saved": has_saved,
            "settings": settings,
            "keep_best": best,
            "go_on": self.go_on,
            "command": command,
        });
        let file = self.folder.join(FILES.run);
        disk::replace_file(&file, &json::sealed(&object)).map_err(|error| io_error("written", &file, error))
    }
}

/// The description of a run.
pub(super) fn read_run(file: &Path) -> Result<Object> {
    let text = disk::read(file).map_err(|error| io_error("read", file, error))?;
    let object = Object::parse(file.display().to_string(), &text)?;
    // Without its checksum it is taken as it is: settings are the user's to change, if it is on purpose.
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
