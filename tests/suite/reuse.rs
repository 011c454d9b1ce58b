//! Reused tapes: values that nobody holds are forgotten, and held values stay unchanged.

use libtest_mimic::Trial;
use meganeura::nn::{Linear, Relu};
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, ErrorKind, Init, Layer, Seed, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, images, tensor};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        // Separate devices, so that their plans are only this test's.
        trials.push(Trial::test(format!("reuse::{name}"), move || run(&Device::cpu())));
        trials.push(gpu_trial(format!("reuse::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("a_tape_does_not_grow_with_its_passes", passes);
    both("held_values_keep_their_gradients", held);
    both("a_detached_state_does_not_grow", recurrent);
    both("a_large_plan_is_kept_from_the_second_time_on", large);
}

/// The number of nodes on a tape, from its `Debug` form.
fn nodes(tape: &Tape) -> usize {
    let text = format!("{tape:?}");
    let number = text.trim_start_matches("Tape(").split(' ').next().expect("a number comes first");
    number.parse().unwrap_or_else(|_| panic!("{text} names its nodes"))
}

fn passes(device: &Device) -> Outcome {
    let net = Tiny::init(device, 1)?;
    let tape = Tape::inference(device);
    let (pixels, _) = images(device, "reuse", 2)?;
    let first = net.forward(&tape.input(&pixels));
    let expected = first.to_vec()?;
    let one_pass = nodes(&tape);
    let passes = if device.is_gpu() { 300 } else { 4000 };
    for pass in 0..passes {
        let x = Tensor::full(device, [2, 1, 6, 6], pass as f32 / 1000.0)?;
        let y = net.forward(&tape.input(&x)).to_vec()?;
        assert!(y.iter().all(|y| y.is_finite()));
        assert!(nodes(&tape) <= 4 * one_pass, "{} nodes after {pass} passes, one is {one_pass}", nodes(&tape));
        let plans = device.stats().plans;
        assert!(plans <= 2, "{plans} plans after {pass} passes");
    }
    assert_eq!(first.to_vec()?, expected);
    // The held value can still be used.
    assert_eq!((first * 2.0).to_vec()?, expected.iter().map(|y| 2.0 * y).collect::<Vec<_>>());
    Ok(())
}

/// A graph of tens of thousands of operations leaves no plan behind, unless it comes again.
fn large(device: &Device) -> Outcome {
    let x = Tensor::full(device, [2, 2], 0.5)?;
    let product = |factors: usize| {
        let tape = Tape::new(device);
        let x = tape.input(&x);
        (0..factors).fold(x.clone(), |y, _| y.matmul(&x)).to_vec()
    };
    // Each row of `x` sums to 1, so each power of it is `x`.
    let expected = vec![0.5; 4];
    product(3)?;
    let small = device.stats();
    assert!((device.plan_memory().len(), small.plans) == (1, 1) && small.plan_bytes > 0);
    for (time, factors) in (1..).zip([20_000, 20_001, 20_002]) {
        assert_eq!(product(factors)?, expected);
        let stats = device.stats();
        assert_eq!((stats.plans, stats.plan_bytes), (1 + time, small.plan_bytes), "{factors} factors");
    }
    // A step of a training comes again.
    for _ in 0..3 {
        assert_eq!(product(20_000)?, expected);
    }
    let stats = device.stats();
    assert_eq!((stats.plans, device.plan_memory().len()), (5, 2));
    assert!(stats.plan_bytes > 32 << 20 && stats.plan_bytes < 256 << 20, "{} bytes", stats.plan_bytes);
    product(3)?;
    assert_eq!(device.stats().plans, 5, "the small one is still there");
    Ok(())
}

/// The nodes that led to a held value stay on the tape, because its gradient may be requested.
fn held(device: &Device) -> Outcome {
    let mut net = (Linear::new(5, 4), Relu, Linear::new(4, 3)).init(device, Seed::new(1))?;
    let x = tensor(device, "x", [6, 5])?;
    let gradients = |passes: usize| -> Result<_, meganeura::Error> {
        let tape = Tape::new(device);
        let (input, loss) = (tape.input(&x), tape.scalar(0.5));
        let loss = loss * net.forward(&input).square().sum();
        let early = tape.backward(&loss)?;
        for pass in 0..passes {
            let other = Tensor::full(device, [1, 5], pass as f32)?;
            net.forward(&tape.input(&other)).to_vec()?;
        }
        let late = tape.backward(&loss)?;
        let mut found = Vec::new();
        for grads in [early, late] {
            found.push(grads.of(&input).expect("the loss depends on it").to_vec()?);
            for weight in [&net.0.weight, &net.2.weight] {
                found.push(grads.get(weight).expect("trained").to_vec()?);
            }
        }
        Ok(found)
    };
    let (once, after) = (gradients(0)?, gradients(40)?);
    assert_eq!(once, after);
    assert_eq!(once[..3], once[3..]);
    // A tape that has forgotten values can still step, and is stale after that.
    let tape = Tape::new(device);
    for _ in 0..20 {
        net.forward(&tape.input(&x)).to_vec()?;
    }
    let loss = net.forward(&tape.input(&x)).square().mean();
    let grads = tape.backward(&loss)?;
    let before = net.0.weight.value().to_vec()?;
    Sgd::new(0.5).step(&mut net, &grads)?;
    assert_ne!(net.0.weight.value().to_vec()?, before);
    for _ in 0..20 {
        let error = net.forward(&tape.input(&x)).to_vec().expect_err("the tape saw the parameters before the step");
        assert_eq!(error.kind(), ErrorKind::StaleTape);
    }
    assert!(loss.item()?.is_finite());
    Ok(())
}

/// A detached state that is passed from pass to pass.
fn recurrent(device: &Device) -> Outcome {
    let net = Linear::new(4, 4).init(device, Seed::new(1))?;
    let start = tensor(device, "start", [1, 4])?;
    let tape = Tape::inference(device);
    let mut state = tape.input(&start);
    let mut expected = start.clone();
    let mut most = 0;
    for pass in 0..200 {
        state = net.forward(&state).tanh().detach();
        let found = state.to_vec()?;
        expected = net.forward(&Tape::inference(device).input(&expected)).tanh().to_tensor()?;
        assert_eq!(found, expected.to_vec()?, "pass {pass}");
        if pass < 10 {
            most = most.max(nodes(&tape));
        }
        assert!(nodes(&tape) <= most, "{} nodes after {pass} passes", nodes(&tape));
    }
    Ok(())
}
