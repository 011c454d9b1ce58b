//! Accumulation of gradients over several small batches, for one step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::state::Kept;
use crate::error::bail;
use crate::grad::trained::{Trained, expect_gradients};
use crate::module::{Leaf, Module, ModuleExt, Role};
use crate::param::Cell;
use crate::{Grads, Result, Var};

/// The number of micro-batches in a step, and how their gradients are combined:
/// [`Optimizer::accumulate`](super::Optimizer::accumulate) adds them up.
///
/// ```
/// use meganeura::optim::Accumulate;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(1, 1).init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-3);
/// for number in 0..8u8 {
///     let tape = Tape::new(&device);
///     let x = Tensor::full(&device, [16, 1], f32::from(number))?;
///     let loss = net.forward(&tape.input(&x)).square().mean();
///     let grads = tape.backward(&loss)?;
///     if let Some(grads) = optimizer.accumulate(&net, grads, Accumulate::mean(4))? {
///         let grads = grads.clip_norm(&net, 1.0)?;
///         optimizer.step(&mut net, &grads)?; // twice
///     }
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Accumulate {
    every: u64,
    is_mean: bool,
}

impl Accumulate {
    /// The mean of `every` micro-batches, for losses that are means. It is the gradient of the whole batch if
    /// micro-batches have equal sizes.
    pub fn mean(every: u64) -> Self {
        Self { every, is_mean: true }
    }

    /// The sum of `every` micro-batches, for losses that are sums.
    pub fn sum(every: u64) -> Self {
        Self { every, is_mean: false }
    }
}

/// The sums of micro-batches, until they make a step.
#[derive(Default)]
pub(super) struct Sums {
    /// The number of micro-batches in the sums.
    pub(super) added: u64,
    /// By the identity of the parameter: its sum, and the number of gradients in it. The number is below `added` where
    /// the parameter [was unused](Grads::allow_unused) or frozen. Where it is 0, the sum may hold anything.
    pub(super) cells: HashMap<u64, Kept>,
    /// The tensors of the module that the micro-batches belong to, by identity; `None` after loading.
    pub(super) module: Option<HashSet<u64>>,
}

/// A micro-batch whose gradients are added to the sums.
pub(super) struct Addition {
    sums: Vec<Sum>,
    pub(super) basis: Basis,
}

/// The dependencies of an [`Addition`] besides the gradients, some of which change from one micro-batch to the next.
#[derive(Default)]
pub(super) struct Basis {
    /// Parameters, by identity, with the tensor of their sums. Each list has a number: 1 if its parameters have sums,
    /// else 0.
    parameters: Vec<Vec<(u64, u64)>>,
    /// Parameters without a gradient from this micro-batch, and whether they have sums from earlier ones.
    besides: Vec<(u64, bool)>,
    /// `true` if the last number is the weight of one micro-batch in the mean.
    has_mean: bool,
    /// The numbers on the tape.
    pub(super) numbers: Vec<Var>,
}

impl Basis {
    /// The current values of the numbers; `None` if the addition would be a different one.
    pub(super) fn values(&self, sums: &Sums) -> Option<Vec<f64>> {
        let is_alike = |&(parameter, had): &(u64, bool)| sums.has(parameter) == had;
        if !self.besides.iter().all(is_alike) {
            return None;
        }
        let of_list = |parameters: &Vec<(u64, u64)>| {
            let is_where_it_was = |&(parameter, kept): &(u64, u64)| {
                sums.cells.get(&parameter).is_some_and(|known| known.cells[0].id() == kept)
            };
            let has = sums.has(parameters.first()?.0);
            let is_alike = parameters.iter().all(|at| is_where_it_was(at) && sums.has(at.0) == has);
            is_alike.then_some(if has { 1.0 } else { 0.0 })
        };
        let mut values = self.parameters.iter().map(of_list).collect::<Option<Vec<_>>>()?;
        values.extend(self.has_mean.then(|| sums.share()));
        Some(values)
    }
}

impl Addition {
    /// The sums that this micro-batch changes, and the parameters that they belong to.
    pub(super) fn updates(self) -> (HashSet<u64>, Vec<(Arc<Cell>, Var)>) {
        let new = self.sums.into_iter().filter(|sum| sum.is_new);
        new.map(|sum| (sum.parameter.id(), (sum.kept, sum.value))).unzip()
    }

    /// The gradients, replaced by the sums or by the means.
    pub(super) fn into_grads(self, sums: &Sums, grads: Grads, how: Accumulate) -> (Grads, Basis) {
        let Self { sums: all, mut basis } = self;
        let share = how.is_mean.then(|| grads.tape().scalar(sums.share()));
        let scaled = |sum: Var| if let Some(share) = &share { sum * share } else { sum };
        let entries = all.into_iter().map(|sum| (sum.parameter, scaled(sum.value))).collect();
        basis.has_mean = how.is_mean;
        basis.numbers.extend(share);
        (grads.with_sums(entries), basis)
    }
}

/// The sum of a parameter's gradients, including the current micro-batch.
struct Sum {
    parameter: Arc<Cell>,
    kept: Arc<Cell>,
    value: Var,
    /// `true` if this micro-batch adds to the sum.
    is_new: bool,
}

impl Sums {
    pub(super) fn add(&mut self, module: &dyn Module, grads: Grads, how: Accumulate) -> Result<Option<Grads>> {
        if self.is_last(how)? {
            return self.finish(module, grads, how).map(Some);
        }
        let (added, updates) = self.record(module, &grads)?.updates();
        let tape = grads.tape().clone();
        // These gradients are done with; others of the tape may still be needed.
        drop(grads);
        tape.update_keeping_gradients(updates, &added)?;
        self.count(added);
        Ok(None)
    }

    pub(super) fn finish(&mut self, module: &dyn Module, grads: Grads, how: Accumulate) -> Result<Grads> {
        if self.is_alone(how) {
            return Ok(grads);
        }
        let (grads, _) = self.record(module, &grads)?.into_grads(self, grads, how);
        self.clear();
        Ok(grads)
    }

    /// `true` if the next micro-batch completes a step.
    pub(super) fn is_last(&self, how: Accumulate) -> Result<bool> {
        if how.every == 0 {
            bail!(Argument, "a step of 0 micro-batches; there must be at least 1");
        }
        Ok(self.added + 1 >= how.every)
    }

    /// `true` if the next micro-batch is a whole step.
    pub(super) fn is_alone(&self, how: Accumulate) -> bool {
        how.every == 1 && self.added == 0
    }

    /// The weight of each micro-batch in the mean, if the next one is the last.
    #[expect(clippy::cast_precision_loss, reason = "nobody adds 2^53 gradients")]
    fn share(&self) -> f64 {
        1.0 / (self.added + 1) as f64
    }

    /// `true` if a parameter has a sum.
    fn has(&self, parameter: u64) -> bool {
        self.cells.get(&parameter).is_some_and(|kept| kept.steps > 0)
    }

    /// Records that gradients of these parameters were added.
    pub(super) fn count(&mut self, added: impl IntoIterator<Item = u64>) {
        for id in added {
            self.cells.entry(id).or_default().steps += 1;
        }
        self.added += 1;
    }

    /// Starts over, after the last micro-batch of a step.
    pub(super) fn clear(&mut self) {
        self.added = 0;
        self.cells.values_mut().for_each(|kept| kept.steps = 0);
    }

    /// The sum of each parameter's gradients, these included. The first micro-batch of a step runs the plan of the
    /// later ones: a selection drops the old sums, which may hold anything.
    pub(super) fn record(&mut self, module: &dyn Module, grads: &Grads) -> Result<Addition> {
        let leaves = module.leaves();
        let gradients = expect_gradients(&leaves, grads)?;
        self.expect_same(&leaves)?;
        let tape = grads.tape();
        // At most two numbers, so that all micro-batches in which all parameters are used have the same plan.
        let mut numbers: BTreeMap<bool, (Var, Vec<(u64, u64)>)> = BTreeMap::new();
        let zero = tape.constant(0.0);
        let (mut sums, mut besides) = (Vec::new(), Vec::new());
        let mut gradients = gradients.into_iter().peekable();
        for (index, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.role == Role::Trained) {
            let parameter = Arc::clone(leaf.cell());
            let gradient = gradients.next_if(|trained| trained.leaf == index);
            let has = self.has(parameter.id());
            if gradient.is_none() {
                besides.push((parameter.id(), has));
                if !has {
                    continue;
                }
            }
            let kept = self.cells.entry(parameter.id()).or_default();
            kept.prepare(&parameter, 1)?;
            let kept = Arc::clone(&kept.cells[0]);
            let sum = tape.cell(&kept);
            let is_new = gradient.is_some();
            let value = match gradient {
                Some(Trained { dw, .. }) => {
                    let number = || (tape.scalar(if has { 1.0 } else { 0.0 }), Vec::new());
                    let (number, parameters) = numbers.entry(has).or_insert_with(number);
                    parameters.push((parameter.id(), kept.id()));
                    number.where_cond(&sum, &zero) + dw
                }
                None => sum,
            };
            sums.push(Sum { parameter, kept, value, is_new });
        }
        let (numbers, parameters) = numbers.into_values().unzip();
        Ok(Addition { sums, basis: Basis { parameters, besides, has_mean: false, numbers } })
    }

    /// Checks that all micro-batches of a step have the same parameters, some of which may be frozen or unused.
    fn expect_same(&mut self, leaves: &[Leaf<'_>]) -> Result<()> {
        let here: HashSet<_> = leaves.iter().map(|leaf| leaf.cell().id()).collect();
        if self.added == 0 {
            self.module = Some(here);
            return Ok(());
        }
        let Some(before) = &self.module else { return Ok(()) };
        if let Some(leaf) = leaves.iter().find(|leaf| !before.contains(&leaf.cell().id())) {
            bail!(Argument, "`{}` was in no micro-batch before; give `accumulate` the same module in each", leaf.path);
        }
        if let missing @ 1.. = before.difference(&here).count() {
            bail!(
                Argument,
                "{missing} tensors of the micro-batches before are not in this module; give `accumulate` the same in each"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Accumulate, Adam, Optimizer, Sgd};
    use crate::{Device, ErrorKind, Param, Precision, Tape, Tensor};

    fn param() -> Param {
        Param::new(Tensor::from_f64(&Device::cpu_with(Precision::Double), [2], &[1.0, -2.0]).unwrap())
    }

    /// Gradients that equal `x`, whatever `w` is.
    fn grads(w: &Param, x: [f64; 2]) -> Grads {
        let tape = Tape::new(w.value().device());
        let x = tape.input(&Tensor::from_f64(&tape.device(), [2], &x).unwrap());
        tape.backward(&(tape.param(w) * x).sum()).unwrap()
    }

    fn value(w: &Param) -> Vec<f64> {
        w.value().to_f64_vec().unwrap()
    }

    #[test]
    fn sums_and_means_start_over_after_each_step() {
        for (how, share) in [(Accumulate::mean(3), 1.0 / 3.0), (Accumulate::sum(3), 1.0)] {
            let (mut w, mut sgd) = (param(), Sgd::new(0.5));
            let mut expected = value(&w);
            for cycle in 0..3 {
                let all = [[1.0, 0.5], [2.0, f64::from(cycle)], [0.25, -4.0]];
                for (k, x) in all.into_iter().enumerate() {
                    assert_eq!(sgd.accumulated(), k as u64);
                    let before = value(&w);
                    match sgd.accumulate(&w, grads(&w, x), how).unwrap() {
                        Some(grads) => sgd.step(&mut w, &grads).unwrap(),
                        None => assert_eq!(value(&w), before),
                    }
                }
                for (i, expected) in expected.iter_mut().enumerate() {
                    *expected -= 0.5 * (all.iter().map(|x| x[i]).sum::<f64>() * share);
                }
                let found = value(&w);
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?} {expected:?}");
            }
        }
    }

    #[test]
    fn there_are_two_plans() {
        let mut w = param();
        let device = w.value().device().clone();
        let mut adam = Adam::new(0.1);
        for step in 0..12 {
            let grads = grads(&w, [1.0, 2.0]);
            if let Some(grads) = adam.accumulate(&w, grads, Accumulate::mean(4)).unwrap() {
                let grads = grads.clip_norm(&w, 1.0).unwrap().clip_value(&w, 0.5).unwrap();
                adam.step(&mut w, &grads).unwrap();
            }
            assert_eq!(device.stats().plans, if step < 3 { 1 } else { 2 });
        }
    }

    #[test]
    fn a_non_finite_sum_lasts_only_one_step() {
        let mut w = param();
        let mut sgd = Sgd::new(0.5).skip_not_finite(true);
        for x in [[f64::NAN, f64::INFINITY], [0.0; 2], [1.0, 1.0], [1.0, 3.0]] {
            if let Some(grads) = sgd.accumulate(&w, grads(&w, x), Accumulate::sum(2)).unwrap() {
                sgd.step(&mut w, &grads).unwrap();
            }
        }
        assert_eq!((value(&w), sgd.skipped()), (vec![0.0, -4.0], 1));
    }

    #[test]
    fn data_may_end_early() {
        let (mut w, mut sgd, how) = (param(), Sgd::new(1.0), Accumulate::mean(100));
        assert!(sgd.accumulate(&w, grads(&w, [1.0, 2.0]), how).unwrap().is_none());
        let last = sgd.accumulate_last(&w, grads(&w, [3.0, 4.0]), how).unwrap();
        sgd.step(&mut w, &last).unwrap();
        assert_eq!((value(&w), sgd.accumulated()), (vec![-1.0, -5.0], 0));
    }

    #[test]
    fn misuse_is_an_error() {
        let (w, other) = (param(), param());
        let mut sgd = Sgd::new(0.1);
        let error = sgd.accumulate(&w, grads(&w, [1.0; 2]), Accumulate::sum(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        let error = sgd.accumulate(&other, grads(&w, [1.0; 2]), Accumulate::sum(2)).unwrap_err();
        assert_eq!((error.kind(), sgd.accumulated()), (ErrorKind::NoGradient, 0));
    }

    #[test]
    fn all_micro_batches_of_a_step_need_the_same_parameters() {
        let how = Accumulate::sum(2);
        let mut net = [param(), param()];
        let grads = |net: &[Param; 2]| {
            let tape = Tape::new(net[0].value().device());
            tape.backward(&(tape.param(&net[0]) * tape.param(&net[1])).sum()).unwrap()
        };
        // Only the head is accumulated, but both layers are stepped.
        let mut sgd = Sgd::new(0.5);
        assert!(sgd.accumulate(&net[1], grads(&net), how).unwrap().is_none());
        let last = sgd.accumulate(&net[1], grads(&net), how).unwrap().unwrap();
        let error = sgd.step(&mut net, &last).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().starts_with("`0` was left out of `accumulate`"), "{error}");
        sgd.step(&mut net[1], &last).unwrap();
        assert_eq!((value(&net[0]), value(&net[1])), (vec![1.0, -2.0], vec![0.0, 0.0]));
        // One part is accumulated first, then another or a larger one.
        for (first, second, message) in [(0, 0..2, "`1` was in no micro-batch"), (1, 0..1, "`0` was in no micro-batch")]
        {
            let mut sgd = Sgd::new(0.5);
            assert!(sgd.accumulate(&net[first], grads(&net), Accumulate::sum(3)).unwrap().is_none());
            let part: Vec<Param> = net[second].iter().map(Param::tied).collect();
            let error = sgd.accumulate(&part, grads(&net), Accumulate::sum(3)).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(sgd.accumulated(), 1);
        }
        let mut sgd = Sgd::new(0.5);
        assert!(sgd.accumulate(&net, grads(&net), how).unwrap().is_none());
        let error = sgd.accumulate(&net[1], grads(&net), how).unwrap_err();
        assert!(error.to_string().starts_with("1 tensors of the micro-batches before"), "{error}");
        // A parameter that was frozen in between is left alone.
        net[0].freeze();
        let last = sgd.accumulate(&net, grads(&net), how).unwrap().unwrap();
        sgd.step(&mut net, &last).unwrap();
        assert_eq!(value(&net[0]), [1.0, -2.0]);
    }

    /// The sums of two micro-batches move to another optimizer, of another model of the same structure.
    #[test]
    fn sums_move_to_another_optimizer() {
        let how = Accumulate::mean(3);
        let after = |w: &mut Param, sgd: &mut Sgd, from: usize| {
            for x in [[1.0, 0.5], [2.0, 1.0 / 3.0], [0.25, -4.0], [7.0, 0.1]].into_iter().skip(from) {
                let grads = grads(w, x);
                if let Some(grads) = sgd.accumulate(w, grads, how).unwrap() {
                    sgd.step(w, &grads).unwrap();
                }
            }
            (value(w), sgd.accumulated())
        };
        let (mut w, mut sgd) = (param(), Sgd::new(0.5).momentum(0.9));
        let expected = after(&mut w, &mut sgd, 0);
        assert_eq!(expected.1, 1);

        let (w, mut sgd) = (param(), Sgd::new(0.5).momentum(0.9));
        for x in [[1.0, 0.5], [2.0, 1.0 / 3.0]] {
            assert!(sgd.accumulate(&w, grads(&w, x), how).unwrap().is_none());
        }
        let state = sgd.state_of(&w);
        assert_eq!(state.tensors["gradient_sum"].to_f64_vec().unwrap(), [3.0, 0.5 + 1.0 / 3.0]);
        let (mut w, mut other) = (param(), Sgd::new(9.0).momentum(0.9));
        // The other optimizer has sums of its own, which must be discarded.
        assert!(other.accumulate(&w, grads(&w, [f64::NAN; 2]), how).unwrap().is_none());
        other.load_state(&w, &state).unwrap();
        assert_eq!(after(&mut w, &mut other, 2), expected);
        // A state without sums clears them.
        other.load_state(&w, &Sgd::new(0.5).momentum(0.9).state_of(&w)).unwrap();
        assert_eq!(other.accumulated(), 0);
    }

    /// Stochastic depth: each parameter is unused in some micro-batches, and one is unused in a whole step.
    #[test]
    fn parameters_may_be_unused_in_some_micro_batches() {
        type Net = [Param; 3];
        let how = Accumulate::mean(3);
        let grads = |net: &Net, used: [Option<f64>; 3]| {
            let tape = Tape::new(net[0].value().device());
            let of = |(w, x): (&Param, Option<f64>)| Some((tape.param(w) * x?).sum());
            let loss = net.iter().zip(used).filter_map(of).reduce(|a, b| a + b).unwrap();
            tape.backward(&loss).unwrap().allow_unused("**")
        };
        let steps = [
            [[Some(1.0), None, Some(4.0)], [None, Some(2.0), Some(8.0)], [Some(3.0), Some(5.0), None]],
            // The first parameter is in no micro-batch, the second in one, the third in two.
            [[None, Some(7.0), None], [None, None, Some(1.0)], [None, None, Some(9.0)]],
            [[Some(1.5), None, None], [None, None, Some(2.0)], [None, Some(6.0), None]],
        ];
        let (mut net, mut sgd): (Net, _) = ([param(), param(), param()], Sgd::new(0.5).momentum(0.5));
        let (mut expected, mut velocity) = ([1.0; 3], [None; 3]);
        for (number, batches) in steps.into_iter().enumerate() {
            for used in batches {
                if let Some(grads) = sgd.accumulate(&net, grads(&net, used), how).unwrap() {
                    sgd.step(&mut net, &grads).unwrap();
                }
                // A state, like one from a file, has the sums of this step only.
                let state = sgd.state_of(&net);
                let mut other = Sgd::new(0.5).momentum(0.5);
                other.load_state(&net, &state).unwrap();
                sgd = other;
            }
            for k in 0..3 {
                let all: Vec<f64> = batches.iter().filter_map(|used| used[k]).collect();
                if all.is_empty() {
                    continue;
                }
                let mean = all.iter().sum::<f64>() / 3.0;
                let v = velocity[k].map_or(mean, |v| 0.5 * v + mean);
                (velocity[k], expected[k]) = (Some(v), expected[k] - 0.5 * v);
            }
            for (w, expected) in net.iter().zip(expected) {
                assert!((value(w)[0] - expected).abs() < 1e-14, "step {number}: {:?} {expected}", value(w));
            }
        }
    }

    #[test]
    fn optimizers_accumulate_for_parts_of_a_model() {
        let how = Accumulate::mean(2);
        let (mut parts, mut whole) = ([param(), param()], [param(), param()]);
        let loss = |net: &[Param; 2], x: f64| {
            let tape = Tape::new(net[0].value().device());
            tape.backward(&(tape.param(&net[0]) * tape.param(&net[1]).square() * x).sum()).unwrap()
        };
        let mut optimizers = [(); 3].map(|()| Sgd::new(0.125).momentum(0.5));
        for x in [1.0, 0.5, 2.0, 0.25] {
            if let Some(grads) = optimizers[2].accumulate(&whole, loss(&whole, x), how).unwrap() {
                optimizers[2].step(&mut whole, &grads).unwrap();
            }
            let grads = loss(&parts, x);
            let runs = parts[0].value().device().stats().runs;
            let first = optimizers[0].accumulate(&parts[0], grads.clone(), how).unwrap();
            let second = optimizers[1].accumulate(&parts[1], grads, how).unwrap();
            if let (Some(first), Some(second)) = (first, second) {
                optimizers[0].step(&mut parts[0], &first).unwrap();
                optimizers[1].step(&mut parts[1], &second).unwrap();
            }
            assert_eq!(parts[0].value().device().stats().runs, runs + 2);
            assert_eq!([value(&parts[0]), value(&parts[1])], [value(&whole[0]), value(&whole[1])]);
        }
        assert_ne!(value(&parts[0]), [1.0, -2.0]);
    }
}
