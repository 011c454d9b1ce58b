//! Every operation, through its cases: the shape rule against the results, the native kernel in both precisions, the
//! gradient rule against finite differences, every WGSL variant against the native `f64` results, and gradients on the
//! GPU.

use std::collections::HashMap;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::check::Gradcheck;
use meganeura::ops::case::{Array, Case, Operand, Special};
use meganeura::{DType, Device, Error, KernelChoice, Precision, Result, Tape, Tensor, Var};

use crate::adapter::{gpu_trial, gpu_trial_again, is_software};
use crate::numbers::{self, Computed, Numbers, Reference, compare, operands};
use crate::second;
use crate::table::{self, Part};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for case in meganeura::ops::all_cases() {
        let case = Arc::new(case);
        let number = counts.entry(case.op.clone()).or_default();
        let name = |part: &str| format!("ops::{part}::{}", case.name);
        if case.fails {
            let case = Arc::clone(&case);
            trials.push(Trial::test(name("refuses"), move || refuses(&case)));
            continue;
        }
        let on = |run: fn(&Case) -> Result<(), Failed>| {
            let case = Arc::clone(&case);
            move || run(&case)
        };
        trials.push(Trial::test(name("native"), on(native)));
        trials.push(Trial::test(name("gradient"), on(gradient)));
        trials.push(Trial::test(name("second"), on(second::native)));
        let shared = Arc::clone(&case);
        trials.push(gpu_trial(name("wgsl"), move |device| wgsl(&shared, device)));
        let shared = Arc::clone(&case);
        trials.push(gpu_trial_again(*number, name("wgsl_gradient"), move |device| wgsl_gradient(&shared, device)));
        if second::is_small(&case) {
            let shared = Arc::clone(&case);
            trials.push(gpu_trial_again(*number, name("wgsl_second"), move |device| second::wgsl(&shared, device)));
        }
        *number += 1;
        if has_lines(&case) {
            let shared = Arc::clone(&case);
            trials.push(gpu_trial(name("bf16"), move |device| bf16(&shared, device)));
        }
        if case.is(Special::Product) {
            let shared = Arc::clone(&case);
            trials.push(gpu_trial(name("fast"), move |device| fast(&shared, device)));
        }
    }
}

/// `true` if an operand is a batch of images whose channels form whole lines, so that it may be held as bf16.
fn has_lines(case: &Case) -> bool {
    operands(case).iter().any(|numbers| match numbers {
        Numbers::Floats(Array { shape, .. }) => {
            (3..=5).contains(&shape.rank()) && shape[1] % 8 == 0 && shape.dims()[2..].iter().product::<usize>() > 1
        }
        Numbers::Labels(..) => false,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "stands in `map_err`")]
pub(crate) fn failed(error: Error) -> Failed {
    Failed::from(error.to_string())
}

/// Records the case on a tape. Returns its operands and results.
pub(crate) fn record(case: &Case, tape: &Tape, operands: &[Numbers]) -> Result<(Vec<Var>, Vec<Var>)> {
    let x =
        operands.iter().map(|numbers| Ok(tape.input(&numbers.tensor(&tape.device())?))).collect::<Result<Vec<_>>>()?;
    let y = (case.build)(&x);
    Ok((x, y))
}

fn numbers_of(tensor: &Tensor) -> Result<Vec<f64>> {
    match tensor.ty().dtype {
        DType::U32 => Ok(tensor.to_u32_vec()?.into_iter().map(f64::from).collect()),
        _ => tensor.to_f64_vec(),
    }
}

/// Numbers that a device computed, and the kernels that they went through.
pub(crate) type Values = (Vec<f64>, Vec<KernelChoice>);

/// The kernels of the last run.
fn last_kernels(device: &Device) -> Vec<KernelChoice> {
    device.kernel_choices().pop().unwrap_or_default()
}

pub(crate) fn results(case: &Case, device: &Device, operands: &[Numbers]) -> Result<Vec<Values>> {
    let (_, y) = record(case, &Tape::with_seed(device, 3), operands)?;
    y.iter()
        .map(|y| {
            let tensor = y.to_tensor()?;
            assert_eq!(tensor.ty(), y.ty(), "the shape rule and the result agree");
            Ok((numbers_of(&tensor)?, last_kernels(device)))
        })
        .collect()
}

/// The gradients of `Σ c·y`, with fixed random cotangents, for every operand that has one.
pub(crate) fn gradients(case: &Case, device: &Device, operands: &[Numbers]) -> Result<Vec<Option<Values>>> {
    let tape = Tape::with_seed(device, 3);
    let (x, y) = record(case, &tape, operands)?;
    let mut terms = Vec::new();
    for (k, y) in y.iter().enumerate().filter(|(_, y)| y.ty().dtype.is_float()) {
        if k > 0 && case.is(Special::Statistics) {
            continue;
        }
        let cotangent = Case::new(meganeura::ops::Pointwise::Neg).input(y.shape().dims());
        let cotangent = &numbers::operands(&cotangent)[0];
        terms.push((y * tape.input(&cotangent.tensor(device)?)).sum());
    }
    let loss = terms.into_iter().reduce(|a, b| a + b).expect("every operation has a float result");
    let grads = tape.backward(&loss)?;
    // Held results would be computed as well, so the forward kernels would run, too.
    drop((loss, y));
    let read = |x: &Var| match grads.of(x) {
        Some(gradient) if x.ty().dtype.is_float() => {
            Ok(Some((gradient.to_tensor()?.to_f64_vec()?, last_kernels(device))))
        }
        _ => Ok(None),
    };
    x.iter().map(read).collect()
}

fn refuses(case: &Case) -> Result<(), Failed> {
    let operands = operands(case);
    let (_, y) = record(case, &Tape::new(&Device::cpu()), &operands).map_err(failed)?;
    match Case::error(&y) {
        Some(_) => Ok(()),
        None => Err("recorded without complaint".into()),
    }
}

/// Compares a device's results with those in `f64`. Returns the largest number of variants of a kernel.
fn hold_results(case: &Case, device: &Device, operands: &[Numbers], reference: &[Values]) -> Result<usize, Failed> {
    let mut variants = 1;
    let computed = results(case, device, operands).map_err(failed)?;
    for (k, ((computed, kernels), (reference, _))) in computed.into_iter().zip(reference).enumerate() {
        let what = format!("result {k}, {}", spell(&kernels));
        let error = compare(&what, &Computed(computed), &Reference(reference.clone()), case.tolerance)?;
        table::note(case, device, &kernels, Part::Result, error);
        variants = most_variants(&kernels).max(variants);
    }
    Ok(variants)
}

/// Like [`hold_results`] for gradients, which chain a few operations, each with the case's tolerance.
fn hold_gradients(
    case: &Case,
    device: &Device,
    operands: &[Numbers],
    reference: &[Option<Values>],
) -> Result<usize, Failed> {
    let mut variants = 1;
    let computed = gradients(case, device, operands).map_err(failed)?;
    let tolerance = 10.0 * case.tolerance.max(1e-6);
    for (k, pair) in computed.into_iter().zip(reference).enumerate() {
        let (Some((computed, kernels)), Some((reference, _))) = pair else { continue };
        let what = format!("gradient {k}, {}", spell(&kernels));
        let error = compare(&what, &Computed(computed), &Reference(reference.clone()), tolerance)?;
        table::note(case, device, &kernels, Part::Gradient, error);
        variants = most_variants(&kernels).max(variants);
    }
    Ok(variants)
}

fn most_variants(kernels: &[KernelChoice]) -> usize {
    kernels.iter().map(|kernel| kernel.offered.len()).max().unwrap_or(1)
}

/// The largest number of variants of a kernel in the device's plans.
pub(crate) fn offered(device: &Device) -> usize {
    most_variants(&device.kernel_choices().concat())
}

fn spell(kernels: &[KernelChoice]) -> String {
    let kernels: Vec<_> = kernels.iter().map(|kernel| format!("{} {}", kernel.op, kernel.variant)).collect();
    kernels.join(", ")
}

/// `f64` against the obvious reference, if there is one, and `f32` against `f64`. All memory holds NaN before it is
/// written.
fn native(case: &Case) -> Result<(), Failed> {
    let operands = operands(case);
    let on = |precision| Device::cpu_with(precision).for_testing(0);
    let double = on(Precision::Double);
    let reference = results(case, &double, &operands).map_err(failed)?;
    if let Some(naive) = &case.naive {
        let arrays: Vec<Array> = operands
            .iter()
            .map(|numbers| match numbers {
                Numbers::Floats(array) => array.clone(),
                Numbers::Labels(shape, labels) => {
                    Array { shape: *shape, data: labels.iter().copied().map(f64::from).collect() }
                }
            })
            .collect();
        for (k, (array, (computed, kernels))) in naive(&arrays).into_iter().zip(&reference).enumerate() {
            let what = format!("f64 result {k}");
            let error = compare(&what, &Computed(computed.clone()), &Reference(array.data), 1e-12)?;
            table::note(case, &double, kernels, Part::Result, error);
        }
    }
    hold_results(case, &on(Precision::Full), &operands, &reference)?;
    Ok(())
}

/// The number of elements of all operands.
pub(crate) fn elements(case: &Case) -> usize {
    let of = |operand: &Operand| match operand {
        Operand::Floats { shape } | Operand::Labels { shape, .. } => shape.elements(),
    };
    case.operands.iter().map(of).sum()
}

/// The number of elements of each operand to move for finite differences: at most `most`, and few of large cases, which
/// are computed twice for each.
pub(crate) fn sample_of(case: &Case, most: usize) -> usize {
    if elements(case) > 10_000 { most.min(10) } else { most }
}

/// The gradient rule against finite differences, and gradients in `f32` against those in `f64`.
fn gradient(case: &Case) -> Result<(), Failed> {
    let device = Device::cpu_with(Precision::Double);
    let inputs =
        operands(case).iter().map(|numbers| numbers.tensor(&device)).collect::<Result<Vec<_>>>().map_err(failed)?;
    let first_only = case.is(Special::Statistics);
    let build = |(): &(), x: &[Var]| {
        let mut y = (case.build)(x);
        if first_only {
            y.truncate(1);
        }
        y
    };
    let report = Gradcheck::default().samples(sample_of(case, 80)).run(&(), &inputs, build).map_err(failed)?;
    report.ok().map_err(failed)?;
    let error = report.entries.iter().fold(0.0, |max: f64, entry| max.max(entry.largest_absolute));
    table::note(case, &device, &[], Part::Gradient, error);
    let on = |precision| Device::cpu_with(precision).for_testing(0);
    let operands = operands(case);
    let reference = gradients(case, &on(Precision::Double), &operands).map_err(failed)?;
    hold_gradients(case, &on(Precision::Full), &operands, &reference)?;
    Ok(())
}

/// Runs every variant, up to the largest number that any kernel has.
pub(crate) fn each_variant(device: &Device, run: impl Fn(&Device) -> Result<usize, Failed>) -> Result<(), Failed> {
    each_variant_on(|variant| device.for_testing(variant), run)
}

fn each_variant_on(
    device: impl Fn(usize) -> Device,
    run: impl Fn(&Device) -> Result<usize, Failed>,
) -> Result<(), Failed> {
    let (mut variant, mut variants) = (0, 1);
    while variant < variants {
        variants = run(&device(variant))?;
        variant += 1;
    }
    Ok(())
}

/// Every WGSL variant against the native `f64` results.
pub(crate) fn wgsl(case: &Case, device: &Device) -> Result<(), Failed> {
    let operands = operands(case);
    let reference = results(case, &Device::cpu_with(Precision::Double), &operands).map_err(failed)?;
    each_variant(device, |device| hold_results(case, device, &operands, &reference))
}

/// Gradients on the GPU against the native executor's in `f64`, which `gradient` compares with finite differences.
pub(crate) fn wgsl_gradient(case: &Case, device: &Device) -> Result<(), Failed> {
    let operands = operands(case);
    let reference = gradients(case, &Device::cpu_with(Precision::Double), &operands).map_err(failed)?;
    let most = most_again(device);
    each_variant(device, |device| Ok(hold_gradients(case, device, &operands, &reference)?.min(most)))
}

/// The most variants to run in tests of kernels that have cases of their own, as gradients do: those run every variant,
/// and software drivers take long to compile and run them again.
pub(crate) fn most_again(device: &Device) -> usize {
    if is_software(device) { 1 } else { usize::MAX }
}

/// The case with the tolerance of single operations, which read operands that are exact in bf16, and store `f32`. A
/// case that records several operations gets the tolerance `between`, because values between them are rounded to eight
/// bits.
fn with_bf16(case: &Case, tolerance: f64, between: f64) -> Case {
    case.clone().tolerance(if case.recorded { between } else { tolerance })
}

/// Results and gradients where kernels read and store bf16. Operands are exact in bf16; results that gradients read are
/// rounded.
fn bf16(case: &Case, device: &Device) -> Result<(), Failed> {
    let operands: Vec<_> = operands(case).iter().map(Numbers::rounded_to_bf16).collect();
    let double = Device::cpu_with(Precision::Double);
    let on = |variant| device.for_testing_bf16(variant);
    // Rounding to eight bits is off by up to 2⁻⁸ of a value, and cases square what was rounded, which doubles that.
    let tolerant = with_bf16(case, case.tolerance, 8e-3);
    let reference = results(case, &double, &operands).map_err(failed)?;
    each_variant_on(on, |device| hold_results(&tolerant, device, &operands, &reference))?;
    let reference = gradients(case, &double, &operands).map_err(failed)?;
    let (case, most) = (with_bf16(case, 1e-3, 1e-3), most_again(device));
    each_variant_on(on, |device| Ok(hold_gradients(&case, device, &operands, &reference)?.min(most)))
}

/// The same in fast precision, if the device has it. Two operands rounded to 11 bits make an error of at most a
/// thousandth in each term. The cases are small, so terms may cancel, and gradients chain such operations. Convolutions
/// may store bf16 in between, as in [`bf16`], which shows where a sum has one term.
fn fast(case: &Case, device: &Device) -> Result<(), Failed> {
    let Ok(device) = device.with_precision(Precision::Fast) else { return Ok(()) };
    let operands: Vec<_> = operands(case).iter().map(Numbers::rounded_to_bf16).collect();
    let double = Device::cpu_with(Precision::Double);
    let reference = results(case, &double, &operands).map_err(failed)?;
    each_variant(&device, |device| hold_results(&with_bf16(case, 2e-3, 4e-3), device, &operands, &reference))?;
    let reference = gradients(case, &double, &operands).map_err(failed)?;
    each_variant(&device, |device| hold_gradients(&with_bf16(case, 1e-3, 1e-3), device, &operands, &reference))
}
