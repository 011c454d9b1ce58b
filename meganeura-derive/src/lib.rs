//! `#[derive(Module)]` of the crate `meganeura`, which exports it. The reference is at [`Module`].

mod ast;
mod attr;
mod bound;
mod check;
mod ctxt;
mod expand;
mod fallback;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct or enum of layers a module: something whose parameters are found, named, counted, saved and trained.
///
/// ```
/// use meganeura::prelude::*;
///
/// #[derive(Module)]
/// #[module(sequential)]
/// struct Digits {
///     #[module(init = Conv2d::new(1, 32, 3).padding(1), then = relu)]
///     stem: Conv2d,
///     #[module(init = GroupNorm::new(8, 32))]
///     norm: GroupNorm,
///     #[module(init = Linear::new(32 * 8 * 8, 10), before = flatten)]
///     head: Linear,
/// }
///
/// # fn main() -> meganeura::Result<()> {
/// let net = Digits::init(&Device::cpu(), 42)?;
/// assert_eq!(net.to_string(), "Digits (20,874 parameters)");
/// # Ok(())
/// # }
/// ```
///
/// # What is generated
///
/// | | when |
/// |---|---|
/// | `impl Module`: visits the fields in the order of their declaration | always |
/// | `impl Display`: `{}` in one line, `{:#}` as a tree with shapes and counts | unless [`no_display`](#no_display) |
/// | `impl Layer`: `forward`, which applies the fields in order | with [`sequential`](#sequential) |
/// | `impl FromSeed`, for the bare [`init`](#init) of others | if every field has an [`init`](#init) |
/// | `fn init(device, seed) -> Result<Self>`, as visible as the struct | likewise, and there is a field |
///
/// # What it is put on
///
/// Structs with named fields, with numbered ones or with none, and enums, all of them generic as you like. Every field must
/// be a module itself, or be marked [`skip`](#skip). `Param` and `Buffer` are modules, all layers are, and so are `Option`,
/// `Box`, `Vec`, `VecDeque`, arrays, tuples and maps from `String`, of modules. Types alone decide: an alias of `Param` is
/// as good as `Param`.
///
/// The name of a field is its segment of the path, a numbered field's is its number: `blocks.0.conv.weight`. Of an enum, the
/// fields of the variant that is there are visited, and its name is not in the path:
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// enum Shortcut {
///     Project(Conv2d, GroupNorm),
///     Identity,
/// }
/// ```
///
/// For a type parameter, what is asked for is that the types of the fields are modules; bounds of your own are not needed:
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// struct Residual<L> {
///     branch: Vec<L>, // `impl<L> Module for Residual<L> where Vec<L>: Module`
/// }
/// ```
///
/// # Options of a struct or enum
///
/// ## `sequential`
///
/// Generates `impl Layer`: the fields, except skipped ones, are applied in the order of their declaration, each with what
/// its [`before` and `then`](#before-and-then) say around it. Structs only. Every applied field must be a `Layer`.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// #[module(sequential)]
/// struct Mlp {
///     #[module(then = relu)]
///     hidden: Linear,
///     head: Linear,
/// }
/// ```
///
/// An operation that does not fit its input is reported at the line of the field.
///
/// ## `no_display`
///
/// Generates no `impl Display`, so that you can write one.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// #[module(no_display)]
/// struct Encoder {
///     conv: Conv2d,
/// }
///
/// impl std::fmt::Display for Encoder {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         f.write_str("an encoder")
///     }
/// }
/// ```
///
/// ## `crate`
///
/// Where the framework is found, if not at `::meganeura`: under another name, or exported by a crate of yours.
///
/// ```
/// mod vendored {
///     pub use meganeura::*;
/// }
/// # fn main() {}
///
/// mod model {
///     use super::vendored::prelude::*;
///
///     #[derive(Module)]
///     #[module(crate = "crate::vendored")]
///     struct Encoder {
///         conv: Conv2d,
///     }
/// }
/// ```
///
/// # Options of a field
///
/// ## `skip`
///
/// The field is no part of the model: it is not visited, saved, counted or applied, and its type may be anything.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// struct Dropped {
///     linear: Linear,
///     #[module(skip)]
///     probability: f32,
/// }
/// ```
///
/// ## `rename`
///
/// The field's segment of the path, and so its key in saved files and in the derivation of seeds. Not empty, and without a
/// dot.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// struct Block {
///     conv: Conv2d,
///     #[module(rename = "downsample")]
///     shortcut: Option<Conv2d>,
/// }
/// ```
///
/// ## `frozen`
///
/// The parameters in the field are visited as frozen: saved and counted, but not trained.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// struct FineTuned {
///     #[module(frozen)]
///     backbone: Vec<Conv2d>,
///     head: Linear,
/// }
/// ```
///
/// ## `init`
///
/// How the field is built, by `fn init(device, seed)`. Every field has it, or none. Each field gets a seed of its own, made
/// from the seed and the field's key, so that a new field does not change the values of the others.
///
/// * `init = builder` takes whatever implements `Init`: a layer's builder, or a `Vec`, `Option`, `Box`, array, tuple or map of
///   builders. It may use `Self` and the struct's generics.
/// * `init` alone builds what can build itself: another struct whose every field has an `init`, or arrays, tuples and boxes
///   of such.
/// * `skip, init = value` gives a skipped field a plain value.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// struct Block<const CHANNELS: usize> {
///     #[module(init = Conv2d::new(CHANNELS, CHANNELS, 3).padding(1))]
///     conv: Conv2d,
/// }
///
/// #[derive(Module)]
/// struct Tower {
///     #[module(init)]
///     blocks: [Block<64>; 4],
///     #[module(init = vec![Linear::new(64, 64), Linear::new(64, 10)])]
///     head: Vec<Linear>,
///     #[module(skip, init = 0.1)]
///     slope: f64,
/// }
///
/// # fn main() -> meganeura::Result<()> {
/// let tower = Tower::init(&Device::cpu(), 42)?;
/// # assert_eq!(tower.named_parameters()[0].0, "blocks.0.conv.weight");
/// # Ok(())
/// # }
/// ```
///
/// ## `before` and `then`
///
/// What is applied before the field, and after it, in a [`sequential`](#sequential) struct. Each takes one, or a list that
/// is applied in order, of:
///
/// | | is | |
/// |---|---|---|
/// | `relu` | a method of `Var` | `x.relu()` |
/// | `leaky_relu(0.1)` | a method of `Var`, with arguments | `x.leaky_relu(0.1)` |
/// | `activation::swish`, `self::swish` | a function of `&Var`; told from a method by its `::` | `activation::swish(&x)` |
/// | <code>\|x\| x * 2.0</code> | a closure of `&Var` | |
///
/// Arguments and closures may use `self`.
///
/// ```
/// # use meganeura::prelude::*;
/// #[derive(Module)]
/// #[module(sequential)]
/// struct Discriminator {
///     #[module(then = leaky_relu(self.slope))]
///     conv: Conv2d,
///     #[module(before = [relu, flatten], then = |x| x.relu())]
///     linear: Linear,
///     #[module(skip)]
///     slope: f64,
/// }
/// ```
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::derive(&input).unwrap_or_else(|mistakes| fallback::expand(&input, &mistakes)).into()
}
