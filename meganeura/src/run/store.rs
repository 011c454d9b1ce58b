//! Checkpoints on disk: one folder each, which gets its name only when all of it is durable.
//!
//! ```text
//! checkpoints/step-00000400/model.safetensors, optimizer.safetensors, state.json
//! ```
//!
//! While a folder is written, and before it is deleted, its name ends in `.partial`; the next run deletes such folders.
//! A folder with a full name but incomplete contents was damaged by something else: that is reported, and nothing is
//! deleted. A checksum covers each byte of a checkpoint, and the folder's name repeats the step of `state.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::checksum::{Checksum, is_of};
use super::json::{self, FORMAT, Object, VERSION};
use super::{FILES, Parts, Position, parts};
use crate::data::Count;
use crate::error::bail;
use crate::io::{disk, io_error};
use crate::{Error, ErrorKind, Result};

/// The suffix of folders that are no checkpoints: not yet, or no longer.
const PARTIAL: &str = ".partial";

/// The suffix of damaged checkpoints that a run skipped when it was resumed.
const DAMAGED: &str = ".damaged";

/// The prefix of checkpoints.
const STEP: &str = "step-";

/// No run makes this many steps, and counting on from there is safe.
const MOST_STEPS: u64 = 1 << 53;

/// The contents of a checkpoint besides its parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) position: Position,
    /// The examples in the batches of the position.
    pub(super) taken: Vec<Count>,
    /// Seconds since 1970.
    pub(super) time: f64,
    /// The device's next random seed.
    pub(super) seed: u64,
    /// The metrics logged at this step.
    pub(super) metrics: BTreeMap<String, f64>,
    /// The length of the metrics file, and its checksum.
    pub(super) metrics_bytes: u64,
    pub(super) metrics_checksum: String,
}

/// A checkpoint on disk.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) path: PathBuf,
    /// The step, and the number of earlier checkpoints of that step.
    order: (u64, u64),
    /// Or the reason why it is no checkpoint.
    pub(super) state: Result<State>,
}

impl Saved {
    /// The folder's name.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// All checkpoints, the oldest first.
pub(super) fn list(run: &Path) -> Result<Vec<Saved>> {
    let mut saved = Vec::new();
    for path in contents(&run.join(FILES.checkpoints))? {
        let order = path.file_name().and_then(|name| order(name.to_str()?));
        if let Some(order) = order {
            saved.push(Saved { state: read_state(&path, order).map(|(state, _)| state), path, order });
        }
    }
    saved.sort_by_key(|saved| saved.order);
    Ok(saved)
}

/// Deletes what a crash left unfinished. Only the holder of the lock may call it.
pub(super) fn sweep(run: &Path) -> Result<()> {
    let is_unfinished = |path: &&PathBuf, of: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(of) && name.ends_with(PARTIAL))
    };
    let deleted = |path: &Path, result: std::io::Result<()>| result.map_err(|error| io_error("deleted", path, error));
    let checkpoints = run.join(FILES.checkpoints);
    // Where a link leads, the checkpoints may be another run's. This one deletes its older ones.
    disk::expect_no_link(&checkpoints).map_err(|error| io_error("used for checkpoints", &checkpoints, error))?;
    for path in contents(&checkpoints)?.iter().filter(|path| is_unfinished(path, STEP)) {
        deleted(path, disk::remove_folder(path))?;
    }
    for path in contents(run)?.iter().filter(|path| is_unfinished(path, FILES.run)) {
        deleted(path, disk::remove_file(path))?;
    }
    Ok(())
}

/// The contents of a folder; empty if it does not exist.
fn contents(path: &Path) -> Result<Vec<PathBuf>> {
    match disk::list(path) {
        Err(error) if error.kind() == NotFound => Ok(Vec::new()),
        paths => paths.map_err(|error| io_error("read", path, error)),
    }
}

/// `step-00000400`, or for the third checkpoint of that step `step-00000400.2`.
fn name((step, again): (u64, u64)) -> String {
    if again == 0 { format!("{STEP}{step:08}") } else { format!("{STEP}{step:08}.{again}") }
}

fn order(text: &str) -> Option<(u64, u64)> {
    let (step, again) = text.strip_prefix(STEP).map(|rest| rest.split_once('.').unwrap_or((rest, "0")))?;
    let order = (step.parse().ok()?, again.parse().ok()?);
    // And no other spelling: two folders would be one checkpoint.
    (name(order) == text).then_some(order)
}

/// Writes a checkpoint after the others. `expect_held` fails if the folder no longer belongs to this run.
pub(super) fn write(
    run: &Path,
    last: Option<&Saved>,
    state: State,
    parts: &Parts,
    expect_held: impl Fn() -> Result<()>,
) -> Result<Saved> {
    let step = state.position.step;
    let checkpoints = run.join(FILES.checkpoints);
    let mut order = (step, last.filter(|last| last.order.0 == step).map_or(0, |last| last.order.1.saturating_add(1)));
    // A checkpoint that could neither be finished nor removed.
    while disk::is_taken(&checkpoints.join(name(order))) {
        order.1 += 1;
    }
    let path = checkpoints.join(name(order));
    let partial = checkpoints.join(name(order) + PARTIAL);
    let write = || {
        match disk::create_folder(&checkpoints) {
            Err(error) if error.kind() == AlreadyExists => disk::expect_no_link(&checkpoints),
            created => created.and_then(|()| disk::sync_folder(run)),
        }
        .map_err(|error| io_error("created", &checkpoints, error))?;
        if disk::is_taken(&partial) {
            // From an earlier attempt that could not be removed.
            drop(disk::remove_folder(&partial));
        }
        disk::create_folder(&partial).map_err(|error| io_error("created", &partial, error))?;
        let state = described(&state, parts);
        let files = parts.files.iter().map(|(name, bytes)| (file_name(name), &bytes[..]));
        for (name, bytes) in files.chain([(FILES.state.to_owned(), &state[..])]) {
            let path = partial.join(name);
            disk::write_new(&path, bytes).map_err(|error| io_error("written", &path, error))?;
        }
        disk::sync_folder(&partial).map_err(|error| io_error("written", &partial, error))?;
        expect_held()?;
        // First the names inside, then the folder's own: after a power failure, a folder with that name is complete.
        disk::rename(&partial, &path)
            .and_then(|()| disk::sync_folder(&checkpoints))
            .map_err(|error| io_error("written", &path, error))
    };
    if let Err(error) = write() {
        // If the folder now belongs to another run, so does a checkpoint with this name.
        if expect_held().is_ok() {
            clear_away(&path, &partial);
        }
        let kept = match last.filter(|last| last.path.exists()) {
            Some(last) => format!("the last one is still there, {}", last.path.display()),
            None => "there is none yet".into(),
        };
        return Err(error.context(format_args!("the checkpoint of step {step} could not be saved; {kept}")));
    }
    Ok(Saved { path, order, state: Ok(state) })
}

/// Removes the rest of a checkpoint that could not be saved. Its own errors are ignored: the first one is reported.
fn clear_away(path: &Path, partial: &Path) {
    if path.exists() {
        // It was not reported to anyone, and its name may not be durable.
        drop(disk::rename(path, partial));
    }
    if disk::is_taken(partial) {
        drop(disk::remove_folder(partial));
    }
}

/// Deletes a checkpoint, if it still exists. Its name is removed first, durably, so that no crash or power failure
/// leaves half of it.
pub(super) fn delete(saved: &Saved) -> Result<()> {
    let partial = saved.path.with_file_name(saved.name() + PARTIAL);
    let delete = || {
        disk::rename(&saved.path, &partial)?;
        disk::sync_folder(partial.parent().unwrap_or(Path::new("")))?;
        disk::remove_folder(&partial)
    };
    match delete() {
        Err(error) if error.kind() == NotFound => Ok(()),
        result => result.map_err(|error| io_error("deleted", &saved.path, error)),
    }
}

/// Renames a damaged checkpoint, so that it no longer counts as one; returns its new path.
pub(super) fn set_aside(saved: &Saved) -> Result<PathBuf> {
    let names = (1..).map(|count: u64| match count {
        1 => saved.name() + DAMAGED,
        count => format!("{}{DAMAGED}-{count}", saved.name()),
    });
    let mut paths = names.map(|name| saved.path.with_file_name(name));
    let path = paths.find(|path| !disk::is_taken(path)).expect("numbers do not end");
    let renamed = disk::rename(&saved.path, &path);
    renamed
        .and_then(|()| disk::sync_folder(path.parent().unwrap_or(Path::new(""))))
        .map_err(|error| io_error("renamed", &saved.path, error))?;
    Ok(path)
}

fn file_name(part: &str) -> String {
    format!("{part}.safetensors")
}

fn described(state: &State, parts: &Parts) -> Vec<u8> {
    let State {
        position: Position { step, epoch, batch },
        taken,
        time,
        seed,
        metrics,
        metrics_bytes,
        metrics_checksum,
    } = state;
    let count = |(number, Count { batch, examples, size, order }): (usize, &Count)| {
        let count = json!({ "batch": batch, "examples": examples, "size": size, "order": order });
        (number.to_string(), count)
    };
    let taken: Map<String, Value> = taken.iter().enumerate().map(count).collect();
    let metrics: Map<String, Value> =
        metrics.iter().map(|(name, &value)| (name.clone(), json::number(value))).collect();
    let file = |bytes: &Vec<u8>| json!({ "bytes": bytes.len(), "checksum": Checksum::of(bytes).digits() });
    let files: Map<String, Value> = parts.files.iter().map(|(name, bytes)| (name.clone(), file(bytes))).collect();
    let object = json!({
        "format": FORMAT,
        "meganeura": VERSION,
        "position": { "step": step, "epoch": epoch, "batch": batch },
        "taken": taken,
        "time": time,
        "seed": seed,
        "metrics": metrics,
        "metrics_bytes": metrics_bytes,
        "metrics_checksum": metrics_checksum,
        "texts": parts.texts,
        "files": files,
    });
    json::sealed(&object)
}

fn read_state(path: &Path, (step, _): (u64, u64)) -> Result<(State, Object)> {
    let path = path.join(FILES.state);
    let text = disk::read(&path).map_err(|error| io_error("read", &path, error))?;
    let object = Object::parse_sealed(path.display().to_string(), &text)?;
    let position = object.object("position")?;
    let count = |name: &str| match position.whole(name)? {
        count @ ..=MOST_STEPS => Ok(count),
        count => bail!(Checkpoint, "{} is damaged: `{name}` is {count}, and no run comes as far", path.display()),
    };
    let batch = usize::try_from(count("batch")?).unwrap_or(usize::MAX);
    let position = Position { step: count("step")?, epoch: count("epoch")?, batch };
    if position.step != step {
        bail!(Checkpoint, "{} is of step {}, and its folder's name is of another", path.display(), position.step);
    }
    let (time, seed) = (object.number("time")?, object.whole("seed")?);
    let (metrics, metrics_bytes) = (object.numbers("metrics")?, object.whole("metrics_bytes")?);
    let metrics_checksum = object.text("metrics_checksum")?.to_owned();
    let taken =
        if object.names().any(|name| name == "taken") { read_taken(&object.object("taken")?)? } else { Vec::new() };
    Ok((State { position, taken, time, seed, metrics, metrics_bytes, metrics_checksum }, object))
}

fn read_taken(taken: &Object) -> Result<Vec<Count>> {
    let read = |name: &str| {
        let count = taken.object(name)?;
        let whole = |name| count.whole(name).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        Ok(Count {
            batch: whole("batch")?,
            examples: whole("examples")?,
            size: whole("size")?,
            order: count.whole("order")?,
        })
    };
    taken.names().map(read).collect()
}

/// The parts of a checkpoint, all of them complete.
pub(super) fn read_parts(saved: &Saved) -> Result<Parts> {
    let (_, object) = read_state(&saved.path, saved.order)?;
    let mut parts = Parts::new();
    parts.source = saved.path.display().to_string();
    parts.texts = object.texts("texts")?;
    let files = object.object("files")?;
    for name in files.names() {
        if !parts::is_name(name) {
            bail!(Checkpoint, "{} is damaged: no part is called `{name}`", saved.path.join(FILES.state).display());
        }
        let (mark, path) = (files.object(name)?, saved.path.join(file_name(name)));
        let read = |error| io_error("read", &path, error);
        // Checked before reading it into memory.
        let (found, expected) = (fs::metadata(&path).map_err(read)?.len(), mark.whole("bytes")?);
        if found != expected {
            bail!(Checkpoint, "{} is damaged: it has {found} bytes of {expected}", path.display());
        }
        let bytes = disk::read(&path).map_err(read)?;
        if !is_of(&bytes, mark.text("checksum")?) {
            bail!(Checkpoint, "{} is damaged: it has other bytes than were written", path.display());
        }
        parts.files.insert(name.to_owned(), bytes);
    }
    Ok(parts)
}

/// The error for an unusable last checkpoint, with the remedy.
pub(super) fn unusable(all: &[Saved], error: &Error) -> Error {
    let remedy = match all.iter().rev().skip(1).find(|saved| read_parts(saved).is_ok()) {
        Some(before) => format!(
            "put it back, or resume from {}: by `RunOptions::resume_from_last_good`, or by moving the other folder away",
            before.path.display()
        ),
        None => "put it back, or begin the run again in another folder: no other checkpoint is undamaged".into(),
    };
    let last = all.last().map(|last| last.path.display().to_string()).unwrap_or_default();
    Error::new(
        ErrorKind::Checkpoint,
        format!("the last checkpoint, {last}, cannot be used: {error}. Nothing was changed; {remedy}"),
    )
}

#[cfg(all(test, unix))]
mod links;
#[cfg(test)]
mod tests;
