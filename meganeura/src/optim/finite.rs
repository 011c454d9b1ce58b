//! Steps that are held back if a gradient, or the loss, is not finite.

use crate::error::bail;
use crate::grad::trained::{Trained, listed};
use crate::world::Shards;
use crate::{DType, Result, Tape, Tensor, Var};

/// An optimizer's response to a gradient, or a loss, that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFinite {
    /// None: it is not checked.
    Unchecked,
    /// The step changes nothing and returns an error.
    Error,
    /// The step changes nothing and is counted.
    Skip,
}

/// The check that a step's gradients are finite. It runs along with the update, and holds it back if they are not.
pub(super) struct FiniteCheck {
    /// For each value, its name, and 1 if all its elements are finite, else 0.
    each: Vec<(String, Var)>,
    /// 1 if all values are finite.
    all: Var,
}

impl FiniteCheck {
    /// Where ranks have some of the gradients each, they exchange their verdicts.
    pub(super) fn new(tape: &Tape, trained: &[Trained], loss: Option<&Var>, shards: Option<&Shards>) -> Self {
        let loss = loss.map(|loss| ("the loss".to_owned(), is_finite(loss)));
        let verdict = |parameter: &Trained| match shards {
            Some(shards) if !shards.is_own(parameter.cell.id()) => tape.constant(1.0),
            _ => is_finite(&parameter.dw),
        };
        let mut verdicts: Vec<_> = trained.iter().map(verdict).collect();
        if let Some(shards) = shards {
            let parameters: Vec<_> = trained.iter().map(|trained| trained.cell.id()).collect();
            verdicts = shards.exchange_from_owners(&parameters, &verdicts.iter().collect::<Vec<_>>());
        }
        let gradients = trained.iter().map(|parameter| parameter.path.clone()).zip(verdicts);
        let each: Vec<_> = loss.into_iter().chain(gradients).collect();
        let all = each.iter().fold(tape.constant(1.0), |all, (_, finite)| all * finite);
        Self { each, all }
    }

    /// The new value, or the old one bit for bit if the step is held back.
    pub(super) fn gate(&self, new: &Var, old: &Var) -> Var {
        self.all.where_cond(new, old)
    }

    /// The values that a run has to compute for [`verify`]: the overall verdict, then the verdict on each value.
    pub(super) fn vars(&self) -> impl Iterator<Item = &Var> {
        std::iter::once(&self.all).chain(self.each.iter().map(|(_, finite)| finite))
    }

    /// The computed values of [`FiniteCheck::vars`].
    pub(super) fn verdicts(&self) -> Result<Vec<Tensor>> {
        self.vars().map(Var::to_tensor).collect()
    }

    /// The names of the values.
    pub(super) fn names(&self) -> Vec<String> {
        self.each.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// Fails if the step was held back, by the values of [`FiniteCheck::vars`]; the error names the values that are not
/// finite. Waits for the device.
pub(super) async fn verify(names: &[String], verdicts: &[Tensor]) -> Result<()> {
    let [all, each @ ..] = verdicts else { return Ok(()) };
    if all.item_async().await? == 1.0 {
        return Ok(());
    }
    let mut wrong = Vec::new();
    for (name, finite) in names.iter().zip(each) {
        if finite.item_async().await? != 1.0 {
            wrong.push(name);
        }
    }
    bail!(
        NotFinite,
        "NaN or infinity in the loss or a gradient, namely {}; nothing was updated (clipping by the norm of all \
         gradients spreads it from one to all)",
        listed(&wrong)
    );
}

/// 1 if all elements are finite, else 0. Compares with the largest number, which is false for NaN: drivers may fold
/// expressions such as `x − x = 0` and `x = x`.
fn is_finite(x: &Var) -> Var {
    let largest = match x.ty().dtype {
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    x.abs().le(x.constant(largest)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{AdamW, Optimizer, Sgd};
    use crate::{Device, ErrorKind, Param};

    type Net = (Param, Param);

    fn net() -> Net {
        let device = Device::cpu();
        let param = |data: &[f32]| Param::new(Tensor::from_slice(&device, [2], data).unwrap());
        // −0.0 would lose its sign in an update by 0.
        (param(&[1.0, -0.0]), param(&[0.1, 3.0]))
    }

    fn bits(net: &Net) -> Vec<u32> {
        [&net.0, &net.1].iter().flat_map(|p| p.value().to_vec().unwrap()).map(f32::to_bits).collect()
    }

    /// A step with the gradient `factor` for the second parameter and 1 for the first.
    fn step(net: &mut Net, optimizer: &mut dyn Optimizer, factor: f32, offset: f32) -> Result<()> {
        let tape = Tape::new(net.0.value().device());
        let factor = tape.input(&Tensor::from_slice(&tape.device(), [2], &[1.0, factor])?);
        let offset = tape.input(&Tensor::full(&tape.device(), [], offset)?);
        let loss = tape.param(&net.0).sum() + (factor * tape.param(&net.1)).sum() + offset;
        let grads = tape.backward(&loss)?;
        optimizer.step_with_loss(net, &grads, &loss)
    }

    #[test]
    fn a_non_finite_step_changes_nothing() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut net, mut untouched) = (net(), net());
            let mut optimizer = AdamW::new(0.1).check_finite(true);
            let mut reference = AdamW::new(0.1);
            step(&mut net, &mut optimizer, 1.0, 0.0).unwrap();
            let before = bits(&net);
            let error = step(&mut net, &mut optimizer, bad, 0.0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFinite);
            assert!(error.to_string().contains("namely `the loss`, `1`;"), "{error}");
            assert_eq!(bits(&net), before);
            // Neither the moments nor the step count have changed.
            step(&mut net, &mut optimizer, 2.0, 0.0).unwrap();
            step(&mut untouched, &mut reference, 1.0, 0.0).unwrap();
            step(&mut untouched, &mut reference, 2.0, 0.0).unwrap();
            assert_eq!(bits(&net), bits(&untouched));
        }
    }

    #[test]
    fn a_skipped_step_is_reported() {
        let mut net = net();
        let mut sgd = Sgd::new(0.1).momentum(0.9).skip_not_finite(true);
        step(&mut net, &mut sgd, 1.0, 0.0).unwrap();
        assert_eq!((sgd.skipped(), sgd.last_skip().is_none()), (0, true));
        let before = bits(&net);
        for skipped in [1, 2] {
            step(&mut net, &mut sgd, f32::NAN, 0.0).unwrap();
            assert_eq!((bits(&net), sgd.skipped()), (before.clone(), skipped));
            assert!(sgd.last_skip().unwrap().to_string().contains("namely `the loss`, `1`;"));
        }
        step(&mut net, &mut sgd, 1.0, 0.0).unwrap();
        assert_ne!(bits(&net), before);
        assert_eq!((sgd.skipped(), sgd.last_skip().is_none()), (2, true));
        // Other errors stay errors.
        let tape = Tape::new(net.0.value().device());
        let grads = tape.backward(&tape.param(&net.0).sum()).unwrap();
        assert_eq!(sgd.step(&mut net, &grads).unwrap_err().kind(), ErrorKind::NoGradient);
    }

    #[test]
    fn a_non_finite_loss_is_named() {
        let mut net = net();
        let before = bits(&net);
        let error = step(&mut net, &mut Sgd::new(0.1).check_finite(true), 1.0, f32::INFINITY).unwrap_err();
        assert!(error.to_string().contains("namely `the loss`;"), "{error}");
        assert_eq!(bits(&net), before);
    }

    #[test]
    fn huge_gradients_are_finite() {
        // The sum of their squares overflows.
        step(&mut net(), &mut Sgd::new(0.1).check_finite(true), 1e30, 0.0).unwrap();
    }
}
