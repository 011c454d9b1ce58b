//! Times one operation: its forward pass and its gradients, each in a separate plan.
//!
//! A single gradient is the gradient of `Σ y·dy` for a random `dy`; its plan contains only the part of the forward pass
//! that it needs. Runs rotate among several sets of operands, so that no cache holds them from one run to the next.

mod corner;
mod measure;
mod spec;

use serde_json::Value;

pub use spec::{Kernel, Kernels, Pass};

use meganeura::world::World;

use crate::{Accuracy, Failure, Options, Report, choose_device, json, rounded};
use measure::{Bench, Times};
use spec::Work;

/// Measures the requested passes of each kernel, and prints a line for each as soon as it is done.
pub fn run(kernels: &Kernels, options: &Options) -> Result<(), Failure> {
    for kernel in kernels.list().map_err(Failure::Unsupported)? {
        run_one(kernel, options, matches!(kernels, Kernels::One(_)))?;
    }
    Ok(())
}

/// Measures a kernel. One that is `alone` must have what the options ask for.
fn run_one(kernel: Kernel, options: &Options, alone: bool) -> Result<(), Failure> {
    if options.check && options.precision == Accuracy::Double {
        return Err(Failure::Unsupported("double precision has no reference for --check: it is the reference".into()));
    }
    let device = choose_device(options, &World::alone())?;
    let makes_a_difference = options.precision == Accuracy::Fast && device.is_gpu();
    if options.inside && !(makes_a_difference && (kernel.operations().is_some() || !alone)) {
        return Err(Failure::Unsupported(
            "--inside makes a difference only for convolutions, products and attention in fast precision on a GPU"
                .into(),
        ));
    }
    let wanted = |pass: &&Pass| options.pass.is_none_or(|wanted| wanted == **pass);
    if alone && !kernel.passes().iter().any(|pass| wanted(&pass)) {
        let passes: Vec<_> = kernel.passes().iter().map(ToString::to_string).collect();
        return Err(Failure::Unsupported(format!("{kernel} has no such pass; there are {}", passes.join(", "))));
    }
    let mut bench = Bench::new(kernel, &device, options)?;
    for &pass in kernel.passes().iter().filter(wanted) {
        let times = bench.time(pass)?;
        let error = if options.check { bench.error(pass)? } else { None };
        let report = report(&bench, pass, options, &times, error);
        println!("{}", if options.json { json(&report) } else { line(&report) });
    }
    Ok(())
}

fn report(bench: &Bench, pass: Pass, options: &Options, times: &Times, error: Option<f64>) -> Report {
    let kernel = bench.kernel;
    let seconds = times.median / 1e3;
    let rate: (_, Value) = match kernel.work(pass) {
        Work::Flops(flops) => ("tflops", rounded(flops / seconds / 1e12, 5).into()),
        Work::Bytes(bytes) => ("gbps", rounded(bytes / seconds / 1e9, 3).into()),
    };
    let mut report = vec![
        ("framework", "meganeura".into()),
        ("device", bench.device.to_string().into()),
        ("precision", options.precision.to_string().into()),
        ("inside", bench.inside.into()),
        ("kernel", kernel.to_string().into()),
        ("pass", pass.to_string().into()),
        ("ms", rounded(times.median, 6).into()),
        ("ms_min", rounded(times.min, 6).into()),
        ("packing_ms", times.packing.map(|packing| rounded(packing, 6)).into()),
        rate,
        ("variant", times.variant().into()),
        ("launches", times.launches.into()),
        ("microseconds", times.kernels.join(", ").into()),
        ("timer", times.timer.into()),
        ("sets", bench.sets.len().into()),
    ];
    if options.check {
        report.push(("error", error.into()));
    }
    report
}

/// The report as a human-readable line.
fn line(report: &Report) -> String {
    let value = |key: &str| report.iter().find(|(name, _)| *name == key).map(|(_, value)| value);
    let text = |key: &str| value(key).map_or_else(String::new, |value| value.as_str().unwrap_or("").to_owned());
    let number = |key: &str| value(key).and_then(Value::as_f64);
    let rate = match number("tflops") {
        Some(rate) => format!("{rate:8.2} TFLOP/s"),
        None => format!("{:8.1} GB/s   ", number("gbps").unwrap_or(f64::NAN)),
    };
    let ms = number("ms").unwrap_or(f64::NAN);
    let launches = number("launches").unwrap_or(f64::NAN);
    let error = number("error").map_or_else(String::new, |error| format!("  error {error:.1e}"));
    format!(
        "{} {:11} {ms:10.4} ms {rate}  launches {launches}{error}  {}",
        text("kernel"),
        text("pass"),
        text("variant")
    )
}
