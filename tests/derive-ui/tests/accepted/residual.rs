//! `residual` adds the input to the fields' result; `then` above the struct comes last.

use meganeura::Var;
use meganeura::check::gradcheck;
use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, apply, device, leaves};

#[derive(Module)]
#[module(sequential, residual)]
struct Plain {
    #[module(init = Scale::new(3.0), then = |x| x + 1.0)]
    scale: Scale,
}

#[derive(Module)]
#[module(sequential, residual = shortcut, then = [relu, |x| x * self.gain])]
struct Projected {
    #[module(init = Shift::new(1.0))]
    shift: Shift,
    #[module(init = (Scale::new(-5.0), Scale::new(2.0)))]
    shortcut: (Scale, Scale),
    #[module(init = Scale::new(2.0))]
    scale: Scale,
    #[module(skip, init = 0.5)]
    gain: f64,
}

#[derive(Module)]
#[module(sequential, residual = 1, then = |x| -x, config(projects: bool))]
struct Optional(
    #[module(init = Scale::new(2.0))] Scale,
    #[module(init = projects.then(|| Shift::new(100.0)))] Option<Shift>,
);

/// The shortcut's type may be generic; it only has to implement `Shortcut`.
#[derive(Module)]
#[module(sequential, residual = around)]
struct Generic<L, S> {
    branch: Vec<L>,
    around: S,
}

#[test]
fn the_input_is_added() -> Result<()> {
    let device = device();
    assert_eq!(apply(&Plain::init(&device, 42)?, 2.0)?, 2.0 + 7.0);
    let mut projected = Projected::init(&device, 42)?;
    assert_eq!(apply(&projected, 2.0)?, 0.0, "relu(-20 + 6)");
    assert_eq!(apply(&projected, -2.0)?, (20.0 - 2.0) / 2.0);
    assert_eq!(
        leaves(&mut projected),
        ["shift.offset (buffer)", "shortcut.0.weight", "shortcut.1.weight", "scale.weight"]
    );
    Ok(())
}

#[test]
fn gradients_go_both_ways() -> Result<()> {
    let device = device();
    let x = Tensor::from_slice(&device, [3], &[0.7, -1.3, 2.1])?;
    let x = &[x];
    gradcheck(&Plain::init(&device, 42)?, x, |net, x| vec![net.forward(&x[0])])?.ok()?;
    let projected = Projected::init(&device, 42)?;
    gradcheck(&projected, x, |net, x| vec![net.forward(&x[0])])?.ok()?;

    let tape = Tape::new(&device);
    let loss = projected.forward(&tape.input(&Tensor::full(&device, [1], -2.0)?)).sum();
    let grads = tape.backward(&loss)?;
    let missing = projected.named_parameters().into_iter().find(|(_, param)| grads.get(param).is_none());
    assert!(missing.is_none(), "{missing:?} got no gradient");
    Ok(())
}

#[test]
fn a_missing_shortcut_passes_its_input_on() -> Result<()> {
    let device = device();
    assert_eq!(apply(&Optional::init(&device, 42, OptionalConfig { projects: false })?, 1.0)?, -(1.0 + 2.0));
    assert_eq!(apply(&Optional::init(&device, 42, OptionalConfig { projects: true })?, 1.0)?, -(101.0 + 2.0));
    let scale = Scale::new(2.0).init(&device, Seed::new(0))?;
    assert_eq!(apply(&Generic { branch: vec![scale], around: None::<Scale> }, 1.0)?, 3.0);
    Ok(())
}

#[derive(Module)]
#[module(sequential, residual)]
struct Grows(#[module(init = Scale::new(1.0), then = |x| Var::concat(&[x, x], 0))] Scale);

#[test]
fn a_sum_that_does_not_fit_is_at_the_line_of_the_option() {
    let device = device();
    let grows = Grows::init(&device, 42).unwrap();
    let x = Tensor::zeros(&device, [3]).unwrap();
    let error = grows.forward(&Tape::new(&device).input(&x)).error().expect("3 and 6 differ");
    assert!(error.to_string().contains("f32[3]") && error.to_string().contains("f32[6]"), "{error}");
    assert!(error.to_string().contains("residual = shortcut"), "{error}");
    let location = error.location().unwrap();
    let line = include_str!("residual.rs").lines().position(|line| line.starts_with("struct Grows")).unwrap();
    assert_eq!(location.line() as usize, line, "{location}: the attribute is one line above the struct");
}

#[test]
fn a_sum_does_not_broadcast() {
    let device = device();
    let wide = Wide::init(&device, 42).unwrap();
    let x = Tape::new(&device).input(&Tensor::zeros(&device, [1]).unwrap());
    assert!(wide.forward(&x).error().is_some(), "1 and 4 would");
}

#[derive(Module)]
#[module(sequential, residual)]
struct Wide(#[module(init = Scale::new(1.0).wide(4))] Scale);
