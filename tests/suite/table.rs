//! The largest measured error of every operation and kernel.
//!
//! With `--table` before the other arguments, the errors are printed after the tests. Without a filter, only the tests
//! of operations run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use libtest_mimic::{Arguments, Conclusion};
use meganeura::ops::case::Case;
use meganeura::{Device, KernelChoice, Precision};

use crate::adapter::adapter;

/// The arguments that request a table, each with the tests that fill it and the function that prints it.
const TABLES: [(&str, &str, Print); 2] =
    [("--table", "ops::", print), ("--agreement", "pytorch::", crate::pytorch::print)];

type Print = fn(&Conclusion);

/// The compared part of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Result,
    Gradient,
}

/// The errors of one kernel: the largest of each case.
#[derive(Default)]
struct Row {
    results: BTreeMap<String, f64>,
    gradients: BTreeMap<String, f64>,
}

/// Rows by operation and executor.
static ROWS: Mutex<BTreeMap<(String, Way), Row>> = Mutex::new(BTreeMap::new());

/// The executor of an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Native(&'static str),
    /// The variant of a kernel. `None` if other operations' kernels do the work, or if the planner writes the kernel.
    Wgsl(Option<&'static str>, &'static str),
}

impl Way {
    fn new(device: &Device, variant: Option<&'static str>) -> Self {
        match (device.is_gpu(), device.precision()) {
            (false, Precision::Double) => Self::Native("f64"),
            (false, _) => Self::Native("f32"),
            (true, Precision::Fast) => Self::Wgsl(variant, " (fast)"),
            (true, _) => Self::Wgsl(variant, ""),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(precision) => write!(f, "native {precision}"),
            Self::Wgsl(variant, precision) => {
                write!(f, "wgsl{}{}{precision}", variant.map_or("", |_| ", "), variant.unwrap_or(""))
            }
        }
    }
}

/// Notes the error of a comparison for every kernel that took part, and for the case's operation if it is none of
/// these.
pub(crate) fn note(case: &Case, device: &Device, kernels: &[KernelChoice], part: Part, error: f64) {
    let op = case.op.as_str();
    let mut ways: Vec<_> = kernels.iter().map(|kernel| (kernel.op, Way::new(device, Some(kernel.variant)))).collect();
    if kernels.iter().all(|kernel| kernel.op != op) {
        ways.push((op, Way::new(device, None)));
    }
    let mut rows = ROWS.lock().expect("notes do not panic");
    for (op, way) in ways {
        let row = rows.entry((op.to_owned(), way)).or_default();
        let errors = if part == Part::Result { &mut row.results } else { &mut row.gradients };
        let largest = errors.entry(case.name.clone()).or_insert(0.0);
        *largest = largest.max(error);
    }
}

/// The arguments for the tests, and the function that prints the requested table.
pub(crate) fn arguments() -> (Arguments, Option<Print>) {
    let asked = |argument: &String| TABLES.iter().find(|(name, ..)| argument == name);
    let table = std::env::args().find_map(|argument| asked(&argument));
    let mut arguments = Arguments::from_iter(std::env::args().filter(|argument| asked(argument).is_none()));
    if let Some((_, tests, _)) = table {
        arguments.quiet = true;
        arguments.filter.get_or_insert_with(|| (*tests).to_owned());
    }
    (arguments, table.map(|&(.., print)| print))
}

/// Prints the noted errors.
fn print(conclusion: &Conclusion) {
    match adapter() {
        Ok(device) => println!("native: this CPU; wgsl: {device}"),
        Err(why) => println!("native: this CPU; wgsl: not here, {why}"),
    }
    println!(
        "Largest errors, relative to the largest magnitude of the reference, at least 1. The reference is native f64; that of\n\
         its own results an obvious loop, that of its gradients finite differences, which err as much themselves. In\n\
         gradients: of every operation whose gradient the kernel had a part in. Last, the case with the largest error.\n"
    );
    let (of_results, of_gradients) = ("results: cases, error", "in gradients: cases, error");
    println!("{:<24} {:<22} {of_results:>22} {of_gradients:>27}  case", "operation", "computed by");
    for ((op, way), row) in &*ROWS.lock().expect("notes do not panic") {
        let cell = |errors: &BTreeMap<String, f64>| match errors.values().copied().reduce(f64::max) {
            Some(largest) => format!("{:>6} {largest:>9.1e}", errors.len()),
            None => "-".to_owned(),
        };
        let worst = row.results.iter().chain(&row.gradients).max_by(|a, b| a.1.total_cmp(b.1));
        let worst = worst.map_or("", |(case, _)| case.as_str());
        let (results, gradients) = (cell(&row.results), cell(&row.gradients));
        println!("{op:<24} {:<22} {results:>22} {gradients:>27}  {worst}", way.to_string());
    }
    if conclusion.num_failed > 0 {
        println!("\n{} tests failed: the comparisons that failed are not in the table", conclusion.num_failed);
    }
}
