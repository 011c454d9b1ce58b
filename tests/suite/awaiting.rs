//! The async forms of functions that wait, driven by an executor that knows nothing about devices: same bits, same
//! errors.

use libtest_mimic::Trial;
use meganeura::io::{Names, tensors_to_safetensors, tensors_to_safetensors_async};
use meganeura::metric::Accuracy;
use meganeura::optim::TrainStep;
use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};

use crate::Outcome;
use crate::adapter::{block_on, gpu_trial};
use crate::nets::normal;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn(&Device) -> Outcome;
    let tests: [(&str, Test); 5] = [
        ("steps_give_the_same_bits", steps),
        ("compiled_steps_give_the_same_bits", compiled),
        ("a_skipped_step_is_reported", held_back),
        ("reads_overlap", overlapping),
        ("files_and_metrics_are_the_same", files),
    ];
    for (name, test) in tests {
        trials.push(Trial::test(format!("awaiting::cpu::{name}"), move || test(&Device::cpu())));
        trials.push(gpu_trial(format!("awaiting::gpu::{name}"), move |device| test(&device.for_testing(0))));
    }
    trials.push(Trial::test("awaiting::devices_open", devices));
}

type Net = (Linear, Relu, Linear);

fn net(device: &Device) -> Result<Net> {
    (Linear::new(3, 5), Relu, Linear::new(5, 2)).init(device, Seed::new(1))
}

fn batch(device: &Device) -> Result<(Tensor, Tensor)> {
    Ok((Tensor::from_f64(device, [4, 3], &normal("awaiting", 12))?, Tensor::indices(device, [4], &[0, 1, 1, 0])?))
}

fn loss(net: &Net, (x, labels): &(Var, Var)) -> Var {
    net.forward(x).cross_entropy(labels)
}

/// More steps than may be in flight at once.
const STEPS: usize = 20;

fn steps(device: &Device) -> Outcome {
    let (x, labels) = batch(device)?;
    for check in [false, true] {
        let (mut one, mut other) = (net(device)?, net(device)?);
        let (mut sgd, mut same) = (Sgd::new(0.1).check_finite(check), Sgd::new(0.1).check_finite(check));
        let record = |net: &Net| {
            let tape = Tape::new(device);
            let loss = loss(net, &(tape.input(&x), tape.input(&labels)));
            Ok::<_, meganeura::Error>((tape.backward(&loss)?, loss))
        };
        let mut losses = Vec::new();
        for _ in 0..STEPS {
            let (grads, loss): (Grads, _) = record(&one)?;
            sgd.step_with_loss(&mut one, &grads, &loss)?;
            losses.push(loss.item()?);
        }
        let awaited = block_on(async {
            let mut losses = Vec::new();
            for step in 0..STEPS {
                let (grads, loss): (Grads, _) = record(&other)?;
                match step % 2 {
                    0 => same.step_async(&mut other, &grads).await?,
                    _ => same.step_with_loss_async(&mut other, &grads, &loss).await?,
                }
                losses.push(loss.item_async().await?);
            }
            device.wait_async().await?;
            Ok::<_, meganeura::Error>(losses)
        })?;
        assert_eq!(awaited, losses);
        assert_eq!(other.to_safetensors()?, one.to_safetensors()?);
    }
    Ok(())
}

fn compiled(device: &Device) -> Outcome {
    let (x, labels) = batch(device)?;
    let (one, other) = (net(device)?, net(device)?);
    let (mut sgd, mut same) = (Sgd::new(0.1).check_finite(true), Sgd::new(0.1).check_finite(true));
    let (mut step, mut async_step) = (TrainStep::new(&one, loss), TrainStep::new(&other, loss));
    for _ in 0..STEPS {
        step.call(&mut sgd, (&x, &labels))?;
    }
    block_on(async {
        for _ in 0..STEPS {
            async_step.call_async(&mut same, (&x, &labels)).await?;
        }
        device.wait_async().await
    })?;
    assert_eq!(other.to_safetensors()?, one.to_safetensors()?);
    Ok(())
}

fn held_back(device: &Device) -> Outcome {
    let mut w = Param::new(Tensor::zeros(device, [1])?);
    let mut sgd = Sgd::new(0.1).check_finite(true);
    let tape = Tape::new(device);
    let grads = tape.backward(&tape.param(&w).log().sum())?;
    let error = block_on(sgd.step_async(&mut w, &grads)).expect_err("1/0");
    assert_eq!((error.kind(), w.value().item()?), (ErrorKind::NotFinite, 0.0));
    let mut sgd = sgd.skip_not_finite(true);
    let tape = Tape::new(device);
    let grads = tape.backward(&tape.param(&w).log().sum())?;
    block_on(sgd.step_async(&mut w, &grads))?;
    assert_eq!((sgd.skipped(), w.value().item()?), (1, 0.0));
    Ok(())
}

fn overlapping(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&batch(device)?.0);
    // The sum is copied by the run itself; the rest needs separate reads.
    let (large, small) = (x.tile(&[100, 1]).exp().to_tensor()?, x.exp().sum().to_tensor()?);
    let (first, second) = (large.to_vec_async(), small.item_async());
    let (second, first) = block_on(async { (second.await, first.await) });
    assert_eq!((first?, second?), (large.to_vec()?, small.item()?));
    Ok(())
}

fn files(device: &Device) -> Outcome {
    let net = net(device)?;
    let (x, labels) = batch(device)?;
    let scores = net.forward(&Tape::new(device).input(&x)).to_tensor()?;
    let (mut one, mut other) = (Accuracy::new(), Accuracy::new());
    one.update(&scores, &labels)?;
    let names = Names::new().rename("model.*", "*");
    let (bytes, renamed, tensors) = block_on(async {
        other.update_async(&scores, &labels).await?;
        let bytes = net.to_safetensors_async().await?;
        let renamed = net.to_safetensors_with_async(&names).await?;
        let tensors = tensors_to_safetensors_async([("x", &x), ("labels", &labels)]).await?;
        Ok::<_, meganeura::Error>((bytes, renamed, tensors))
    })?;
    assert_eq!((one.count(), one.value()?), (other.count(), other.value()?));
    assert_eq!((bytes, renamed), (net.to_safetensors()?, net.to_safetensors_with(&names)?));
    assert_eq!(tensors, tensors_to_safetensors([("x", &x), ("labels", &labels)])?);
    Ok(())
}

fn devices() -> Outcome {
    let cpu = block_on(Device::named_async("cpu"))?;
    assert!(!cpu.is_gpu() && cpu.same(&Device::cpu()));
    let error = block_on(Device::named_async("no such adapter")).expect_err("there is none");
    assert_eq!(error.message(), Device::named("no such adapter").expect_err("there is none").message());
    assert_eq!(block_on(Device::best_async())?.to_string(), Device::best()?.to_string());
    Ok(())
}
