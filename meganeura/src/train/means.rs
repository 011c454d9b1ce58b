//! The means of a step's results over an epoch.

use crate::{Result, Tensor};

/// Sums of results, which are read from the device some time after their step.
pub(super) struct Means {
    pending: Vec<Vec<Tensor>>,
    sums: Vec<f64>,
    count: u64,
    /// `true` if results that are not finite are left out, because the optimizer skips their steps.
    skips: bool,
    /// The last loss that was read.
    pub(super) last: Option<f64>,
}

impl Means {
    pub(super) fn new(skips: bool) -> Self {
        Self { pending: Vec::new(), sums: Vec::new(), count: 0, skips, last: None }
    }

    /// Adds the results of a step, the loss first.
    pub(super) fn add(&mut self, results: &[Tensor]) {
        self.pending.push(results.to_vec());
    }

    /// Reads what is pending. Returns `false` if a loss is not finite, unless such losses are skipped.
    pub(super) fn read(&mut self) -> Result<bool> {
        let mut is_finite = true;
        for results in self.pending.drain(..) {
            let mut numbers = Vec::with_capacity(results.len());
            for result in &results {
                numbers.push(result.to_f64_vec()?.iter().sum::<f64>());
            }
            let loss = numbers.first().copied().unwrap_or_default();
            self.last = Some(loss);
            if !loss.is_finite() {
                is_finite &= self.skips;
                if self.skips {
                    continue;
                }
            }
            self.sums.resize(numbers.len(), 0.0);
            self.sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
            self.count += 1;
        }
        Ok(is_finite)
    }

    /// The means, the loss's first; starts over. `None` if no loss was finite; no means if there was no step.
    pub(super) fn finish(&mut self) -> Result<Option<Vec<f64>>> {
        let had_steps = self.count > 0 || !self.pending.is_empty();
        if !self.read()? {
            return Ok(None);
        }
        let (sums, count) = (std::mem::take(&mut self.sums), std::mem::take(&mut self.count));
        if count == 0 && had_steps {
            return Ok(None);
        }
        Ok(Some(sums.into_iter().map(|sum| sum / count as f64).collect()))
    }
}
