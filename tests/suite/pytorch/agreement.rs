//! The table of differences from PyTorch: the largest error of every layer, loss, optimizer and model, for each
//! executor and precision.
//!
//! `--agreement` before the other arguments prints it after the tests, as rows of Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use libtest_mimic::Conclusion;
use meganeura::{Device, Precision};

use crate::adapter::adapter;

/// The columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Executor {
    Double,
    Native,
    Gpu,
    /// On matrix units.
    Fast,
}

#[derive(Default)]
struct Row {
    cases: BTreeSet<String>,
    errors: BTreeMap<Executor, f64>,
}

/// The parts of the table, by the cases' file, and what the rows of a part have in common beyond their names.
const PARTS: [(&str, &str); 10] = [
    ("models", ""),
    ("layers", ""),
    ("sequences", ""),
    ("windows", ", further options"),
    ("losses", ""),
    ("functions", ""),
    ("attention", ", some queries see no key"),
    ("penalties", ", differentiated again"),
    ("optimizers", ""),
    ("schedules", ""),
];

/// Rows by part and by PyTorch's name.
static ROWS: Mutex<BTreeMap<(usize, String), Row>> = Mutex::new(BTreeMap::new());

/// Notes the error of a case on a device.
pub(super) fn note(file: &str, case: &str, device: &Device, error: f64) {
    let executor = match (device.is_gpu(), device.precision()) {
        (true, Precision::Fast) => Executor::Fast,
        (true, _) => Executor::Gpu,
        (false, Precision::Double) => Executor::Double,
        (false, _) => Executor::Native,
    };
    add(file, case, executor, error);
}

/// Notes the error of a schedule, which runs on no device.
pub(super) fn note_schedule(case: &str, error: f64) {
    add("schedules", case, Executor::Double, error);
}

fn add(file: &str, case: &str, executor: Executor, error: f64) {
    let part = PARTS.iter().position(|(part, _)| *part == file).expect("every file is a part");
    let mut rows = ROWS.lock().expect("notes do not panic");
    let row = rows.entry((part, subject(case))).or_default();
    row.cases.insert(case.to_owned());
    let largest = row.errors.entry(executor).or_insert(0.0);
    *largest = largest.max(error);
}

/// The module or function of an expression, with `.eval()` if it is in evaluation mode.
fn subject(case: &str) -> String {
    let mode = if case.ends_with(".eval()") { ".eval()" } else { "" };
    let name = case.split('(').next().unwrap_or(case);
    // A chain is named after its function.
    let name = if name == "nn.Sequential" { "nn.AdaptiveAvgPool2d(1)" } else { name.trim_end_matches(".eval") };
    format!("{name}{mode}")
}

/// Prints the noted errors.
pub(crate) fn print(conclusion: &Conclusion) {
    match adapter() {
        Ok(device) => match device.with_precision(Precision::Fast) {
            Ok(_) => println!("GPU: {device}\n"),
            Err(why) => println!("GPU: {why}\n"),
        },
        Err(why) => println!("GPU: not here, {why}\n"),
    }
    println!("| PyTorch | cases | f64 | f32, native | f32, GPU | fast, GPU |\n|---|---|---|---|---|---|");
    for ((part, name), Row { cases, errors }) in &*ROWS.lock().expect("notes do not panic") {
        let cell = |executor| match errors.get(&executor) {
            Some(0.0) => "0".to_owned(),
            Some(error) => format!("{error:.0e}"),
            None => "-".to_owned(),
        };
        let [double, native, gpu, fast] = [Executor::Double, Executor::Native, Executor::Gpu, Executor::Fast].map(cell);
        let (_, more) = PARTS[*part];
        println!("| `{name}`{more} | {} | {double} | {native} | {gpu} | {fast} |", cases.len());
    }
    if conclusion.num_failed > 0 {
        println!("\n{} tests failed", conclusion.num_failed);
    }
}
