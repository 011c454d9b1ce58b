//! `before` and `then` take methods of `Var`, functions, closures, and lists of them, which may use `self`.

use meganeura::Var;
use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, apply, device};

mod activation {
    use meganeura::Var;

    pub fn double(x: &Var) -> Var {
        x.clone() + x.clone()
    }
}

fn identity<const N: usize>(x: &Var) -> Var {
    x.clone()
}

#[derive(Module)]
#[module(sequential)]
struct Net {
    #[module(init = Shift::new(-3.0), before = |x| -x, then = [relu, |x| -x])]
    first: Shift,
    #[module(skip, init = 2.0)]
    slope: f64,
    #[module(init = Scale::new(1.0), before = leaky_relu(self.slope), then = activation::double, recompute)]
    second: Scale,
    #[module(init = Shift::new(0.5), before = |x| x + x, then = [Var::square, self::identity::<3>, square])]
    third: Shift,
}

/// A layer without parameters, which `forward` creates in place.
#[derive(Module)]
struct Power {
    #[module(skip)]
    exponent: usize,
}

impl Power {
    fn new(exponent: usize) -> Self {
        Self { exponent }
    }

    fn twice(self) -> Self {
        Self { exponent: 2 * self.exponent }
    }
}

impl Layer for Power {
    fn forward(&self, x: &Var) -> Var {
        (1..self.exponent).fold(x.clone(), |power, _| power * x)
    }
}

#[derive(Module)]
#[module(sequential, then = Power::new(self.last))]
struct Made {
    #[module(init = Scale::new(2.0), then = [relu, self::Power::new(1).twice()], before = Power::new(3))]
    scale: Scale,
    #[module(skip, init = 2)]
    last: usize,
}

#[test]
fn layers_without_parameters_need_no_field() -> Result<()> {
    let mut made = Made::init(&device(), 42)?;
    assert_eq!(apply(&made, 3.0)?, (27.0_f32 * 2.0).powi(4));
    assert_eq!(meganeura_derive_ui::leaves(&mut made), ["scale.weight"]);
    Ok(())
}

/// `before` runs ahead of the layer.
#[derive(Module)]
#[module(sequential)]
struct Order {
    #[module(init = Scale::new(2.0), before = |x| x + self.one)]
    scale: Scale,
    #[module(skip, init = 1.0)]
    one: f64,
}

#[test]
fn steps_are_applied_in_order() -> Result<()> {
    // −x, −3, relu, −x, ×2 where negative, ×1, ×2, ×2, +½, x², x, x²
    let net = Net::init(&device(), 42)?;
    assert_eq!(apply(&net, -5.0)?, 15.5 * 15.5 * 15.5 * 15.5);
    assert_eq!(apply(&net, 5.0)?, 0.0625);
    assert_eq!(apply(&Order::init(&device(), 42)?, 1.0)?, 4.0);
    Ok(())
}

/// Methods that `Var` gets from a trait: by reference and by value, with and without arguments.
trait Activation {
    fn swish(&self) -> Var;
    fn relu6(&self, slope: f64) -> Var;
}

trait ByValue {
    fn relux(self) -> Var;
}

impl Activation for Var {
    fn swish(&self) -> Var {
        self * self
    }

    fn relu6(&self, slope: f64) -> Var {
        self * slope
    }
}

impl ByValue for &Var {
    fn relux(self) -> Var {
        self + 1.0
    }
}

#[derive(Module)]
#[module(sequential, then = [relux, relu6(self.slope)])]
struct Extended {
    #[module(init = Scale::new(2.0), before = swish, then = relux)]
    scale: Scale,
    #[module(skip, init = 10.0)]
    slope: f64,
}

#[test]
fn methods_of_traits_in_scope_are_found() -> Result<()> {
    assert_eq!(apply(&Extended::init(&device(), 42)?, 3.0)?, (9.0 * 2.0 + 1.0 + 1.0) * 10.0);
    Ok(())
}

/// Each `forward` creates a layer with new parameters.
#[derive(Module)]
#[module(sequential)]
struct Forgotten {
    #[module(init = Scale::new(2.0), then = Scale::new(3.0).init(&device(), Seed::new(1)).unwrap())]
    scale: Scale,
}

/// The layer that `forward` creates shares the field's parameters.
#[derive(Module)]
#[module(sequential)]
struct Twice {
    #[module(init = |device, seed| Ok(std::sync::Arc::new(Scale::new(2.0).init(device, seed)?)))]
    #[module(then = std::sync::Arc::clone(&self.scale))]
    scale: std::sync::Arc<Scale>,
}

#[test]
fn a_layer_with_unheld_parameters_is_an_error() -> Result<()> {
    let error = apply(&Forgotten::init(&device(), 42)?, 1.0).unwrap_err().to_string();
    assert!(error.contains("its `weight` would be neither trained nor saved; make the layer a field"), "{error}");
    assert!(error.contains("sequential.rs:"), "{error}");
    assert_eq!(apply(&Twice::init(&device(), 42)?, 1.0)?, 4.0);
    Ok(())
}
