//! The current variant of an enum is visited; its name is not in the path.

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

#[derive(Module)]
enum Shortcut {
    #[module(rename = "project")]
    Project(Scale),
    Identity,
}

#[derive(Module)]
#[module(named_variants)]
enum Named {
    r#Conv {
        at: Scale,
        #[module(frozen)]
        f: Shift,
    },
    #[module(rename = "norm")]
    Norm(Scale, #[module(skip)] ()),
    None,
}

#[test]
fn a_variants_name_is_in_the_path_if_asked_for() -> Result<()> {
    let device = device();
    let scale = || Scale::new(1.0).init(&device, Seed::new(0));
    let mut shortcuts = [Shortcut::Project(scale()?), Shortcut::Identity];
    assert_eq!(leaves(&mut shortcuts), ["0.project.0.weight"]);
    let conv = Named::Conv { at: scale()?, f: Shift::new(0.0).init(&device, Seed::new(0))? };
    let mut named = [conv, Named::Norm(scale()?, ()), Named::None];
    assert_eq!(leaves(&mut named), ["0.Conv.at.weight", "0.Conv.f.offset (buffer) (frozen)", "1.norm.0.weight"]);
    Ok(())
}

#[test]
fn the_active_variant_is_visited() -> Result<()> {
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
