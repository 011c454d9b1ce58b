//! Times a training step of a reference workload (forward, loss, backward, update, and reading the loss), or one
//! operation.
//!
//! ```text
//! cargo run --release --example bench -- --workload tiny --device cpu --json
//! python3 examples/bench/torch_twin.py --workload tiny --device cpu --json
//! cargo run --release --example bench -- --kernel matmul:1024 --device cpu --json
//! python3 examples/bench/torch_twin.py --kernel matmul:1024 --device cpu --json
//! ```
//!
//! The second and the last line time the same in PyTorch. The data is random, and made once, on the device; with
//! `--workers` it is images that threads decode from files and augment. Every step reads the loss, which waits for the
//! device, so nothing is left running when the clock stops.
//!
//! `--losses FILE` writes the loss of every step. A single random batch is soon memorised, so a meaningful curve needs
//! `--batches`, which trains on coloured shapes; the example `curves` draws two such files in one chart.

mod kernel;
mod language;
mod lengths;
mod models;
#[cfg_attr(not(feature = "images"), path = "no_pictures.rs")]
mod pictures;
mod precisions;
mod serve;
mod shapes;
mod workload;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use meganeura::world::World;
use meganeura::{Device, Error, ErrorKind, PipelineCache, Precision, Profiling};
use meganeura_examples::{losses, ranks};
use serde_json::Value;

use kernel::{Kernels, Pass};
use workload::{Data, Name, Ranks, Size};

/// Times a training step, or one operation.
#[derive(Parser, Debug)]
struct Options {
    #[arg(long, value_enum, default_value_t = Name::Tiny)]
    workload: Name,
    /// Time one operation instead, a line for each pass: matmul:SIDE, matmul:M,K,N, conv1d:N,C,L,K,R,STRIDE,
    /// conv2d:N,C,H,K,R,STRIDE (square images and kernels, padding R/2), conv3d:N,C,D,H,K,R,STRIDE,
    /// depthwise:N,C,H,W,R,STRIDE, grouped:N,C,H,W,R,STRIDE,CHANNELS (in and out, of a group), group_norm:N,C,H,W (32
    /// groups, then SiLU), linear_gelu:M,K,N, layer_norm:M,N, embedding:ROWS,COUNT,WIDTH, cross_entropy:M,CLASSES,
    /// attention:B,HEADS,L,D (or causal_attention; composed_attention keeps the scores in memory), copy:BYTES,
    /// topk:M,N,K, sort:M,N, permute:A,B,C, transpose:M,N, grid_sample:N,C,H,W, argmax_gather:M,N, gelu:COUNT,
    /// cumsum:M,N, max_pool:N,C,H,R,STRIDE, avg_pool:N,C,H,R,STRIDE, lstm:T,N,H. standard times a list of kernels,
    /// standard:TEXT those of the list that contain a text; corners and corners:TEXT do so with another list
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["workload", "batch"])]
    kernel: Option<Kernels>,
    /// Time only this pass of the kernel
    #[arg(long, value_enum, requires = "kernel")]
    pass: Option<Pass>,
    /// Override the device's choice of variant, by name or number, for every operation that has it or for one
    #[arg(long, requires = "kernel", value_name = "[OPERATION=]VARIANT")]
    variant: Option<String>,
    /// Time a convolution, a product or an attention on values in the memory format between the layers of a network: in
    /// fast precision, bf16. Only its own launches count, each timed separately
    #[arg(long, requires = "kernel", conflicts_with = "check")]
    inside: bool,
    /// Compare the kernel's results with those in double precision on the CPU
    #[arg(long, requires = "kernel")]
    check: bool,
    /// The device: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    device: String,
    /// Examples per step [default: 64, mlp 1024, resnet18gn 128, gpt2 8]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Channels of the first layer of resnet18gn (64) or unet (128), a multiple of 32, or of resnet50 (64), of 8;
    /// features of a token of vit (384) or gpt2 (768), a multiple of 64, or of lstm (512), of 8
    #[arg(long, conflicts_with = "kernel", value_parser = clap::value_parser!(u32).range(1..))]
    channels: Option<u32>,
    /// Layers of vit or gpt2 (12), or of lstm (2)
    #[arg(long, conflicts_with = "kernel", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Tokens of a sequence of gpt2 (1,024) or lstm (128)
    #[arg(long, conflicts_with = "kernel", value_parser = clap::value_parser!(u32).range(1..))]
    length: Option<u32>,
    /// Read the examples of tiny, resnet18gn, vit, resnet50 or mobilenet from a folder of PNG images, with random crops
    /// and flips, on this number of threads; with 0, the training thread reads them
    #[arg(long, value_name = "THREADS", conflicts_with = "kernel")]
    workers: Option<usize>,
    /// Train on this number of batches of coloured shapes, gpt2 and lstm on passages of a play, in turn, instead of
    /// on one random batch. They are made before the first step and stay in the device's memory
    #[arg(long, conflicts_with_all = ["kernel", "serve", "workers"], value_parser = clap::value_parser!(u32).range(1..))]
    batches: Option<u32>,
    /// The seed of these batches
    #[arg(long, default_value_t = 42, requires = "batches")]
    seed: u64,
    /// Override the workload's learning rate
    #[arg(long, conflicts_with_all = ["kernel", "serve"])]
    lr: Option<f64>,
    /// Write the loss of every step, warm-up included, as lines of `step,loss`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernel", "serve"])]
    losses: Option<PathBuf>,
    /// Timed steps, or timed runs of the kernel
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Steps before the timed ones, in addition to the first step, which is timed separately
    #[arg(long, default_value_t = 10)]
    warmup: u32,
    #[arg(long, value_enum, default_value_t = Accuracy::Full)]
    precision: Accuracy,
    /// Train with this number of processes, each with its own GPU and the batch size of a single process; needs the
    /// feature `mpi`, and `mpirun`
    #[arg(long, conflicts_with_all = ["kernel", "serve", "workers"], value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// Shard the optimizer's state over the processes
    #[arg(long, conflicts_with_all = ["kernel", "serve"])]
    shard: bool,
    /// Exchange gradients between processes in bf16, where NCCL links the GPUs and the precision is `fast`
    #[arg(long, conflicts_with = "shard")]
    average_bf16: bool,
    /// Record the step once, instead of on a new tape each time
    #[arg(long, conflicts_with_all = ["kernel", "serve"])]
    compile: bool,
    /// Recompute the values inside each block in the backward pass (unet)
    #[arg(long, conflicts_with_all = ["kernel", "serve"])]
    recompute: bool,
    /// Afterwards, print the kernels of one more step to standard error, each with its time on the device
    #[arg(long, conflicts_with = "kernel")]
    profile: bool,
    /// Time forward passes instead of steps: recorded each time, and compiled, alternately
    #[arg(long, conflicts_with_all = ["kernel", "workers"])]
    serve: bool,
    /// Time calls of a model in an ONNX file instead, compiled for the shapes in the file
    #[arg(long, value_name = "FILE", requires = "serve", conflicts_with_all = ["workload", "batch", "channels", "layers", "length"])]
    onnx: Option<PathBuf>,
    /// Threads that call the model of --onnx at the same time, --steps times each
    #[arg(long, value_name = "COUNT", requires = "onnx", value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: Option<u32>,
    /// Train a small transformer on sequences of this number of lengths instead, in random order, and compare the steps
    /// with those of a single length; --steps is the number of epochs
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["kernel", "workload", "workers", "serve", "ranks"])]
    lengths: Option<usize>,
    /// Compare fast with full precision: steps of every workload and passes of every standard kernel, or of those whose
    /// names contain a text. Exits with 1 if one takes more than 1.05 times as long
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "",
        conflicts_with_all = ["kernel", "workload", "serve", "lengths", "precision"])]
    precisions: Option<String>,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Accuracy {
    /// f32 everywhere
    Full,
    /// 16-bit products (f16 or bf16) with f32 sums, on matrix units
    Fast,
    /// f64 everywhere, on the CPU
    Double,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match (&options.precisions, &options.kernel) {
        (Some(filter), _) => precisions::run(filter, &options),
        (None, Some(kernels)) => kernel::run(kernels, &options),
        (None, None) => run(&options).map(|report| match (report, options.json) {
            (None, _) => {}
            (Some(report), true) => println!("{}", json(&report)),
            (Some(report), false) => report.iter().for_each(|(key, value)| println!("{key:22} {value}")),
        }),
    };
    let Err(failure) = done else { return ExitCode::SUCCESS };
    eprintln!("error: {failure}");
    ExitCode::from(if matches!(failure, Failure::Unsupported(_)) { 2 } else { 1 })
}

/// The measurements, in the order of the output.
type Report = Vec<(&'static str, Value)>;

fn json(report: &Report) -> String {
    let fields: Vec<_> = report.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

/// The report of the first process; others have none.
fn run(options: &Options) -> Result<Option<Report>, Failure> {
    let world = ranks::join(options.ranks)?;
    if let Some(lengths) = options.lengths {
        return varying(options, &world, lengths).map(Some);
    }
    let device = choose_device(options, &world)?;
    let size = size(options)?;
    if options.workers.is_some() && !options.workload.takes_pictures() {
        return Err(Failure::Unsupported(format!("workload {} has no images to read", options.workload)));
    }
    if options.recompute && !options.workload.has_blocks() {
        return Err(Failure::Unsupported(format!("workload {} has no blocks to recompute", options.workload)));
    }
    if options.serve && options.profile && options.onnx.is_none() {
        return Err(Failure::Unsupported("--serve has a profile only of a file: --onnx FILE".into()));
    }
    if let Some(path) = &options.onnx {
        let counts = [options.warmup, options.steps, options.clients.unwrap_or(1)];
        let load = serve::file(path, &device, counts, options.profile)?;
        return Ok(Some(vec![
            ("device", device.to_string().into()),
            ("precision", options.precision.to_string().into()),
            ("onnx", path.display().to_string().into()),
            ("ms_median", rounded(median(&load.times), 4).into()),
            ("ms_p99", rounded(load.quantile(0.99), 4).into()),
            ("ms_min", rounded(load.times[0], 4).into()),
            ("calls_per_second", rounded(load.calls_per_second, 4).into()),
            ("peak_rss_mib", peak_rss_mib().map(|mib| rounded(mib, 1)).into()),
        ]));
    }
    if options.serve {
        return serve(options, &device, size).map(Some);
    }
    if let Some(path) = options.losses.as_ref().filter(|_| world.is_first()) {
        // An unwritable path is an error now, not after the last step.
        write_losses(path, &[])?;
    }
    let data = match (options.workers, options.batches) {
        (Some(workers), _) => Data::Files { workers },
        (None, Some(batches)) => Data::Several { batches: batches as usize, seed: options.seed },
        (None, None) => Data::Noise,
    };
    let ranks = Ranks { world: world.clone(), shard: options.shard, bf16: options.average_bf16 };
    let Options { lr, compile, recompute, .. } = *options;
    let mut workload = options.workload.make(&device, &ranks, size, data, lr, compile, recompute)?;
    let mut step = || -> meganeura::Result<(f32, Duration)> {
        let start = Instant::now();
        let loss = workload.step()?;
        Ok((loss, start.elapsed()))
    };

    let before = device.stats();
    let (loss_first, first_step) = step()?;
    let mut losses = vec![loss_first];
    for _ in 0..options.warmup {
        losses.push(step()?.0);
    }
    let warm = device.stats();
    let timed = (0..options.steps).map(|_| step()).collect::<meganeura::Result<Vec<_>>>()?;
    let after = device.stats();
    losses.extend(timed.iter().map(|(loss, _)| *loss));
    if let Some(path) = options.losses.as_ref().filter(|_| world.is_first()) {
        write_losses(path, &losses)?;
    }
    if options.profile {
        device.set_profiling(Profiling::Launches)?;
        step()?;
        let profile = device.last_profile()?;
        if world.is_first() {
            eprint!("{profile}");
        }
    }

    // The host's share of a step, without waiting for the device or computing in its place.
    let host = after.host.since(&warm.host);
    let busy = timed.iter().map(|(_, time)| *time).sum::<Duration>().saturating_sub(host.wait + host.compute);
    let mut times: Vec<_> = timed.iter().map(|(_, time)| milliseconds(*time)).collect();
    times.sort_unstable_by(f64::total_cmp);
    let per_step = |count: u64| count as f64 / f64::from(options.steps);
    if !world.is_first() {
        return Ok(None);
    }
    Ok(Some(vec![
        ("framework", "meganeura".into()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("device", device.to_string().into()),
        ("precision", options.precision.to_string().into()),
        ("workload", options.workload.to_string().into()),
        ("batch", size.batch.into()),
        ("compile", options.compile.into()),
        ("recompute", options.recompute.into()),
        ("ranks", world.size().into()),
        ("engine", world.engine().into()),
        ("shard", options.shard.into()),
        ("average_bf16", options.average_bf16.into()),
        ("workers", options.workers.into()),
        ("batches", options.batches.into()),
        ("ms_per_step_median", rounded(median(&times), 4).into()),
        ("ms_per_step_min", rounded(times[0], 4).into()),
        ("host_ms", rounded(milliseconds(busy / options.steps), 4).into()),
        ("first_step_ms", rounded(milliseconds(first_step), 3).into()),
        ("pipeline_cache", cache_name(after.pipeline_cache).into()),
        ("plan_ms", rounded(milliseconds(after.plan_time - before.plan_time), 3).into()),
        ("launches_per_step", per_step(after.launches - warm.launches).into()),
        ("submissions_per_step", per_step(after.submissions - warm.submissions).into()),
        ("peak_device_mib", rounded(after.peak_bytes as f64 / 1_048_576.0, 1).into()),
        ("optimizer_mib", rounded(workload.state_bytes() as f64 / 1_048_576.0, 1).into()),
        ("peak_rss_mib", peak_rss_mib().map(|mib| rounded(mib, 1)).into()),
        ("params", workload.parameter_count().into()),
        ("loss_first", loss_first.into()),
        ("loss_last", timed.last().map(|(loss, _)| *loss).into()),
    ]))
}

/// The reference's size, with what options override.
fn size(options: &Options) -> Result<Size, Failure> {
    let name = options.workload;
    let chosen = |option: &str, value: Option<u32>, reference: usize| match value {
        Some(_) if reference == 0 => Err(Failure::Unsupported(format!("workload {name} has no {option} to choose"))),
        value => Ok(value.map_or(reference, |value| value as usize)),
    };
    let Size { batch, channels, layers, length } = name.size();
    let size = Size {
        batch: options.batch.map_or(batch, |batch| batch as usize),
        channels: chosen("channels", options.channels, channels)?,
        layers: chosen("layers", options.layers, layers)?,
        length: chosen("length", options.length, length)?,
    };
    if !size.channels.is_multiple_of(name.unit()) {
        let message = format!("--channels {}: must be a multiple of {}, and not 0", size.channels, name.unit());
        return Err(Failure::Unsupported(message));
    }
    Ok(size)
}

fn varying(options: &Options, world: &World, lengths: usize) -> Result<Report, Failure> {
    let device = choose_device(options, world)?;
    let batch = options.batch.map_or(4, |batch| batch as usize);
    let open = || choose_device(options, world).map_err(|failure| Error::new(ErrorKind::Device, failure.to_string()));
    let times = lengths::run(open, lengths, batch, options.steps)?;
    Ok(vec![
        ("device", device.to_string().into()),
        ("precision", options.precision.to_string().into()),
        ("lengths", lengths.into()),
        ("batch", batch.into()),
        ("ms_first_median", rounded(times.first, 3).into()),
        ("kernels_per_tenth", times.kernels.into()),
        ("plans_kept", times.plans.into()),
        ("ms_per_step_median", rounded(times.steady, 3).into()),
        ("ratio", rounded(times.ratio, 3).into()),
        ("ratio_of_kernels", rounded(times.ratio_of_kernels, 3).into()),
        ("host_ms", times.host.map(|time| rounded(time, 3)).to_vec().into()),
        ("host_ms_repeated", times.host_repeated.map(|time| rounded(time, 3)).to_vec().into()),
        ("peak_device_mib", rounded(device.stats().peak_bytes as f64 / 1_048_576.0, 1).into()),
        ("peak_rss_mib", peak_rss_mib().map(|mib| rounded(mib, 1)).into()),
    ])
}

fn serve(options: &Options, device: &Device, size: Size) -> Result<Report, Failure> {
    let times = serve::run(options.workload, device, size, options.warmup, options.steps)?;
    let [recorded, compiled] = [times.recorded, times.compiled].map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        median(&times)
    });
    Ok(vec![
        ("device", device.to_string().into()),
        ("precision", options.precision.to_string().into()),
        ("workload", options.workload.to_string().into()),
        ("batch", size.batch.into()),
        ("ms_recorded_median", rounded(recorded, 4).into()),
        ("ms_compiled_median", rounded(compiled, 4).into()),
        ("ratio", rounded(recorded / compiled, 3).into()),
    ])
}

fn write_losses(path: &Path, of_steps: &[f32]) -> meganeura::Result<()> {
    let failed = |error| Error::new(ErrorKind::Io, format!("{} could not be written: {error}", path.display()));
    fs::write(path, losses::csv(of_steps)).map_err(failed)
}

/// `true` if compiled kernels were on disk before.
fn cache_name(cache: PipelineCache) -> &'static str {
    match cache {
        PipelineCache::Off => "off",
        PipelineCache::Cold => "cold",
        PipelineCache::Warm => "warm",
        PipelineCache::Refused(why) => why,
        _ => "unknown",
    }
}

fn choose_device(options: &Options, world: &World) -> Result<Device, Failure> {
    match options.precision {
        Accuracy::Full => Ok(world.device(&options.device)?),
        Accuracy::Double if options.device == "cpu" => Ok(Device::cpu_with(Precision::Double)),
        Accuracy::Double => Err(Failure::Unsupported("double precision needs the CPU: --device cpu".into())),
        Accuracy::Fast => {
            let device = world.device(&options.device)?;
            device.with_precision(Precision::Fast).map_err(|error| Failure::Unsupported(error.to_string()))
        }
    }
}

/// The reason for a missing result.
enum Failure {
    /// A combination that this program does not support (yet).
    Unsupported(String),
    Failed(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(message) => f.write_str(message),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// The form on the command line.
impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// The peak memory of this process, if the system reports it (Linux).
fn peak_rss_mib() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn rounded(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}
