//! The loop.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use super::at::{At, Held};
use super::means::Means;
use super::progress::duration;
use super::trainer::{Callback, Trainer};
use super::validation::device_of;
use super::{EarlyStop, Progress, Report};
use crate::error::bail;
use crate::io::Checkpoint;
use crate::module::Module;
use crate::optim::{Accumulate, Ema, Optimizer, Plateau, TrainStep};
use crate::run::{Metric, Parts, Run};
use crate::{Result, Tensor, Var};

/// The parts of a checkpoint, as [`Run::checkpoint`] names them, and the average.
const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer";
const AVERAGE: &str = "average";

/// A moving average, whose model can be cloned.
pub(super) trait Average<M> {
    fn update(&mut self, model: &M) -> Result<()>;
    fn model(&self) -> &M;
    fn put(&self, parts: &mut Parts) -> Result<()>;
    fn take(&mut self, parts: &mut Parts) -> Result<()>;
    fn apply(&self, model: &mut M) -> Result<()>;
}

impl<M: Module + Clone> Average<M> for Ema<M> {
    fn update(&mut self, model: &M) -> Result<()> {
        self.update(model)
    }

    fn model(&self) -> &M {
        self.model()
    }

    fn put(&self, parts: &mut Parts) -> Result<()> {
        parts.put_ema(AVERAGE, self)
    }

    fn take(&mut self, parts: &mut Parts) -> Result<()> {
        parts.take_ema(AVERAGE, self)
    }

    fn apply(&self, model: &mut M) -> Result<()> {
        self.apply(model)
    }
}

/// What follows the metrics of the epochs.
struct Followers {
    stop_early: Option<(String, EarlyStop)>,
    plateau: Option<(String, Plateau)>,
}

impl Followers {
    /// Tells them the metrics of an epoch. `is_whole` if a metric that is not among them is an error.
    fn tell(&mut self, metrics: &BTreeMap<String, f64>, is_whole: bool) -> Result<()> {
        let find = |name: &str, what: &str| match metrics.get(name) {
            None if is_whole => {
                let known: Vec<_> = metrics.keys().map(|name| format!("`{name}`")).collect();
                bail!(Argument, "{what} follows `{name}`, and the metrics of an epoch are {}", known.join(", "))
            }
            value => Ok(value.copied()),
        };
        if let Some((name, stop)) = &mut self.stop_early
            && let Some(value) = find(name, "`stop_early`")?
        {
            stop.tell(value);
        }
        if let Some((name, plateau)) = &mut self.plateau
            && let Some(value) = find(name, "`plateau`")?
        {
            plateau.tell(value);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.stop_early.as_ref().is_some_and(|(_, stop)| stop.is_over())
    }

    /// Tells them the metrics of earlier processes.
    fn recall(&mut self, run: &mut Run) -> Result<()> {
        if !run.is_resumed() || (self.stop_early.is_none() && self.plateau.is_none()) {
            return Ok(());
        }
        // The first rank removes the lines after the checkpoint, before the others read.
        let own = if run.world().is_first() { Some(run.metrics()?) } else { None };
        let _ = run.world().agree([true])?;
        for line in own.map_or_else(|| run.metrics(), Ok)? {
            self.tell(&line.values, false)?;
        }
        Ok(())
    }
}

pub(super) fn fit<M: Module>(trainer: Trainer<'_, M>, optimizer: &mut dyn Optimizer) -> Result<Report> {
    let Trainer { model, source, mut loss, names, run, epochs, accumulate, .. } = trainer;
    let (mut validations, mut gradients, mut log) = (trainer.validations, trainer.gradients, trainer.log);
    let (mut each_step, mut each_epoch) = (trainer.each_step, trainer.each_epoch);
    let mut run = match run {
        Some(run) => run,
        None => Run::unkept(&device_of(model)?).open()?,
    };
    let (device, world) = (run.device().clone(), run.world().clone());
    let started = Instant::now();

    let steps_per_epoch = source.len()? as u64;
    let schedule = trainer.schedule.map(|schedule| schedule(epochs * steps_per_epoch / accumulate));
    if let Some(schedule) = &schedule {
        let held = run.hold_setting("schedule", &schedule.to_string(), trainer.may_prolong);
        held.map_err(|error| error.context("`prolong(true)` lets it"))?;
    }
    let mut average = restore(&mut run, model, optimizer, trainer.average)?;
    let mut followers = Followers { stop_early: trainer.stop_early, plateau: trainer.plateau };
    followers.recall(&mut run)?;
    if !world.is_first() {
        log = None;
    }
    let mut print = |line: &str| {
        if let Some(log) = &mut log {
            // A reader that has gone is no reason to stop.
            drop(writeln!(log, "{line}").and_then(|()| log.flush()));
        }
    };
    if run.is_kept() {
        print(&format!("{}, from {} on", run.folder().display(), run.position()));
    }

    let mut progress = match trainer.shows_progress && world.is_first() {
        true => Progress::new(epochs * steps_per_epoch, run.step()),
        false => Progress::hidden(),
    };
    let record = |model: &M, vars: &Vec<Var>| {
        let results = loss(model, vars)?;
        let means: Vec<_> = results.iter().map(|result| result.all_mean(&world)).collect();
        // The loss itself comes first: its gradient is averaged later.
        Ok(results.into_iter().take(1).chain(means).collect::<Vec<Var>>())
    };
    let mut step = TrainStep::new(&mut *model, record)
        .gradients(|model, grads| {
            let grads = if world.is_alone() { grads } else { grads.average(model, &world)? };
            gradients.iter_mut().try_fold(grads, |grads, change| change(model, grads))
        })
        .accumulate(Accumulate::mean(accumulate));

    let mut means = Means::new(optimizer.stepper().skips());
    let mut metrics = BTreeMap::new();
    let mut is_stopped = followers.is_over();
    'training: while !is_stopped && let Some(batches) = source.next_epoch(&mut run, epochs) {
        let mut results = Vec::new();
        let epoch_started = Instant::now();
        for batch in batches {
            let batch = batch?;
            if let Some(schedule) = &schedule {
                schedule.set_lr(run.step() / accumulate, optimizer);
            }
            let tensors: Vec<&Tensor> = batch.iter().collect();
            results = step.call(optimizer, &tensors)?.split_off(1);
            if let Some(average) = &mut average
                && optimizer.accumulated() == 0
            {
                average.update(step.module())?;
            }
            run.advance();
            let lr = optimizer.lr();
            let mut values: Vec<(&str, &dyn Metric)> = vec![("loss", &results[0])];
            values.extend(names.iter().zip(&results[1..]).map(|(name, result)| (&**name, result as &dyn Metric)));
            if schedule.is_some() || followers.plateau.is_some() {
                values.push(("lr", &lr));
            }
            run.log(&values)?;
            means.add(&results);
            if progress.is_due() {
                if !means.read()? && world.is_alone() {
                    return failed(run);
                }
                let loss = means.last.map_or_else(String::new, |loss| format!("loss {loss:.4}"));
                progress.show(run.step(), loss);
            }
            let mut lines = Vec::new();
            call(
                &mut each_step,
                &mut At {
                    model: &mut step,
                    average: average.as_deref().map(Average::model),
                    optimizer: &mut *optimizer,
                    run: &mut run,
                    results: &results,
                    metrics: &mut metrics,
                    lines: &mut lines,
                    is_stopped: &mut is_stopped,
                    is_epoch: false,
                },
            )?;
            if !lines.is_empty() {
                progress.clear();
                lines.iter().for_each(|line| print(line));
            }
            if run.is_due() || is_stopped {
                save(&mut run, step.get(), optimizer, average.as_deref())?;
            }
            if run.is_interrupted() || is_stopped {
                break 'training;
            }
        }
        run.end_epoch();

        let Some(all) = means.finish()? else { return failed(run) };
        metrics = BTreeMap::new();
        let epoch_loss = all.first().copied();
        metrics.extend(epoch_loss.map(|loss| ("epoch_loss".to_owned(), loss)));
        let measured = average.as_deref().map_or(step.get(), Average::model);
        for validation in &mut validations {
            metrics.extend(validation.run(measured, &device, &world)?);
        }
        let values: Vec<(&str, &dyn Metric)> = metrics.iter().map(|(name, value)| (&**name, value as _)).collect();
        run.log(&values)?;
        drop(values);
        let mut lines = Vec::new();
        call(
            &mut each_epoch,
            &mut At {
                model: &mut step,
                average: average.as_deref().map(Average::model),
                optimizer: &mut *optimizer,
                run: &mut run,
                results: &results,
                metrics: &mut metrics,
                lines: &mut lines,
                is_stopped: &mut is_stopped,
                is_epoch: true,
            },
        )?;
        followers.tell(&metrics, true)?;
        if let Some((_, plateau)) = &followers.plateau {
            plateau.set_lr(optimizer);
        }
        is_stopped |= followers.is_over();
        let epoch = run.position().epoch;
        if epoch.is_multiple_of(trainer.save_every) || epoch >= epochs || is_stopped || run.is_due() {
            save(&mut run, step.get(), optimizer, average.as_deref())?;
        }
        progress.clear();
        print(&summary(epoch, &metrics, epoch_started.elapsed().as_secs_f64()));
        lines.iter().for_each(|line| print(line));
        if run.is_interrupted() {
            break;
        }
    }
    drop(step);
    drop(progress);
    if let Some(average) = &average {
        average.apply(model)?;
    }
    let overview = run.finish()?;
    if trainer.loads_best
        && let Some((folder, ..)) = &overview.best
    {
        let name = if average.is_some() { AVERAGE } else { MODEL };
        load(model, &folder.join(format!("{name}.safetensors")))?;
    }
    Ok(Report { metrics, is_stopped, time: started.elapsed(), overview })
}

/// Restores everything from the run's checkpoint, gives all ranks the same model, and begins or continues its average.
fn restore<M: Module>(
    run: &mut Run,
    model: &mut M,
    optimizer: &mut dyn Optimizer,
    average: Option<Box<super::trainer::AverageFn<'_, M>>>,
) -> Result<Option<Box<dyn Average<M>>>> {
    let world = run.world().clone();
    let Some(average) = average else {
        run.restore(model, optimizer)?;
        world.share(model)?;
        return Ok(None);
    };
    let mut parts = run.restore_parts()?;
    if let Some(parts) = &mut parts {
        parts.take_model(MODEL, model)?;
        parts.take_optimizer(OPTIMIZER, optimizer, model)?;
    }
    world.share(model)?;
    let mut average = average(model)?;
    if let Some(mut parts) = parts {
        average.take(&mut parts)?;
        parts.finish()?;
    }
    Ok(Some(average))
}

fn save<M: Module>(
    run: &mut Run,
    model: &M,
    optimizer: &dyn Optimizer,
    average: Option<&dyn Average<M>>,
) -> Result<()> {
    let Some(average) = average else {
        return run.checkpoint(model, optimizer).map(drop);
    };
    let mut parts = Parts::new();
    parts.put_model(MODEL, model)?;
    parts.put_optimizer(OPTIMIZER, optimizer, model)?;
    average.put(&mut parts)?;
    run.save(parts).map(drop)
}

fn load(model: &mut dyn Module, path: &Path) -> Result<()> {
    model.load(path)?.strict()
}

fn call<M>(callbacks: &mut [Box<Callback<'_, M>>], at: &mut At<'_, M>) -> Result<()> {
    callbacks.iter_mut().try_for_each(|callback| callback(at))
}

/// Ends a run whose loss is not finite.
fn failed(run: Run) -> Result<Report> {
    let overview = run.fail("the loss is not finite")?;
    bail!(NotFinite, "{overview}")
}

/// The line of an epoch.
fn summary(epoch: u64, metrics: &BTreeMap<String, f64>, seconds: f64) -> String {
    let mut line = format!("epoch {epoch:2}");
    // The loss first.
    let (first, rest): (Vec<_>, Vec<_>) = metrics.iter().partition(|(name, _)| *name == "epoch_loss");
    for (name, value) in first.into_iter().chain(rest) {
        let name = if name == "epoch_loss" { "loss" } else { name };
        let value = match value.abs() {
            0.0 | 1e-3..1e5 => format!("{value:.4}"),
            _ => format!("{value:.3e}"),
        };
        line += &format!("   {name} {value}");
    }
    match seconds {
        ..10.0 => line + &format!("   {seconds:.1} s"),
        _ => line + "   " + &duration(seconds),
    }
}
