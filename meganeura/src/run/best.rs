//! The checkpoints that a run keeps: the last ones, and the best by a metric.

use std::path::Path;

use super::ranks::Written;
use super::{Metric, Run, store};
use crate::Result;
use crate::error::bail;
use crate::module::near::nearest;

impl Run {
    /// The best checkpoint so far, by the metric of [`RunOptions::keep_best`](super::RunOptions::keep_best).
    #[must_use]
    pub fn best(&self) -> Option<&Path> {
        self.best_index().map(|index| &*self.saved()[index].path)
    }

    pub(super) fn best_index(&self) -> Option<usize> {
        let (metric, best) = self.options.keep_best.as_ref()?;
        best.of(self.saved(), metric).map(|(index, ..)| index)
    }

    /// Deletes the checkpoints that are not to be kept.
    pub(super) fn prune(&mut self) -> Result<()> {
        // Others may delete some; the best of the remaining ones is kept.
        if let Some(files) = &mut self.files {
            files.saved.retain(|saved| saved.path.exists());
        }
        let best = self.best_index();
        let Some(Written { saved, .. }) = &mut self.files else { return Ok(()) };
        let old = saved.len().saturating_sub(self.options.keep_last);
        // From last to first, so that indices stay valid. Damaged ones are left for inspection.
        for index in (0..old).rev().filter(|&index| Some(index) != best) {
            if saved[index].state.is_ok() {
                store::delete(&saved[index])?;
                saved.remove(index);
            }
        }
        Ok(())
    }

    /// Notices a metric that belongs to a checkpoint which was saved without it.
    pub(super) fn notice_late(&mut self, values: &[(&str, &dyn Metric)]) {
        let Some((metric, _)) = &self.options.keep_best else { return };
        let step = self.position.step;
        let is_saved =
            || self.saved().last().and_then(|saved| saved.state.as_ref().ok()).map(|state| state.position.step);
        if values.iter().any(|(name, _)| name == metric) && is_saved() == Some(step) {
            self.late = Some(step);
        }
    }

    /// Fails if no checkpoint has the metric that decides which is the best. A checkpoint in the middle of the first
    /// epoch that is due may come before the first evaluation.
    pub(super) fn expect_best(&mut self, is_due: bool) -> Result<()> {
        let Some((metric, _)) = &self.options.keep_best else { return Ok(()) };
        let mut states = self.saved().iter().filter_map(|saved| saved.state.as_ref().ok());
        if self.has_best || states.any(|state| state.metrics.contains_key(metric)) {
            self.has_best = true;
            return Ok(());
        }
        let Some(files) = &self.files else { return Ok(()) };
        let step = self.position.step;
        let late = self.late.filter(|&late| late < step);
        if is_due && late.is_none() && self.position.batch > 0 && !self.has_ended_epoch {
            return Ok(());
        }
        let logged = files.metrics.names();
        let remedy = "log it at the step of the checkpoint, before saving, or NaN if there is no value";
        if let Some(late) = late {
            bail!(
                Argument,
                "`keep_best` has nothing to compare: `{metric}` was logged after the checkpoint of step {late} was saved, and no \
                 checkpoint has it. This one, of step {step}, is saved; {remedy}"
            );
        }
        let what = if logged.contains(metric) { "logged at another step" } else { "never logged" };
        let near = nearest(metric, logged.iter().filter(|name| *name != metric).map(|name| (&**name, 0, &**name)));
        let near = near.into_iter().find(|&(distance, name)| {
            let is_part = || metric.contains(name) || name.contains(&**metric);
            2 * distance <= name.len().min(metric.len()) || is_part()
        });
        let hint = near.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"));
        bail!(
            Argument,
            "`keep_best` has nothing to compare: `{metric}` was {what} ({}{hint}), and no checkpoint has it. The checkpoint of \
             step {step} is saved; {remedy}",
            listed(logged.iter().map(String::as_str))
        )
    }
}

/// The names of logged metrics, for messages.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    if names.len() == 0 {
        return "nothing was logged".to_owned();
    }
    let more = names.len().saturating_sub(SHOWN);
    let mut shown: Vec<_> = names.take(SHOWN).map(|name| format!("`{}`", crate::error::shortened(name))).collect();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    format!("logged were {}", shown.join(", "))
}
