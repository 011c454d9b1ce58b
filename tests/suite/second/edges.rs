//! Second derivatives without a first one: ignored rows, windows of padding, targets without a path.

use libtest_mimic::Trial;
use meganeura::loss::{CrossEntropyOptions, CtcOptions, Reduction};
use meganeura::{Device, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("second::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("second::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("an_ignored_row_may_hold_anything", ignored);
    both("a_window_of_padding_has_no_winner", no_winner);
    both("a_target_without_a_path_has_no_gradient", no_path);
}

/// The gradients of `Σ (dy/dx)²` with respect to `x` and to the cotangent of `y`, which is 1.
fn penalise(x: &Var, y: &Var) -> Result<[Vec<f32>; 2]> {
    let tape = x.tape();
    let one = tape.scalar(1.0).expand(y.shape());
    let dx = tape.backward_with(y, &one)?.of(x).expect("depends");
    let grads = tape.backward(&dx.square().sum())?;
    let read = |of: &Var| grads.of(of).map_or_else(|| Ok(vec![0.0; of.shape().elements()]), |d| d.to_vec());
    Ok([read(x)?, read(&one)?])
}

fn ignored(device: &Device) -> Outcome {
    let x = Tensor::from_slice(device, [3, 2], &[0.5, -1.0, f32::NAN, f32::INFINITY, 2.0, 1.0])?;
    let labels = Tensor::indices(device, [3], &[1, 9, 0])?;
    let options = CrossEntropyOptions { ignored: Some(9), reduction: Reduction::None, ..Default::default() };
    let x = Tape::new(device).input(&x);
    let [of_x, of_one] = penalise(&x, &x.cross_entropy_with(&labels, &options))?;
    assert!(of_x.iter().chain(&of_one).all(|x| x.is_finite()), "{of_x:?} {of_one:?}");
    assert_eq!((&of_x[2..4], of_one[1]), (&[0.0; 2][..], 0.0));
    assert!(of_x[0].abs() > 0.1 && of_one[2].abs() > 0.01, "{of_x:?} {of_one:?}");
    Ok(())
}

fn no_winner(device: &Device) -> Outcome {
    let x = Tape::new(device).input(&Tensor::from_slice(device, [1, 1, 1, 3], &[1.0, 2.0, 3.0])?);
    // Windows cover the rows above and below the image, but not the image.
    let y = x.max_pool2d([2, 2], [1, 1], [1, 1], [2, 2]);
    let [of_x, of_one] = penalise(&x, &y)?;
    assert_eq!((of_x, of_one), (vec![0.0; 3], vec![0.0; y.shape().elements()]));
    Ok(())
}

fn no_path(device: &Device) -> Outcome {
    let x: Vec<_> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
    let indices = |shape: &[usize], of: &[u32]| Tensor::indices(device, meganeura::Shape::new(shape), of);
    // The first target has one step more than it needs, the second one too few, the third none.
    let targets = indices(&[3, 2], &[1, 1, 1, 1, 0, 0])?;
    let lengths = [indices(&[3], &[4, 2, 0])?, indices(&[3], &[2, 2, 0])?];
    for zero_infinity in [true, false] {
        let options = CtcOptions { zero_infinity, reduction: Reduction::None, ..CtcOptions::default() };
        let x = Tape::new(device).input(&Tensor::from_slice(device, [4, 3, 2], &x)?);
        let [of_x, _] = penalise(&x, &x.ctc_with(&targets, &lengths[0], &lengths[1], &options))?;
        for (at, slope) in of_x.iter().enumerate() {
            let (step, example) = (at / 6, at / 2 % 3);
            match example {
                0 => assert!(slope.is_finite(), "{of_x:?}"),
                // NaN, like the gradient itself.
                1 if step < 2 && !zero_infinity => assert!(slope.is_nan(), "{of_x:?}"),
                _ => assert_eq!(*slope, 0.0, "{of_x:?}"),
            }
        }
        assert!(of_x[0].abs() > 1e-3, "{of_x:?}");
    }
    Ok(())
}
