//! Clipped gradients.

use crate::optim::{Optimizer, Sgd};
use crate::{Buffer, Device, ErrorKind, Grads, Module, ModuleExt, Param, Tape, Tensor, Var};

/// The loss is half the sum of squares, so gradients equal values. The trained ones are `(3, 0)` and `(0, 4)`, of
/// norm 5.
#[derive(Module)]
struct Net {
    a: Param,
    b: Param,
    #[module(frozen)]
    frozen: Param,
    buffer: Buffer,
}

fn net_and_grads() -> (Net, Grads) {
    let device = Device::cpu();
    let tensor = |data: [f32; 2]| Tensor::from_slice(&device, [2], &data).unwrap();
    let (a, b) = (Param::new(tensor([3.0, 0.0])), Param::new(tensor([0.0, 4.0])));
    let net = Net { a, b, frozen: Param::new(tensor([7.0; 2])), buffer: Buffer::new(tensor([8.0; 2])) };
    let tape = Tape::new(&device);
    let values = [tape.param(&net.a), tape.param(&net.b), tape.param(&net.frozen), tape.buffer(&net.buffer)];
    let loss = Var::concat(&values.each_ref(), 0).square().sum() * 0.5;
    let grads = tape.backward(&loss).unwrap();
    (net, grads)
}

fn gradient(grads: &Grads, param: &Param) -> Vec<f32> {
    grads.get(param).unwrap().to_vec().unwrap()
}

#[test]
fn the_norm_covers_all_trained_parameters() {
    let (net, grads) = net_and_grads();
    assert_eq!(grads.norm(&net).item().unwrap(), 5.0);
    let grads = grads.clip_norm(&net, 2.5).unwrap();
    let (da, db) = (gradient(&grads, &net.a), gradient(&grads, &net.b));
    // Clipped separately, they would be (2.5, 0) and (0, 2.5).
    assert!((da[0] - 1.5).abs() < 1e-6 && (db[1] - 2.0).abs() < 1e-6, "{da:?} {db:?}");
    assert!((grads.norm(&net).item().unwrap() - 2.5).abs() < 1e-6);
}

#[test]
fn small_gradients_are_kept() {
    for max_norm in [100.0, f64::INFINITY] {
        let (net, grads) = net_and_grads();
        assert_eq!(gradient(&grads.clip_norm(&net, max_norm).unwrap(), &net.a), [3.0, 0.0]);
    }
}

#[test]
fn parts_are_clipped_on_their_own() {
    let (net, grads) = net_and_grads();
    let grads = grads.clip_norm(&net.a, 1.0).unwrap();
    assert!((gradient(&grads, &net.a)[0] - 1.0).abs() < 1e-6);
    assert_eq!(gradient(&grads, &net.b), [0.0, 4.0]);
}

#[test]
fn a_step_follows_the_clipped_gradients() {
    let (mut net, grads) = net_and_grads();
    let grads = grads.clip_norm(&net, 2.5).unwrap();
    Sgd::new(1.0).step(&mut net, &grads).unwrap();
    assert!((net.a.value().to_vec().unwrap()[0] - 1.5).abs() < 1e-6);
}

#[test]
fn numbers_are_clipped_one_by_one_within_one_plan() {
    for limit in [3.5, 2.0] {
        let (mut net, grads) = net_and_grads();
        let device = grads.tape().device();
        let grads = grads.clip_value(&net, limit).unwrap();
        Sgd::new(1.0).step(&mut net, &grads).unwrap();
        let value = |param: &Param| f64::from(param.value().to_vec().unwrap().into_iter().fold(0.0, f32::max));
        assert_eq!((value(&net.a), value(&net.b)), (3.0 - limit.min(3.0), 4.0 - limit));
        assert_eq!(device.stats().plans, 1);
    }
}

#[test]
fn gradients_of_another_model_are_an_error() {
    let (mut net, grads) = net_and_grads();
    let (other, buffer) = (net_and_grads().0, Buffer::new(net.a.value()));
    net.name_parameters();
    net.freeze("frozen").unwrap();
    for (module, part) in [
        (&other as &dyn Module, "for example `a`; other parameters have, such as `a`"),
        (&other.b, "has a gradient, for example ``"),
        (&net.frozen, "every parameter of the module is frozen"),
        (&buffer, "the module has no parameters"),
    ] {
        let (_, clipped) = net_and_grads();
        let errors = [
            grads.norm(module).item().unwrap_err(),
            clipped.clip_norm(module, 1.0).unwrap_err(),
            net_and_grads().1.clip_value(module, 1.0).unwrap_err(),
        ];
        assert!(errors[0].to_string().contains(part), "{}", errors[0]);
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::NoGradient), "{errors:?}");
        // If nothing is trained, the list is empty, not an error.
        let error = grads.named(module).err();
        assert_eq!(error.map(|error| error.kind()), (module.counts().trained > 0).then_some(ErrorKind::NoGradient));
    }
    // If a pass may leave out all parameters, the norm is 0.
    let unused = net_and_grads().1.allow_unused("**");
    assert!(unused.named(&other).unwrap().is_empty());
    assert_eq!(unused.norm(&other).item().unwrap(), 0.0);
    unused.clip_norm(&other, 1.0).unwrap();
    // Parameters that are frozen by now do not count.
    net.freeze("a").unwrap();
    assert_eq!(grads.norm(&net).item().unwrap(), 4.0);
}

#[test]
fn a_limit_that_is_not_positive_is_an_error() {
    for max_norm in [0.0, -1.0, f64::NAN] {
        let (net, grads) = net_and_grads();
        assert_eq!(grads.clip_norm(&net, max_norm).unwrap_err().kind(), ErrorKind::Argument);
        let (net, grads) = net_and_grads();
        assert_eq!(grads.clip_value(&net, max_norm).unwrap_err().kind(), ErrorKind::Argument);
    }
}
