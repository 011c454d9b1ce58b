//! Test: a run deletes and truncates what is in its own folder, and nothing that a link in it leads to.

use std::os::unix::fs::symlink;

use super::*;
use crate::Device;
use crate::run::Run;

#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (run, other) = (folder.path().join("run"), folder.path().join("other"));
    let device = Device::cpu();
    drop(Run::at(&run, &device).create().unwrap());
    fs::create_dir(&other).unwrap();
    let mine = other.join("step-00000001.partial");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("file"), "mine").unwrap();
    let is_there = || fs::read(mine.join("file")).is_ok_and(|bytes| bytes == b"mine");
    // The folder of checkpoints.
    let checkpoints = run.join(FILES.checkpoints);
    drop(fs::remove_dir_all(&checkpoints));
    symlink(&other, &checkpoints).unwrap();
    let error = Run::at(&run, &device).resume().unwrap_err().to_string();
    assert!(error.contains("it is a symbolic link") && is_there(), "{error}");
    // What a crash left.
    fs::remove_file(&checkpoints).unwrap();
    fs::create_dir(&checkpoints).unwrap();
    symlink(&mine, checkpoints.join("step-00000002.partial")).unwrap();
    drop(Run::at(&run, &device).resume().unwrap());
    assert!(is_there() && disk::list(&checkpoints).unwrap().is_empty());
    // A file that is truncated.
    for name in [FILES.metrics, FILES.events, FILES.lock] {
        let path = run.join(name);
        let before = fs::read(&path).unwrap();
        let target = folder.path().join(name);
        fs::write(&target, [&before[..], b"half a line"].concat()).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&target, &path).unwrap();
        let error = Run::at(&run, &device).resume().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("it is a symbolic link"), "{error}");
        assert!(fs::read(&target).unwrap().ends_with(b"half a line"), "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, before).unwrap();
    }
    drop(Run::at(&run, &device).resume().unwrap());
}
