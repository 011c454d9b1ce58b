//! A learning rate that falls when a metric stops improving.

use super::text::Reader;
use crate::Result;
use crate::error::{bail, here, shortened};
use crate::optim::{Group, Optimizer};

/// A learning rate that is reduced when a metric stops improving; PyTorch's `ReduceLROnPlateau`.
///
/// [`tell`](Self::tell) it the metric of each validation. A metric improves if it is below `best·(1 − threshold)`, or
/// above `best·(1 + threshold)` if it is [maximized](Self::maximize); NaN never improves. The learning rate is
/// multiplied by a factor once more than `patience` metrics in a row have not improved.
///
/// Unlike a [`Schedule`](super::Schedule), it has a memory: [`state`](Self::state) is saved with the optimizer's, and
/// [`load_state`](Self::load_state) restores it.
///
/// ```
/// use meganeura::optim::Plateau;
/// use meganeura::prelude::*;
/// use meganeura::run::Parts;
///
/// let mut optimizer = AdamW::new(0.0);
/// let mut plateau = Plateau::new(0.1).factor(0.5).patience(1);
/// for loss in [3.0, 2.0, 2.0, 2.5] {
///     plateau.tell(loss);
///     plateau.set_lr(&mut optimizer);
/// }
/// assert_eq!(optimizer.lr(), 0.05);
///
/// let mut parts = Parts::new();
/// parts.put_text("plateau", plateau.state())?;
/// let mut same = Plateau::new(0.1).factor(0.5).patience(1);
/// same.load_state(&parts.take_text("plateau")?)?;
/// assert_eq!(same, plateau);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Plateau {
    factor: f64,
    patience: u64,
    threshold: f64,
    absolute: bool,
    maximize: bool,
    cooldown: u64,
    floor: f64,
    least_change: f64,
    state: State,
}

/// The memory of the metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
struct State {
    lr: f64,
    /// Infinite before the first metric.
    best: f64,
    /// The number of metrics in a row that did not improve, since the last reduction or its cooldown.
    bad: u64,
    /// The number of metrics that are still not counted as bad.
    cooling: u64,
}

impl Plateau {
    /// Starts with this learning rate, for a metric that is minimized: with a factor of 0.1, a patience of 10 and a
    /// threshold of 1e-4.
    pub fn new(lr: f64) -> Self {
        Self {
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            absolute: false,
            maximize: false,
            cooldown: 0,
            floor: 0.0,
            least_change: 1e-8,
            state: State { lr, best: f64::INFINITY, bad: 0, cooling: 0 },
        }
    }

    /// The factor of a reduction; 0.1 by default.
    pub fn factor(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// The number of metrics in a row that may fail to improve; 10 by default.
    pub fn patience(self, patience: u64) -> Self {
        Self { patience, ..self }
    }

    /// The share of the best metric by which another must be better; 1e-4 by default.
    pub fn threshold(self, threshold: f64) -> Self {
        Self { threshold, ..self }
    }

    /// Makes the threshold a distance if `true`, rather than a share of the best metric; `false` by default.
    pub fn absolute(self, absolute: bool) -> Self {
        Self { absolute, ..self }
    }

    /// Expects the metric to grow if `true`, like an accuracy, rather than to fall; `false` by default. Set this before
    /// the first metric.
    pub fn maximize(self, maximize: bool) -> Self {
        let best = if maximize { f64::NEG_INFINITY } else { f64::INFINITY };
        Self { maximize, state: State { best, ..self.state }, ..self }
    }

    /// The number of metrics after a reduction that are not counted as bad; 0 by default.
    pub fn cooldown(self, cooldown: u64) -> Self {
        Self { cooldown, ..self }
    }

    /// The smallest learning rate; 0 by default.
    pub fn floor(self, floor: f64) -> Self {
        Self { floor, ..self }
    }

    /// The smallest change of a reduction; the learning rate stays if it would change by less. 1e-8 by default.
    pub fn least_change(self, least_change: f64) -> Self {
        Self { least_change, ..self }
    }

    /// Records a metric. Returns `true` if the learning rate was reduced.
    pub fn tell(&mut self, metric: f64) -> bool {
        let before = self.state.lr;
        if self.is_better(metric) {
            (self.state.best, self.state.bad) = (metric, 0);
        } else {
            self.state.bad = self.state.bad.saturating_add(1);
        }
        if self.state.cooling > 0 {
            self.state.cooling -= 1;
            self.state.bad = 0;
        }
        if self.state.bad > self.patience {
            (self.state.cooling, self.state.bad) = (self.cooldown, 0);
            let lr = (before * self.factor).max(self.floor);
            if before - lr > self.least_change {
                self.state.lr = lr;
            }
        }
        self.state.lr < before
    }

    fn is_better(&self, metric: f64) -> bool {
        let State { best, .. } = self.state;
        let step = match (self.absolute, best.is_finite()) {
            (true, _) => self.threshold,
            (false, true) => self.threshold * best,
            // Any number is better than none.
            (false, false) => 0.0,
        };
        if self.maximize { metric > best + step } else { metric < best - step }
    }

    /// The learning rate.
    #[must_use]
    pub fn lr(&self) -> f64 {
        self.state.lr
    }

    /// The best metric so far; infinite before the first.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.state.best
    }

    /// Sets the learning rate of an optimizer. Groups whose learning rate is a multiple of it follow.
    pub fn set_lr(&self, optimizer: &mut (impl Optimizer + ?Sized)) {
        optimizer.set_lr(self.lr());
    }

    /// Sets the factor of a group's learning rate.
    pub fn set_lr_scale(&self, group: &mut Group) {
        group.set_lr_scale(self.lr());
    }

    /// The memory of the metrics as text: `plateau(lr, best, bad, cooling)`. The settings are not part of it.
    #[must_use]
    pub fn state(&self) -> String {
        let State { lr, best, bad, cooling } = self.state;
        format!("plateau({lr:?}, {best:?}, {bad}, {cooling})")
    }

    /// Restores a [`state`](Self::state).
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint) if the text is not such a state, its learning rate is
    /// NaN, infinite or below 0, or its best value is NaN. On error, nothing changes.
    #[track_caller]
    pub fn load_state(&mut self, text: &str) -> Result<()> {
        here(|| {
            let state = match read(text) {
                Ok(state) => state,
                Err(error) => bail!(Checkpoint, "the state of a plateau: {error}"),
            };
            if !(state.lr >= 0.0 && state.lr.is_finite()) {
                bail!(Checkpoint, "the plateau's learning rate is {}; it must be 0 or above", state.lr);
            }
            if state.best.is_nan() {
                bail!(Checkpoint, "the plateau's best value is NaN");
            }
            self.state = state;
            Ok(())
        })
    }
}

fn read(text: &str) -> Result<State> {
    let mut reader = Reader::new(text);
    let name = reader.word();
    if name != "plateau" {
        bail!(Argument, "it begins with `{}`", shortened(name));
    }
    reader.expect('(')?;
    let state = State { lr: reader.number()?, best: reader.next()?, bad: reader.next()?, cooling: reader.next()? };
    reader.expect(')')?;
    reader.expect_end()?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::optim::Sgd;

    fn rates(mut plateau: Plateau, metrics: &[f64]) -> Vec<f64> {
        let told = |&metric: &f64| {
            plateau.tell(metric);
            plateau.lr()
        };
        metrics.iter().map(told).collect()
    }

    #[test]
    fn the_rate_falls_after_the_patience_is_over() {
        let plateau = || Plateau::new(1.0).factor(0.5).patience(2);
        let metrics = [5.0, 5.0, 5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0];
        assert_eq!(rates(plateau(), &metrics), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]);
        let cooled = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5];
        assert_eq!(rates(plateau().cooldown(2), &metrics), cooled);
        assert_eq!(rates(plateau().floor(0.5), &metrics)[9], 0.5);
        assert_eq!(rates(plateau().least_change(0.6), &metrics)[9], 1.0);
        assert_eq!(rates(plateau().patience(0), &[1.0, f64::NAN, f64::NAN]), [1.0, 0.5, 0.25]);
    }

    #[test]
    fn a_metric_must_be_better_by_the_threshold() {
        let plateau = || Plateau::new(1.0).factor(0.5).patience(0).threshold(0.25);
        assert_eq!(rates(plateau(), &[8.0, 6.5, 5.0, 4.0]), [1.0, 0.5, 0.5, 0.25]);
        assert_eq!(rates(plateau().absolute(true), &[8.0, 7.5, 7.375]), [1.0, 1.0, 0.5]);
        assert_eq!(rates(plateau().maximize(true), &[8.0, 9.5, 10.5, 12.0]), [1.0, 0.5, 0.5, 0.25]);
        assert_eq!(rates(plateau().maximize(true).absolute(true), &[-8.0, -7.5, -7.375]), [1.0, 1.0, 0.5]);
    }

    #[test]
    fn a_resumed_plateau_continues() {
        let new = || Plateau::new(0.1).factor(0.3).patience(1).cooldown(1).maximize(true);
        let metrics: Vec<f64> = (0..20).map(|i| f64::from(i * 7 % 5) / 3.0).collect();
        let mut whole = new();
        let fell: Vec<_> = metrics.iter().map(|&metric| whole.tell(metric)).collect();
        for at in 0..metrics.len() {
            let mut first = new();
            for &metric in &metrics[..at] {
                first.tell(metric);
            }
            let mut second = new();
            second.load_state(&first.state()).unwrap();
            assert_eq!(second, first);
            assert_eq!(metrics[at..].iter().map(|&metric| second.tell(metric)).collect::<Vec<_>>(), fell[at..]);
            assert_eq!(second, whole);
        }
        assert!(fell.contains(&true));
    }

    #[test]
    fn rates_and_factors_are_set() {
        let mut optimizer = Sgd::new(0.1);
        Plateau::new(0.25).set_lr(&mut optimizer);
        assert_eq!(optimizer.lr(), 0.25);
        let mut group = Group::new("**");
        Plateau::new(0.25).set_lr_scale(&mut group);
        assert_eq!(format!("{group:?}"), format!("{:?}", Group::new("**").lr_scale(0.25)));
    }

    #[test]
    fn nonsense_is_an_error_and_changes_nothing() {
        let mut plateau = Plateau::new(0.1);
        plateau.tell(3.0);
        let before = plateau.clone();
        for (text, message) in [
            ("", "it begins with ``"),
            ("constant(0.1)", "it begins with `constant`"),
            ("plateau(0.1, inf, 3)", "has `)` where `,` should be"),
            ("plateau(0.1, inf, -3, 0)", "`-3` where a number should be"),
            ("plateau(0.1, inf, 3, 0) more", "` more` follows"),
            ("plateau(nan, inf, 3, 0)", "learning rate is NaN"),
            ("plateau(-1, inf, 3, 0)", "learning rate is -1"),
        ] {
            let error = plateau.load_state(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checkpoint);
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(plateau, before);
        }
        plateau.load_state("plateau(0.1, -inf, 18_446_744_073_709_551_615, 0)").unwrap();
        plateau.tell(5.0);
        assert_eq!(plateau.best(), f64::NEG_INFINITY);
    }
}
