//! An overview of a run, for its user.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::best::listed;
use super::journal::{self, What, date};
use super::lock::Lock;
use super::metrics::{self, last_line};
use super::options::read_run;
use super::{Best, FILES, Position, store};
use crate::Result;
use crate::error::here;

/// The state of a run: whether it is active or why it ended, its checkpoints, the best one, and how to resume it. `{}`
/// prints all of that.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura::run::{Overview, Run, Status};
///
/// # let directory = tempfile::tempdir().unwrap();
/// let folder = "runs/digits";
/// # let folder = directory.path().join(folder);
/// let run = Run::at(&folder, &Device::cpu()).create()?;
/// assert_eq!(Overview::of(&folder)?.status, Status::Running);
/// println!("{}", run.finish()?);
/// assert_eq!(Overview::of(&folder)?.status, Status::Finished);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Overview {
    /// The run's folder.
    pub folder: PathBuf,
    /// Its state: active, or the reason why it ended.
    pub status: Status,
    /// The position that it last reported.
    pub position: Position,
    /// The time of that report, in seconds since 1970.
    pub time: f64,
    /// The last checkpoint, and its position.
    pub last: Option<(PathBuf, Position)>,
    /// The best checkpoint by the metric of [`keep_best`](super::RunOptions::keep_best), its position, and the value.
    pub best: Option<(PathBuf, Position, f64)>,
    /// The metric that decides which is the best.
    pub metric: Option<(String, Best)>,
    /// The names of the metrics in the checkpoints and in the last line that was logged.
    pub logged: BTreeSet<String>,
    /// Damaged checkpoints and other files, with the kind of damage.
    pub damaged: Vec<String>,
    /// The settings of the run: see [`RunOptions::setting`](super::RunOptions::setting).
    pub settings: BTreeMap<String, String>,
    /// The command that resumes the run, if it was set by [`resume_command`](super::RunOptions::resume_command).
    pub resume_command: Option<String>,
}

/// The state of a run: active, or the reason why it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// A process trains there.
    Running,
    /// It finished.
    Finished,
    /// It was asked to stop.
    Interrupted,
    /// The program ended it, for this reason.
    Failed(String),
    /// The process was killed, or the machine went down.
    Died,
}

impl Status {
    /// The status after the last event of a run that nobody trains.
    fn of(what: What, note: &str) -> Self {
        match what {
            What::Began | What::Resumed | What::Warned => Self::Died,
            What::Finished => Self::Finished,
            What::Interrupted => Self::Interrupted,
            What::Failed => Self::Failed(note.to_owned()),
        }
    }
}

impl Overview {
    /// Reads the state of the run in a folder, active or not, and changes nothing.
    ///
    /// # Errors
    ///
    /// Fails if there is no run, or if its files cannot be read.
    #[track_caller]
    pub fn of(folder: impl AsRef<Path>) -> Result<Self> {
        here(|| Self::read(folder.as_ref()))
    }

    /// The state of a run without a folder, at its end.
    pub(super) fn unkept(what: What, note: &str, position: Position) -> Self {
        Self {
            folder: PathBuf::new(),
            status: Status::of(what, note),
            position,
            time: journal::now(),
            last: None,
            best: None,
            metric: None,
            logged: BTreeSet::new(),
            damaged: Vec::new(),
            settings: BTreeMap::new(),
            resume_command: None,
        }
    }

    fn read(folder: &Path) -> Result<Self> {
        let about = read_run(&folder.join(FILES.run))?;
        // Checked before and after: a process that ended in between has recorded it, and one that began in between
        // holds the lock.
        let trained = Lock::is_taken(folder);
        let (events, wrong) = journal::read(folder)?;
        let is_running = trained || Lock::is_taken(folder);
        let saved = store::list(folder)?;
        let event = events.iter().rev().find(|event| event.what != What::Warned);
        let status = match event {
            _ if is_running => Status::Running,
            None => Status::Died,
            Some(event) => Status::of(event.what, &event.note),
        };
        let (mut position, mut time) =
            event.map_or((Position::default(), about.number("began")?), |event| (event.position, event.time));
        // A run that did not record its end was last heard of by its metrics and checkpoints.
        let states: Vec<_> = saved.iter().filter_map(|saved| Some((saved, saved.state.as_ref().ok()?))).collect();
        if let (Status::Running | Status::Died, Some((_, state))) = (&status, states.last())
            && state.time > time
        {
            (position, time) = (state.position, state.time);
        }
        // Damaged metrics are no reason to report nothing.
        let line = last_line(folder).ok().flatten();
        let mut logged: BTreeSet<_> = states.iter().flat_map(|(_, state)| state.metrics.keys().cloned()).collect();
        logged.extend(line.iter().flat_map(|line| line.values.keys().cloned()));
        if let (Status::Running | Status::Died, Some(line)) = (&status, line)
            && line.time >= time
        {
            (position, time) = (Position { step: line.step, epoch: line.epoch, batch: line.batch }, line.time);
        }
        let metric = match about.object("keep_best") {
            Ok(rule) => {
                Best::named(rule.text("which")?).map(|best| rule.text("metric").map(|name| (name.to_owned(), best)))
            }
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
        let resume_command = about.text("resume_command").ok().map(str::to_owned);
        let (folder, settings) = (folder.to_owned(), about.texts("settings")?);
        Ok(Self { folder, status, position, time, last, best, metric, logged, damaged, settings, resume_command })
    }
}

impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, status, position, time, last, best, metric, logged, damaged, resume_command, .. } = self;
        match folder.as_os_str().is_empty() {
            true => write!(f, "a run that is not kept: ")?,
            false => write!(f, "{}: ", folder.display())?,
        }
        match status {
            Status::Running => write!(f, "running, {position}")?,
            Status::Finished => write!(f, "finished, {position}")?,
            Status::Interrupted => write!(f, "interrupted, {position}")?,
            Status::Failed(why) => write!(f, "failed, {position}: {why}")?,
            Status::Died => write!(f, "killed, or the machine went down; last heard of {position}")?,
        }
        write!(f, " ({})", date(*time))?;
        match last {
            None if folder.as_os_str().is_empty() => {}
            Some((path, position)) => write!(f, "\n  last  {position}, {}", path.display())?,
            None => write!(f, "\n  last  nothing is saved yet")?,
        }
        if let (Some((path, position, value)), Some((metric, which))) = (best, metric) {
            write!(f, "\n  best  {position}, {} {metric} {value}, {}", which.name(), path.display())?;
        }
        if let (Some(_), None, Some((metric, _))) = (last, best, metric) {
            let logged = listed(logged.iter().map(String::as_str));
            write!(f, "\n  best  none: no checkpoint has a number `{metric}`; {logged}")?;
        }
        for damage in damaged {
            write!(f, "\n  damaged: {damage}")?;
        }
        match resume_command {
            Some(command) if *status != Status::Running => write!(f, "\n  to resume: {command}"),
            _ => Ok(()),
        }
    }
}
