//! Where does the time of a step go? Prints a reference model, its memory, a training step's cost on the host, and the
//! time of each launch.
//!
//! ```text
//! cargo run --release --example inspect -- --model tiny
//! cargo run --release --example inspect -- --model resnet18gn --batch 16 --channels 32 --by module --device cpu
//! cargo run --release --example inspect -- --model unet --inference --plan
//! cargo run --release --example inspect -- --model resnet18gn --dot plan.dot --svg plan.svg --trace trace.json
//! ```
//!
//! `plan.dot` is the plan in Graphviz's language; `--svg` draws it with Graphviz's `dot`. `trace.json` opens in
//! `chrome://tracing` and in <https://ui.perfetto.dev>.
//!
//! For your own model, do the same as [`profile`]: turn profiling on, run a few steps, and read `Device::last_profile`
//! after each. A launch is a kernel on a GPU, and a step of the plan on the CPU; its number is the line in the plan's
//! dump (`--plan`). A launch that reads or updates parameters names them. Its bytes are the minimum that it moves, with
//! each tensor counted once.

#[path = "bench/models.rs"]
mod models;

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use meganeura::prelude::*;
use meganeura::{HostTimes, LaunchTime, Memory, Profile, Profiling};
use meganeura_examples::training::expect_multiple;
use models::{Gpt2, LstmLanguage, Mlp, MobileNetV2, ResNet18Gn, ResNet50, Tiny, UNet, ViT};
use serde_json::{Value, json};

/// Shows where the time and memory of a model's training step go.
#[derive(Parser, Debug)]
struct Options {
    #[arg(long, value_enum, default_value_t = Name::Tiny)]
    model: Name,
    /// The device: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    device: String,
    /// Examples per step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Channels of the first layer of resnet18gn and unet, a multiple of 32, or of resnet50; features of a token of vit
    /// and gpt2, a multiple of 64, or of lstm
    #[arg(long, default_value_t = 64)]
    channels: usize,
    /// Layers of vit, gpt2 and lstm
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Tokens of a sequence of gpt2 and lstm
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    length: u32,
    /// Run a forward pass on an inference tape instead of a training step
    #[arg(long)]
    inference: bool,
    /// Timed steps; the table shows the median of each launch
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// The grouping of the table's lines
    #[arg(long, value_enum, default_value_t = By::Launch)]
    by: By,
    /// Lines of the table; 0 means all
    #[arg(long, default_value_t = 25)]
    top: usize,
    /// Levels of the model's tree to print
    #[arg(long, default_value_t = 2)]
    depth: usize,
    /// Also print the plan: launches, fused operations, places of results
    #[arg(long)]
    plan: bool,
    /// Write the plan as a graph in Graphviz's language
    #[arg(long)]
    dot: Option<PathBuf>,
    /// Draw the plan, with Graphviz's program `dot`
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Write the timed steps as a trace of host and launches, for chrome://tracing and Perfetto
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Name {
    Tiny,
    Mlp,
    Resnet18gn,
    Unet,
    Vit,
    Gpt2,
    Resnet50,
    Mobilenet,
    Lstm,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Each launch
    Launch,
    /// All launches of an operation
    Operation,
    /// All launches of one layer of the model, as far as they read or update its parameters
    Module,
}

fn main() -> ExitCode {
    meganeura_examples::run(run)
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    if matches!(options.model, Name::Resnet18gn | Name::Unet) {
        expect_multiple("--channels", 32, options.channels)?;
    }
    if matches!(options.model, Name::Vit | Name::Gpt2) {
        expect_multiple("--channels", 64, options.channels)?;
    }
    let device = meganeura_examples::device(&options.device)?;
    let (batch, channels) = (options.batch as usize, options.channels);
    let random = |name: &str, shape: Shape| Tensor::randn(&device, shape, Seed::new(1).field(name));
    let classes: Vec<_> = (0..options.batch).map(|example| example % 10).collect();
    let labels = Tensor::indices(&device, [batch], &classes)?;
    let tokens = || {
        let tokens: Vec<_> = (0..options.batch * options.length).map(|token| token % 10_000).collect();
        Tensor::indices(&device, [batch, options.length as usize], &tokens)
    };
    let adamw = || AdamW::new(1e-3).weight_decay(1e-2);
    let sgd = || Sgd::new(0.1).momentum(0.9).weight_decay(5e-4);
    let classify = |scores: Var| if options.inference { scores } else { scores.cross_entropy(&labels) };
    match options.model {
        Name::Tiny => {
            let x = random("x", [batch, 1, 8, 8].into())?;
            let forward = |net: &Tiny, x: &[Var]| classify(net.forward(&x[0]));
            report(options, &device, Tiny::init(&device, 1)?, adamw(), &[x], forward)
        }
        Name::Mlp => {
            let x = random("x", [batch, 784].into())?;
            let forward = |net: &Mlp, x: &[Var]| classify(net.forward(&x[0]));
            report(options, &device, Mlp::init(&device, 1)?, adamw(), &[x], forward)
        }
        Name::Resnet18gn => {
            let net = ResNet18Gn::init(&device, 1, models::resnet18gn(channels))?;
            let x = random("x", [batch, 3, 32, 32].into())?;
            let forward = |net: &ResNet18Gn, x: &[Var]| classify(net.forward(&x[0]));
            report(options, &device, net, sgd(), &[x], forward)
        }
        Name::Unet => {
            let net = UNet::init(&device, 1, models::unet(channels))?;
            let images = |name| random(name, [batch, 3, 32, 32].into());
            let x = [images("x")?, Tensor::full(&device, [batch], 500.0)?, images("noise")?];
            let forward = |net: &UNet, x: &[Var]| {
                let noise = net.forward(&x[0], &x[1]);
                if options.inference { noise } else { noise.mse(&x[2]) }
            };
            report(options, &device, net, adamw(), &x, forward)
        }
        Name::Vit => {
            let net = ViT::init(&device, 1, models::vit(channels, options.layers))?;
            let x = random("x", [batch, 3, 224, 224].into())?;
            let forward = |net: &ViT, x: &[Var]| classify(net.forward(&x[0]));
            report(options, &device, net, adamw(), &[x], forward)
        }
        Name::Gpt2 => {
            let net = Gpt2::init(&device, 1, models::gpt2(channels, options.layers, options.length as usize))?;
            let forward = |net: &Gpt2, x: &[Var]| {
                if options.inference { net.forward(&x[0]) } else { net.loss(&x[0], &x[0]) }
            };
            report(options, &device, net, adamw(), &[tokens()?], forward)
        }
        Name::Resnet50 => {
            let net = ResNet50::init(&device, 1, models::resnet50(channels))?;
            let x = random("x", [batch, 3, 224, 224].into())?;
            let forward = |net: &ResNet50, x: &[Var]| classify(net.forward(&x[0]));
            report(options, &device, net, sgd(), &[x], forward)
        }
        Name::Mobilenet => {
            let net = MobileNetV2::init(&device, 1, models::mobilenet())?;
            let x = random("x", [batch, 3, 224, 224].into())?;
            let forward = |net: &MobileNetV2, x: &[Var]| classify(net.forward(&x[0]));
            report(options, &device, net, sgd(), &[x], forward)
        }
        Name::Lstm => {
            let net = LstmLanguage::init(&device, 1, models::lstm(channels, options.layers))?;
            let forward = |net: &LstmLanguage, x: &[Var]| {
                if options.inference { net.forward(&x[0]) } else { net.loss(&x[0], &x[0]) }
            };
            report(options, &device, net, adamw(), &[tokens()?], forward)
        }
    }
}

/// The last run of each step, launch by launch, after a step that plans it.
fn profile(device: &Device, steps: u32, mut step: impl FnMut() -> Result<()>) -> Result<Vec<Profile>> {
    step()?;
    device.set_profiling(Profiling::Launches)?;
    let mut runs = Vec::new();
    for _ in 0..steps {
        step()?;
        runs.push(device.last_profile()?);
    }
    device.set_profiling(Profiling::Off)?;
    Ok(runs)
}

/// The median time of each launch.
fn middle(runs: &[Profile]) -> Vec<LaunchTime> {
    let mut launches = runs[0].launches.clone();
    for (at, launch) in launches.iter_mut().enumerate() {
        let mut times: Vec<Duration> = runs.iter().map(|run| run.launches[at].duration).collect();
        times.sort_unstable();
        launch.duration = times[times.len() / 2];
    }
    launches
}

/// The mean time of a step and its breakdown on the host, after two steps that plan it and allocate its memory.
fn host_time(device: &Device, steps: u32, mut step: impl FnMut() -> Result<()>) -> Result<(Duration, HostTimes)> {
    step()?;
    step()?;
    let (before, begin) = (device.stats().host, Instant::now());
    (0..steps).try_for_each(|_| step())?;
    Ok((begin.elapsed() / steps, device.stats().host.since(&before)))
}

/// The names of the parts of the host's time, with the time of each per step. The rest is recording.
fn host_rows(options: &Options, wall: Duration, host: &HostTimes) -> Vec<(&'static str, f64)> {
    let HostTimes { look_up, bind, encode, submit, wait, compute, .. } = *host;
    let parts = [("look_up", look_up), ("bind", bind), ("encode", encode), ("submit", submit)];
    let parts = parts.into_iter().chain([("wait", wait), ("compute", compute)]);
    let parts: Vec<_> = parts.map(|(name, time)| (name, time / options.steps)).collect();
    let known: Duration = parts.iter().map(|(_, time)| *time).sum();
    let rows = [("record", wall.saturating_sub(known))].into_iter().chain(parts);
    rows.map(|(name, time)| (name, micro(time))).collect()
}

fn report<M: Module, O: Optimizer>(
    options: &Options,
    device: &Device,
    mut net: M,
    mut optimizer: O,
    inputs: &[Tensor],
    forward: impl Fn(&M, &[Var]) -> Var,
) -> Result<(), Box<dyn Error>> {
    let mut step = || -> Result<()> {
        let tape = if options.inference { Tape::inference(device) } else { Tape::new(device) };
        let inputs: Vec<_> = inputs.iter().map(|x| tape.input(x)).collect();
        let y = forward(&net, &inputs);
        if !options.inference {
            let grads = tape.backward(&y)?;
            optimizer.step(&mut net, &grads)?;
        }
        if options.inference { y.to_tensor()?.device().wait() } else { y.item().map(drop) }
    };
    let (wall, host) = host_time(device, options.steps, &mut step)?;
    let host = host_rows(options, wall, &host);
    let runs = profile(device, options.steps, step)?;
    let launches = middle(&runs);
    write_drawings(options, &device.plan_dots().pop().unwrap_or_default())?;
    if let Some(path) = &options.trace {
        write(path, &Profile::chrome_trace(&runs))?;
    }
    let memory = device.plan_memory().pop().unwrap_or_default();
    let parameters: usize = net.leaves().iter().map(|leaf| leaf.ty().bytes()).sum();
    let batch: usize = inputs.iter().map(|x| x.ty().bytes()).sum::<usize>() + 4 * options.batch as usize;
    // The rest of a step's tensors, besides the model and the batch, belongs to the optimizer.
    let state = if options.inference { 0 } else { memory.leaves.saturating_sub(parameters + batch) };
    let total: Duration = launches.iter().map(|launch| launch.duration).sum();
    let rows = rows(&launches, options.by);
    let dump = device.plan_dumps().pop().unwrap_or_default();
    if options.json {
        let rows: Vec<_> = rows.iter().map(|row| row.json(total)).collect();
        let plan = if options.plan { Value::from(dump) } else { Value::Null };
        let line = json!({
            "device": device.to_string(), "parameters": net.parameter_count(), "launches": launches.len(),
            "us": micro(total), "rows": rows, "plan": plan, "host_us": host.into_iter().collect::<HashMap<_, _>>(),
            "early_reads": device.stats().early_reads,
            "bytes": {
                "parameters": parameters, "optimizer": state, "slots": memory.slots, "handed_out": memory.outputs,
                "total": memory.total(),
            },
        });
        println!("{line}");
        return Ok(());
    }
    println!("Device: {device} — {}\n\n{}\n", device.reason(), net.summary().depth(options.depth));
    if options.plan {
        println!("{dump}");
    }
    print_memory(&memory, parameters, state);
    print_host(wall, &host, device.stats().early_reads);
    print_table(options, &rows, &launches, total);
    Ok(())
}

/// Writes the graph of a plan, and draws it.
fn write_drawings(options: &Options, dot: &str) -> Result<(), Box<dyn Error>> {
    if let Some(path) = &options.dot {
        write(path, dot)?;
    }
    let Some(path) = &options.svg else { return Ok(()) };
    let draw = Command::new("dot").args(["-Tsvg", "-o"]).arg(path).stdin(Stdio::piped()).spawn();
    let mut draw = draw.map_err(|error| {
        format!("--svg: cannot start `dot` ({error}); install Graphviz, or draw the file of --dot elsewhere")
    })?;
    draw.stdin.take().expect("a pipe").write_all(dot.as_bytes())?;
    match draw.wait()?.success() {
        true => Ok(()),
        false => Err(format!("--svg: `dot` could not write {}", path.display()).into()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    fs::write(path, text).map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
}

fn print_memory(memory: &Memory, parameters: usize, state: usize) {
    let slots: usize = memory.slots.iter().sum();
    println!("Memory of a step, MiB");
    println!("{:>10.2}  parameters and buffers\n{:>10.2}  optimizer state", mebi(parameters), mebi(state));
    println!("{:>10.2}  activations, gradients and scratch, in {} shared slots", mebi(slots), memory.slots.len());
    println!("{:>10.2}  in all, with the batch and the results\n", mebi(memory.total()));
}

fn print_host(wall: Duration, rows: &[(&str, f64)], early_reads: u64) {
    println!("Host, {:.1} µs a step when launches are not timed", micro(wall));
    for (name, us) in rows {
        let what = match *name {
            "record" => "recording forward, backward and update; dropping the tape",
            "look_up" => "finding the plan",
            "bind" => "collecting tensors and memory",
            "encode" => "encoding commands",
            "submit" => "submitting them",
            "wait" => "waiting for the device",
            _ => "computing, on the CPU",
        };
        println!("{us:>10.1}  {what}");
    }
    println!("{early_reads:>10}  steps whose loss was read before the step, which runs the forward pass twice\n");
}

fn print_table(options: &Options, rows: &[Row], launches: &[LaunchTime], total: Duration) {
    println!("{} launches, {:.1} µs", launches.len(), micro(total));
    println!("{:>10} {:>6} {:>5} {:>9} {:>8}  what", "µs", "share", "times", "MiB", "GB/s");
    let shown = if options.top == 0 { rows.len() } else { options.top.min(rows.len()) };
    for row in &rows[..shown] {
        let share = 100.0 * row.time.as_secs_f64() / total.as_secs_f64();
        let (us, mib, rate) = (micro(row.time), mebi(row.bytes), row.rate());
        println!("{us:>10.1} {share:>5.1}% {:>5} {mib:>9.3} {rate:>8.1}  {}", row.count, row.name);
    }
    if shown < rows.len() {
        let rest: Duration = rows[shown..].iter().map(|row| row.time).sum();
        println!("{:>10.1}  in {} more; --top 0 shows them", micro(rest), rows.len() - shown);
    }
}

/// A line of the table.
struct Row {
    name: String,
    time: Duration,
    count: usize,
    bytes: usize,
}

impl Row {
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9) / 1e9
    }

    fn json(&self, total: Duration) -> Value {
        let share = self.time.as_secs_f64() / total.as_secs_f64().max(1e-12);
        json!({ "name": self.name, "us": micro(self.time), "share": share, "times": self.count, "bytes": self.bytes })
    }
}

/// The launches or groups of launches, slowest first.
fn rows(launches: &[LaunchTime], by: By) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for launch in launches {
        let name = match by {
            By::Launch => full_name(launch),
            By::Operation => launch.op.to_owned(),
            By::Module => launch.parameters.first().map_or("(no parameters)", |path| parent(path)).to_owned(),
        };
        let known = rows.iter_mut().find(|row| by != By::Launch && row.name == name);
        let (time, bytes) = (launch.duration, launch.bytes);
        match known {
            Some(row) => (row.time, row.count, row.bytes) = (row.time + time, row.count + 1, row.bytes + bytes),
            None => rows.push(Row { name, time, count: 1, bytes }),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.time));
    rows
}

fn full_name(launch: &LaunchTime) -> String {
    let LaunchTime { step, name, variant, op, parameters, .. } = launch;
    let of = if op == name { String::new() } else { format!(" of {op}") };
    let variant = if variant.is_empty() { String::new() } else { format!(" ({variant})") };
    let paths = parameters.iter().map(|path| &**path).collect::<Vec<_>>().join(", ");
    format!("#{step} {name}{variant}{of}  {paths}").trim_end().to_owned()
}

/// The layer of a parameter.
fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(layer, _)| layer)
}

fn micro(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn mebi(bytes: usize) -> f64 {
    bytes as f64 / 1_048_576.0
}
