//! Running a pass: data, time, and the error.

use std::time::{Duration, Instant};

use meganeura::{Device, Error, ErrorKind, LaunchTime, Precision, Profiling, Result, Shape, Tape, Tensor};

use super::spec::{Kernel, Pass, Work};
use crate::{Failure, Options, median, milliseconds};

/// The minimum size of all sets of operands in bytes: twice the second-level cache of an H200.
const BYTES: usize = 100_000_000;
/// The maximum number of sets, even if they have fewer bytes.
const SETS: usize = 256;
/// The number of runs that are timed together on a GPU without timestamps, so that the device does not wait for the
/// host between them.
const BURST: u32 = 10;
/// The number of random numbers; operands repeat them. A prime, so that no row begins like the next.
const NUMBERS: usize = 1_000_003;
/// The largest amount of work that is repeated in double precision.
const CHECKED_FLOPS: f64 = 3e11;
/// The warm-up: a GPU that idled while kernels were compiled has a low clock, and needs this long to raise it.
const AWAKE: Duration = Duration::from_millis(300);

/// The kernel that packs weights for convolutions.
const PACKING: &str = "conv2d_pack_taps";

/// The operations that produce operands and read results with `--inside`.
const PRODUCER: &str = "pointwise";
const READER: &str = "sum";

/// A kernel on a device, with its data.
pub struct Bench {
    pub kernel: Kernel,
    pub device: Device,
    steps: u32,
    warmup: u32,
    variant: Option<String>,
    /// `true` if other operations produce the operands and read the results.
    pub inside: bool,
    numbers: Vec<f32>,
    pub sets: Vec<Vec<Tensor>>,
    /// The passes timed so far.
    known: Vec<(Pass, Times)>,
}

/// The time of a pass, in milliseconds.
#[derive(Debug, Clone)]
pub struct Times {
    pub median: f64,
    pub min: f64,
    /// The share of the median that packs weights, in milliseconds; `None` if none are packed.
    pub packing: Option<f64>,
    pub launches: u64,
    /// The operation and its variant of each step that has variants.
    pub variants: Vec<String>,
    /// The launched kernels, each with its microseconds if they are timed separately; empty with the host's clock.
    pub kernels: Vec<String>,
    /// The clock: the device's or the host's.
    pub timer: &'static str,
    /// `true` if the requested variant ran.
    preferred: bool,
    /// The existing variants, a text for each kernel.
    offered: Vec<String>,
}

impl Times {
    /// The variants, each once; `None` if there is no choice.
    pub fn variant(&self) -> Option<String> {
        let mut variants: Vec<&str> = Vec::new();
        for variant in &self.variants {
            if !variants.contains(&variant.as_str()) {
                variants.push(variant);
            }
        }
        (!variants.is_empty()).then(|| variants.join(", "))
    }

    /// These times minus those of a part.
    pub fn without(self, part: &Self) -> Self {
        let median = self.median - part.median;
        let mut variants = self.variants.clone();
        for known in &part.variants {
            if let Some(at) = variants.iter().position(|variant| variant == known) {
                variants.remove(at);
            }
        }
        let min = median.min(self.min - part.min);
        let kernels = self.kernels.get(part.kernels.len()..).map_or_else(Vec::new, <[_]>::to_vec);
        let preferred = self.preferred || part.preferred;
        let launches = self.launches.saturating_sub(part.launches);
        Self { median, min, launches, variants, kernels, preferred, ..self }
    }
}

impl Bench {
    pub fn new(kernel: Kernel, device: &Device, options: &Options) -> Result<Self> {
        let numbers = Tensor::randn(&Device::cpu(), [NUMBERS], 42)?.to_vec()?;
        let elements = kernel.operands().into_iter().map(|(shape, _)| shape.elements()).fold(0, usize::saturating_add);
        let mut bench = Self {
            kernel,
            device: device.clone(),
            steps: options.steps,
            warmup: options.warmup,
            variant: options.variant.clone(),
            inside: options.inside && kernel.operations().is_some(),
            numbers,
            sets: Vec::new(),
            known: Vec::new(),
        };
        for set in 0..BYTES.div_ceil(elements.saturating_mul(4)).clamp(1, SETS) {
            bench.sets.push(bench.data(&bench.device, set)?);
        }
        Ok(bench)
    }

    /// The operands of a set, the cotangent of the result, and indices, if the kernel has any.
    fn data(&self, device: &Device, set: usize) -> Result<Vec<Tensor>> {
        let mut first = set * 7919;
        let mut tensor = |(shape, std): (Shape, f32)| {
            let from = first % NUMBERS;
            first += 104_729;
            let numbers = self.numbers[from..].iter().chain(self.numbers.iter().cycle());
            let (mut data, elements) = (Vec::new(), shape.elements());
            data.try_reserve_exact(elements).map_err(|_| {
                Error::new(ErrorKind::OutOfMemory, format!("no room for {shape}, {} bytes", elements.saturating_mul(4)))
            })?;
            data.extend(numbers.take(elements).map(|x| x * std));
            Tensor::from_slice(device, shape, &data)
        };
        let floats = self.kernel.operands().into_iter().chain([(self.kernel.result(), 1.0)]);
        let mut data = floats.map(&mut tensor).collect::<Result<Vec<_>>>()?;
        if let Some((count, bound)) = self.kernel.indices() {
            let mut random = fastrand::Rng::with_seed(set as u64);
            let indices: Vec<_> = (0..count).map(|_| random.u32(..bound as u32)).collect();
            data.push(Tensor::indices(device, [count], &indices)?);
        }
        Ok(data)
    }

    /// Runs a pass, in a training step or not. A training step may keep more for the gradients.
    fn run(&self, device: &Device, data: &[Tensor], pass: Pass, is_training: bool) -> Result<Vec<Tensor>> {
        let tape = if is_training { Tape::with_seed(device, 0) } else { Tape::inference(device) };
        let wanted = self.kernel.record(&tape, data, pass, self.inside)?;
        wanted.iter().map(meganeura::Var::to_tensor).collect()
    }

    /// Times a pass, once. Fails if the requested variant does not exist.
    pub fn time(&mut self, pass: Pass) -> Result<Times, Failure> {
        let times = self.times(pass)?;
        match &self.variant {
            Some(variant) if !times.preferred => {
                let offered = times.offered.join("; ");
                let offered = if offered.is_empty() { "none".to_owned() } else { offered };
                Err(Failure::Unsupported(format!("{pass} has no variant {variant:?}; there are: {offered}")))
            }
            _ => Ok(times),
        }
    }

    fn times(&mut self, pass: Pass) -> Result<Times> {
        if let Some((_, times)) = self.known.iter().find(|(known, _)| *known == pass) {
            return Ok(times.clone());
        }
        let times = match pass {
            Pass::Backward => self.times(Pass::Both)?.without(&self.measure(Pass::Forward, true)?),
            pass => self.measure(pass, pass.is_training())?,
        };
        self.known.push((pass, times.clone()));
        Ok(times)
    }

    /// Makes later runs of a pass use the requested variant. Returns whether it exists, and the existing ones.
    fn prepare(&self, pass: Pass, is_training: bool) -> Result<(bool, Vec<String>)> {
        self.device.prefer_variants(&[])?;
        self.run(&self.device, &self.sets[0], pass, is_training)?;
        let choices = self.device.kernel_choices().pop().unwrap_or_default();
        let mut preferences = Vec::new();
        if let Some(wanted) = &self.variant {
            let (op, wanted) = wanted.split_once('=').map_or((None, wanted.as_str()), |(op, name)| (Some(op), name));
            for choice in choices.iter().filter(|choice| op.is_none_or(|op| op == choice.op)) {
                let numbered = wanted.parse().ok().and_then(|number: usize| choice.offered.get(number));
                let named = choice.offered.iter().find(|name| **name == wanted);
                preferences.extend(named.or(numbered).map(|&name| (choice.op, name)));
            }
            self.device.prefer_variants(&preferences)?;
        }
        let offered = choices.iter().map(|choice| format!("{}: {}", choice.op, choice.offered.join(", ")));
        Ok((!preferences.is_empty(), offered.collect()))
    }

    fn measure(&self, pass: Pass, is_training: bool) -> Result<Times> {
        let (preferred, offered) = self.prepare(pass, is_training)?;
        let mut sets = self.sets.iter().cycle();
        let mut run = || self.run(&self.device, sets.next().expect("at least one set"), pass, is_training);
        // On the CPU a run is finished when it returns, and PyTorch's operations are timed with the host's clock, too.
        let device_clock = self.device.is_gpu() && self.device.set_profiling(Profiling::Runs).is_ok();
        let before = self.device.stats().launches;
        run()?;
        let launches = self.device.stats().launches - before;
        let choices = self.device.kernel_choices().pop().unwrap_or_default();
        let variants = choices.iter().map(|choice| format!("{}={}", choice.op, choice.variant)).collect();
        let (start, mut warm) = (Instant::now(), 0);
        while warm < self.warmup || (self.device.is_gpu() && start.elapsed() < AWAKE) {
            run()?;
            self.device.wait()?;
            warm += 1;
        }
        let (mut times, mut packing) = (Vec::new(), Vec::new());
        if self.inside {
            self.device.set_profiling(Profiling::Launches)?;
            for _ in 0..self.steps {
                run()?;
                run()?;
                let profile = self.device.last_profile()?;
                let own = self.own(&profile.launches);
                times.push(milliseconds(own.iter().map(|launch| launch.duration).sum()));
                let packs = own.iter().filter(|launch| launch.name == PACKING);
                packing.push(milliseconds(packs.map(|launch| launch.duration).sum()));
            }
        } else if device_clock {
            for _ in 0..self.steps {
                // The run before keeps the device busy until the timed run arrives.
                run()?;
                run()?;
                times.push(milliseconds(self.device.last_profile()?.total));
            }
        } else {
            let burst = if self.device.is_gpu() { BURST.min(self.steps) } else { 1 };
            for _ in 0..self.steps.div_ceil(burst) {
                let start = Instant::now();
                for _ in 0..burst {
                    run()?;
                }
                self.device.wait()?;
                times.push(milliseconds(start.elapsed()) / f64::from(burst));
            }
        }
        times.sort_unstable_by(f64::total_cmp);
        packing.sort_unstable_by(f64::total_cmp);
        let mut kernels = Vec::new();
        if device_clock {
            self.device.set_profiling(Profiling::Launches)?;
            run()?;
            run()?;
            let spell = |launch: &LaunchTime| format!("{} {:.1}", launch.name, launch.duration.as_secs_f64() * 1e6);
            kernels.extend(self.own(&self.device.last_profile()?.launches).into_iter().map(spell));
        }
        let timer = if device_clock { "device" } else { "host" };
        let packing = (!packing.is_empty()).then(|| median(&packing)).filter(|&packing| packing > 0.0);
        let (median, min) = (median(&times), times[0]);
        Ok(Times { median, min, packing, launches, variants, kernels, timer, preferred, offered })
    }

    /// The kernel's own launches: with `--inside`, other operations launch, too. An attention may consist of several
    /// operations; all from the first to the last count, even a producer of an operand between them.
    fn own<'a>(&self, launches: &'a [LaunchTime]) -> Vec<&'a LaunchTime> {
        let (Some(name), true) = (self.kernel.operations(), self.inside) else { return launches.iter().collect() };
        if name != "attention" {
            return launches.iter().filter(|launch| launch.op.starts_with(name)).collect();
        }
        let first = launches.iter().position(|launch| launch.op != PRODUCER).unwrap_or(0);
        let last = launches.iter().rposition(|launch| ![PRODUCER, READER].contains(&launch.op));
        launches[first..last.map_or(first, |last| last + 1)].iter().collect()
    }

    /// The largest difference from the native executor in double precision, over all results, each relative to its own
    /// largest magnitude. `None` if that would take too long.
    pub fn error(&self, pass: Pass) -> Result<Option<f64>> {
        if matches!(self.kernel.work(pass), Work::Flops(flops) if flops > CHECKED_FLOPS) {
            return Ok(None);
        }
        let is_training = pass.is_training();
        self.prepare(pass, is_training)?;
        let double = Device::cpu_with(Precision::Double);
        let reference = self.run(&double, &self.data(&double, 0)?, pass, is_training)?;
        let computed = self.run(&self.device, &self.sets[0], pass, is_training)?;
        let mut worst = 0.0;
        for (computed, reference) in computed.iter().zip(&reference) {
            let (computed, reference) = (computed.to_f64_vec()?, reference.to_f64_vec()?);
            let scale = reference.iter().fold(f64::MIN_POSITIVE, |max, x| x.abs().max(max));
            let difference = computed.iter().zip(&reference).map(|(x, y)| (x - y).abs());
            // NaN counts as an infinite error.
            let error = difference.fold(0.0, |max: f64, x| if x.is_nan() { f64::INFINITY } else { max.max(x) }) / scale;
            worst = f64::max(worst, error);
        }
        Ok(Some(worst))
    }
}
