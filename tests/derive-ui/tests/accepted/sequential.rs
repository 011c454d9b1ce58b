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
    #[module(init = Scale::new(1.0), before = leaky_relu(self.slope), then = activation::double)]
    second: Scale,
    #[module(init = Shift::new(0.5), before = |x| x + x, then = [Var::square, self::identity::<3>, square])]
    third: Shift,
}

/// `before` comes before.
#[derive(Module)]
#[module(sequential)]
struct Order {
    #[module(init = Scale::new(2.0), before = |x| x + self.one)]
    scale: Scale,
    #[module(skip, init = 1.0)]
    one: f64,
}

#[test]
fn steps_are_applied_in_order() -> meganeura::Result<()> {
    // −x, −3, relu, −x, ×2 where negative, ×1, ×2, ×2, +½, x², x, x²
    let net = Net::init(&device(), 42)?;
    assert_eq!(apply(&net, -5.0)?, 15.5 * 15.5 * 15.5 * 15.5);
    assert_eq!(apply(&net, 5.0)?, 0.0625);
    assert_eq!(apply(&Order::init(&device(), 42)?, 1.0)?, 4.0);
    Ok(())
}
