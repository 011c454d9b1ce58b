//! Parses `#[module(…)]`: knows how each option is written, not what options mean together.

use proc_macro2::{Span, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, ExprClosure, ExprPath, Ident, LitStr, Meta, Path, PathSegment, Result, Token, token,
};

use crate::ctxt::Ctxt;

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

/// One thing applied by `before` or `then`.
pub enum Step {
    /// `relu` or `leaky_relu(0.1)`: a method of `Var`.
    Method(PathSegment, Punctuated<Expr, Token![,]>),
    /// `activations::swish`: a function of `&Var`.
    Function(ExprPath),
    /// `|x| x * 2.0`.
    Closure(ExprClosure),
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

fn of_module(attrs: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attrs.iter().filter(|attr| attr.path().is_ident("module"))
}

/// Calls `option` with the name of each option and the input after it. A mistake does not end the attribute: reading goes
/// on after the next comma. Returns whether there was none.
fn for_each_option(
    ctxt: &Ctxt,
    attrs: &[Attribute],
    example: &str,
    mut option: impl FnMut(&Ident, ParseStream<'_>) -> Result<()>,
) -> bool {
    let mut all_read = true;
    for attr in of_module(attrs) {
        match &attr.meta {
            Meta::List(list) if list.tokens.is_empty() => {
                ctxt.error(attr, format!("this says nothing; remove it, or give an option: `{example}`"));
                all_read = false;
                continue;
            }
            Meta::List(_) => {}
            Meta::Path(_) | Meta::NameValue(_) => {
                ctxt.error(attr, format!("options go in parentheses: `{example}`"));
                all_read = false;
                continue;
            }
        }
        let parsed = attr.parse_args_with(|input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = one_option(input, &mut option) {
                    ctxt.push(error);
                    all_read = false;
                    skip_past_comma(input)?;
                }
            }
            Ok(())
        });
        // After a mistake inside brackets, what is left of them is an error again.
        if let Err(error) = parsed
            && all_read
        {
            ctxt.push(error);
            all_read = false;
        }
    }
    all_read
}

fn one_option(input: ParseStream<'_>, option: &mut impl FnMut(&Ident, ParseStream<'_>) -> Result<()>) -> Result<()> {
    let name =
        input.call(Ident::parse_any).map_err(|error| Error::new(error.span(), "expected the name of an option"))?;
    option(&name, input)?;
    if !input.is_empty() && input.parse::<Token![,]>().is_err() {
        return Err(input.error(format!("expected a comma after `{name}`")));
    }
    Ok(())
}

fn skip_past_comma(input: ParseStream<'_>) -> Result<()> {
    while !input.is_empty() {
        if input.parse::<Option<Token![,]>>()?.is_some() {
            break;
        }
        input.parse::<TokenTree>()?;
    }
    Ok(())
}

fn set<T>(ctxt: &Ctxt, slot: &mut Option<Given<T>>, name: &Ident, value: T) -> Result<()> {
    if slot.is_some() {
        ctxt.error(name, format!("`{name}` is given twice; remove one"));
    } else {
        *slot = Some(Given { name: name.clone(), value });
    }
    Ok(())
}

/// What follows an option that has no value: nothing.
fn flag(name: &Ident, input: ParseStream<'_>) -> Result<()> {
    if input.peek(Token![=]) || input.peek(token::Paren) {
        return Err(Error::new_spanned(name, format!("`{name}` takes no value; write just `{name}`")));
    }
    Ok(())
}

/// The `=` before a value.
fn equals(name: &Ident, input: ParseStream<'_>, wanted: &str) -> Result<()> {
    if input.parse::<Token![=]>().is_err() || at_end_of_option(input) {
        return Err(malformed(name, name, wanted));
    }
    Ok(())
}

fn at_end_of_option(input: ParseStream<'_>) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// `= "text"`.
fn string(name: &Ident, input: ParseStream<'_>, wanted: &str) -> Result<LitStr> {
    equals(name, input, wanted)?;
    input.parse().map_err(|error| Error::new(error.span(), format!("`{name}` takes {wanted}")))
}

fn malformed(tokens: impl ToTokens, name: &Ident, wanted: &str) -> Error {
    Error::new_spanned(tokens, format!("`{name}` takes {wanted}"))
}

/// Nothing, or `= expr`.
fn init(name: &Ident, input: ParseStream<'_>) -> Result<Init> {
    if at_end_of_option(input) {
        return Ok(Init::FromSeed);
    }
    equals(name, input, "an expression: `init = Linear::new(64, 10)`")?;
    input.parse().map(Box::new).map(Init::Value)
}

/// `= step` or `= [step, step]`.
fn steps(ctxt: &Ctxt, name: &Ident, input: ParseStream<'_>) -> Result<Vec<Step>> {
    equals(name, input, &format!("what to apply: `{name} = relu`, or several: `{name} = [relu, flatten]`"))?;
    let exprs = match ungroup(input.parse()?) {
        Expr::Array(list) if list.elems.is_empty() => {
            return Err(Error::new_spanned(list, format!("this applies nothing; remove `{name}`, or list something")));
        }
        Expr::Array(list) => list.elems.into_iter().collect(),
        expr => vec![expr],
    };
    let mut steps = Vec::new();
    for expr in exprs {
        match Step::new(name, ungroup(expr)) {
            Ok(step) => steps.push(step),
            Err(error) => ctxt.push(error),
        }
    }
    Ok(steps)
}

impl Step {
    fn new(option: &Ident, expr: Expr) -> Result<Self> {
        match expr {
            Expr::Closure(closure) => Ok(Self::Closure(closure)),
            Expr::Path(path) => Ok(match one_segment(&path) {
                Some(method) => Self::Method(method, Punctuated::new()),
                None => Self::Function(path),
            }),
            Expr::Call(call) => match ungroup(*call.func) {
                Expr::Path(path) => match one_segment(&path) {
                    Some(method) => Ok(Self::Method(method, call.args)),
                    None => Err(Error::new_spanned(
                        path,
                        "a function with arguments of its own goes into a closure: `|x| path::to(x, 0.1)`",
                    )),
                },
                callee => Err(not_a_step(option, callee)),
            },
            other => Err(not_a_step(option, other)),
        }
    }

    pub fn span(&self) -> Span {
        match self {
            Self::Method(method, _) => method.span(),
            Self::Function(function) => function.span(),
            Self::Closure(closure) => closure.span(),
        }
    }
}

fn not_a_step(option: &Ident, tokens: impl ToTokens) -> Error {
    let wanted =
        "a method of `Var` (`relu`, `leaky_relu(0.1)`), a function (`self::swish`) or a closure (`|x| x * 2.0`)";
    malformed(tokens, option, wanted)
}

/// The name in a path that is nothing but a name, with its generic arguments.
fn one_segment(path: &ExprPath) -> Option<PathSegment> {
    let ExprPath { qself: None, path: Path { leading_colon: None, segments }, .. } = path else {
        return None;
    };
    if segments.len() == 1 { segments.first().cloned() } else { None }
}

/// Without the parentheses and invisible groups around it, which macros leave behind.
fn ungroup(expr: Expr) -> Expr {
    match expr {
        Expr::Group(group) => ungroup(*group.expr),
        Expr::Paren(paren) => ungroup(*paren.expr),
        expr => expr,
    }
}

fn unknown(name: &Ident, known: &[&str]) -> Error {
    let given = name.to_string();
    let nearest = known.iter().map(|known| (distance(&given, known), known)).min();
    let message = match nearest {
        Some((distance, nearest)) if distance <= 1 + nearest.len() / 4 || given.starts_with(nearest) => {
            format!("unknown option `{given}`; did you mean `{nearest}`?")
        }
        _ => format!(
            "unknown option `{given}`; there are {}",
            known.iter().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ")
        ),
    };
    Error::new_spanned(name, message)
}

/// How many letters must be inserted, removed or replaced to get from `a` to `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
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

    #[test]
    fn only_what_is_near_is_suggested() {
        let message = |name: &str| unknown(&Ident::new(name, Span::call_site()), FIELD).to_string();
        assert_eq!(message("frozn"), "unknown option `frozn`; did you mean `frozen`?");
        assert_eq!(message("skipped"), "unknown option `skipped`; did you mean `skip`?");
        assert_eq!(
            message("ignore"),
            "unknown option `ignore`; there are `skip`, `rename`, `frozen`, `init`, `before`, `then`"
        );
    }

    #[test]
    fn distances() {
        assert_eq!(distance("skip", "skip"), 0);
        assert_eq!(distance("", "skip"), 4);
        assert_eq!(distance("skipped", "skip"), 3);
        assert_eq!(distance("freeze", "frozen"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
