//! Queries of attention that see no key: result 0, and 0 for all gradients that flow through them, in every form of
//! attention. NaN that a query sees stays NaN.

use libtest_mimic::Trial;
use meganeura::ops::{AttentionOptions, Mask};
use meganeura::{Device, Precision, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::{gpu_trial, is_software};

/// The ways to hide a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A boolean mask.
    Visible,
    /// A learned bias with −∞.
    Bias,
    /// More queries than keys.
    Causal,
    /// Both a mask and causality.
    CausalVisible,
}

const KINDS: [Kind; 4] = [Kind::Visible, Kind::Bias, Kind::Causal, Kind::CausalVisible];

/// The numbers of queries, keys, and features of keys and of values. In one pass, with gradients by products, and with
/// heads that are too wide for one pass.
const EXTENTS: [[usize; 4]; 4] = [[4, 3, 4, 3], [9, 5, 8, 8], [70, 66, 20, 9], [40, 36, 132, 7]];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn(&Device, [usize; 4], Kind) -> Outcome;
    let tests: [(&str, Test); 3] = [("zeros", zeros), ("penalties", penalties), ("nan", nan)];
    for (test_name, test) in tests {
        for kind in KINDS {
            let all = move |device: &Device| {
                // The kernels have cases of their own. A software driver takes long to compile them again.
                let few = device.is_gpu() && is_software(device) && test_name != "zeros";
                let mut extents = EXTENTS.into_iter().take(if few { 2 } else { EXTENTS.len() });
                extents.try_for_each(|extents| test(device, extents, kind))
            };
            let name = |on: &str| format!("hidden_queries::{on}::{test_name}::{kind:?}");
            for (on, precision) in [("native", Precision::Full), ("f64", Precision::Double)] {
                trials.push(Trial::test(name(on), move || all(&Device::cpu_with(precision).for_testing(0))));
            }
            trials.push(gpu_trial(name("gpu"), move |device| all(&device.for_testing(0))));
            trials.push(gpu_trial(name("fast"), move |device| match device.with_precision(Precision::Fast) {
                Ok(fast) => all(&fast.for_testing(0)),
                // `devices::fast` checks the reason against the known ones.
                Err(_) => Ok(()),
            }));
        }
    }
}

/// The operands of an attention, and the keys that its queries see.
struct Case {
    kind: Kind,
    q: Var,
    k: Var,
    v: Var,
    bias: Var,
    sees: Vec<bool>,
    extents: [usize; 4],
}

impl Case {
    /// Random operands, with a special number at an element of one of them.
    fn new(device: &Device, extents: [usize; 4], kind: Kind, special: Option<(usize, usize)>) -> Result<Self> {
        let [l, s, d, e] = extents;
        let tape = Tape::new(device);
        let number = |seed: usize, at: usize| ((at + 31 * seed) as f32 * 0.7).sin();
        let input = |operand: usize, shape: [usize; 3]| {
            let mut data: Vec<_> = (0..shape.iter().product()).map(|at| number(operand, at)).collect();
            if let Some((_, at)) = special.filter(|special| special.0 == operand) {
                data[at] = f32::NAN;
            }
            Ok::<_, meganeura::Error>(tape.input(&Tensor::from_slice(device, shape, &data)?))
        };
        let masked = |row: usize, column: usize| row % 5 == 1 || row + 2 == l || (row < 4 && column % 3 == 1);
        let sees = |at: usize| match (at / s, at % s, kind) {
            (row, column, Kind::Causal) => column + l <= row + s,
            (row, column, Kind::CausalVisible) => column + l <= row + s && !masked(row, column),
            (row, column, _) => !masked(row, column),
        };
        Ok(Self {
            kind,
            q: input(0, [2, l, d])?,
            k: input(1, [2, s, d])?,
            v: input(2, [2, s, e])?,
            bias: input(3, [1, l, s])?,
            sees: (0..l * s).map(sees).collect(),
            extents,
        })
    }

    /// The attention of some queries, in causal attention the last ones.
    fn attend(&self, q: &Var, sees: &[bool], bias: &Var) -> Result<Var> {
        let (device, tape) = (self.q.tape().device(), self.q.tape());
        let s = self.extents[1];
        let sees = tape.input(&Tensor::from_bools(&device, [sees.len() / s, s], sees)?);
        let hidden = bias.masked_fill(&sees.eq(tape.scalar(0.0)), f64::NEG_INFINITY);
        let mask = match self.kind {
            Kind::Visible | Kind::CausalVisible => Some(Mask::Visible(&sees)),
            Kind::Bias => Some(Mask::Bias(&hidden)),
            Kind::Causal => None,
        };
        let causal = matches!(self.kind, Kind::Causal | Kind::CausalVisible);
        Ok(q.attention_with(
            &self.k,
            &self.v,
            AttentionOptions { mask, causal, scale: Some(0.3), ..AttentionOptions::default() },
        ))
    }

    fn result(&self) -> Result<Var> {
        self.attend(&self.q, &self.sees, &self.bias)
    }

    /// The queries that see a key.
    fn seeing(&self) -> Vec<usize> {
        let rows = self.sees.chunks(self.extents[1]).enumerate();
        rows.filter(|(_, sees)| sees.contains(&true)).map(|(row, _)| row).collect()
    }

    fn operands(&self) -> Vec<&Var> {
        let bias = (self.kind == Kind::Bias).then_some(&self.bias);
        [&self.q, &self.k, &self.v].into_iter().chain(bias).collect()
    }

    /// The rows of `[2, L, _]` or `[1, L, _]` of the queries that see no key are zeros, and the others finite and not
    /// all 0.
    fn expect_zeros(&self, what: &str, x: &Tensor) -> Result<()> {
        let (seeing, l, width) = (self.seeing(), self.extents[0], x.shape()[2]);
        let x = x.to_vec()?;
        for (row, x) in x.chunks(width).enumerate() {
            let is_seeing = seeing.contains(&(row % l));
            let fits = if is_seeing { x.iter().all(|x| x.is_finite()) } else { x.iter().all(|&x| x == 0.0) };
            assert!(fits, "{what} of query {row}, {:?} {:?}: {x:?}", self.kind, self.extents);
        }
        assert!(x.iter().any(|&x| x != 0.0), "{what}: all are 0");
        Ok(())
    }
}

/// `Σ c·y` with cotangents that differ.
fn weighed(y: &Var) -> Var {
    let (tape, shape) = (y.tape(), y.shape());
    let (rows, columns) = (tape.iota([shape[1], 1], 0), tape.iota([1, shape[2]], 1));
    (y * (rows * 0.9 + columns * 2.3 + 1.0).sin()).sum()
}

/// The results and gradients are those of the queries that see a key; the others get 0.
fn zeros(device: &Device, extents: [usize; 4], kind: Kind) -> Outcome {
    let case = Case::new(device, extents, kind, None)?;
    let y = case.result()?;
    let grads = y.tape().backward(&weighed(&y))?;
    let gradients: Vec<_> = case.operands().into_iter().map(|x| grads.of(x).expect("depends")).collect();
    case.expect_zeros("the result", &y.to_tensor()?)?;
    let gradients = gradients.iter().map(Var::to_tensor).collect::<Result<Vec<_>>>()?;
    case.expect_zeros("the gradient", &gradients[0])?;
    if let Some(of_bias) = gradients.get(3) {
        case.expect_zeros("the gradient of the bias", of_bias)?;
    }

    // The same attention without these queries. A causal one would move the others, so its mask is written out.
    let seeing = case.seeing();
    let other =
        Case { kind: if kind == Kind::Bias { kind } else { Kind::Visible }, ..Case::new(device, extents, kind, None)? };
    let rows: Vec<_> = seeing.iter().map(|&row| u32::try_from(row).expect("few")).collect();
    let rows = other.q.tape().input(&Tensor::indices(device, [rows.len()], &rows)?);
    let sees: Vec<_> = other.sees.chunks(extents[1]).filter(|sees| sees.contains(&true)).flatten().copied().collect();
    let some = other.attend(&other.q.index_select(1, &rows), &sees, &other.bias.index_select(1, &rows))?;
    // Each cotangent stays with its query.
    let columns = some.tape().iota([1, extents[3]], 1);
    let cotangents = (rows.to_float().unsqueeze(1) * 0.9 + columns * 2.3 + 1.0).sin();
    let grads = some.tape().backward(&(&some * cotangents).sum())?;
    let expected: Vec<_> = other.operands().into_iter().map(|x| grads.of(x).expect("depends")).collect();
    // Products of rounded operands, in fast precision of 11 bits; a few sums of tens of terms.
    let tolerance = if device.precision() == Precision::Fast { 2e-2 } else { 1e-4 };
    for (gradient, expected) in gradients.iter().zip(&expected) {
        gradient.expect_close(&expected.to_tensor()?, tolerance, tolerance)?;
    }
    Ok(())
}

/// Gradients of gradients: finite, and 0 for queries that see no key.
fn penalties(device: &Device, extents: [usize; 4], kind: Kind) -> Outcome {
    let case = Case::new(device, extents, kind, None)?;
    let y = case.result()?;
    let grads = y.tape().backward(&weighed(&y))?;
    let squares = case.operands().into_iter().map(|x| grads.of(x).expect("depends").square().sum());
    let penalty = squares.reduce(|a, b| a + b).expect("three or four");
    let grads = y.tape().backward(&penalty)?;
    let second: Vec<_> = case.operands().into_iter().map(|x| grads.of(x).expect("depends")).collect();
    let second = second.iter().map(Var::to_tensor).collect::<Result<Vec<_>>>()?;
    case.expect_zeros("the second derivative", &second[0])?;
    for second in &second[1..] {
        assert!(second.to_vec()?.iter().all(|x| x.is_finite()), "{kind:?} {extents:?}");
    }
    Ok(())
}

/// NaN in an operand reaches the queries that see it, and those that see nothing only through a mask, as in PyTorch:
/// NaN − ∞ and 0·NaN are NaN.
fn nan(device: &Device, extents: [usize; 4], kind: Kind) -> Outcome {
    let [l, s, d, e] = extents;
    let causal = matches!(kind, Kind::Causal | Kind::CausalVisible);
    let row_of = |case: &Case| -> Result<Vec<[bool; 2]>> {
        let y = case.result()?.to_vec()?;
        let rows = y[..l * e].chunks(e);
        Ok(rows.map(|y| [y.iter().any(|y| y.is_nan()), y.iter().all(|y| y.is_nan())]).collect())
    };
    let query = *Case::new(device, extents, kind, None)?.seeing().last().expect("some see a key");
    let case = Case::new(device, extents, kind, Some((0, query * d + d - 1)))?;
    let rows = row_of(&case)?;
    assert!((0..l).all(|row| rows[row] == [row == query; 2]), "{kind:?} {extents:?}: {rows:?}");

    // The last key that the query sees, and a feature of its value.
    let key = (0..s).rev().find(|key| case.sees[query * s + key]).expect("it sees one");
    for special in [(1, key * d), (2, key * e + e - 1)] {
        let case = Case::new(device, extents, kind, Some(special))?;
        for (row, [any, _]) in row_of(&case)?.into_iter().enumerate() {
            let sees = case.sees[row * s + key];
            assert!(any || !sees, "{kind:?} {extents:?}: query {row} sees NaN in operand {}", special.0);
            assert!(any || causal, "{kind:?} {extents:?}: query {row} has a weight of 0 for NaN");
        }
    }
    Ok(())
}
