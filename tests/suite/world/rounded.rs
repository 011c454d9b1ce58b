//! Gradients that ranks may exchange in bf16.

use meganeura::module::{Init, Seed};
use meganeura::nn::{Conv2d, GroupNorm, Relu};
use meganeura::world::World;
use meganeura::{Layer, Precision, Result, Tape};

use crate::nets::tensor;

/// Means that may be exchanged in bf16 equal those that may not, up to rounding. They are rounded where NCCL links the
/// ranks, in fast precision.
pub(super) fn rounded(world: &World, device: &str) -> Result<()> {
    let device = world.device(device)?;
    let (device, is_fast) = match device.with_precision(Precision::Fast) {
        Ok(fast) => (fast, true),
        Err(_) => (device, false),
    };
    let (stem, grouped) = (Conv2d::new(16, 32, 3).padding(1), Conv2d::new(32, 32, 3).padding(1).groups(2));
    let net = (stem, Relu, grouped, GroupNorm::new(4, 32), Relu, Conv2d::new(32, 40, 1));
    let mut net = net.init(&device, Seed::new(1))?;
    world.share(&mut net)?;
    // Smaller images would be computed in `f32`.
    let x = tensor(&device, &format!("x {}", world.rank()), [8, 16, 51, 51])?;
    let means = |may_round: bool| -> Result<Vec<(String, Vec<f64>)>> {
        let tape = Tape::new(&device);
        let loss = net.forward(&tape.input(&x)).square().mean();
        let grads = tape.backward(&loss)?;
        let grads = if may_round { grads.average_bf16(&net, world)? } else { grads.average(&net, world)? };
        grads.named(&net)?.into_iter().map(|(name, mean)| Ok((name, mean.to_tensor()?.to_f64_vec()?))).collect()
    };
    let (exact, means) = (means(false)?, means(true)?);
    let mut rounded = 0;
    for ((name, exact), (_, mean)) in exact.iter().zip(&means) {
        let largest = exact.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let error = exact.iter().zip(mean).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        // Each rank's gradient is rounded to eight bits, and so is each sum.
        assert!(error <= largest * 2_f64.powi(-8) * (1.0 + world.size() as f64), "{name} is off by {error:e}");
        rounded += usize::from(error > largest * 1e-4);
        // Neither too large nor too small on the whole.
        let [common, own] = [mean, exact].map(|other| exact.iter().zip(other).map(|(x, y)| x * y).sum::<f64>());
        assert!((common / own - 1.0).abs() < 5e-4, "{name} has {} of its size", common / own);
    }
    let is_linked = is_fast && world.engine().starts_with("NCCL");
    assert_eq!(rounded, if is_linked { 3 } else { 0 }, "{} on {device}", world.engine());
    world.expect_same("the means", &format!("{means:?}"))
}
