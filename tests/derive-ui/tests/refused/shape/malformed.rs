use meganeura::prelude::*;

#[derive(Module)]
#[module(sequential, input)]
struct Bare(#[module(init = Linear::new(4, 2))] Linear);

#[derive(Module)]
#[module(sequential, input = 4)]
struct Number(#[module(init = Linear::new(4, 2))] Linear);

#[derive(Module)]
#[module(sequential, input = f32 [_, 4])]
struct Floats(#[module(init = Linear::new(4, 2))] Linear);

#[derive(Module)]
#[module(sequential, input = ([_, 4], [_]))]
struct Several(#[module(init = Linear::new(4, 2))] Linear);

#[derive(Module)]
#[module(sequential, input = [_, 3, _, _])]
struct Images(#[module(init = Conv2d::new(3, 4, 3))] Conv2d);

fn main() {}
