//! An operation outside the framework, from the example `custom_op`, on every executor.

#[path = "../../examples/custom_op/cumsum.rs"]
mod cumsum;

use libtest_mimic::{Failed, Trial};
use meganeura::check::gradcheck;
use meganeura::ops::CustomOp;
use meganeura::{Device, ErrorKind, Precision, Result, Tape, Tensor, TensorType, Var};

use self::cumsum::CumSum;
use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;
use crate::numbers::{Computed, Reference, compare};

/// Rows of one element, more rows than a workgroup has invocations, and several axes.
const SHAPES: [&[usize]; 5] = [&[1], &[7], &[3, 5], &[130, 33], &[2, 3, 257]];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("custom::gradients", gradients));
    trials.push(Trial::test("custom::sums", sums));
    trials.push(Trial::test("custom::misfits_are_errors", misfits));
    trials.push(Trial::test("custom::a_panic_is_an_error_with_the_name", panics));
    trials.push(Trial::test("custom::single_precision", || agrees(&Device::cpu())));
    trials.push(gpu_trial("custom::gpu", |device| agrees(&device.for_testing(0))));
}

/// First and second derivatives, with other operations before and after.
fn gradients() -> Outcome {
    let device = Device::cpu();
    for (shape, backwards) in SHAPES.into_iter().zip([false, true, false, true, true]) {
        let x = tensor(&device, "x", meganeura::Shape::new(shape))?;
        gradcheck(&(), &[x], |(), x| vec![through(&x[0], backwards)])?.ok()?;
    }
    let x = tensor(&device, "x", [3, 4])?;
    gradcheck(&(), &[x], |(), x| slopes(&x[0], true).into_iter().collect())?.ok()?;
    Ok(())
}

fn sums() -> Outcome {
    let device = Device::cpu();
    let x = Tape::new(&device).input(&Tensor::from_slice(&device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
    assert_eq!(x.custom(CumSum { backwards: false }, &[]).to_vec()?, [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
    assert_eq!(x.custom(CumSum { backwards: true }, &[]).to_vec()?, [6.0, 5.0, 3.0, 15.0, 11.0, 6.0]);
    // Views arrive as contiguous rows.
    assert_eq!(x.t().custom(CumSum { backwards: false }, &[]).to_vec()?, [1.0, 5.0, 2.0, 7.0, 3.0, 9.0]);
    Ok(())
}

fn misfits() -> Outcome {
    let device = Device::cpu();
    let x = Tape::new(&device).input(&tensor(&device, "x", [2, 3])?);
    let (y, line) = (x.custom(CumSum { backwards: false }, &[&x]), line!());
    for (error, line) in [(y, line), (x.sum().custom(CumSum { backwards: true }, &[]), line!())] {
        let error = error.to_vec().expect_err("does not fit");
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert!(error.to_string().starts_with("cumsum: takes one tensor of at least one axis"), "{error}");
        assert_eq!(error.location().map(std::panic::Location::line), Some(line));
    }
    Ok(())
}

/// An operation with a mistake in its kernel.
#[derive(Debug)]
struct Careless;

impl CustomOp for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }

    fn key(&self) -> String {
        String::new()
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![x[0]])
    }

    fn vjp(&self, _: &[Var], _: &[Var], _: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }

    fn cpu(&self, _: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        y[0][x[0].len()] = 1.0;
    }

    fn wgsl(&self, _: &[TensorType]) -> (String, usize) {
        unreachable!("there is no GPU")
    }
}

fn panics() -> Outcome {
    let device = Device::cpu();
    let x = Tape::new(&device).input(&tensor(&device, "x", [3])?);
    let error = x.custom(Careless, &[]).to_vec().expect_err("the index is out of bounds");
    assert_eq!(error.kind(), ErrorKind::Panic);
    assert!(error.to_string().starts_with("careless: the kernel for the CPU panicked: index out of bounds"), "{error}");
    // The device is as good as before.
    assert_eq!((&x * 0.0).to_vec()?, [0.0; 3]);
    Ok(())
}

fn through(x: &Var, backwards: bool) -> Var {
    (x * 0.5).tanh().custom(CumSum { backwards }, &[]).square()
}

/// The gradient of a loss through the operation.
fn slopes(x: &Var, backwards: bool) -> Result<Var> {
    let grads = x.tape().backward(&through(x, backwards).sum())?;
    Ok(grads.of(x).expect("the loss depends on it"))
}

/// Results and gradients against double precision.
fn agrees(device: &Device) -> Outcome {
    let compute = |device: &Device, shape: &[usize], backwards: bool| -> Result<(Vec<f64>, Vec<f64>), Failed> {
        let x = Tape::new(device).input(&tensor(device, "x", meganeura::Shape::new(shape))?);
        let slope = slopes(&x, backwards)?;
        Ok((through(&x, backwards).to_tensor()?.to_f64_vec()?, slope.to_tensor()?.to_f64_vec()?))
    };
    let double = Device::cpu_with(Precision::Double);
    for shape in SHAPES {
        for backwards in [false, true] {
            let (y, dx) = compute(device, shape, backwards)?;
            let (y_exact, dx_exact) = compute(&double, shape, backwards)?;
            let what = format!("cumsum {shape:?}, backwards {backwards}");
            // Sequential sums of at most 257 numbers: 257·ε is 3e-5 if all roundings go the same way.
            compare(&what, &Computed(y), &Reference(y_exact), 3e-5)?;
            compare(&format!("{what}, dx"), &Computed(dx), &Reference(dx_exact), 3e-5)?;
        }
    }
    Ok(())
}
