use meganeura::prelude::*;

fn _used(x: &Var) -> Var {
    let x = Conv2d::new(3, 8, 3).forward(x);
    Linear::new(4, 3).forward(&x)
}

fn main() {}
