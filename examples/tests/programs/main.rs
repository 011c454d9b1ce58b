//! The examples as programs: their output and exit codes.

mod bench;
mod curves;
mod trainings;

use std::env::{self, consts::EXE_SUFFIX};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Runs an example on the CPU.
fn run(name: &str, args: &[&str]) -> Output {
    command(name).args(args).output().unwrap()
}

/// An example, to be run on the CPU.
fn command(name: &str) -> Command {
    // Cargo puts test binaries into `deps/`. It builds the examples first, one folder above, but not with `--test`.
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(format!("{name}{EXE_SUFFIX}"));
    assert!(
        is_current(&program),
        "{} is missing or old: `cargo test -p meganeura-examples` builds it",
        program.display()
    );
    let mut command = Command::new(program);
    command.env("MEGANEURA_DEVICE", "cpu");
    command
}

/// `true` if a program is not older than the sources that Cargo lists beside it.
fn is_current(program: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let sources = std::fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let newest = sources.split_whitespace().skip(1).filter_map(|source| changed(Path::new(source))).max();
    changed(program).is_some_and(|built| newest.is_none_or(|newest| newest <= built))
}

/// A separate folder for each test, removed when the test passes.
fn folder(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("meganeura-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn last_line(output: &Output) -> Value {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().last().unwrap_or_else(|| panic!("nothing printed: {output:?}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The lines of a program that prints JSON.
fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn inspect_itemises_a_step() {
    let args = ["--model", "tiny", "--batch", "4", "--steps", "2", "--json"];
    let step = last_line(&run("inspect", &[&args[..], &["--plan"]].concat()));
    let weights = 4 * 9_962;
    assert_eq!((&step["bytes"]["parameters"], &step["bytes"]["optimizer"]), (&weights.into(), &(2 * weights).into()));
    assert_eq!(step["launches"].as_u64(), step["rows"].as_array().map(|rows| rows.len() as u64), "{step}");
    assert!(step["plan"].as_str().is_some_and(|plan| plan.contains("conv2d_grad_weight")), "{step}");
    let rows = |report: &Value| report["rows"].as_array().unwrap_or_else(|| panic!("{report}")).clone();
    let host = |part: &str| step["host_us"][part].as_f64().unwrap_or_else(|| panic!("{part}: {step}"));
    assert!(["record", "look_up", "bind", "compute"].iter().all(|part| host(part) > 0.0), "{step}");
    assert_eq!(["encode", "submit", "wait"].map(host), [0.0; 3], "on the CPU: {step}");
    assert_eq!(step["early_reads"], 0);
    let times: Vec<_> = rows(&step).iter().map(|row| row["us"].as_f64().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
    let names = |report: &Value| -> Vec<String> {
        rows(report).iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    for part in ["matmul", "head.weight", "stem.weight", "cross_entropy"] {
        assert!(names(&step).iter().any(|name| name.contains(part)), "{part}: {step}");
    }
    for (by, expected) in [("operation", "conv2d_grad_input"), ("module", "norm")] {
        let table = last_line(&run("inspect", &[&args[..], &["--by", by]].concat()));
        assert!(names(&table).iter().any(|name| name == expected), "{table}");
        let share: f64 = rows(&table).iter().map(|row| row["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-6, "{share}");
    }
    let inference = last_line(&run("inspect", &[&args[..], &["--inference"]].concat()));
    assert_eq!((&inference["bytes"]["optimizer"], &inference["plan"]), (&0.into(), &Value::Null));
    assert!(inference["bytes"]["total"].as_u64() < step["bytes"]["total"].as_u64(), "{inference}");
}

#[test]
fn inspect_writes_graphs_and_traces() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (dot, trace) = (file("plan.dot"), file("trace.json"));
    let args = ["--model", "tiny", "--batch", "4", "--steps", "2", "--json"];
    let paths = ["--dot", dot.to_str().unwrap(), "--trace", trace.to_str().unwrap()];
    let report = last_line(&run("inspect", &[&args[..], &paths].concat()));
    let dot = std::fs::read_to_string(dot).unwrap();
    assert!(dot.starts_with("digraph \"plan\" {") && dot.contains("conv2d_grad_weight"), "{dot}");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let launches = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 2).count() as u64;
    assert_eq!(Some(launches), report["launches"].as_u64().map(|launches| 2 * launches), "two steps");
    let output = run("inspect", &[&args[..], &["--dot", "/no/such/folder/plan.dot"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("/no/such/folder/plan.dot cannot be written"), "{output:?}");
}

#[test]
fn inspect_prints_every_model() {
    for (model, size) in [
        ("tiny", &[][..]),
        ("mlp", &[]),
        ("resnet18gn", &["--channels", "32"]),
        ("unet", &["--channels", "32"]),
        ("vit", &["--layers", "2"]),
        ("gpt2", &["--layers", "2", "--length", "16"]),
        ("resnet50", &["--channels", "8"]),
        ("mobilenet", &[]),
        ("lstm", &["--layers", "2", "--length", "4"]),
    ] {
        let args = ["--model", model, "--batch", "1", "--steps", "1", "--top", "2", "--inference"];
        let output = run("inspect", &[&args, size].concat());
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        for part in ["Device: CPU", "parameters", "shared slots", "share", "--top 0 shows them"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let output = run("inspect", &["--model", "unet", "--channels", "33"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("--channels 33: must be a multiple of 32"), "{output:?}");
}

#[test]
fn gradcheck_checks_every_layer() {
    let output = run("gradcheck", &["--samples", "4", "--json"]);
    let reports = lines(&output);
    for report in &reports {
        assert_eq!(report["passed"], true, "{report}");
        assert!(report["checked"].as_u64() > Some(0) && report["absolute"].as_f64() < Some(1e-5), "{report}");
    }
    // Every layer that the module re-exports, except those with several inputs.
    let source = include_str!("../../../meganeura/src/nn/mod.rs");
    let exports = source.split(';').filter_map(|item| item.split_once("pub use ")?.1.rsplit_once("::"));
    let names = exports.flat_map(|(_, names)| names.trim_matches(['{', '}']).split(',').map(str::trim));
    let several_inputs = ["TransformerDecoderLayer", "RnnCell", "LstmCell", "GruCell"];
    // Cells and sequences are generic over their gates; `FeedForward` is a part of both transformer layers.
    let parts = ["Recurrent", "RecurrentCell", "RecurrentGates", "RnnGates", "LstmGates", "GruGates", "FeedForward"];
    let values = ["LstmState", "RecurrentState", "RnnNonlinearity", "Steps", "AttentionMask", "FeedForwardActivation"];
    let helpers = ["IntoExtents", "IntoPair", "IntoTriple", "KeyValueCache"];
    // Generic over the number of axes; each of these is checked for one, two and three.
    let generic = ["Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool"];
    let others = [&several_inputs[..], &parts, &values, &helpers, &generic].concat();
    let is_layer = |name: &&str| {
        !name.is_empty() && !name.ends_with("Config") && !name.ends_with("Options") && !others.contains(name)
    };
    let layers: Vec<_> = names.filter(is_layer).collect();
    assert!(layers.len() > 25, "{layers:?}");
    for layer in layers {
        assert!(reports.iter().any(|report| report["layer"] == layer), "{layer} is not checked");
    }
}

#[test]
fn gradcheck_checks_second_derivatives() {
    for report in lines(&run("gradcheck", &["--second", "--only", "norm", "--samples", "4", "--json"])) {
        assert_eq!(report["passed"], true, "{report}");
        // The input and the cotangent at least.
        assert!(report["tensors"].as_u64() >= Some(2), "{report}");
    }
}

#[test]
fn gradcheck_fails_beyond_the_tolerance() {
    let output = run("gradcheck", &["--only", "gelu", "--atol", "1e-300", "--rtol", "0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("FAIL") && said.contains("2 layers, 2 failed") && said.contains("worst at"), "{said}");
    let output = run("gradcheck", &["--only", "gelu"]);
    assert!(output.status.success(), "{output:?}");
    let output = run("gradcheck", &["--only", "no such layer"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("--only no such layer: ") && stderr(&output).contains("Linear, "), "{output:?}");
    assert_eq!(run("gradcheck", &["--samples", "0"]).status.code(), Some(2));
}

#[test]
fn a_custom_operation_is_checked_and_trained_through() {
    let output = run("custom_op", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("ok   input 0").count(), 2, "{text}");
    assert!(text.trim_end().ends_with("and it rises"), "{text}");
    let losses: Vec<f64> = text.lines().filter_map(|line| line.split_once("loss ")?.1.parse().ok()).collect();
    assert!(losses.len() == 5 && losses[4] < 0.1 * losses[0], "{text}");
    let output = run("custom_op", &["--device", "none has such a name"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("error: no adapter") && output.stdout.is_empty(), "{output:?}");
}

/// The guide's page on custom operations shows the example's code.
#[test]
fn the_guide_shows_the_operation() {
    let page = include_str!("../../../meganeura/src/guide/custom_op.md");
    let source = include_str!("../../custom_op/cumsum.rs");
    let code = source.split_once("\n\n").unwrap().1;
    assert!(page.contains(code.trim_end()), "guide/custom_op.md and examples/custom_op/cumsum.rs differ");
}
