//! The cases of the table's rows, and of rows that are recorded together.

use crate::functions::case::{Case, Special, Tested};
use crate::ops::Pointwise;
use crate::tape::Var;

/// Functions of a few operations each. A shader's `exp`, `sin` and `pow` may be several units off in the last place.
const TOLERANCE: f64 = 4e-6;

impl Tested for Pointwise {
    /// Every row, over a domain in which it is defined and smooth at almost every point.
    fn cases() -> Vec<Case> {
        let mut cases: Vec<_> = Pointwise::ALL.iter().copied().map(row).collect();
        let compare = |name, f: fn(&[Var]) -> Var| Case::recorded(name, &[&[4, 1, 3], &[2, 1]], f);
        cases.push(compare("add", |x| &x[0] + &x[1]));
        cases.push(compare("mul", |x| &x[0] * &x[1]));
        cases.push(compare("minimum", |x| x[0].minimum(&x[1])));
        cases.push(compare("where_cond", |x| x[0].gt(&x[1]).where_cond(&x[0], &x[1])));
        cases.push(Case::recorded("scalars", &[&[3, 3]], |x| {
            (1.0 - &x[0] * 2.0).leaky_relu(0.1).elu(0.5).clamp(-0.4, 1.5)
        }));
        let fused = Case::recorded("fused", &[&[7, 9], &[9]], |x| {
            let y = (&x[0] * &x[1]).tanh();
            (&y + x[0].t().t()).gelu() * y.square() + &x[1]
        });
        cases.push(Case { special: &[Special::AtBaseline], ..fused });
        cases
    }
}

fn row(op: Pointwise) -> Case {
    let case = (0..op.arity()).fold(Case::new(op), |case, _| case.input(&[5, 67]));
    let case = case.tolerance(op.tolerance().unwrap_or(TOLERANCE));
    let special: &[_] = if op == Pointwise::Erfinv { &[Special::WithoutOnnx] } else { &[] };
    let case = Case { special, ..case };
    match op.range() {
        Some((lo, hi)) => case.range(lo, hi),
        None => case,
    }
}
