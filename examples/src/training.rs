//! The common parts of every program that trains: options, a run, a progress bar.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use meganeura::data::{Batches, Collate, Dataset, Fields, Stack};
use meganeura::io::Checkpoint;
use meganeura::module::Module;
use meganeura::run::{Interrupt, Run, RunOptions, read_metrics};
use meganeura::train::Report;
use meganeura::world::World;
use meganeura::{Device, Precision, Result};
use serde_json::{Value, json};

use crate::curve;

/// The options of all these programs; `#[command(flatten)]` puts them beside a program's own.
#[derive(Args, Debug)]
#[group(id = "training")]
pub struct Options {
    /// The device: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// The precision of the computation
    #[arg(long, value_enum, default_value_t = Accuracy::Full)]
    pub precision: Accuracy,
    /// The seed of the initial weights, the train/test split (of images), the shuffling and the sampling
    #[arg(long, default_value_t = 42, allow_negative_numbers = true)]
    pub seed: u64,
    /// The folder for checkpoints, metrics and pictures [default: a new folder in target/]
    #[arg(long)]
    pub run: Option<PathBuf>,
    /// Resume the training in the folder of --run
    #[arg(long, requires = "run")]
    pub resume: bool,
    /// Resume from the last intact checkpoint, if newer ones are damaged
    #[arg(long, requires = "run", conflicts_with = "resume")]
    pub resume_from_last_good: bool,
    /// The number of processes that train together, each with its own GPU or a share of the CPU; needs the feature
    /// `mpi`, and `mpirun`
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Start from the weights in this file, for example those of an earlier training; with `--epochs 0`, only use them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["resume", "resume_from_last_good"])]
    pub weights: Option<PathBuf>,
    /// Also write the metrics for TensorBoard, to the run's folder `tensorboard`
    #[arg(long)]
    pub tensorboard: bool,
    /// Print the result as one line of JSON, and everything else to stderr
    #[arg(long)]
    pub json: bool,
}

/// The precision of a program.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accuracy {
    /// 32-bit floats everywhere
    Full,
    /// Products of 16-bit floats, on a GPU's matrix units
    Fast,
}

/// A training that has begun: its processes, its device, and where it prints.
#[derive(Debug)]
pub struct Session<'o> {
    options: &'o Options,
    /// The processes that train together.
    pub world: World,
    /// This process's device.
    pub device: Device,
    /// The seed of everything random.
    pub seed: u64,
}

/// What a training showed, for `--json`.
pub type Results = Vec<(&'static str, Value)>;

impl Options {
    /// Starts the other processes, if there are any, opens the device, and prints its name.
    ///
    /// # Errors
    ///
    /// Fails if ranks do not find each other, or if there is no such device.
    pub fn begin(&self) -> Result<Session<'_>, Box<dyn Error>> {
        let world = self.world()?;
        let device = self.device(&world)?;
        let session = Session { options: self, world, device, seed: self.seed };
        session.say(format!("Device: {} — {}", session.device, session.device.reason()))?;
        Ok(session)
    }

    /// The processes that train together. With `--ranks`, the first process starts them, and ends with them.
    ///
    /// # Errors
    ///
    /// If they cannot be started, or do not find each other.
    fn world(&self) -> Result<World> {
        crate::ranks::join(self.ranks)
    }

    /// This process's device, in the requested precision.
    ///
    /// # Errors
    ///
    /// If there is no device of this name (the message lists the existing ones), or it does not support the precision.
    fn device(&self, world: &World) -> Result<Device> {
        let device = world.device(&self.device)?;
        match self.precision {
            Accuracy::Full => Ok(device),
            Accuracy::Fast => device.with_precision(Precision::Fast),
        }
    }

    /// The output for progress: only one of the processes reports it.
    fn log(&self, world: &World) -> Box<dyn Write> {
        match (world.is_first(), self.json) {
            (false, _) => Box::new(std::io::sink()),
            (true, true) => Box::new(std::io::stderr()),
            (true, false) => Box::new(std::io::stdout()),
        }
    }
}

impl Session<'_> {
    /// Prints a line, in one of the processes.
    ///
    /// # Errors
    ///
    /// If it cannot be printed.
    pub fn say(&self, line: impl std::fmt::Display) -> Result<(), Box<dyn Error>> {
        Ok(writeln!(self.log(), "{line}")?)
    }

    /// The output for lines like those of [`say`](Self::say).
    #[must_use]
    pub fn log(&self) -> Box<dyn Write> {
        self.options.log(&self.world)
    }

    /// Whole batches of a dataset, shuffled: with one shape, all steps share one plan.
    ///
    /// # Errors
    ///
    /// If there is no batch, because its size is 0, or larger than the dataset.
    pub fn batches<I: Fields, T: Fields>(
        &self,
        dataset: &Dataset<I, T>,
        size: usize,
    ) -> Result<Batches<I, T>, Box<dyn Error>>
    where
        Stack: Collate<I, T>,
    {
        steps_per_epoch(dataset.len(), size)?;
        Ok(dataset.batches(size).shuffle(self.options.seed).drop_last())
    }

    /// Loads the weights of `--weights` into the model, if there are any.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is of another model.
    pub fn load_weights(&self, net: &mut dyn Module) -> Result<()> {
        self.options.weights.as_ref().map_or(Ok(()), |file| net.load(file)?.strict())
    }

    /// Begins or resumes the run in the requested folder. Its settings, which must not change, are the program, the
    /// seed and those that `settings` adds.
    ///
    /// # Errors
    ///
    /// If there is a run where one should begin, or none to resume, or it has other settings.
    pub fn run(&self, program: &str, settings: impl FnOnce(RunOptions) -> RunOptions) -> Result<Run> {
        let Self { options, world, device, seed } = self;
        // The first process determines the new folder.
        let folder = options.run.clone().unwrap_or_else(|| new_folder(&Path::new("target").join(program)));
        let folder = PathBuf::from(world.text_of_first(&folder.to_string_lossy())?);
        let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
        let run = Run::at(&folder, device)
            .setting("program", program)
            .setting("seed", seed)
            .resume_command(resume_command(arguments, options.run.is_none().then_some(&folder)))
            .interrupt(&Interrupt::on_ctrl_c()?)
            .tensorboard(options.tensorboard)
            .world(world);
        let run = settings(run).resume_from_last_good(options.resume_from_last_good);
        let run = if options.resume || options.resume_from_last_good { run.resume() } else { run.create() }?;
        for path in run.set_aside() {
            eprintln!("damaged, and set aside: {}", path.display());
        }
        Ok(run)
    }

    /// Ends the program: draws the curve of the losses, prints the state of the run, and with `--json` the results. An
    /// interrupted training has none: the function is not called.
    ///
    /// # Errors
    ///
    /// If the results or the curve cannot be written.
    pub fn conclude(
        &self,
        report: &Report,
        results: impl FnOnce() -> Result<Results, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        if !self.world.is_first() {
            return Ok(());
        }
        let results = if report.is_interrupted() { None } else { Some(results()?) };
        self.say(format!("\ntrained for {:.1} s\n{report}", report.time.as_secs_f64()))?;
        let Some(results) = results else { return Ok(()) };
        let folder = &report.overview.folder;
        let losses =
            read_metrics(folder)?.iter().filter_map(|line| Some(*line.values.get("loss")? as f32)).collect::<Vec<_>>();
        let epochs = report.position().epoch.max(1) as usize;
        curve::draw(&folder.join("loss.svg"), "Training loss", &losses, losses.len() / epochs)?;
        if self.options.json {
            let mut line = json!({
                "device": self.device.to_string(), "ranks": self.world.size(), "steps": report.position().step,
                "seconds": report.time.as_secs_f64(),
            });
            results.into_iter().for_each(|(name, value)| line[name] = value);
            println!("{line}");
        }
        Ok(())
    }
}

/// The command that resumes a run that ended early; it adds the folder if the original command did not name one.
fn resume_command(arguments: impl Iterator<Item = String>, folder: Option<&PathBuf>) -> String {
    let mut command: Vec<_> = arguments.filter(|argument| !argument.starts_with("--resume")).collect();
    command.extend(folder.into_iter().flat_map(|folder| ["--run".to_owned(), folder.display().to_string()]));
    command.push("--resume".to_owned());
    command.iter().map(|argument| quoted(argument)).collect::<Vec<_>>().join(" ")
}

/// Quoted, so that a shell reads it as one word: a path may have spaces.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-+=./:,@%".contains(c) || cfg!(windows) && c == '\\';
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    // A quote inside quotes closes them, is escaped, and opens them again; Windows uses double quotes.
    if cfg!(windows) { format!("\"{argument}\"") } else { format!("'{}'", argument.replace('\'', "'\\''")) }
}

/// The first of `run-1`, `run-2`, … that does not exist yet.
fn new_folder(parent: &Path) -> PathBuf {
    let mut names = (1..).map(|number: u64| parent.join(format!("run-{number}")));
    names.find(|folder| !folder.exists()).expect("numbers do not end")
}

/// Checks that an option has at least the value `least`.
///
/// # Errors
///
/// If it is smaller; the message names the option.
pub fn expect_at_least(option: &str, least: u64, value: u64) -> Result<(), Box<dyn Error>> {
    if value < least {
        return Err(format!("{option} {value}: must be at least {least}").into());
    }
    Ok(())
}

/// Checks that an option is a positive multiple of a number.
///
/// # Errors
///
/// If it is not; the message names the option.
pub fn expect_multiple(option: &str, of: usize, value: usize) -> Result<(), Box<dyn Error>> {
    if value == 0 || !value.is_multiple_of(of) {
        return Err(format!("{option} {value}: must be a multiple of {of}, and not 0").into());
    }
    Ok(())
}

/// The number of steps in an epoch with only whole batches: with one shape, all steps share one plan.
///
/// # Errors
///
/// If there is no step to make, because the batch is empty, or larger than the dataset.
pub fn steps_per_epoch(examples: usize, batch: usize) -> Result<usize, Box<dyn Error>> {
    if examples == 0 {
        return Err("there are no examples to learn from".into());
    }
    if batch == 0 || batch > examples {
        return Err(
            format!("--batch {batch}: must be from 1 to {examples}, the number of examples to learn from").into()
        );
    }
    Ok(examples / batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_resumes_the_training() {
        let command = |arguments: &str, folder: Option<&str>| {
            let arguments = arguments.split(' ').map(str::to_owned);
            resume_command(arguments, folder.map(PathBuf::from).as_ref())
        };
        assert_eq!(command("train --epochs 2", Some("target/run-1")), "train --epochs 2 --run target/run-1 --resume");
        for resumed in ["train --run r --resume --steps 9", "train --run r --resume-from-last-good --steps 9"] {
            assert_eq!(command(resumed, None), "train --run r --steps 9 --resume");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_command_is_quoted_for_a_shell() {
        for argument in ["--run=plain/path_1.2", "two words", "it's", "", "$HOME", "a\nb", "*", "\\", "ä∞"] {
            let script = format!("printf %s {}", quoted(argument));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), argument, "{script}");
        }
    }
}
