//! `init` takes any builder, or containers of them; a bare `init` uses the field's type.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, device, leaves};

const WIDTH: usize = 2;

#[derive(Module)]
struct Block<const N: usize> {
    #[module(init = Scale::new(1.0).wide(N))]
    scale: Scale,
}

#[derive(Module)]
struct Net<T: Default> {
    #[module(init = vec![Scale::new(1.0), Scale::new(2.0)])]
    vec: Vec<Scale>,
    #[module(init = [const { WIDTH }; 2].map(|width| Scale::new(1.0).wide(width)))]
    array: [Scale; 2],
    #[module(init = Some(Scale::new(1.0)))]
    option: Option<Scale>,
    #[module(init = None::<meganeura_derive_ui::ScaleBuilder>)]
    none: Option<Scale>,
    #[module(init = Box::new(Scale::new(1.0)))]
    boxed: Box<dyn Layer>,
    #[module(init = BTreeMap::from([("key".to_owned(), Scale::new(1.0))]))]
    map: BTreeMap<String, Scale>,
    #[module(init = |device, seed| Ok(Choice::Scale(Scale::new(f32::from(seed != Seed::new(0))).init(device, seed)?)))]
    by_hand: Choice,
    #[module(skip, init = |x| x + 1)]
    function: fn(u32) -> u32,
    #[module(init)]
    block: Block<3>,
    #[module(init)]
    blocks: [Block<1>; 2],
    #[module(init)]
    marker: PhantomData<T>,
    #[module(skip, init = T::default())]
    value: T,
}

/// Only a closure can choose the variant.
#[derive(Module)]
enum Choice {
    Scale(Scale),
}

mod inner {
    use meganeura::prelude::*;
    use meganeura_derive_ui::Scale;

    #[derive(Module)]
    pub(crate) struct Visible {
        #[module(init = Scale::new(1.0))]
        pub(crate) scale: Scale,
    }
}

#[test]
fn fields_are_built() -> Result<()> {
    let device = device();
    let mut net = Net::<u8>::init(&device, 42)?;
    assert_eq!((net.value, (net.function)(1)), (0, 2));
    let paths = [
        "vec.0.weight",
        "vec.1.weight",
        "array.0.weight",
        "array.1.weight",
        "option.weight",
        "boxed.weight",
        "map.key.weight",
        "by_hand.0.weight",
        "block.scale.weight",
        "blocks.0.scale.weight",
        "blocks.1.scale.weight",
    ];
    assert_eq!(leaves(&mut net), paths);
    for (path, param) in net.named_parameters() {
        assert_eq!(param.path().as_deref(), Some(&*path), "`init` tells every parameter its path");
    }
    assert_eq!(net.block.scale.parameter_count(), 3);
    assert_eq!(inner::Visible::init(&device, Seed::new(42))?.scale.parameter_count(), 1);
    Ok(())
}

/// Hand-written functions called `init`.
#[derive(Module)]
#[module(no_init)]
struct Seeded {
    #[module(init = Scale::new(1.0))]
    scale: Scale,
}

#[derive(Module)]
#[module(no_init, config(width: usize))]
struct Told {
    #[module(init = Scale::new(1.0).wide(width))]
    scale: Scale,
    #[module(init)]
    seeded: Seeded,
}

impl Seeded {
    fn init() -> Result<Self> {
        Self::from_seed(&device(), Seed::new(42))
    }
}

impl Told {
    fn init(width: usize) -> Result<Self> {
        ToldConfig { width }.init(&device(), Seed::new(42))
    }
}

#[test]
fn init_may_be_hand_written() -> Result<()> {
    assert_eq!(Seeded::init()?.scale.parameter_count(), 1);
    let told = Told::init(3)?;
    assert_eq!((told.scale.parameter_count(), told.seeded.parameter_count()), (3, 1));
    Ok(())
}
