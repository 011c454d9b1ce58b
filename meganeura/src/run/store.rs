//! Checkpoints on disk: a folder for each, which appears under its name when all of it is durable.
//!
//! ```text
//! checkpoints/step-00000400/model.safetensors, optimizer.safetensors, state.json
//! ```
//!
//! While it is written, and before it is deleted, a folder's name ends in `.partial`; the next run sweeps such ones away. What has
//! a whole name and is not whole was damaged by something else: that is told, and nothing is deleted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::json::{self, FORMAT, Object, VERSION};
use super::{FILES, Parts, Position, parts};
use crate::error::bail;
use crate::io::{create_folder, io_error, sync_folder};
use crate::{Error, ErrorKind, Result};

/// The end of names of folders that are no checkpoints: not yet, or not any more.
const PARTIAL: &str = ".partial";

/// What names of checkpoints begin with.
const STEP: &str = "step-";

/// No run makes as many steps, and counting on from there could not go wrong.
const MOST_STEPS: u64 = 1 << 53;

/// What a checkpoint says besides its parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    pub(super) position: Position,
    /// Seconds since 1970.
    pub(super) time: f64,
    /// The device's next random seed.
    pub(super) seed: u64,
    /// The numbers that were logged at this step.
    pub(super) metrics: BTreeMap<String, f64>,
    /// How long the file of metrics was.
    pub(super) metrics_bytes: u64,
}

/// A checkpoint on disk.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) path: PathBuf,
    /// Step, and how often that step was saved before.
    order: (u64, u64),
    /// Or why it is none.
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
            saved.push(Saved { state: read_state(&path).map(|(state, _)| state), path, order });
        }
    }
    saved.sort_by_key(|saved| saved.order);
    Ok(saved)
}

/// Deletes what a crash left unfinished. Only who holds the lock may.
pub(super) fn sweep(run: &Path) -> Result<()> {
    let is_unfinished = |path: &&PathBuf, of: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(of) && name.ends_with(PARTIAL))
    };
    let deleted = |path: &Path, result: std::io::Result<()>| result.map_err(|error| io_error("deleted", path, error));
    for path in contents(&run.join(FILES.checkpoints))?.iter().filter(|path| is_unfinished(path, STEP)) {
        deleted(path, fs::remove_dir_all(path))?;
    }
    for path in contents(run)?.iter().filter(|path| is_unfinished(path, FILES.run)) {
        deleted(path, fs::remove_file(path))?;
    }
    Ok(())
}

/// What is in a folder; nothing if there is none.
fn contents(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("read", path, error)),
    };
    let paths = entries.map(|entry| Ok(entry.map_err(|error| io_error("read", path, error))?.path()));
    paths.collect()
}

/// `step-00000400`, or for the third checkpoint of that step `step-00000400.2`.
fn name((step, again): (u64, u64)) -> String {
    if again == 0 { format!("{STEP}{step:08}") } else { format!("{STEP}{step:08}.{again}") }
}

fn order(name: &str) -> Option<(u64, u64)> {
    let name = name.strip_prefix(STEP)?;
    let (step, again) = name.split_once('.').unwrap_or((name, "0"));
    Some((step.parse().ok()?, again.parse().ok()?))
}

/// Writes a checkpoint behind those that there are.
pub(super) fn write(run: &Path, last: Option<&Saved>, state: State, parts: &Parts) -> Result<Saved> {
    let step = state.position.step;
    let order = (step, last.filter(|last| last.order.0 == step).map_or(0, |last| last.order.1.saturating_add(1)));
    let checkpoints = run.join(FILES.checkpoints);
    let path = checkpoints.join(name(order));
    let partial = checkpoints.join(name(order) + PARTIAL);
    let write = || {
        create_folder(&checkpoints).map_err(|error| io_error("created", &checkpoints, error))?;
        // Of an earlier try that could not be cleared away.
        drop(fs::remove_dir_all(&partial));
        fs::create_dir(&partial).map_err(|error| io_error("created", &partial, error))?;
        for (name, bytes) in &parts.files {
            write_durably(&partial.join(file_name(name)), bytes)?;
        }
        write_durably(&partial.join(FILES.state), &described(&state, parts))?;
        // The names inside, then the folder's own: whatever a power failure leaves under that name is whole.
        sync_folder(&partial)
            .and_then(|()| fs::rename(&partial, &path))
            .and_then(|()| sync_folder(&checkpoints))
            .map_err(|error| io_error("written", &path, error))
    };
    if let Err(error) = write() {
        // Makes room; the first error is the one to report.
        drop(fs::remove_dir_all(&partial));
        let kept = match last {
            Some(last) => format!("the last one is still there, {}", last.path.display()),
            None => "there is none yet".into(),
        };
        return Err(error.context(format_args!("the checkpoint of step {step} could not be saved; {kept}")));
    }
    Ok(Saved { path, order, state: Ok(state) })
}

fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| io_error("written", path, error))
}

/// Deletes a checkpoint. First its name goes, durably, so that no crash and no power failure leaves half of one.
pub(super) fn delete(saved: &Saved) -> Result<()> {
    let partial = saved.path.with_file_name(saved.name() + PARTIAL);
    let delete = || {
        fs::rename(&saved.path, &partial)?;
        sync_folder(partial.parent().unwrap_or(Path::new("")))?;
        fs::remove_dir_all(&partial)
    };
    delete().map_err(|error| io_error("deleted", &saved.path, error))
}

fn file_name(part: &str) -> String {
    format!("{part}.safetensors")
}

fn described(state: &State, parts: &Parts) -> Vec<u8> {
    let State { position: Position { step, epoch, batch }, time, seed, metrics, metrics_bytes } = state;
    let metrics: Map<String, Value> =
        metrics.iter().map(|(name, &value)| (name.clone(), json::number(value))).collect();
    let file = |bytes: &Vec<u8>| json!({ "bytes": bytes.len(), "checksum": format!("{:016x}", checksum(bytes)) });
    let files: Map<String, Value> = parts.files.iter().map(|(name, bytes)| (name.clone(), file(bytes))).collect();
    let object = json!({
        "format": FORMAT,
        "meganeura": VERSION,
        "position": { "step": step, "epoch": epoch, "batch": batch },
        "time": time,
        "seed": seed,
        "metrics": metrics,
        "metrics_bytes": metrics_bytes,
        "texts": parts.texts,
        "files": files,
    });
    format!("{object:#}\n").into_bytes()
}

fn read_state(path: &Path) -> Result<(State, Object)> {
    let path = path.join(FILES.state);
    let text = fs::read(&path).map_err(|error| io_error("read", &path, error))?;
    let object = Object::parse(path.display().to_string(), &text)?;
    object.expect_format()?;
    let position = object.object("position")?;
    let count = |name: &str| match position.whole(name)? {
        count @ ..=MOST_STEPS => Ok(count),
        count => bail!(Checkpoint, "{} is damaged: `{name}` is {count}, and no run comes as far", path.display()),
    };
    let batch = usize::try_from(count("batch")?).unwrap_or(usize::MAX);
    let position = Position { step: count("step")?, epoch: count("epoch")?, batch };
    let (time, seed) = (object.number("time")?, object.whole("seed")?);
    let (metrics, metrics_bytes) = (object.numbers("metrics")?, object.whole("metrics_bytes")?);
    Ok((State { position, time, seed, metrics, metrics_bytes }, object))
}

/// The parts of a checkpoint, each of them whole.
pub(super) fn read_parts(saved: &Saved) -> Result<Parts> {
    let (_, object) = read_state(&saved.path)?;
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
        // Before it is in memory.
        let (found, expected) = (fs::metadata(&path).map_err(read)?.len(), mark.whole("bytes")?);
        if found != expected {
            bail!(Checkpoint, "{} is damaged: it has {found} bytes of {expected}", path.display());
        }
        let bytes = fs::read(&path).map_err(read)?;
        if format!("{:016x}", checksum(&bytes)) != mark.text("checksum")? {
            bail!(Checkpoint, "{} is damaged: it has other bytes than were written", path.display());
        }
        parts.files.insert(name.to_owned(), bytes);
    }
    Ok(parts)
}

/// That the last checkpoint cannot be used, and what to do.
pub(super) fn unusable(all: &[Saved], error: &Error) -> Error {
    let remedy = match all.iter().rev().skip(1).find(|saved| saved.state.is_ok()) {
        Some(before) => format!("move that folder away to go on from {}", before.path.display()),
        None => "there is no other, so the run has to begin again, in another folder".into(),
    };
    let last = all.last().map(|last| last.path.display().to_string()).unwrap_or_default();
    Error::new(
        ErrorKind::Checkpoint,
        format!("the last checkpoint, {last}, cannot be used: {error}. Nothing was changed; {remedy}"),
    )
}

/// As FNV-1a, but of eight bytes at a time, and with a rotation, without which the upper ones would hardly matter.
fn checksum(data: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = data.as_chunks();
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash, byte.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(step: u64) -> State {
        let position = Position { step, epoch: 3, batch: 7 };
        let metrics = [("loss".to_owned(), f64::INFINITY), ("accuracy".to_owned(), 0.1)].into();
        State { position, time: 1.5, seed: u64::MAX, metrics, metrics_bytes: 12 }
    }

    fn parts() -> Parts {
        let mut parts = Parts::new();
        parts.files.insert("model".into(), (0..100).collect());
        parts.put_text("note", "a \"quote\"\n∞").unwrap();
        parts
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list(folder.path()).unwrap().is_empty());
        let first = write(folder.path(), None, state(9), &parts()).unwrap();
        let again = write(folder.path(), Some(&first), state(9), &parts()).unwrap();
        write(folder.path(), Some(&again), state(10), &parts()).unwrap();
        let all = list(folder.path()).unwrap();
        assert_eq!(
            all.iter().map(Saved::name).collect::<Vec<_>>(),
            ["step-00000009", "step-00000009.1", "step-00000010"]
        );
        assert_eq!(all[1].state.as_ref().unwrap(), &state(9));
        let read = read_parts(&all[2]).unwrap();
        assert_eq!((read.files, read.texts), (parts().files, parts().texts));
        delete(&all[1]).unwrap();
        assert_eq!(list(folder.path()).unwrap().len(), 2);
        assert_eq!(fs::read_dir(folder.path().join(FILES.checkpoints)).unwrap().count(), 2);
    }

    #[test]
    fn damage_is_noticed_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let saved = write(folder.path(), None, state(9), &parts()).unwrap();
        let (model, state) = (saved.path.join("model.safetensors"), saved.path.join(FILES.state));
        let (bytes, text) = (fs::read(&model).unwrap(), fs::read_to_string(&state).unwrap());
        let error = || read_parts(&list(folder.path()).unwrap()[0]).unwrap_err().to_string();
        for cut in [0, 1, 50, 99] {
            fs::write(&model, &bytes[..cut]).unwrap();
            assert!(
                error().contains(&format!("model.safetensors is damaged: it has {cut} bytes of 100")),
                "{}",
                error()
            );
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 16;
            fs::write(&model, wrong).unwrap();
            assert!(error().contains("other bytes than were written"), "byte {at}");
        }
        fs::remove_file(&model).unwrap();
        assert!(error().contains("model.safetensors could not be read"), "{}", error());
        for cut in 0..text.trim_end().len() {
            fs::write(&state, &text.as_bytes()[..cut]).unwrap();
            assert!(list(folder.path()).unwrap()[0].state.is_err(), "cut at {cut}");
        }
        fs::write(&state, text.replacen("\"step\": 9", "\"step\": -9", 1)).unwrap();
        assert!(error().contains("`step` is no whole number: -9"), "{}", error());
        fs::write(&state, text.replacen("\"step\": 9", "\"step\": 18446744073709551615", 1)).unwrap();
        assert!(error().contains("`step` is 18446744073709551615, and no run comes as far"), "{}", error());
        fs::write(&state, text.replacen("\"model\": {", "\"../model\": {", 1)).unwrap();
        assert!(error().contains("state.json is damaged: no part is called `../model`"), "{}", error());
        fs::write(&state, text.replacen("\"format\": 1", "\"format\": 7", 1)).unwrap();
        assert!(error().contains("is of format 7"), "{}", error());
        assert!(list(folder.path()).unwrap()[0].state.is_err());
    }

    #[test]
    fn what_is_unfinished_is_no_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), None, state(9), &parts()).unwrap();
        let checkpoints = folder.path().join(FILES.checkpoints);
        fs::create_dir(checkpoints.join("step-00000011.partial")).unwrap();
        fs::write(checkpoints.join("step-00000011.partial/model.safetensors"), "half").unwrap();
        fs::create_dir(checkpoints.join("somebody's.partial")).unwrap();
        for name in ["run.json", "run.json.12-0.partial", "net.safetensors.12-1.partial"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(list(folder.path()).unwrap().len(), 1);
        sweep(folder.path()).unwrap();
        assert_eq!(contents(folder.path()).unwrap().len(), 3, "the folder, run.json, and what is not the run's");
        let mut left: Vec<_> = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["somebody's.partial", "step-00000009"]);
    }

    #[test]
    fn what_cannot_be_written_leaves_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let saved = write(folder.path(), None, state(9), &parts()).unwrap();
        // A file where the folder should be made: no rights are too few for anybody here, root included.
        fs::write(saved.path.with_file_name("step-00000010.partial"), "").unwrap();
        let error = write(folder.path(), Some(&saved), state(10), &parts()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let message = error.to_string();
        assert!(message.contains("step 10 could not be saved; the last one is still there, "), "{message}");
        assert!(read_parts(&list(folder.path()).unwrap()[0]).is_ok());
    }
}
