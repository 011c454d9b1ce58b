//! Files that cannot be read.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::data::{Csv, Dataset};
use crate::io::{Checkpoint as _, load_tensors};
use crate::nn::Linear;
use crate::{Device, Init, Seed, run};

/// Makes a named pipe.
fn pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Every reader of a path gets an error with the path, instead of waiting for a writer.
#[test]
fn every_reader_refuses_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = (folder.path().join("pipe.bin"), Device::cpu());
    pipe(&path);
    let mut net = Linear::new(1, 1).init(&device, Seed::new(0)).unwrap();
    // A run with a pipe in place of each file.
    let trained = folder.path().join("run");
    drop(run::Run::at(&trained, &device).create().unwrap());
    let file_of_run = |name: &str| {
        let file = trained.join(name);
        drop(fs::remove_file(&file));
        pipe(&file);
    };
    let mut errors = vec![
        ("safetensors", net.load(&path).unwrap_err()),
        ("tensors", load_tensors(&path, &device).unwrap_err()),
        ("adapters", crate::lora::Lora::load(&mut net, &path).unwrap_err()),
        ("csv", Csv::new([1]).read(&path).unwrap_err()),
        ("idx", Dataset::from_idx(&path, &path).unwrap_err()),
        ("cifar", Dataset::from_cifar10([&path]).unwrap_err()),
        #[cfg(feature = "onnx")]
        ("onnx", crate::onnx::load(&device, &path).unwrap_err()),
    ];
    file_of_run("metrics.jsonl");
    errors.push(("metrics", run::read_metrics(&trained).unwrap_err()));
    errors.push(("resume", run::Run::at(&trained, &device).resume().unwrap_err()));
    file_of_run("run.json");
    errors.push(("overview", run::Overview::of(&trained).unwrap_err()));
    file_of_run("lock");
    errors.push(("lock", run::Run::at(&trained, &device).resume().unwrap_err()));
    for (what, error) in errors {
        let text = error.to_string();
        assert!(text.contains("it is a named pipe, not a file"), "{what}: {text}");
        assert!(text.contains(&*folder.path().to_string_lossy()), "{what}: {text}");
    }
}
