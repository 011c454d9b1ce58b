//! `skip`, `rename` and `frozen`, in one attribute or several.

use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, device, leaves};

struct NotAModule;

#[derive(Module)]
struct Net {
    #[module(init = (Scale::new(1.0), Shift::new(1.0)), frozen, rename = "backbone")]
    encoder: (Scale, Shift),
    #[module(frozen)]
    #[module(init = Scale::new(1.0))]
    decoder: Scale,
    #[module(skip, init = NotAModule)]
    _skipped: NotAModule,
    #[module(rename = "_skipped", init = Scale::new(1.0),)]
    head: Scale,
}

#[test]
fn options_are_followed() -> Result<()> {
    let mut net = Net::init(&device(), 42)?;
    assert_eq!(
        leaves(&mut net),
        [
            "backbone.0.weight (frozen)",
            "backbone.1.offset (buffer) (frozen)",
            "decoder.weight (frozen)",
            "_skipped.weight",
        ]
    );
    Ok(())
}

type Cache = std::collections::HashMap<u32, Tensor>;

/// Fields that may be skipped: settings, tensors, references, zero-sized types, and, deliberately, anything else.
#[derive(Module)]
struct Skipping<'a, L: Layer> {
    layer: L,
    #[module(skip)]
    borrowed: Option<&'a Scale>,
    #[module(skip)]
    tensors: (Option<Tensor>, std::rc::Rc<std::cell::RefCell<Cache>>),
    #[module(skip)]
    marker: std::marker::PhantomData<L>,
    #[module(skip)]
    unit: (),
    #[module(skip(parameters))]
    teacher: Option<L>,
    #[module(skip(parameters))]
    own: Param,
}

#[test]
fn deliberately_skipped_fields_are_not_visited() -> Result<()> {
    let scale = |factor| Scale::new(factor).init(&device(), Seed::new(1));
    let own = Param::new(Tensor::zeros(&device(), [1])?);
    let mut net = Skipping {
        layer: scale(1.0)?,
        borrowed: None,
        tensors: (None, std::rc::Rc::default()),
        marker: std::marker::PhantomData,
        unit: (),
        teacher: Some(scale(2.0)?),
        own,
    };
    assert_eq!(leaves(&mut net), ["layer.weight"]);
    assert!(net.teacher.is_some() && net.borrowed.is_none() && net.tensors.0.is_none() && net.own.shape().rank() == 1);
    let (std::marker::PhantomData, ()) = (net.marker, net.unit);
    Ok(())
}
