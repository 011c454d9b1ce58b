//! The choice of a kernel's variant: deterministic, unless the user prefers another.

use libtest_mimic::Trial;
use meganeura::optim::{AdamW, Optimizer};
use meganeura::{Device, ErrorKind, FromSeed, KernelChoice, Result, Seed, Tape};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, images, record, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("variants::are_chosen_the_same_way_every_time", deterministic));
    trials.push(gpu_trial("variants::others_run_where_they_are_preferred", preferred));
    trials.push(gpu_trial("variants::that_are_not_there_are_refused", unknown));
    trials.push(Trial::test("variants::the_cpu_has_one", only));
    trials.push(gpu_trial("variants::multiprocessors_are_counted", multiprocessors));
}

/// The chosen variants of a training step and of a few products, on a device without earlier plans.
fn choices(device: &Device) -> Result<Vec<Vec<KernelChoice>>> {
    let mut net = Tiny::from_seed(device, Seed::new(1))?;
    let (images, labels) = images(device, "variants", 4)?;
    let (_, grads) = record(&net, &images, &labels)?;
    AdamW::new(0.01).step(&mut net, &grads)?;
    for (m, k, n) in [(1, 1, 1), (7, 1000, 5), (33, 33, 33), (200, 20, 200)] {
        product(device, m, k, n)?;
    }
    Ok(device.kernel_choices())
}

fn product(device: &Device, m: usize, k: usize, n: usize) -> Result<Vec<f64>> {
    let tape = Tape::new(device);
    let (a, b) = (tape.input(&tensor(device, "a", [m, k])?), tape.input(&tensor(device, "b", [k, n])?));
    a.matmul(&b).to_tensor()?.to_f64_vec()
}

fn deterministic(device: &Device) -> Outcome {
    let first = choices(&device.for_testing(0))?;
    assert_eq!(first, choices(&device.for_testing(0))?);
    assert!(first.len() == 5 && first.iter().all(|plan| !plan.is_empty()), "{first:?}");
    for choice in first.iter().flatten() {
        assert_eq!(choice.variant, choice.offered[0], "{choice:?}");
        let mut names = choice.offered.clone();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), choice.offered.len(), "two variants of one name: {choice:?}");
    }
    Ok(())
}

fn preferred(device: &Device) -> Outcome {
    let device = device.for_testing(0);
    let chosen = |device: &Device| device.kernel_choices().pop().and_then(|mut plan| plan.pop()).expect("one kernel");
    let reference = Reference(product(&Device::cpu_with(meganeura::Precision::Double), 20, 70, 40)?);
    product(&device, 20, 70, 40)?;
    let first = chosen(&device);
    assert!(first.offered.len() > 1, "{first:?}");
    for &variant in &first.offered {
        device.prefer_variants(&[("no such operation", "whatever"), ("matmul", variant)])?;
        compare(variant, &Computed(product(&device, 20, 70, 40)?), &reference, 1e-5)?;
        let now = chosen(&device);
        assert_eq!((now.variant, &now.offered), (variant, &first.offered));
        let dump = device.plan_dumps().pop().expect("one plan");
        assert!(dump.contains(&format!("[{variant}: ")), "{dump}");
    }
    device.prefer_variants(&[])?;
    product(&device, 20, 70, 40)?;
    assert_eq!(chosen(&device), first);
    Ok(())
}

fn unknown(device: &Device) -> Outcome {
    let device = device.for_testing(0);
    device.prefer_variants(&[("matmul", "no such variant")])?;
    let error = product(&device, 2, 3, 4).expect_err("no such variant");
    assert_eq!(error.kind(), ErrorKind::Argument);
    for part in ["matmul", "no such variant", "tile 64", "dot"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // The device still works.
    device.prefer_variants(&[])?;
    product(&device, 2, 3, 4)?;
    Ok(())
}

/// Multiprocessors and their invocations, as NVIDIA's driver reports them, and as assumed of a software driver.
fn multiprocessors(device: &Device) -> Outcome {
    let counted = device.multiprocessors().expect("it is a GPU");
    assert!(counted.0 > 0 && counted.1 > 0, "{counted:?}");
    for (name, expected) in
        [("H100 80GB HBM3", (132, 2048)), ("H200", (132, 2048)), ("llvmpipe", (4, 2048)), ("SwiftShader", (4, 2048))]
    {
        assert!(!device.to_string().contains(name) || counted == expected, "{device} has {counted:?}");
    }
    assert_eq!(Device::cpu().multiprocessors(), None);
    Ok(())
}

fn only() -> Outcome {
    let device = Device::cpu();
    product(&device, 2, 3, 4)?;
    let choices: Vec<_> = device.kernel_choices().concat();
    assert!(matches!(&choices[..], [KernelChoice { op: "matmul", variant: "native", .. }]), "{choices:?}");
    assert_eq!(device.prefer_variants(&[("matmul", "dot")]).expect_err("one way").kind(), ErrorKind::Argument);
    device.prefer_variants(&[])?;
    Ok(())
}
