//! What somebody who comes back wants to know of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::journal::{self, What, date};
use super::lock::Lock;
use super::metrics::{self, last_line};
use super::options::read_run;
use super::{Best, FILES, Position, store};
use crate::Result;
use crate::error::here;

/// What became of a run: whether it goes on or why it ended, what is saved, which checkpoint is the best, how to go on.
/// Printed, it says all of that.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura::run::{Fate, Overview, Run};
///
/// # let directory = tempfile::tempdir().unwrap();
/// let folder = "runs/digits";
/// # let folder = directory.path().join(folder);
/// let run = Run::at(&folder, &Device::cpu()).create()?;
/// assert_eq!(Overview::of(&folder)?.fate, Fate::Running);
/// println!("{}", run.finish()?);
/// assert_eq!(Overview::of(&folder)?.fate, Fate::Finished);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Overview {
    /// The run's folder.
    pub folder: PathBuf,
    /// Whether it goes on, or why it ended.
    pub fate: Fate,
    /// How far it came, as far as it told.
    pub position: Position,
    /// When it told so, in seconds since 1970.
    pub time: f64,
    /// The last checkpoint, and where it was made.
    pub last: Option<(PathBuf, Position)>,
    /// The best checkpoint by the metric that the run [was told](super::RunOptions::keep_best), and its value.
    pub best: Option<(PathBuf, Position, f64)>,
    /// That metric.
    pub metric: Option<(String, Best)>,
    /// Checkpoints and other files that something damaged, and how.
    pub damaged: Vec<String>,
    /// What the run was begun with: see [`RunOptions::setting`](super::RunOptions::setting).
    pub settings: BTreeMap<String, String>,
    /// The command that takes the run up again, if it [was told](super::RunOptions::go_on_with).
    pub go_on: Option<String>,
}

/// Whether a run goes on, or why it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// A process trains there.
    Running,
    /// It ended as it should.
    Finished,
    /// It was asked to end.
    Interrupted,
    /// The program ended it, for this reason.
    Failed(String),
    /// The process was killed, or the machine went down.
    Died,
}

impl Overview {
    /// Looks at the run in a folder, whether it goes on or not, and changes nothing.
    ///
    /// # Errors
    ///
    /// If there is no run, or what it consists of cannot be read.
    #[track_caller]
    pub fn of(folder: impl AsRef<Path>) -> Result<Self> {
        here(|| Self::read(folder.as_ref()))
    }

    fn read(folder: &Path) -> Result<Self> {
        let about = read_run(&folder.join(FILES.run))?;
        // Asked before and after: who trained and ended in between has said so, who began in between holds the lock.
        let trained = Lock::is_taken(folder);
        let (events, wrong) = journal::read(folder)?;
        let is_running = trained || Lock::is_taken(folder);
        let saved = store::list(folder)?;
        let event = events.iter().rev().find(|event| event.what != What::Warned);
        let fate = match event {
            _ if is_running => Fate::Running,
            None => Fate::Died,
            Some(event) => match event.what {
                What::Began | What::Resumed | What::Warned => Fate::Died,
                What::Finished => Fate::Finished,
                What::Interrupted => Fate::Interrupted,
                What::Failed => Fate::Failed(event.note.clone()),
            },
        };
        let (mut position, mut time) =
            event.map_or((Position::default(), about.number("began")?), |event| (event.position, event.time));
        // Who did not say good-bye was last heard of by what it logged and saved.
        let states: Vec<_> = saved.iter().filter_map(|saved| Some((saved, saved.state.as_ref().ok()?))).collect();
        if let (Fate::Running | Fate::Died, Some((_, state))) = (&fate, states.last())
            && state.time > time
        {
            (position, time) = (state.position, state.time);
        }
        // Damaged metrics are no reason to tell nothing.
        if let (Fate::Running | Fate::Died, Some(line)) = (&fate, last_line(folder).ok().flatten())
            && line.time >= time
        {
            (position, time) = (Position { step: line.step, epoch: line.epoch, batch: line.batch }, line.time);
        }
        let metric = match about.object("keep_best") {
            Ok(rule) => Best::named(rule.text("which")?).map(|best| Ok((rule.text("metric")?.to_owned(), best))),
            Err(_) => None,
        };
        let metric = metric.transpose()?;
        let best = metric.as_ref().and_then(|(name, best)| best.of(&saved, name));
        let best = best.map(|(index, state, value)| (saved[index].path.clone(), state.position, value));
        let mut damaged: Vec<_> =
            saved.iter().filter_map(|saved| Some(saved.state.as_ref().err()?.to_string())).collect();
        damaged.extend(wrong.iter().map(ToString::to_string));
        if let Some((_, state)) = states.last()
            && let Err(error) = metrics::expect_whole(folder, (state.metrics_bytes, &state.metrics_checksum))
        {
            damaged.push(error.to_string());
        }
        let last = states.last().map(|(saved, state)| (saved.path.clone(), state.position));
        let go_on = about.text("go_on").ok().map(str::to_owned);
        let (folder, settings) = (folder.to_owned(), about.texts("settings")?);
        Ok(Self { folder, fate, position, time, last, best, metric, damaged, settings, go_on })
    }
}

impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, fate, position, time, last, best, metric, damaged, go_on, .. } = self;
        write!(f, "{}: ", folder.display())?;
        match fate {
            Fate::Running => write!(f, "goes on, {position}")?,
            Fate::Finished => write!(f, "finished, {position}")?,
            Fate::Interrupted => write!(f, "interrupted, {position}")?,
            Fate::Failed(why) => write!(f, "failed, {position}: {why}")?,
            Fate::Died => write!(f, "killed, or the machine went down; last heard of {position}")?,
        }
        write!(f, " ({})", date(*time))?;
        match last {
            Some((path, position)) => write!(f, "\n  last  {position}, {}", path.display())?,
            None => write!(f, "\n  last  nothing is saved yet")?,
        }
        if let (Some((path, position, value)), Some((metric, which))) = (best, metric) {
            write!(f, "\n  best  {position}, {} {metric} {value}, {}", which.name(), path.display())?;
        }
        for damage in damaged {
            write!(f, "\n  damaged: {damage}")?;
        }
        match go_on {
            Some(command) if *fate != Fate::Running => write!(f, "\n  to go on: {command}"),
            _ => Ok(()),
        }
    }
}
