//! A small training program with every kind of state that a run must save: dropout, running statistics, optimizer
//! moments, a schedule, a moving average, and a shuffled dataset whose epochs end between checkpoints.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use meganeura::data::Dataset;
use meganeura::io::Checkpoint;
use meganeura::nn::{BatchNorm2d, Conv2d, Dropout, Linear};
use meganeura::optim::{AdamW, Ema, Optimizer, Schedule};
use meganeura::run::{Best, Interrupt, Parts, Run};
use meganeura::{Device, Layer, Module, Tape};

use crate::nets::normal;

/// With this first argument, the test binary becomes this program.
const TRAIN: &str = "train-in-this-folder";

/// The program's training options.
#[derive(Clone, Debug)]
pub(crate) struct TrainingProgram {
    pub(crate) folder: PathBuf,
    pub(crate) epochs: u64,
    /// Prints a message after this number of steps, and waits for the end of its input, like in a long step.
    pub(crate) wait_at: u64,
    pub(crate) catch: bool,
}

#[derive(Module, Debug, Clone)]
#[module(sequential)]
pub(crate) struct Net {
    #[module(init = Conv2d::new(1, 4, 3).padding(1))]
    stem: Conv2d,
    #[module(init = BatchNorm2d::new(4), then = [relu, flatten])]
    norm: BatchNorm2d,
    #[module(init = Linear::new(4 * 36, 64), then = relu)]
    hidden: Linear,
    #[module(init = Dropout::new(0.3))]
    dropout: Dropout,
    #[module(init = Linear::new(64, 3))]
    head: Linear,
}

/// 60 images with arbitrary labels.
pub(crate) fn data() -> meganeura::Result<Dataset> {
    let pixels = normal("runs", 60 * 36).into_iter().map(|x| x as f32).collect();
    Dataset::new(pixels, [1, 6, 6], (0..60).map(|i| i % 3).collect::<Vec<_>>())
}

/// The number of batches in an epoch; the last is smaller.
pub(crate) const BATCHES: u64 = 8;

impl TrainingProgram {
    pub(crate) fn new(folder: &Path, epochs: u64) -> Self {
        Self { folder: folder.to_owned(), epochs, wait_at: 0, catch: false }
    }

    /// This program as a separate process.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(self.arguments()).env("RAYON_NUM_THREADS", "1");
        command
    }

    /// The same with default signal handling, even if this process ignores some signals.
    pub(crate) fn command_by_default(&self) -> Command {
        if !cfg!(target_os = "linux") {
            return self.command();
        }
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(std::env::current_exe().expect("a path"));
        command.args(self.arguments()).env("RAYON_NUM_THREADS", "1");
        command
    }

    /// The arguments that [`train_if_asked`] reads.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self { folder, epochs, wait_at, catch } = self;
        let folder = folder.to_str().expect("text").to_owned();
        vec![TRAIN.to_owned(), folder, epochs.to_string(), wait_at.to_string(), catch.to_string()]
    }

    /// The files of the trained model and its average.
    pub(crate) fn results(&self) -> [PathBuf; 2] {
        ["net.safetensors", "average.safetensors"].map(|name| self.folder.join(name))
    }

    pub(crate) fn train(&self, device: &Device) -> Result<String, Box<dyn Error>> {
        let interrupt = if self.catch { Interrupt::on_ctrl_c()? } else { Interrupt::new() };
        let schedule = Schedule::cosine(0.02, self.epochs * BATCHES, 1e-3).warmup(10);
        let mut run = Run::at(&self.folder, device)
            .setting("schedule", &schedule)
            .setting("seed", 7)
            .keep_best("loss", Best::Lowest)
            .every_steps(3)
            .resume_command("the same command")
            .interrupt(&interrupt)
            .open()?;
        let data = data()?;
        let mut net = Net::init(device, 42)?;
        let mut optimizer = AdamW::new(0.0);
        let mut average = Ema::new(&net, 0.95)?.warmup(true);
        if let Some(mut parts) = run.restore_parts()? {
            parts.take_model("net", &mut net)?;
            parts.take_optimizer("optimizer", &mut optimizer, &net)?;
            parts.take_ema("average", &mut average)?;
            parts.finish()?;
        }
        let save = |run: &mut Run, net: &Net, optimizer: &AdamW, average: &Ema<Net>| {
            let mut parts = Parts::new();
            parts.put_model("net", net)?;
            parts.put_optimizer("optimizer", optimizer, net)?;
            parts.put_ema("average", average)?;
            run.save(parts)
        };
        'training: while let Some(epoch) = run.next_epoch(self.epochs) {
            for batch in data.batches(8).shuffle(7).epoch(epoch).skip(run.batch()).on(device) {
                let batch = batch?;
                schedule.set_lr(run.step(), &mut optimizer);
                let tape = Tape::new(device);
                let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
                let grads = tape.backward(&loss)?;
                optimizer.step(&mut net, &grads)?;
                average.update(&net)?;
                run.advance();
                run.log(&[("loss", &loss.to_tensor()?), ("lr", &optimizer.lr())])?;
                if run.is_due() {
                    save(&mut run, &net, &optimizer, &average)?;
                }
                if run.step() == self.wait_at {
                    println!("waits");
                    std::io::read_to_string(std::io::stdin())?;
                }
                if run.is_interrupted() {
                    break 'training;
                }
            }
            run.end_epoch();
        }
        for (path, model) in self.results().iter().zip([&net, average.model()]) {
            model.save(path)?;
        }
        Ok(run.finish()?.to_string())
    }
}

/// Runs the program if the arguments say so.
pub(crate) fn train_if_asked() -> bool {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, folder, epochs, wait_at, catch] = &arguments[..] else { return false };
    if name != TRAIN {
        return false;
    }
    let number = |text: &str| text.parse().expect("a number");
    let folder = PathBuf::from(folder);
    let program = TrainingProgram { folder, epochs: number(epochs), wait_at: number(wait_at), catch: catch == "true" };
    match program.train(&Device::cpu()) {
        Ok(overview) => println!("{overview}"),
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
    true
}
