//! The ONNX forms of the table's rows.

use std::f64::consts::FRAC_1_SQRT_2;

use super::{Pointwise, SQRT_2_OVER_PI};
use crate::TensorType;
use crate::ops::form::{Attribute, Form, Operand, Value};

impl Pointwise {
    /// The row that is the same as an ONNX operator of one operand.
    #[doc(hidden)]
    pub fn of_operator(op: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|row| row.arity() == 1 && row.operator() == Some(op))
    }

    /// The row as nodes, with operands that ONNX broadcasts. The result has this type.
    pub(super) fn form(self, x: &[Operand], y: TensorType, to: &mut Form) -> Option<Value> {
        let full = x[0].value;
        let narrow = Operand::broadcast(x, y.shape);
        if let Some(op) = self.operator() {
            return Some(match x {
                [_] => to.node(op, &[full], Vec::new()),
                _ => to.node(op, &narrow, Vec::new()),
            });
        }
        let mut unary = |op| to.node(op, &[full], Vec::new());
        Some(match self {
            Self::Rsqrt => {
                let root = unary("Sqrt");
                to.node("Reciprocal", &[root], Vec::new())
            }
            Self::Silu => {
                let share = unary("Sigmoid");
                to.node("Mul", &[full, share], Vec::new())
            }
            Self::Square => to.node("Mul", &[full, full], Vec::new()),
            // `2·e^(x/2)·sinh(x/2)`, accurate near 0.
            Self::ExpM1 => {
                let [half, two] = [0.5, 2.0].map(|number| to.float(y.dtype, number));
                let half = to.node("Mul", &[full, half], Vec::new());
                let [exp, sinh] = ["Exp", "Sinh"].map(|op| to.node(op, &[half], Vec::new()));
                let product = to.node("Mul", &[exp, sinh], Vec::new());
                to.node("Mul", &[product, two], Vec::new())
            }
            Self::Gelu => to.node("Gelu", &[full], vec![("approximate", Attribute::Text("none"))]),
            Self::GeluSlope => gelu_slope(full, y, to),
            Self::GeluTanh => to.node("Gelu", &[full], vec![("approximate", Attribute::Text("tanh"))]),
            Self::LeakyRelu => match to.number(x[1].narrow.0) {
                Some(slope) => to.node("LeakyRelu", &[full], vec![("alpha", Attribute::Float(slope))]),
                None => to.node("PRelu", &[full, x[1].value], Vec::new()),
            },
            Self::Elu => match to.number(x[1].narrow.0) {
                Some(alpha) => to.node("Elu", &[full], vec![("alpha", Attribute::Float(alpha))]),
                None => elu(full, x[1].value, y, to),
            },
            Self::Eq => truth("Equal", &narrow, y, to),
            Self::Lt => truth("Less", &narrow, y, to),
            Self::Le => truth("LessOrEqual", &narrow, y, to),
            Self::Gt => truth("Greater", &narrow, y, to),
            Self::Ge => truth("GreaterOrEqual", &narrow, y, to),
            Self::Ne => {
                let equal = to.node("Equal", &narrow, Vec::new());
                truth("Not", &[equal], y, to)
            }
            Self::WhereCond => {
                let condition = to.condition(narrow[0]);
                to.node("Where", &[condition, narrow[1], narrow[2]], Vec::new())
            }
            // The bounds of ONNX's `Clip` are scalars.
            Self::Clamp if x[1..].iter().all(|bound| bound.narrow.1.rank() == 0) => {
                to.node("Clip", &[full, x[1].narrow.0, x[2].narrow.0], Vec::new())
            }
            // If the bounds cross, the lower one wins.
            Self::Clamp => {
                let [low, high] = [x[1].value, x[2].value];
                let is_above = to.node("Greater", &[full, high], Vec::new());
                let below = to.node("Where", &[is_above, high, full], Vec::new());
                let is_below = to.node("Less", &[full, low], Vec::new());
                to.node("Where", &[is_below, low, below], Vec::new())
            }
            _ => return None,
        })
    }
}

/// A condition as 0 or 1.
fn truth(op: &'static str, x: &[Value], y: TensorType, to: &mut Form) -> Value {
    let condition = to.node(op, x, Vec::new());
    to.cast(condition, y.dtype)
}

/// `(1 + erf(x/√2))/2 + x·e^(−x²/2)/√(2π)`
fn gelu_slope(x: Value, y: TensorType, to: &mut Form) -> Value {
    let mut times = |a: Value, number: f64| {
        let number = to.float(y.dtype, number);
        to.node("Mul", &[a, number], Vec::new())
    };
    let [half, scaled] = [0.5, FRAC_1_SQRT_2].map(|factor| times(x, factor));
    let density = times(x, 0.5 * SQRT_2_OVER_PI);
    let exponent = to.node("Mul", &[half, x], Vec::new());
    let exponent = to.node("Neg", &[exponent], Vec::new());
    let exp = to.node("Exp", &[exponent], Vec::new());
    let term = to.node("Mul", &[density, exp], Vec::new());
    let erf = to.node("Erf", &[scaled], Vec::new());
    let [one, half] = [1.0, 0.5].map(|number| to.float(y.dtype, number));
    let sum = to.node("Add", &[erf, one], Vec::new());
    let distribution = to.node("Mul", &[sum, half], Vec::new());
    to.node("Add", &[distribution, term], Vec::new())
}

/// `x` above 0, `alpha·(eˣ − 1)` below, for an `alpha` that is computed.
fn elu(x: Value, alpha: Value, y: TensorType, to: &mut Form) -> Value {
    let exponential = to.node("Elu", &[x], Vec::new());
    let scaled = to.node("Mul", &[exponential, alpha], Vec::new());
    let zero = to.float(y.dtype, 0.0);
    let is_above = to.node("Greater", &[x, zero], Vec::new());
    to.node("Where", &[is_above, x, scaled], Vec::new())
}
