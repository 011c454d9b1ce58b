//! What ranks run.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use meganeura::data::Dataset;
use meganeura::io::Checkpoint as _;
use meganeura::nn::Dropout;
use meganeura::optim::{Accumulate, Optimizer, Sgd, TrainStep};
use meganeura::run::Run;
use meganeura::world::World;
use meganeura::{Device, Error, ErrorKind, Layer, Param, Precision, Result, Tape, Tensor, Var};

use crate::nets::{Tiny, bits, normal, tensor};

/// The file that rank 0 writes.
pub(super) const WEIGHTS: &str = "weights.safetensors";

/// How a model is trained: `double cpu tape 16 1`
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) precision: &'static str,
    pub(super) device: &'static str,
    /// On a tape for each step, or recorded once.
    pub(super) is_compiled: bool,
    /// Examples in a batch of all ranks.
    pub(super) batch: usize,
    /// Micro-batches in a step.
    pub(super) every: u64,
}

impl How {
    pub(super) const ALL: [Self; 4] = [
        Self { precision: "double", device: "cpu", is_compiled: false, batch: 16, every: 1 },
        Self { precision: "double", device: "cpu", is_compiled: false, batch: 8, every: 2 },
        Self { precision: "double", device: "cpu", is_compiled: true, batch: 16, every: 1 },
        Self { precision: "double", device: "cpu", is_compiled: true, batch: 8, every: 2 },
    ];
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { precision, device, is_compiled, batch, every } = self;
        write!(f, "{precision} {device} {} {batch} {every}", if *is_compiled { "compiled" } else { "tape" })
    }
}

impl FromStr for How {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&'static str> = text.split(' ').map(|word| &*word.to_owned().leak()).collect();
        let [precision, device, compiled, batch, every] = words[..] else { panic!("{text}") };
        let number = |text: &str| text.parse::<usize>().expect("a number");
        Ok(Self {
            precision,
            device,
            is_compiled: compiled == "compiled",
            batch: number(batch),
            every: number(every) as u64,
        })
    }
}

/// The device of a rank.
fn device(world: &World, how: How) -> Result<Device> {
    let device = world.device(how.device)?;
    if how.precision == "double" { device.with_precision(Precision::Double) } else { Ok(device) }
}

/// 48 images `[1, 6, 6]` of 3 classes.
fn dataset() -> Result<Dataset> {
    let pixels = normal("images", 48 * 36).into_iter().map(|x| x as f32).collect();
    Dataset::new(pixels, [1, 6, 6], (0..48).map(|i| i % 3).collect::<Vec<_>>())
}

pub(super) fn run(folder: &Path, program: &str, options: &[String]) -> Result<()> {
    let world = World::join()?;
    match program {
        "train" => train(&world, options[0].parse()?, folder),
        "run" => in_run(&world, folder, options[0].parse().expect("a number")),
        "gradients" => gradients(&world),
        "random" => random(&world),
        "not_finite" => not_finite(&world),
        "shared" => shared(&world),
        "disagree" => disagree(&world),
        "leave" => leave(&world, folder),
        "kill" => kill(&world, folder, options[0].parse().expect("a number")),
        _ => panic!("no program {program}"),
    }
}

/// That every rank has the same numbers.
fn expect_same_weights(world: &World, net: &Tiny) -> Result<()> {
    world.expect_same("the trained model", &format!("{:?}", bits(net)?))
}

/// Trains with clipping, and saves.
pub(super) fn train(world: &World, how: How, folder: &Path) -> Result<()> {
    let device = device(world, how)?;
    // Others begin with other weights.
    let mut net = Tiny::init(&device, 1 + world.rank() as u64)?;
    world.share(&mut net)?;
    let mut sgd = Sgd::new(0.05).momentum(0.9).check_finite(true);
    let accumulate = Accumulate::mean(how.every);
    let data = dataset()?;
    let batches = |epoch| data.batches(how.batch).shuffle(3).epoch(epoch).drop_last().part_of(world).on(&device);
    if how.is_compiled {
        let mut step =
            TrainStep::new(&net, |net: &Tiny, (x, labels): &(Var, Var)| net.forward(x).cross_entropy(labels))
                .accumulate(accumulate)
                .gradients(|net, grads| grads.average(net, world)?.clip_norm(net, 0.5));
        for batch in (0..3).flat_map(batches) {
            let batch = batch?;
            step.call(&mut sgd, (&batch.inputs, &batch.targets))?;
        }
    } else {
        for batch in (0..3).flat_map(batches) {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
            let grads = tape.backward(&loss)?;
            if let Some(grads) = sgd.accumulate(&net, grads, accumulate)? {
                let grads = grads.average(&net, world)?.clip_norm(&net, 0.5)?;
                sgd.step_with_loss(&mut net, &grads, &loss)?;
            }
        }
    }
    expect_same_weights(world, &net)?;
    if world.is_first() { net.save(folder.join(WEIGHTS)) } else { Ok(()) }
}

/// Trains in a run, up to so many epochs, with a checkpoint in the middle of the last.
pub(super) fn in_run(world: &World, folder: &Path, epochs: u64) -> Result<()> {
    let device = world.device("cpu")?.with_precision(Precision::Double)?;
    let mut net = Tiny::init(&device, 1)?;
    let mut sgd = Sgd::new(0.05).momentum(0.9);
    let data = dataset()?;
    let mut run = Run::at(folder.join("run"), &device).setting("batch", 8).world(world).open()?;
    run.restore(&mut net, &mut sgd)?;
    while let Some(epoch) = run.next_epoch(epochs) {
        for batch in data.batches(8).shuffle(5).epoch(epoch).skip(run.batch()).part_of(world).on(&device) {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
            let grads = tape.backward(&loss)?.average(&net, world)?;
            let loss = loss.all_mean(world);
            sgd.step(&mut net, &grads)?;
            run.advance();
            run.log(&[("loss", &loss.to_tensor()?)])?;
        }
        run.end_epoch();
        run.checkpoint(&net, &sgd)?;
    }
    expect_same_weights(world, &net)?;
    if world.is_first() {
        net.save(folder.join(WEIGHTS))?;
        fs::copy(folder.join("run/metrics.jsonl"), folder.join("metrics.jsonl")).expect("rank 0 wrote it");
    }
    run.finish().map(drop)
}

/// Finite differences of the sum of all ranks' losses, for every number of every rank.
fn gradients(world: &World) -> Result<()> {
    let device = Device::cpu_with(Precision::Double);
    let name = |what: &str| format!("{what} {}", world.rank());
    let (x, weight) = (tensor(&device, &name("x"), [5])?, tensor(&device, &name("weight"), [5])?);
    let record = |x: &Tensor| {
        let tape = Tape::new(&device);
        let x = tape.input(x);
        let y = x.square().all_mean(world);
        let loss = (y.sin() * tape.input(&weight) * &x).sum();
        (x, loss)
    };
    let (input, loss) = record(&x);
    let dx = loss.tape().backward(&loss)?.of(&input).expect("the loss depends on it").to_tensor()?.to_f64_vec()?;
    let numbers = x.to_f64_vec()?;
    for rank in 0..world.size() {
        for (k, dx) in dx.iter().enumerate() {
            let at = |step: f64| -> Result<f64> {
                let mut moved = numbers.clone();
                if rank == world.rank() {
                    moved[k] += step;
                }
                let loss = record(&Tensor::from_f64(&device, [5], &moved)?).1.to_tensor()?.to_f64_vec()?[0];
                Ok(world.sum(&[loss])?[0])
            };
            let slope = (at(1e-5)? - at(-1e-5)?) / 2e-5;
            let error = if rank == world.rank() { (slope - dx).abs() } else { 0.0 };
            assert!(world.sum(&[error])?[0] < 1e-8, "number {k} of rank {rank} is off by {error:e}");
        }
    }
    Ok(())
}

/// Each rank draws numbers of its own, and rank 0 those of one rank.
fn random(world: &World) -> Result<()> {
    let device = world.device("cpu")?;
    let draw = |device: &Device| {
        let tape = Tape::new(device);
        let ones = tape.input(&Tensor::full(device, [64], 1.0)?);
        Dropout::new(0.5).forward(&ones).to_vec()
    };
    let own = draw(&device)?;
    assert_eq!(own == draw(&Device::cpu())?, world.is_first());
    let error = world.expect_same("the draw", &format!("{own:?}")).expect_err("they differ");
    assert!(error.to_string().contains("rank 1 on "), "{error}");
    Ok(())
}

/// One rank's image has a NaN, or one rank's loss alone is infinite: all hold the step back, and go on.
fn not_finite(world: &World) -> Result<()> {
    let device = world.device("cpu")?;
    let mut net = Tiny::init(&device, 1)?;
    let mut sgd = Sgd::new(0.05).check_finite(true);
    let x = tensor(&device, "x", [2, 1, 6, 6])?;
    let labels = Tensor::indices(&device, [2], &[0, 2])?;
    let before = bits(&net)?;
    for (pixel, offset) in [(f32::NAN, 0.0), (1.0, f32::INFINITY), (1.0, 0.0)] {
        let (pixel, offset) = if world.rank() == 1 { (pixel, offset) } else { (1.0, 0.0) };
        let tape = Tape::new(&device);
        let loss = net.forward(&(tape.input(&x) * f64::from(pixel))).cross_entropy(&labels);
        let loss = loss + tape.input(&Tensor::full(&device, [], offset)?);
        let grads = tape.backward(&loss)?.average(&net, world)?;
        let stepped = sgd.step_with_loss(&mut net, &grads, &loss);
        let is_fine = world.sum(&[f64::from(offset), f64::from(pixel)])?.iter().all(|x| x.is_finite());
        if is_fine {
            stepped?;
            assert!(bits(&net)? != before);
        } else {
            assert_eq!(stepped.expect_err("not finite").kind(), ErrorKind::NotFinite);
            assert!(bits(&net)? == before);
        }
        expect_same_weights(world, &net)?;
    }
    Ok(())
}

fn shared(world: &World) -> Result<()> {
    let device = world.device("cpu")?;
    let mut net = Tiny::init(&device, world.rank() as u64)?;
    assert!(expect_same_weights(world, &net).is_err());
    world.share(&mut net)?;
    assert!(bits(&net)? == bits(&Tiny::init(&device, 0)?)?);
    // Another model is refused by all, and nothing has changed.
    let mut odd = Param::new(Tensor::full(&device, [2 + world.rank() / 2], world.rank() as f32)?);
    let error = world.share(&mut odd).expect_err("rank 2 has another model");
    assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("that of rank 2 on "), "{error}");
    assert_eq!(odd.value().to_vec()?[0], world.rank() as f32);
    // The batch has no equal parts.
    let error = dataset()?.batches(16).part_of(world).on(&device).next().expect("an error").expect_err("16 of 3");
    assert!(error.to_string().contains("batches of 16 examples have no 3 equal parts"), "{error}");
    Ok(())
}

/// Ranks that come to an exchange with different numbers of numbers.
fn disagree(world: &World) -> Result<()> {
    let device = world.device("cpu")?;
    let tape = Tape::new(&device);
    let x = tape.input(&Tensor::full(&device, [3 + world.rank()], 1.0)?);
    let error = x.all_mean(world).to_vec().expect_err("they have not as many");
    assert_eq!(error.kind(), ErrorKind::Argument);
    let message = error.to_string();
    assert!(
        message.contains("rank 0 averages 3 numbers of 4 bytes") && message.contains("averages 4 numbers"),
        "{message}"
    );
    // And are of one mind again.
    assert_eq!(world.sum(&[1.0])?, [2.0]);
    Ok(())
}

/// Rank 1 goes, by an error; the others say what they saw of it.
fn leave(world: &World, folder: &Path) -> Result<()> {
    world.sum(&[1.0])?;
    if world.rank() == 1 {
        return Err(Error::new(ErrorKind::Argument, "why rank 1 left"));
    }
    let error = world.sum(&[1.0]).expect_err("rank 1 is gone");
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert_eq!(world.sum(&[1.0]).expect_err("for good").kind(), ErrorKind::PeerLost);
    fs::write(folder.join(format!("rank-{}", world.rank())), error.to_string()).expect("written");
    Err(error)
}

/// A rank is gone from one moment to the next; the others would go on for a minute.
fn kill(world: &World, folder: &Path, rank: usize) -> Result<()> {
    for number in 0..60_000 {
        world.sum(&[1.0])?;
        if number == 20 && world.rank() == rank {
            let pid = std::process::id().to_string();
            std::process::Command::new("kill").args(["-9", &pid]).status().expect("kill runs");
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    fs::write(folder.join("finished"), "").expect("written");
    Ok(())
}
