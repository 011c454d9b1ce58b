#[module(crate = "crate")]
struct Residual<'a, L: Named, const N: usize>(L, [Linear; N], Option<Vec<L::Block>>, #[module(skip)] &'a str)
where
    L: Clone;
