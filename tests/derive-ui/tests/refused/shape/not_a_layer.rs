use meganeura::prelude::*;

#[derive(Module)]
#[module(input = [_, 4])]
struct TwoInputs {
    #[module(init = Linear::new(4, 2))]
    linear: Linear,
}

impl TwoInputs {
    fn forward(&self, x: &Var, y: &Var) -> Var {
        self.linear.forward(&(x + y))
    }
}

fn main() {}
