//! Parses `#[module(…)]`: the syntax of each option. It does not know which options fit together.

mod config;
mod input;
mod method;
mod nearest;
mod read;
mod step;

use syn::parse::ParseStream;
use syn::{Attribute, Error, Expr, ExprClosure, Ident, LitStr, Member, Path, Result, parenthesized, token};

pub use config::{Config, Value};
pub use input::ModelInput;
pub use step::Step;

use crate::ctxt::Ctxt;
pub use method::{is_method, keeps_shape, nearest_method};
pub use nearest::nearest;
use nearest::unknown;
use read::{at_end_of_option, equals, flag, for_each_option, malformed, set, string};
use step::{steps, ungroup};

/// The options of a struct or enum.
#[derive(Default)]
pub struct Container {
    pub krate: Option<Given<Path>>,
    pub no_display: Option<Given<()>>,
    pub no_init: Option<Given<()>>,
    pub named_variants: Option<Given<()>>,
    pub config: Option<Given<Config>>,
    /// The input for the forward pass that `init` records.
    pub input: Option<Given<ModelInput>>,
    pub sequential: Option<Given<()>>,
    /// With the field of the shortcut, if the input is not added unchanged.
    pub residual: Option<Given<Option<Member>>>,
    pub then: Option<Given<Vec<Step>>>,
    /// `true` if an option could not be read: it may be one that seems to be missing.
    pub is_unclear: bool,
}

/// The options of a variant.
#[derive(Default)]
pub struct Variant {
    pub rename: Option<Given<LitStr>>,
}

/// The options of a field.
#[derive(Default)]
pub struct Field {
    pub skip: Option<Given<Skip>>,
    pub rename: Option<Given<LitStr>>,
    pub frozen: Option<Given<()>>,
    pub init: Option<Given<Init>>,
    pub before: Option<Given<Vec<Step>>>,
    pub then: Option<Given<Vec<Step>>>,
    pub recompute: Option<Given<()>>,
    /// `true` if an option could not be read: it may be one that seems to be missing.
    pub is_unclear: bool,
}

/// An option's value, and its name to underline.
pub struct Given<T> {
    pub name: Ident,
    pub value: T,
}

/// The permitted contents of a skipped field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// `skip`: no module.
    Settings,
    /// `skip(parameters)`: anything.
    Parameters,
}

/// The constructor of a field.
pub enum Init {
    /// `init`: from the seed alone.
    FromSeed,
    /// `init = |device, seed| …`: by a closure.
    Closure(ExprClosure),
    /// `init = expr`: by a builder, or if the field is skipped, a plain value.
    Value(Box<Expr>),
}

const CONTAINER: &[&str] =
    &["sequential", "residual", "then", "config", "input", "named_variants", "no_display", "no_init", "crate"];
const VARIANT: &[&str] = &["rename"];
const FIELD: &[&str] = &["skip", "rename", "frozen", "init", "before", "then", "recompute"];

impl Container {
    /// Reads the attributes of a struct or enum; mistakes go to `ctxt`.
    pub fn parse(ctxt: &Ctxt, attrs: &[Attribute]) -> Self {
        let mut options = Self::default();
        let all_read = for_each_option(ctxt, attrs, "#[module(sequential)]", |name, input| match &*name.to_string() {
            "no_display" => set(ctxt, &mut options.no_display, name, flag(name, input)?),
            "no_init" => set(ctxt, &mut options.no_init, name, flag(name, input)?),
            "named_variants" => set(ctxt, &mut options.named_variants, name, flag(name, input)?),
            "config" => set(ctxt, &mut options.config, name, Config::parse(ctxt, name, input)?),
            "input" => set(ctxt, &mut options.input, name, ModelInput::parse(name, input)?),
            "sequential" => set(ctxt, &mut options.sequential, name, flag(name, input)?),
            "residual" => set(ctxt, &mut options.residual, name, residual(name, input)?),
            "then" => set(ctxt, &mut options.then, name, steps(ctxt, name, input)?),
            "crate" => {
                let wanted = "a path in quotes: `crate = \"my_crate::meganeura\"`";
                let path = string(name, input, wanted)?;
                let parsed = path.parse_with(Path::parse_mod_style);
                set(ctxt, &mut options.krate, name, parsed.map_err(|_| malformed(&path, name, wanted))?)
            }
            _ => Err(not_here(name, CONTAINER)),
        });
        Self { is_unclear: !all_read, ..options }
    }
}

impl Variant {
    /// Reads the attributes of a variant; mistakes go to `ctxt`.
    pub fn parse(ctxt: &Ctxt, attrs: &[Attribute]) -> Self {
        let mut options = Self::default();
        for_each_option(ctxt, attrs, "#[module(rename = \"project\")]", |name, input| match &*name.to_string() {
            "rename" => set(ctxt, &mut options.rename, name, key(name, input)?),
            _ => Err(not_here(name, VARIANT)),
        });
        options
    }
}

impl Field {
    /// Reads the attributes of a field; mistakes go to `ctxt`.
    pub fn parse(ctxt: &Ctxt, attrs: &[Attribute]) -> Self {
        let mut options = Self::default();
        let all_read = for_each_option(ctxt, attrs, "#[module(skip)]", |name, input| match &*name.to_string() {
            "skip" => set(ctxt, &mut options.skip, name, skip(name, input)?),
            "frozen" => set(ctxt, &mut options.frozen, name, flag(name, input)?),
            "rename" => set(ctxt, &mut options.rename, name, key(name, input)?),
            "init" => set(ctxt, &mut options.init, name, init(name, input)?),
            "recompute" => set(ctxt, &mut options.recompute, name, flag(name, input)?),
            "before" => set(ctxt, &mut options.before, name, steps(ctxt, name, input)?),
            "then" => set(ctxt, &mut options.then, name, steps(ctxt, name, input)?),
            _ => Err(not_here(name, FIELD)),
        });
        Self { is_unclear: !all_read, ..options }
    }
}

/// The error for an option that is not `known` here: it says where the option belongs, or suggests a similar one.
fn not_here(name: &Ident, known: &[&str]) -> Error {
    let given = &*name.to_string();
    if FIELD.contains(&given) {
        Error::new_spanned(name, format!("`{given}` is an option of a field; write it on one"))
    } else if CONTAINER.contains(&given) {
        let message = format!("`{given}` is an option of the whole type; write it above `struct` or `enum`");
        Error::new_spanned(name, message)
    } else {
        unknown(name, known)
    }
}

/// `= "name"`, a segment of a path.
fn key(name: &Ident, input: ParseStream<'_>) -> Result<LitStr> {
    string(name, input, "a name in quotes: `rename = \"conv1\"`")
}

/// Nothing, or `(parameters)`.
fn skip(name: &Ident, input: ParseStream<'_>) -> Result<Skip> {
    const WANTED: &str = "no value, or `(parameters)` to skip a module on purpose: `skip(parameters)`";
    if at_end_of_option(input) {
        return Ok(Skip::Settings);
    }
    if !input.peek(token::Paren) {
        return Err(malformed(name, name, WANTED));
    }
    let content;
    parenthesized!(content in input);
    let word: Option<Ident> = content.parse().ok();
    match word {
        Some(word) if word == "parameters" && content.is_empty() => Ok(Skip::Parameters),
        Some(word) => Err(malformed(word, name, WANTED)),
        None => Err(malformed(name, name, WANTED)),
    }
}

/// Nothing, or `= field`.
fn residual(name: &Ident, input: ParseStream<'_>) -> Result<Option<Member>> {
    if at_end_of_option(input) {
        return Ok(None);
    }
    let wanted = "no value, or the field of the shortcut: `residual = shortcut`";
    equals(name, input, wanted)?;
    input.parse().map(Some).map_err(|error| Error::new(error.span(), format!("`{name}` takes {wanted}")))
}

/// Nothing, or `= expr`.
fn init(name: &Ident, input: ParseStream<'_>) -> Result<Init> {
    if at_end_of_option(input) {
        return Ok(Init::FromSeed);
    }
    equals(name, input, "an expression: `init = Linear::new(64, 10)`")?;
    Ok(match ungroup(input.parse()?) {
        Expr::Closure(closure) => Init::Closure(closure),
        value => Init::Value(Box::new(value)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    /// The parsed options, and the mistakes in them.
    fn parse(attr: Attribute) -> (Field, Vec<String>) {
        let ctxt = Ctxt::new();
        let field = Field::parse(&ctxt, &[attr]);
        let mistakes = match ctxt.check() {
            Ok(()) => Vec::new(),
            Err(errors) => errors.into_iter().map(|error| error.to_string()).collect(),
        };
        (field, mistakes)
    }

    #[test]
    fn all_options_are_read() {
        let (field, mistakes) = parse(parse_quote!(#[module(
            rename = "a",
            frozen,
            init = f::<A, B>(1, 2),
            before = |a, b| a,
            then = [relu, leaky_relu(0.1), self::swish, pow::<3>],
        )]));
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert!(field.skip.is_none() && field.frozen.is_some());
        assert_eq!(field.rename.unwrap().value.value(), "a");
        assert!(matches!(field.init.unwrap().value, Init::Value(_)));
        assert!(matches!(field.before.unwrap().value[..], [Step::Closure(_)]));
        let then = field.then.unwrap().value;
        assert!(matches!(then[..], [Step::Method(..), Step::Method(..), Step::Function(_), Step::Method(..)]));
    }

    #[test]
    fn all_options_of_a_struct_are_read() {
        let attr: Attribute = parse_quote!(#[module(
            sequential,
            residual = shortcut,
            then = [relu, MaxPool2d::new(3).stride(2)],
            config(
                /// Documented.
                width: usize,
                depth: Vec<(u8, u8)>,
            ),
            named_variants,
            no_display,
            crate = "::a::b",
        )]);
        let ctxt = Ctxt::new();
        let options = Container::parse(&ctxt, &[attr]);
        ctxt.check().unwrap();
        assert!(options.sequential.is_some() && options.named_variants.is_some() && options.no_display.is_some());
        assert!(matches!(options.residual.unwrap().value, Some(Member::Named(field)) if field == "shortcut"));
        assert!(matches!(options.then.unwrap().value[..], [Step::Method(..), Step::Layer(_)]));
        let Config::Values(values) = options.config.unwrap().value else { panic!("values were given") };
        assert_eq!(values.iter().map(|value| value.docs.len()).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(options.krate.unwrap().value.segments.len(), 2);
    }

    #[test]
    fn reading_continues_after_a_mistake() {
        let (field, mistakes) =
            parse(parse_quote!(#[module(skipp, rename = 3, frozen(yes), "init", init = 1 + 1 2, skip)]));
        assert!(field.skip.is_some());
        assert_eq!(
            mistakes,
            [
                "unknown option `skipp`; did you mean `skip`?",
                "`rename` takes a name in quotes: `rename = \"conv1\"`",
                "`frozen` takes no value; write just `frozen`",
                "expected the name of an option",
                "expected a comma after `init`",
            ]
        );
    }
}
