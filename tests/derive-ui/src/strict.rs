//! Models in a library with the strictest lints. Compiling and passing Clippy is the test: generated code causes no
//! warnings.
#![deny(
    warnings,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::allow_attributes,
    keyword_idents,
    let_underscore,
    missing_debug_implementations,
    missing_docs,
    nonstandard_style,
    rust_2018_idioms,
    unused,
    explicit_outlives_requirements,
    redundant_lifetimes,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unreachable_pub,
    unsafe_code,
    unused_import_braces,
    unused_lifetimes,
    unused_qualifications,
    unused_results,
    variant_size_differences
)]

use meganeura::{Layer, Module, Var};

use crate::Scale;

/// With every option.
#[derive(Module, Debug)]
#[module(sequential)]
pub struct Net {
    #[module(init = Scale::new(2.0), before = [square, |x| x.recip()], then = relu)]
    scale: Scale,
    #[module(init)]
    private: Private,
    #[module(init, frozen, rename = "u")]
    unit: Unit,
    #[module(skip, init = 3)]
    skipped: usize,
}

impl Net {
    /// Reads the field.
    #[must_use]
    pub const fn skipped(&self) -> usize {
        self.skipped
    }
}

/// Never built by its own `init`.
#[derive(Module, Debug)]
#[module(sequential)]
struct Private {
    #[module(init = Scale::new(2.0))]
    scale: Scale,
}

#[derive(Module, Debug)]
struct Unit;

impl Layer for Unit {
    fn forward(&self, x: &Var) -> Var {
        x.clone()
    }
}

#[derive(Module, Debug)]
struct Held<T>(T);

/// Public, with a private type in a bound.
#[derive(Module, Debug)]
pub struct Stack<T> {
    held: Option<Held<T>>,
}

impl<T> Stack<T> {
    /// A stack of one.
    #[must_use]
    pub const fn new(held: T) -> Self {
        Self { held: Some(Held(held)) }
    }
}

/// With a variant that holds nothing.
#[derive(Module, Debug)]
pub enum Choice {
    /// With a module.
    One(Scale),
    /// Without a module.
    None,
}

/// Has a config, and is added to its input.
#[derive(Module, Debug)]
#[module(sequential, residual = shortcut, then = relu, config(
    factor: f32,
    /// The width.
    width: usize,
))]
pub struct Told {
    #[module(init = Scale::new(factor).wide(width))]
    scale: Scale,
    #[module(init = |_, _| Ok(None))]
    shortcut: Option<Scale>,
}

/// A public config type.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The factor to multiply by.
    pub factor: f32,
}

/// Has a config type of its own.
#[derive(Module, Debug)]
#[module(config = Settings)]
pub struct Set {
    #[module(init = Scale::new(config.factor))]
    scale: Scale,
}

/// With variants in the path.
#[derive(Module, Debug)]
#[module(named_variants)]
pub enum Named {
    /// With a module.
    #[module(rename = "one")]
    One(Scale),
    /// Without anything that is visited.
    Two(#[module(skip)] usize),
}
