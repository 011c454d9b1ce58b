//! More workgroups than one dimension of a grid has.

use libtest_mimic::{Failed, Trial};
use meganeura::{Device, Tape, Tensor};

use crate::adapter::gpu_trial;

/// With 256 elements a workgroup, more than 65,535 workgroups.
const ELEMENTS: usize = 17_000_001;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("large::elementwise", elementwise));
}

fn elementwise(device: &Device) -> Result<(), Failed> {
    // Integers, exact in f32 above 2²⁴ where they are even; each element's value names its place.
    let value = |i: usize| (i / 2) as f32;
    let y = {
        let x: Vec<f32> = (0..ELEMENTS).map(value).collect();
        let x = Tape::new(device).input(&Tensor::from_slice(device, [ELEMENTS], &x)?);
        (x * 0.5 + 1.0).to_vec()?
    };
    assert_eq!(y.len(), ELEMENTS);
    for start in [0, 65_535 * 64, 65_535 * 256, ELEMENTS / 2, ELEMENTS - 300] {
        for i in (start..ELEMENTS).take(300) {
            assert_eq!(y[i], value(i) * 0.5 + 1.0, "element {i}");
        }
    }
    // Nothing in between was skipped either.
    assert!(y.iter().enumerate().all(|(i, &y)| y == value(i) * 0.5 + 1.0));
    Ok(())
}
