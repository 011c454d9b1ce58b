//! Matrix products.

use super::call::{Call, Operators};
use super::element::Kind;
use super::quantize::product_of_bytes;
use super::value::{Value, sound};
use crate::error::bail;
use crate::{Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("Einsum", |call| {
        let x = (0..call.inputs.len()).map(|k| call.own(k)).collect::<Result<Vec<_>>>()?;
        if x.is_empty() {
            bail!(Checkpoint, "there are no operands");
        }
        let ranks: Vec<_> = x.iter().map(|x| x.shape().rank()).collect();
        let equation = spelled_out(&call.text("equation", "")?.replace(' ', ""), &ranks)?;
        call.computed(&Var::einsum(&equation, &x.iter().collect::<Vec<_>>()))
    }),
    ("Gemm", gemm),
    ("MatMul", matmul),
];

/// An equation whose `...` is replaced by letters that it does not use, and which names its result.
fn spelled_out(equation: &str, ranks: &[usize]) -> Result<String> {
    if !equation.contains("...") {
        return Ok(equation.to_owned());
    }
    let (operands, result) = match equation.split_once("->") {
        Some((operands, result)) => (operands, Some(result)),
        None => (equation, None),
    };
    let terms: Vec<_> = operands.split(',').collect();
    if terms.len() != ranks.len() {
        bail!(Checkpoint, "the attribute `equation` has {} terms for {} operands", terms.len(), ranks.len());
    }
    let mut free = ('A'..='Z').chain('a'..='z').filter(|letter| !equation.contains(*letter));
    let more = |(term, &rank): (&&str, &usize)| {
        if term.contains("...") { rank.saturating_sub(term.len() - 3) } else { 0 }
    };
    let count = terms.iter().zip(ranks).map(more).max().unwrap_or(0);
    let letters: String = free.by_ref().take(count).collect();
    if letters.len() != count {
        bail!(Checkpoint, "the attribute `equation` has more axes than there are letters");
    }
    // The last axes of all operands are the same.
    let of = |(term, rank): (&&str, &usize)| term.replace("...", &letters[count - more((term, rank))..]);
    let spelled: Vec<_> = terms.iter().zip(ranks).map(of).collect();
    let result = result.map_or_else(
        || {
            let once = |letter: &char| operands.matches(*letter).count() == 1 && letter.is_alphabetic();
            let mut own: Vec<_> = operands.chars().filter(once).collect();
            own.sort_unstable();
            letters.chars().chain(own).collect()
        },
        |result| result.replace("...", &letters),
    );
    Ok(format!("{}->{result}", spelled.join(",")))
}

fn matmul(call: &Call<'_>) -> Result<Vec<Value>> {
    if let Some(y) = product_of_bytes(call, false)? {
        return call.floats(y);
    }
    if call.value(0)?.kind() == Kind::Float {
        return call.floats(product(&call.float(0)?, &call.float(1)?)?);
    }
    call.computed(&as_matrices(&call.own(0)?, &call.own(1)?, integer_product)?)
}

/// The sums of products of integers, which wrap around: `[…, M, K]` and `[…, K, N]` → `[…, M, N]`
fn integer_product(a: &Var, b: &Var) -> Var {
    let (x, y) = (a.shape(), b.shape());
    let apart = |shape: Shape, axis: usize| {
        let mut dims = shape.dims().to_vec();
        dims.insert(axis, 1);
        dims
    };
    let (a, b) = (a.reshape(&apart(x, x.rank())[..]), b.reshape(&apart(y, y.rank() - 2)[..]));
    let products = a * b;
    let axis = x.rank().max(y.rank()) - 1;
    if products.error().is_some() { products } else { products.sum_over(&[axis]) }
}

/// A product in which a vector is a row on the left or a column on the right.
pub(super) fn product(a: &Var, b: &Var) -> Result<Var> {
    as_matrices(a, b, Var::matmul)
}

/// The same, for any way to multiply matrices.
pub(super) fn as_matrices(a: &Var, b: &Var, multiply: impl Fn(&Var, &Var) -> Var) -> Result<Var> {
    let (x, y) = (a.shape(), b.shape());
    if x.rank() == 0 || y.rank() == 0 {
        bail!(Checkpoint, "a product of {x} and {y}");
    }
    let (row, column) = (x.rank() == 1, y.rank() == 1);
    let left = if row { a.reshape([1, x[0]]) } else { a.clone() };
    let right = if column { b.reshape([y[0], 1]) } else { b.clone() };
    if left.shape()[left.shape().rank() - 1] != right.shape()[right.shape().rank() - 2] {
        bail!(Checkpoint, "a product of {x} and {y}");
    }
    let z = sound(multiply(&left, &right))?;
    if !(row || column) {
        return Ok(z);
    }
    let mut dims = z.shape().dims().to_vec();
    if column {
        dims.pop();
    }
    if row {
        dims.remove(dims.len() - 1 - usize::from(!column));
    }
    Ok(z.reshape(&dims[..]))
}

fn gemm(call: &Call<'_>) -> Result<Vec<Value>> {
    call.floats(gemm_of_floats(call)?)
}

pub(super) fn gemm_of_floats(call: &Call<'_>) -> Result<Var> {
    if call.value(0)?.kind() != Kind::Float {
        bail!(Checkpoint, "only floats are supported, the operand holds {}", call.value(0)?.element().name());
    }
    let (a, b) = (call.float(0)?, call.float(1)?);
    if [&a, &b].iter().any(|x| x.shape().rank() != 2) {
        bail!(Checkpoint, "a product of {} and {}; both must be matrices", a.shape(), b.shape());
    }
    let (is_a_turned, is_b_turned) = (call.flag("transA", false)?, call.flag("transB", false)?);
    let (alpha, beta) = (call.real("alpha", 1.0)?, call.real("beta", 1.0)?);
    let scaled = |x: Var, factor: f64| if factor == 1.0 { x } else { x.scale(factor) };
    let turned = |x: Var, is_turned: bool| if is_turned { x.t() } else { x };
    let y = match if is_a_turned { None } else { product_of_bytes(call, is_b_turned)? } {
        Some(y) => y,
        None => turned(a, is_a_turned).matmul(&turned(b, is_b_turned)),
    };
    let y = sound(scaled(y, alpha))?;
    if call.optional(2).is_some() {
        call.narrow(2, y.shape())?;
    }
    Ok(match call.optional_float(2)? {
        Some(c) => y + scaled(c, beta),
        None => y,
    })
}
