//! The programs that ranks run.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use meganeura::data::Dataset;
use meganeura::io::Checkpoint as _;
use meganeura::metric::{Accuracy, Confusion, MeanSquaredError, Perplexity, RocAuc};
use meganeura::module::{Init, ModuleExt, Seed};
use meganeura::nn::{BatchNorm2d, Conv2d, Dropout, Flatten, Linear, Relu};
use meganeura::optim::{Accumulate, Optimizer, Sgd, TrainStep};
use meganeura::run::Run;
use meganeura::world::World;
use meganeura::{Device, Error, ErrorKind, Grads, Layer, Module, Param, Precision, Result, Tape, Tensor, Var};

use super::rounded::rounded;
use crate::nets::{Tiny, bits, normal, tensor};

/// The file that rank 0 writes.
pub(super) const WEIGHTS: &str = "weights.safetensors";

/// The form of a training run: `double cpu tape 16 1 all`
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) precision: &'static str,
    pub(super) device: &'static str,
    /// `tape` for each step, or recorded once.
    pub(super) is_compiled: bool,
    /// Examples in a batch, over all ranks.
    pub(super) batch: usize,
    /// Micro-batches in a step.
    pub(super) every: u64,
    pub(super) kind: Kind,
}

/// The state that is replicated on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Parameters, gradients and optimizer state.
    All,
    /// Parameters only: gradients and optimizer state belong to one rank each.
    Owned,
    /// The same as `All`, and the statistics of batch normalisation.
    Synchronized,
}

impl Kind {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::All, "all"), (Self::Owned, "owned"), (Self::Synchronized, "synchronized")];
}

impl How {
    const FIRST: Self =
        Self { precision: "double", device: "cpu", is_compiled: false, batch: 16, every: 1, kind: Kind::All };

    pub(super) const ALL: [Self; 8] = [
        Self::FIRST,
        Self { batch: 8, every: 2, ..Self::FIRST },
        Self { is_compiled: true, ..Self::FIRST },
        Self { is_compiled: true, batch: 8, every: 2, ..Self::FIRST },
        Self { batch: 8, every: 2, kind: Kind::Owned, ..Self::FIRST },
        Self { is_compiled: true, kind: Kind::Owned, ..Self::FIRST },
        Self { kind: Kind::Synchronized, ..Self::FIRST },
        Self { is_compiled: true, kind: Kind::Synchronized, ..Self::FIRST },
    ];
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { precision, device, is_compiled, batch, every, kind } = self;
        let (_, kind) = Kind::NAMES.into_iter().find(|(known, _)| known == kind).expect("each has a name");
        write!(f, "{precision} {device} {} {batch} {every} {kind}", if *is_compiled { "compiled" } else { "tape" })
    }
}

impl FromStr for How {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&'static str> = text.split(' ').map(|word| &*word.to_owned().leak()).collect();
        let [precision, device, compiled, batch, every, kind] = words[..] else { panic!("{text}") };
        let number = |text: &str| text.parse::<usize>().expect("a number");
        let (kind, _) = Kind::NAMES.into_iter().find(|(_, name)| *name == kind).expect("a kind");
        Ok(Self {
            precision,
            device,
            is_compiled: compiled == "compiled",
            batch: number(batch),
            every: number(every) as u64,
            kind,
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
        "open" => open(&world, folder),
        "run" => in_run(&world, folder, options[0].parse().expect("a number"), &options[1]),
        "gradients" => gradients(&world),
        "rounded" => rounded(&world, &options[0]),
        "random" => random(&world),
        "not_finite" => not_finite(&world, &options[0]),
        "shared" => shared(&world),
        "metrics" => metrics(&world),
        "disagree" => disagree(&world),
        "leave" => leave(&world, folder),
        "owners" => owners(&world),
        "stop" => stop(&world, folder),
        "kill" => kill(&world, folder, options[0].parse().expect("a number")),
        _ => panic!("no program {program}"),
    }
}

/// Checks that every rank has the same numbers.
fn expect_same_weights(world: &World, net: &dyn Module) -> Result<()> {
    world.expect_same("the trained model", &format!("{:?}", bits(net)?))
}

/// The gradients for a step.
fn averaged(grads: Grads, net: &dyn Module, world: &World, kind: Kind) -> Result<Grads> {
    match kind {
        Kind::All | Kind::Synchronized => grads.average(net, world),
        Kind::Owned => grads.average_to_owners(net, world),
    }
}

/// Trains with clipping, and saves.
pub(super) fn train(world: &World, how: How, folder: &Path) -> Result<()> {
    let device = device(world, how)?;
    // Other ranks start with other weights.
    let seed = 1 + world.rank() as u64;
    if how.kind == Kind::Synchronized {
        let norm = BatchNorm2d::new(4).synchronized(world);
        let net = (Conv2d::new(1, 4, 3), norm, Relu, Flatten, Linear::new(64, 3));
        return train_net(world, how, folder, &device, net.init(&device, Seed::new(seed))?);
    }
    train_net(world, how, folder, &device, Tiny::init(&device, seed)?)
}

fn train_net<M: Module + Layer>(world: &World, how: How, folder: &Path, device: &Device, mut net: M) -> Result<()> {
    world.share(&mut net)?;
    let mut sgd = Sgd::new(0.05).momentum(0.9).check_finite(true);
    let accumulate = Accumulate::mean(how.every);
    let data = dataset()?;
    let batches = |epoch| data.batches(how.batch).shuffle(3).epoch(epoch).drop_last().part_of(world).on(device);
    if how.is_compiled {
        let mut step = TrainStep::new(&net, |net: &M, (x, labels): &(Var, Var)| net.forward(x).cross_entropy(labels))
            .accumulate(accumulate)
            .gradients(|net, grads| averaged(grads, net, world, how.kind)?.clip_norm(net, 0.5));
        for batch in (0..3).flat_map(batches) {
            let batch = batch?;
            step.call(&mut sgd, (&batch.inputs, &batch.targets))?;
        }
    } else {
        for batch in (0..3).flat_map(batches) {
            let batch = batch?;
            let tape = Tape::new(device);
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
            let grads = tape.backward(&loss)?;
            if let Some(grads) = sgd.accumulate(&net, grads, accumulate)? {
                let grads = averaged(grads, &net, world, how.kind)?.clip_norm(&net, 0.5)?;
                sgd.step_with_loss(&mut net, &grads, &loss)?;
            }
        }
    }
    expect_same_weights(world, &net)?;
    // The optimizer state of each parameter exists on one rank, or on every rank.
    let parameters = net.named_parameters().len();
    let kept = world.sum(&[sgd.state_of(&net).tensors.len() as f64])?[0];
    let copies = if how.kind == Kind::Owned { 1 } else { world.size() };
    assert_eq!(kept, (parameters * copies) as f64);
    assert_eq!(sgd.whole_state_of(&net)?.tensors.len(), parameters);
    if world.is_first() { net.save(folder.join(WEIGHTS)) } else { Ok(()) }
}

/// Trains in a run until it has this many epochs.
/// A run that was begun is resumed, on every rank, even if it has no checkpoint yet.
fn open(world: &World, folder: &Path) -> Result<()> {
    let device = world.device("cpu")?;
    for is_resumed in [false, true] {
        let run = Run::at(folder.join("run"), &device).world(world).open()?;
        assert_eq!(run.is_resumed(), is_resumed, "rank {}", world.rank());
    }
    Ok(())
}

pub(super) fn in_run(world: &World, folder: &Path, epochs: u64, kind: &str) -> Result<()> {
    let kind = if kind == "owned" { Kind::Owned } else { Kind::All };
    let device = world.device("cpu")?.with_precision(Precision::Double)?;
    let mut net = Tiny::init(&device, 1)?;
    let mut sgd = Sgd::new(0.05).momentum(0.9);
    let data = dataset()?;
    let mut run = Run::at(folder.join("run"), &device).setting("batch", 8).world(world).open()?;
    run.restore(&mut net, &mut sgd)?;
    let batches = data.batches(8).shuffle(5);
    while let Some(epoch) = run.next_epoch_of(&batches, epochs) {
        for batch in epoch {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
            let grads = averaged(tape.backward(&loss)?, &net, world, kind)?;
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

/// Each rank draws different random numbers; rank 0 draws those of a single rank.
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

/// If one rank's image has a NaN, or one rank's loss is infinite, all ranks get the error, keep their weights, and
/// continue.
fn not_finite(world: &World, kind: &str) -> Result<()> {
    let kind = if kind == "owned" { Kind::Owned } else { Kind::All };
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
        let grads = averaged(tape.backward(&loss)?, &net, world, kind)?;
        let stepped = sgd.step_with_loss(&mut net, &grads, &loss);
        let is_fine = world.sum(&[f64::from(offset), f64::from(pixel)])?.iter().all(|x| x.is_finite());
        if is_fine {
            stepped?;
            assert!(bits(&net)? != before);
        } else {
            let error = stepped.expect_err("not finite");
            assert_eq!(error.kind(), ErrorKind::NotFinite);
            world.expect_same("the error", error.message())?;
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
    // If one rank has another model, all ranks refuse it, and nothing changes.
    let mut odd = Param::new(Tensor::full(&device, [2 + world.rank() / 2], world.rank() as f32)?);
    let error = world.share(&mut odd).expect_err("rank 2 has another model");
    assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("; rank 2 on "), "{error}");
    assert_eq!(odd.value().to_vec()?[0], world.rank() as f32);
    // Ranks with different batches get an error.
    let batches =
        |of: usize, seed: u64| dataset().map(|data| data.batches(of).shuffle(seed).epoch(0).part_of(world).on(&device));
    let odd = world.rank() == 2;
    for mut wrong in [batches(if odd { 6 } else { 12 }, 1)?, batches(12, u64::from(odd))?] {
        let error = wrong.next().expect("an error").expect_err("rank 2 has others");
        let message = error.to_string();
        assert!(
            message.contains("the batches of rank 0: of 12 of 48 examples") && message.contains("rank 2"),
            "{message}"
        );
    }
    // The batch does not divide into equal parts.
    let error = dataset()?.batches(16).part_of(world).on(&device).next().expect("an error").expect_err("16 of 3");
    assert!(error.to_string().contains("batches of 16 examples have no 3 equal parts"), "{error}");
    Ok(())
}

/// Metrics of ranks that counted different parts equal those of one rank that counted everything. The last rank counts
/// nothing.
fn metrics(world: &World) -> Result<()> {
    let device = world.device("cpu")?;
    let scores: Vec<_> = normal("scores", 24).into_iter().map(|x| x as f32).collect();
    let labels: Vec<u32> = (0..24).map(|i| i % 2).collect();
    let counted = |examples: Range<usize>| {
        let mut all = (Accuracy::new(), Confusion::new(2)?, RocAuc::new(), MeanSquaredError::new(), Perplexity::new());
        if examples.is_empty() {
            return Ok(all);
        }
        let (scores, labels) = (&scores[examples.clone()], &labels[examples]);
        let of = Tensor::from_slice(&device, [scores.len()], scores)?;
        let both =
            Tensor::from_slice(&device, [scores.len(), 2], &scores.iter().flat_map(|x| [-x, *x]).collect::<Vec<_>>())?;
        let labels = Tensor::indices(&device, [labels.len()], labels)?;
        all.0.update(&both, &labels)?;
        all.1.update(&both, &labels)?;
        all.2.update(&of, &labels)?;
        all.3.update(&of, &Tensor::zeros(&device, [scores.len()])?)?;
        all.4.update(scores.iter().map(|x| f64::from(x.abs())).sum::<f64>() / scores.len() as f64, scores.len())?;
        Ok::<_, Error>(all)
    };
    let parts = [0..5, 5..24, 24..24];
    let (own, all) = (counted(parts[world.rank()].clone())?, counted(0..24)?);
    let equal = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12 * expected, "{found} {expected}");
    equal(own.0.over(world)?.value()?, all.0.value()?);
    assert_eq!(own.1.over(world)?.to_string(), all.1.to_string());
    equal(own.2.over(world)?.value()?, all.2.value()?);
    equal(own.3.over(world)?.value()?, all.3.value()?);
    equal(own.4.over(world)?.value()?, all.4.value()?);
    // A rank's own counts are unchanged.
    assert_eq!(own.0.count(), parts[world.rank()].len() as u64);
    // Another number of classes on one rank is an error on all ranks.
    let odd = Confusion::new(2 + world.rank() / 2)?.over(world);
    assert!(odd.is_err(), "{odd:?}");
    Ok(())
}

/// Ranks that meet with different numbers of elements.
fn disagree(world: &World) -> Result<()> {
    let device = world.device("cpu")?;
    let tape = Tape::new(&device);
    let x = tape.input(&Tensor::full(&device, [3 + world.rank()], 1.0)?);
    let error = x.all_mean(world).to_vec().expect_err("they have not as many");
    assert_eq!(error.kind(), ErrorKind::Argument);
    let message = error.to_string();
    assert!(
        message.contains("rank 0 adds up 3 numbers of 4 bytes in a step") && message.contains("adds up 4 numbers of"),
        "{message}"
    );
    // After the error, they agree again.
    assert_eq!(world.sum(&[1.0])?, [2.0]);
    Ok(())
}

/// Rank 1 leaves because of an error. The others write down the error that they get.
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

/// Frozen parameters have no owner, and more ranks than trained parameters are refused.
fn owners(world: &World) -> Result<()> {
    let device = world.device("cpu")?.with_precision(Precision::Double)?;
    let param = |name: &str, elements: usize| Ok::<_, Error>(Param::new(tensor(&device, name, [elements])?));
    let train = |is_owned: bool| -> Result<Vec<f64>> {
        let mut net = (param("frozen", 1000)?, param("first", 10)?, param("second", 3)?);
        net.0.freeze();
        let mut sgd = Sgd::new(0.1).momentum(0.9).check_finite(true);
        for _ in 0..3 {
            let tape = Tape::new(&device);
            let first = tape.param(&net.1).square().sum() * (1.0 + world.rank() as f64);
            let loss = tape.param(&net.0).sum() * first + tape.param(&net.2).sin().sum();
            let grads = tape.backward(&loss)?;
            let grads = match is_owned {
                true => grads.average_to_owners(&net, world)?,
                false => grads.average(&net, world)?,
            };
            let again = grads.clone().average_to_owners(&net, world);
            assert_eq!(again.is_err(), is_owned);
            let grads = grads.clip_norm(&net, 0.5)?;
            sgd.step(&mut net, &grads)?;
        }
        let state = sgd.whole_state_of(&net)?;
        assert_eq!(state.tensors.len(), 2);
        let trained = [net.1.value().to_f64_vec()?, net.2.value().to_f64_vec()?].concat();
        if is_owned {
            // Thawing the largest parameter changes the owners of the others: an error on all ranks, which loses
            // nothing.
            net.0.thaw();
            let tape = Tape::new(&device);
            let loss = (tape.param(&net.0).sum() * tape.param(&net.1).sum()) + tape.param(&net.2).sum();
            let grads = tape.backward(&loss)?.average_to_owners(&net, world)?;
            let error = sgd.step(&mut net, &grads).expect_err("the owners are others");
            world.expect_same("the error", error.message())?;
            assert!(error.message().contains("the optimizer state of `1` would move to another rank"), "{error}");
            assert_eq!(sgd.whole_state_of(&net)?.tensors.len(), 2);
            sgd.load_state(&net, &state)?;
            sgd.step(&mut net, &grads)?;
            assert_eq!(sgd.whole_state_of(&net)?.tensors.len(), 3);
        }
        Ok(trained)
    };
    let (owned, all) = (train(true)?, train(false)?);
    let largest = owned.iter().zip(&all).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(largest < 1e-12, "off by {largest:e}");
    let one = param("one", 2)?;
    let tape = Tape::new(&device);
    let error = tape.backward(&tape.param(&one).sum())?.average_to_owners(&one, world).expect_err("one of two");
    assert!(error.to_string().contains("1 trained parameters are too few to shard over 2 ranks"), "{error}");
    Ok(())
}

/// Rank 1 hangs. The others write down the error that they get.
fn stop(world: &World, folder: &Path) -> Result<()> {
    world.sum(&[1.0])?;
    if world.rank() == 1 {
        let pid = std::process::id().to_string();
        std::process::Command::new("kill").args(["-STOP", &pid]).status().expect("kill runs");
    }
    let error = world.sum(&[1.0]).expect_err("rank 1 does not come");
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    fs::write(folder.join(format!("rank-{}", world.rank())), error.to_string()).expect("written");
    Err(error)
}

/// A rank is killed, while the others would continue for a minute.
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
