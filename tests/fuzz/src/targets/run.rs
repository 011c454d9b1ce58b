//! The files of a run's folder; each mutated file replaces the original.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fastrand::Rng;
use meganeura::nn::Linear;
use meganeura::optim::AdamW;
use meganeura::run::{Best, Overview, Run, checksum_of, read_metrics, resealed};
use meganeura::{Device, ErrorKind, Init, Seed};
use serde_json::{Value, json};

use super::checkpoint::reshape_header;
use super::{Target, documented, scratch};
use crate::mutate;

/// The state in the last checkpoint.
const STATE: &str = "checkpoints/step-00000002/state.json";

/// One target per file: its name, and the file's path.
const FILES: [(&str, &str); 6] = [
    ("run_json", "run.json"),
    ("run_events", "events.jsonl"),
    ("run_metrics", "metrics.jsonl"),
    ("run_state", STATE),
    ("run_model", "checkpoints/step-00000002/model.safetensors"),
    ("run_optimizer", "checkpoints/step-00000002/optimizer.safetensors"),
];

pub fn all() -> Vec<Box<dyn Target>> {
    FILES.iter().map(|&(name, path)| Box::new(FileOf { name, path }) as Box<dyn Target>).collect()
}

/// A file in a run's folder, with its path below the folder.
struct FileOf {
    name: &'static str,
    path: &'static str,
}

fn parts() -> (Linear, AdamW) {
    (Linear::new(2, 1).init(&Device::cpu(), Seed::new(1)).expect("the model fits"), AdamW::new(0.5))
}

fn begin(folder: &Path) -> meganeura::run::RunOptions {
    Run::at(folder, &Device::cpu()).setting("seed", 7).keep_best("loss", Best::Lowest)
}

/// The files of a run with a checkpoint after each of the first two steps; paths are below its folder.
fn template() -> &'static [(PathBuf, Vec<u8>)] {
    static TEMPLATE: OnceLock<Vec<(PathBuf, Vec<u8>)>> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let folder = scratch();
        let (net, optimizer) = parts();
        let write = || -> meganeura::Result<()> {
            let mut run = begin(folder.path()).create()?;
            for loss in [2.0, 1.0] {
                run.advance();
                run.log(&[("loss", &loss), ("accuracy", &0.5)])?;
                run.checkpoint(&net, &optimizer)?;
            }
            // Behind the last checkpoint, whose checksum covers the metrics before it.
            for step in [3, 4] {
                run.advance();
                run.log(&[("loss", &(1.0 / f64::from(step)))])?;
            }
            Ok(())
        };
        write().expect("a run can be written");
        let (mut files, mut folders) = (Vec::new(), vec![folder.path().to_owned()]);
        while let Some(next) = folders.pop() {
            for path in fs::read_dir(next).expect("the run's").map(|entry| entry.expect("the run's").path()) {
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let below = path.strip_prefix(folder.path()).expect("it is below").to_owned();
                    files.push((below, fs::read(path).expect("the run's")));
                }
            }
        }
        files
    })
}

impl FileOf {
    /// The checkpoint's state with the checksum of this input, if it has one of the file: otherwise, every change would
    /// be found at once.
    fn state_for(&self, state: &[u8], input: &[u8]) -> Vec<u8> {
        let mut object: Value = serde_json::from_slice(state).expect("the run's");
        let name = Path::new(self.path).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(file) = object["files"].get_mut(name) {
            *file = json!({ "bytes": input.len(), "checksum": checksum_of(input) });
        }
        resealed(object.to_string().as_bytes()).expect("an object")
    }

    /// Inspects a folder with this file, then resumes the run. `true` if that succeeds.
    fn take(&self, input: &[u8]) -> Result<bool, String> {
        let folder = scratch();
        for (path, bytes) in template() {
            let to = folder.path().join(path);
            fs::create_dir_all(to.parent().expect("below the folder")).expect("temporary folders can be made");
            let state = (path == Path::new(STATE)).then(|| self.state_for(bytes, input));
            let bytes = if path == Path::new(self.path) { input } else { state.as_deref().unwrap_or(bytes) };
            fs::write(to, bytes).expect("they can be written");
        }
        let kinds = [ErrorKind::Checkpoint, ErrorKind::Argument];
        documented(Overview::of(folder.path()), &kinds)?;
        documented(read_metrics(folder.path()), &kinds)?;
        let Some(mut run) = documented(begin(folder.path()).resume(), &kinds)? else { return Ok(false) };
        let (mut net, mut optimizer) = parts();
        let restored = documented(run.restore(&mut net, &mut optimizer), &kinds)?;
        let metrics = documented(run.metrics(), &kinds)?;
        // A resumed run continues.
        run.advance();
        documented(run.log(&[("loss", &0.5)]), &kinds)?;
        documented(run.checkpoint(&net, &optimizer), &kinds)?;
        Ok(restored == Some(true) && metrics.is_some())
    }
}

impl Target for FileOf {
    fn name(&self) -> &'static str {
        self.name
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let own = template().iter().find(|(path, _)| path == Path::new(self.path));
        own.map(|(_, bytes)| bytes.clone()).into_iter().collect()
    }

    fn words(&self) -> &'static [&'static str] {
        &["{\"", "\"}\n", "null", "1e999", "-1", "18446744073709551615", "\"step\":", "\"time\":", "\n", "../"]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        if self.path.ends_with(".safetensors") {
            return reshape_header(input, rng);
        }
        // A JSON document, or one line of a file of JSON lines.
        let mut lines: Vec<Vec<u8>> = match serde_json::from_slice::<Value>(input) {
            Ok(_) => vec![input.clone()],
            Err(_) => input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
        };
        let Some(line) = (!lines.is_empty()).then(|| rng.usize(..lines.len())).map(|at| &mut lines[at]) else { return };
        match serde_json::from_slice(line) {
            Ok(mut value) => {
                mutate::json(&mut value, rng);
                *line = format!("{value}\n").into_bytes();
                // A file with a checksum gets a valid one.
                if let Some(sealed) = value.get("checksum").and_then(|_| resealed(line)) {
                    *line = sealed;
                }
            }
            Err(_) => mutate::bytes(line, rng),
        }
        *input = lines.concat();
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        self.take(input)
    }
}
