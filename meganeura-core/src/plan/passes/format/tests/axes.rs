//! Convolutions of sequences and volumes: their values stay bf16 as those of images do.

use super::{conversions, planned_with};
use crate::ops::{Conv1dOptions, Conv3dOptions};
use crate::plan::{Plan, Preferences};
use crate::{Result, Var};

/// The plan for the gradients of a recording on sequences `[8, 16, 60]`, and of the same one on volumes
/// `[8, 16, 4, 5, 6]`, with weights to 24 channels, of those to 40, and of 48 to 16. The recording gets the
/// convolution.
fn planned(f: impl Fn(&Var, &[Var], &dyn Fn(&Var, &Var) -> Var) -> Var) -> Result<[Plan; 2]> {
    let of_sequences = |x: &Var, w: &Var| x.conv1d(w, Conv1dOptions { padding: [1], ..Conv1dOptions::default() });
    let of_volumes = |x: &Var, w: &Var| x.conv3d(w, Conv3dOptions { padding: [1; 3], ..Conv3dOptions::default() });
    let sequences: [&[usize]; 3] = [&[24, 16, 3], &[40, 24, 3], &[16, 48, 3]];
    let volumes: [&[usize]; 3] = [&[24, 16, 3, 3, 3], &[40, 24, 3, 3, 3], &[16, 48, 3, 3, 3]];
    let preferences = Preferences::default();
    Ok([
        planned_with(&[8, 16, 60], &sequences, &preferences, |x, w| f(x, w, &of_sequences))?,
        planned_with(&[8, 16, 4, 5, 6], &volumes, &preferences, |x, w| f(x, w, &of_volumes))?,
    ])
}

/// The input is converted, and nothing else. Convolutions are on matrix units.
fn converts_the_input_alone(plans: [Plan; 2]) {
    for plan in plans {
        assert_eq!(conversions(&plan), 1, "{plan}");
        let convolutions = plan.launch_infos().filter(|launched| launched.kernel.starts_with("conv2d")).count();
        let on_lines = ["conv2d_taps", "conv2d_pack_taps", "conv2d_grad_weight_taps"];
        let of_lines = plan.launch_infos().filter(|launched| on_lines.contains(&launched.kernel)).count();
        assert!(convolutions > 0 && convolutions == of_lines, "{plan}");
    }
}

#[test]
fn chains_stay_bf16() -> Result<()> {
    converts_the_input_alone(planned(|x, w, convolved| convolved(&convolved(x, &w[0]).silu(), &w[1]))?);
    Ok(())
}

#[test]
fn channels_side_by_side_stay_bf16() -> Result<()> {
    converts_the_input_alone(planned(|x, w, convolved| {
        let y = convolved(x, &w[0]).relu();
        convolved(&Var::concat(&[&y, &y.sigmoid()], 1), &w[2])
    })?);
    Ok(())
}

#[test]
fn normalised_chains_stay_bf16() -> Result<()> {
    converts_the_input_alone(planned(|x, w, convolved| {
        let y = convolved(x, &w[0]);
        let [one, zero] = [1.0, 0.0].map(|number| y.constant(number).expand([24]));
        convolved(&y.group_norm(4, 1e-5, &one, &zero).silu(), &w[1])
    })?);
    Ok(())
}
