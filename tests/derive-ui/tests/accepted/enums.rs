//! Of an enum the variant that is there is visited; its name is not in the path.

use meganeura::module::{At, Slot};
use meganeura::prelude::*;
use meganeura_derive_ui::{Scale, Shift, device, leaves};

#[derive(Module)]
enum Norm {
    Scale(Scale),
    Both {
        #[module(frozen)]
        scale: Scale,
        #[module(rename = "bias")]
        shift: Shift,
        #[module(skip)]
        note: String,
    },
    Plain(#[module(skip)] usize),
    None,
}

#[test]
fn the_active_variant_is_visited() -> meganeura::Result<()> {
    let device = device();
    let scale = || Scale::new(1.0).init(&device, Seed::new(0));
    let both = Norm::Both { scale: scale()?, shift: Shift::new(0.0).init(&device, Seed::new(0))?, note: String::new() };
    let mut norms = [Norm::Scale(scale()?), both, Norm::Plain(1), Norm::None];
    assert_eq!(leaves(&mut norms), ["0.0.weight", "1.scale.weight (frozen)", "1.bias.offset (buffer)"]);
    let mut variants = Vec::new();
    norms.visit(At::root(), &mut |at, slot| {
        if let Slot::Variant(variant) = slot {
            variants.push(format!("{at} {variant}"));
        }
    });
    assert_eq!(variants, ["0 Scale", "1 Both", "2 Plain", "3 None"]);
    if let [_, Norm::Both { note, .. }, Norm::Plain(1), _] = &norms {
        assert!(note.is_empty());
    }
    Ok(())
}
