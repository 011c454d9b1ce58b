//! Parses `#[module(…)]`: knows how each option is written, not what options mean together.

mod nearest;
mod read;
mod step;

use syn::parse::ParseStream;
use syn::{Attribute, Error, Expr, Ident, LitStr, Path, Result};

pub use step::Step;

use crate::ctxt::Ctxt;
use nearest::unknown;
use read::{at_end_of_option, equals, flag, for_each_option, malformed, of_module, set, string};
use step::steps;

/// The options of a struct or enum.
#[derive(Default)]
pub struct Container {
    pub krate: Option<Given<Path>>,
    pub sequential: Option<Given<()>>,
    pub no_display: Option<Given<()>>,
    /// Not all could be read, so that what is missing may be there in other words.
    pub is_unclear: bool,
}

/// The options of a field.
#[derive(Default)]
pub struct Field {
    pub skip: Option<Given<()>>,
    pub rename: Option<Given<LitStr>>,
    pub frozen: Option<Given<()>>,
    pub init: Option<Given<Init>>,
    pub before: Option<Given<Vec<Step>>>,
    pub then: Option<Given<Vec<Step>>>,
    /// Not all could be read, so that what is missing may be there in other words.
    pub is_unclear: bool,
}

/// An option's value, and its name to underline.
pub struct Given<T> {
    pub name: Ident,
    pub value: T,
}

/// How a field is built.
pub enum Init {
    /// `init`: from the seed alone.
    FromSeed,
    /// `init = expr`: by a builder, or if the field is skipped, a plain value.
    Value(Box<Expr>),
}

const CONTAINER: &[&str] = &["sequential", "no_display", "crate"];
const FIELD: &[&str] = &["skip", "rename", "frozen", "init", "before", "then"];

impl Container {
    /// Reads the attributes of a struct or enum; mistakes go to `ctxt`.
    pub fn parse(ctxt: &Ctxt, attrs: &[Attribute]) -> Self {
        let mut options = Self::default();
        let all_read = for_each_option(ctxt, attrs, "#[module(sequential)]", |name, input| match &*name.to_string() {
            "sequential" => set(ctxt, &mut options.sequential, name, flag(name, input)?),
            "no_display" => set(ctxt, &mut options.no_display, name, flag(name, input)?),
            "crate" => {
                let wanted = "a path in quotes: `crate = \"my_crate::meganeura\"`";
                let path = string(name, input, wanted)?;
                let parsed = path.parse_with(Path::parse_mod_style);
                set(ctxt, &mut options.krate, name, parsed.map_err(|_| malformed(&path, name, wanted))?)
            }
            field if FIELD.contains(&field) => {
                Err(Error::new_spanned(name, format!("`{field}` is an option of a field; write it on one")))
            }
            _ => Err(unknown(name, CONTAINER)),
        });
        Self { is_unclear: !all_read, ..options }
    }
}

impl Field {
    /// Reads the attributes of a field; mistakes go to `ctxt`.
    pub fn parse(ctxt: &Ctxt, attrs: &[Attribute]) -> Self {
        let mut options = Self::default();
        let all_read = for_each_option(ctxt, attrs, "#[module(skip)]", |name, input| match &*name.to_string() {
            "skip" => set(ctxt, &mut options.skip, name, flag(name, input)?),
            "frozen" => set(ctxt, &mut options.frozen, name, flag(name, input)?),
            "rename" => {
                let key = string(name, input, "a name in quotes: `rename = \"conv1\"`")?;
                set(ctxt, &mut options.rename, name, key)
            }
            "init" => set(ctxt, &mut options.init, name, init(name, input)?),
            "before" => set(ctxt, &mut options.before, name, steps(ctxt, name, input)?),
            "then" => set(ctxt, &mut options.then, name, steps(ctxt, name, input)?),
            container if CONTAINER.contains(&container) => {
                let message = format!("`{container}` is an option of the whole struct; write it above `struct`");
                Err(Error::new_spanned(name, message))
            }
            _ => Err(unknown(name, FIELD)),
        });
        Self { is_unclear: !all_read, ..options }
    }
}

/// Variants have no options, as they have no place in paths.
pub fn refuse_on_variant(ctxt: &Ctxt, variant: &syn::Variant) {
    for attr in of_module(&variant.attrs) {
        ctxt.error(attr, "a variant has no options; write them on a field of the variant, or above `enum`");
    }
}

/// Nothing, or `= expr`.
fn init(name: &Ident, input: ParseStream<'_>) -> Result<Init> {
    if at_end_of_option(input) {
        return Ok(Init::FromSeed);
    }
    equals(name, input, "an expression: `init = Linear::new(64, 10)`")?;
    input.parse().map(Box::new).map(Init::Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    /// The options read, and the mistakes in them.
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
    fn reading_goes_on_after_a_mistake() {
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
