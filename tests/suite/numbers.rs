//! Random operands, and comparisons of results from different executors.

use libtest_mimic::Failed;
use meganeura::ops::case::{Array, Case, Operand};
use meganeura::{Device, Result, Seed, Tensor};
use rand_distr::{Distribution, StandardNormal, Uniform};

/// An operand on the host, with the same numbers for every device. Floats are rounded to `f32`.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    Floats(Array),
    Labels(meganeura::Shape, Vec<u32>),
}

impl Numbers {
    pub(crate) fn tensor(&self, device: &Device) -> Result<Tensor> {
        match self {
            Self::Floats(array) => Tensor::from_f64(device, array.shape, &array.data),
            Self::Labels(shape, labels) => Tensor::indices(device, *shape, labels),
        }
    }
}

impl Numbers {
    /// The same, rounded to bf16.
    pub(crate) fn rounded_to_bf16(&self) -> Self {
        let half = |x: &f64| f64::from(f32::from_bits((*x as f32).to_bits() & 0xffff_0000));
        match self {
            Self::Floats(Array { shape, data }) => {
                Self::Floats(Array { shape: *shape, data: data.iter().map(half).collect() })
            }
            labels @ Self::Labels(..) => labels.clone(),
        }
    }
}

/// The operands of a case. They follow from the operation's name and their shapes.
pub(crate) fn operands(case: &Case) -> Vec<Numbers> {
    let shapes = case.operands.iter().map(|operand| match operand {
        Operand::Floats { shape } | Operand::Labels { shape, .. } => *shape,
    });
    let mut rng = shapes.fold(Seed::new(7).field(&case.op), |seed, shape| seed.field(&shape.to_string())).rng();
    let mut draw = |operand: &Operand| match *operand {
        Operand::Floats { shape } => {
            let mut number = || match case.range {
                Some((lo, hi)) => Uniform::new(lo, hi).expect("ranges of cases are ranges").sample(&mut rng),
                None => Distribution::<f64>::sample(&StandardNormal, &mut rng) * case.scale,
            };
            let data = (0..shape.elements()).map(|_| f64::from(number() as f32)).collect();
            Numbers::Floats(Array { shape, data })
        }
        Operand::Labels { shape, classes } => {
            let classes = u32::try_from(classes).expect("few classes");
            let label = Uniform::new(0, classes).expect("at least one class");
            Numbers::Labels(shape, (0..shape.elements()).map(|_| label.sample(&mut rng)).collect())
        }
    };
    case.operands.iter().map(&mut draw).collect()
}

/// The reference for everything else: numbers computed in `f64` by the native executor, or by an obvious loop.
#[derive(Debug)]
pub(crate) struct Reference(pub(crate) Vec<f64>);

/// Numbers computed by the code under test.
#[derive(Debug)]
pub(crate) struct Computed(pub(crate) Vec<f64>);

/// Compares computed numbers with the reference. Returns the largest difference, relative to the reference's largest
/// magnitude (at least 1). The two have different types, so that nothing is ever compared with itself.
pub(crate) fn compare(what: &str, computed: &Computed, reference: &Reference, tolerance: f64) -> Result<f64, Failed> {
    let (computed, reference) = (&computed.0, &reference.0);
    if computed.len() != reference.len() {
        return Err(format!("{what}: {} numbers, the reference has {}", computed.len(), reference.len()).into());
    }
    let scale = reference.iter().filter(|x| x.is_finite()).fold(1.0f64, |max, x| max.max(x.abs()));
    let mut worst = (0.0, 0);
    for (at, (x, want)) in computed.iter().zip(reference).enumerate() {
        // Non-finite values must be equal; otherwise, the error is infinite.
        let error = match (x.is_finite(), want.is_finite()) {
            (true, true) => (x - want).abs() / scale,
            _ if x == want || (x.is_nan() && want.is_nan()) => 0.0,
            _ => f64::INFINITY,
        };
        if error > worst.0 {
            worst = (error, at);
        }
    }
    let (error, at) = worst;
    if error > tolerance {
        let (x, want) = (computed[at], reference[at]);
        return Err(format!(
            "{what}: element {at} is {x:e}, not {want:e} (error {error:.1e}, allowed {tolerance:.1e})"
        )
        .into());
    }
    Ok(error)
}

/// Tests that the comparison itself can fail.
pub(crate) fn collect(trials: &mut Vec<libtest_mimic::Trial>) {
    let differs = |computed: &[f64], reference: &[f64]| {
        compare("", &Computed(computed.to_vec()), &Reference(reference.to_vec()), 1e-6).is_err()
    };
    trials.push(libtest_mimic::Trial::test("numbers::comparison_can_fail", move || {
        assert!(differs(&[1.0, 2.0], &[1.0, 2.1]));
        assert!(differs(&[1.0, f64::NAN], &[1.0, 2.0]));
        assert!(differs(&[1.0, 2.0], &[1.0, f64::NAN]));
        assert!(differs(&[1.0], &[1.0, 2.0]));
        assert!(differs(&[1.0, 2.0], &[f64::INFINITY, 2.1]));
        assert!(differs(&[f64::INFINITY, 2.0], &[f64::INFINITY, 2.1]));
        assert!(differs(&[f64::INFINITY], &[f64::NEG_INFINITY]));
        assert!(!differs(&[f64::INFINITY, 2.0], &[f64::INFINITY, 2.0]));
        assert!(!differs(&[1.0, f64::NAN], &[1.0 + 1e-7, f64::NAN]));
        Ok(())
    }));
}
