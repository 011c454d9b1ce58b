//! `bench --losses` and `curves`: from a training run to its chart.

use std::path::Path;

use super::{folder, run, stderr};

/// Trains `tiny` for six steps.
fn losses(path: &Path, args: &[&str]) -> Vec<f32> {
    let common = ["--batch", "4", "--warmup", "2", "--steps", "3", "--losses", path.to_str().unwrap()];
    let output = run("bench", &[&common[..], args].concat());
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("step,loss"));
    let numbered = lines.enumerate().map(|(index, line)| line.strip_prefix(&format!("{},", index + 1)).unwrap());
    numbered.map(|loss| loss.parse().unwrap()).collect()
}

#[test]
fn losses_of_a_workload_are_written() {
    let folder = folder("losses");
    let path = folder.join("losses.csv");
    for workload in [&["--workload", "tiny"][..], &["--workload", "mlp"], &["--workload", "tiny", "--compile"]] {
        let train = |args: &[&str]| losses(&path, &[workload, args].concat());
        let noise = train(&[]);
        assert!(noise.len() == 6 && noise[5] < noise[0], "one batch is memorised: {noise:?}");
        let shapes = train(&["--batches", "6"]);
        assert!(shapes.len() == 6 && shapes[0] != noise[0] && shapes.iter().all(|loss| *loss > 0.0), "{shapes:?}");
        assert_eq!(train(&["--batches", "6"]), shapes, "the same shapes each time");
        // The first two batches alternate.
        let turns = train(&["--batches", "2"]);
        assert!(turns[..2] == shapes[..2] && turns[2..] != shapes[2..], "{turns:?}, of six batches {shapes:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn models_learn_shapes() {
    let folder = folder("shapes");
    let path = folder.join("losses.csv");
    for workload in ["resnet18gn", "unet"] {
        let args = ["--workload", workload, "--channels", "32", "--batches", "2"];
        let losses = losses(&path, &args);
        assert!(losses.len() == 6 && losses.iter().all(|loss| loss.is_finite()), "{workload}: {losses:?}");
        assert_ne!(losses[0], losses[1], "{workload}");
    }
    for size in [&["--workload", "vit"][..], &["--workload", "gpt2", "--length", "16"]] {
        let losses = losses(&path, &[size, &["--channels", "64", "--layers", "1", "--batches", "2"]].concat());
        assert!(losses.len() == 6 && losses.iter().all(|loss| loss.is_finite()), "{size:?}: {losses:?}");
        assert!(losses[0] != losses[1] && losses[4] < losses[0], "{size:?}: {losses:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn bench_reports_files_that_it_cannot_write() {
    let folder = folder("unwritable");
    let path = folder.join("no").join("losses.csv");
    // The error comes before the first of many steps.
    let output = run("bench", &["--steps", "1000000000", "--losses", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("losses.csv could not be written"), "{output:?}");
    for other in [&["--workers", "0"][..], &["--serve"], &["--kernel", "copy:8"]] {
        assert_eq!(run("bench", &[&["--batches", "2"], other].concat()).status.code(), Some(2), "{other:?}");
    }
    assert_eq!(run("bench", &["--batches", "0"]).status.code(), Some(2));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn curves_are_compared() {
    let folder = folder("curves");
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    losses(&folder.join("one.csv"), &["--batches", "6"]);
    losses(&folder.join("other.csv"), &["--batches", "2"]);
    let digits = run("digits", &["--epochs", "1", "--run", &at("digits")]);
    assert!(digits.status.success(), "{digits:?}");

    let out = at("charts");
    let pairs =
        [format!("tiny={},{}", at("one.csv"), at("other.csv")), format!("digits={},{}", at("digits"), at("digits"))];
    let output = run("curves", &["--out", &out, "--last", "2", &pairs[0], &pairs[1]]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<_> = said.lines().collect();
    assert_eq!(rows.len(), 4, "{said}");
    assert!(rows[2].starts_with("| tiny | 6 | ") && rows[2].ends_with(" % | - | - |"), "{said}");
    assert!(rows[3].starts_with("| digits | 22 | ") && rows[3].contains(" | +0.0 % | "), "{said}");
    for name in ["tiny", "digits"] {
        let svg = std::fs::read_to_string(folder.join("charts").join(format!("{name}.svg"))).unwrap();
        assert!([name, "full", "fast"].iter().all(|part| svg.contains(part)), "{svg}");
    }

    let mixed = format!("mixed={},{}", at("one.csv"), at("digits"));
    for (args, code, expected) in [
        (&[&*mixed][..], 1, "mixed: 6 steps in full precision and 22 in fast"),
        (&["none=no.csv,no.csv"], 1, "no.csv: "),
        (&["--window", "0", &pairs[0]], 1, "--window 0: must be at least 1"),
        (&["one.csv,other.csv"], 2, "write NAME=FULL,FAST"),
    ] {
        let output = run("curves", &[&["--out", &out], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {output:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
