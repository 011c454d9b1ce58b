#[module(sequential)]
pub struct Digits {
    #[module(init = Conv2d::new(1, 32, 3).padding(1), then = [relu, leaky_relu(self.slope)])]
    stem: Conv2d,
    #[module(init, frozen, rename = "block", before = self::scale)]
    r#type: Block,
    #[module(init = Linear::new(2048, 10), before = |x| x.flatten())]
    head: Linear,
    #[module(skip, init = 0.1)]
    slope: f32,
}
