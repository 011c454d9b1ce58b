//! The readers that are fuzzed.

mod checkpoint;
mod data;
mod gguf;
mod images;
mod lora;
mod npz;
mod onnx;
mod pt;
mod run;
mod text;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use meganeura::{Error, ErrorKind};
use tempfile::TempDir;

use crate::limits::Limits;
use crate::mutate;

/// A reader of foreign input.
pub trait Target {
    /// The name in `--target` and of its corpus.
    fn name(&self) -> &'static str;

    /// Well-formed inputs to start from.
    fn seeds(&self) -> Vec<Vec<u8>>;

    /// Tokens of the format.
    fn words(&self) -> &'static [&'static str] {
        &[]
    }

    /// Mutates an input but keeps its framing intact, if the format has one.
    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        mutate::bytes(input, rng);
    }

    /// The limits on an input of this length.
    fn limits(&self, length: usize) -> Limits {
        let _ = length;
        Limits::PACKED
    }

    /// Reads an input. `true` if it was accepted, `false` if it was refused with a documented error. The error is the
    /// promise that was broken.
    fn read(&self, input: &[u8]) -> Result<bool, String>;
}

/// Every target.
pub fn all() -> Vec<Box<dyn Target>> {
    let mut all: Vec<Box<dyn Target>> = vec![
        Box::new(checkpoint::Model),
        Box::new(checkpoint::Renamed),
        Box::new(checkpoint::State),
        Box::new(data::Idx),
        Box::new(data::Cifar),
        Box::new(data::Csv),
        Box::new(gguf::Gguf),
        Box::new(images::Folder),
        Box::new(lora::Adapter::new()),
        Box::new(lora::Peft::new()),
        Box::new(npz::Npz),
        Box::new(onnx::Onnx),
        Box::new(pt::Pt),
        Box::new(text::Schedules),
        Box::new(text::Plateaus),
        Box::new(text::Patterns),
    ];
    all.extend(run::all());
    all
}

thread_local! {
    static REFUSAL: Cell<String> = const { Cell::new(String::new()) };
}

/// The last documented error on this thread.
pub fn last_refusal() -> String {
    REFUSAL.take()
}

/// The result of a read, in which errors of these kinds are as valid as values.
fn documented<T>(result: Result<T, Error>, kinds: &[ErrorKind]) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if kinds.contains(&error.kind()) => {
            // Messages must be bounded as well, whatever the names in the file.
            let message = error.to_string();
            let length = message.len();
            REFUSAL.set(message);
            if length > 1 << 16 { Err(format!("an error of {length} bytes")) } else { Ok(None) }
        }
        Err(error) => Err(format!("an error of a kind that is not documented: {error:?}")),
    }
}

/// A folder for readers that need a path; in memory if the system has such a place.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("there is a place for temporary files")
}

/// Writes a file and returns its path.
fn file(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("temporary files can be written");
    path
}

/// Joins two files into one input: two bytes with the length of the first, then both.
fn join(first: &[u8], second: &[u8]) -> Vec<u8> {
    let length = u16::try_from(first.len()).expect("seeds are short");
    [&length.to_le_bytes(), first, second].concat()
}

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else { return (&[], input) };
    rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()))
}
