//! The values of `before` and `then`: methods, layers, functions and closures, one or a list of them.

use proc_macro2::Span;
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprClosure, ExprPath, Ident, Path, PathSegment, Result, Token};

use super::read::{equals, malformed};
use crate::ctxt::Ctxt;

/// One operation in `before` or `then`.
pub enum Step {
    /// `relu` or `leaky_relu(0.1)`: a method of `Var`.
    Method(PathSegment, Punctuated<Expr, Token![,]>),
    /// `activations::swish`: a function of `&Var`.
    Function(ExprPath),
    /// `|x| x * 2.0`.
    Closure(ExprClosure),
    /// `MaxPool2d::new(3).stride(2)`: a layer that needs no building.
    Layer(Box<Expr>),
}

/// `= step` or `= [step, step]`.
pub fn steps(ctxt: &Ctxt, name: &Ident, input: ParseStream<'_>) -> Result<Vec<Step>> {
    equals(name, input, &format!("an operation: `{name} = relu`, or several: `{name} = [relu, flatten]`"))?;
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
            Expr::Call(call) => match ungroup(*call.func.clone()) {
                Expr::Path(path) => Ok(match one_segment(&path) {
                    Some(method) => Self::Method(method, call.args),
                    None => Self::Layer(Box::new(Expr::Call(call))),
                }),
                callee => Err(not_a_step(option, callee)),
            },
            Expr::MethodCall(call) if is_made(&call.receiver) => Ok(Self::Layer(Box::new(Expr::MethodCall(call)))),
            other => Err(not_a_step(option, other)),
        }
    }

    pub fn span(&self) -> Span {
        match self {
            Self::Method(method, _) => method.span(),
            Self::Function(function) => function.span(),
            Self::Closure(closure) => closure.span(),
            Self::Layer(layer) => layer.span(),
        }
    }
}

/// `true` if a chain of method calls begins with a call such as `MaxPool2d::new(3)`.
fn is_made(receiver: &Expr) -> bool {
    match receiver {
        Expr::MethodCall(call) => is_made(&call.receiver),
        Expr::Call(call) => matches!(&*call.func, Expr::Path(path) if one_segment(path).is_none()),
        _ => false,
    }
}

fn not_a_step(option: &Ident, tokens: impl ToTokens) -> Error {
    let wanted = "a method of `Var` (`relu`, `leaky_relu(0.1)`), a layer (`MaxPool2d::new(2)`), a function (`self::swish`) or \
                  a closure (`|x| x * 2.0`)";
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
pub fn ungroup(expr: Expr) -> Expr {
    match expr {
        Expr::Group(group) => ungroup(*group.expr),
        Expr::Paren(paren) => ungroup(*paren.expr),
        expr => expr,
    }
}
