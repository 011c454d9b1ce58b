//! Recurrent layers. With the usual functions they are the operation of the framework's own layers, else recorded step
//! by step.

use super::call::{Call, Operators};
use super::quantize::dynamic;
use super::value::{Value, sound};
use crate::error::bail;
use crate::ops::{RecurrentFormula, RecurrentOptions};
use crate::{Result, Var};

pub(super) const OPERATORS: Operators =
    &[("GRU", |call| layer(call, &GRU)), ("LSTM", |call| layer(call, &LSTM)), ("RNN", |call| layer(call, &RNN))];

/// A kind of layer.
struct Kind {
    gates: usize,
    /// The names of its functions.
    functions: &'static [&'static str],
    /// The number of parts of a state.
    parts: usize,
}

const RNN: Kind = Kind { gates: 1, functions: &["Tanh"], parts: 1 };
const GRU: Kind = Kind { gates: 3, functions: &["Sigmoid", "Tanh"], parts: 1 };
const LSTM: Kind = Kind { gates: 4, functions: &["Sigmoid", "Tanh", "Tanh"], parts: 2 };

/// A function of a gate or a state.
type Function = Box<dyn Fn(&Var) -> Var>;

/// What all directions of a layer share.
struct Layer<'a> {
    kind: &'a Kind,
    hidden: usize,
    clip: Option<f64>,
    input_forget: bool,
    linear_before_reset: bool,
    /// The state is rounded to bytes before it is multiplied.
    has_bytes: bool,
    /// Steps that exist, `[T, N]`.
    mask: Option<Var>,
}

/// The weights of a direction.
struct Weights {
    /// Of the input, `[G·H, I]`, and of the state, `[G·H, H]`.
    input: Var,
    state: Var,
    /// Their biases, `[G·H]`.
    biases: Option<[Var; 2]>,
    /// From the cell state to the gates, `[3·H]`.
    peephole: Option<Var>,
}

/// Part `k` of an operand along its first axis, without that axis.
fn part(x: &Var, k: usize) -> Var {
    x.slice(0, k..k + 1).reshape(&x.shape().dims()[1..])
}

fn layer(call: &Call<'_>, kind: &Kind) -> Result<Vec<Value>> {
    recorded(call, kind, [call.float(0)?, call.float(1)?, call.float(2)?], false)
}

/// `DynamicQuantizeLSTM` of `com.microsoft`: the weights are bytes, `[D, I, 4·H]` and `[D, H, 4·H]`, and what they
/// multiply is rounded to bytes.
pub(super) fn dynamic_lstm(call: &Call<'_>) -> Result<Vec<Value>> {
    let weight = |k: usize, scale: usize| -> Result<Var> {
        let x = call.float(k)?;
        let [directions, _, columns] = *x.shape().dims() else { bail!(Checkpoint, "operand {k} is {}", x.shape()) };
        let of_columns = |k: usize| -> Result<Option<Var>> {
            let Some(y) = call.optional_float(k)? else { return Ok(None) };
            let shape = match *y.shape().dims() {
                [] | [1] => [1, 1, 1],
                [count] if count == directions => [directions, 1, 1],
                [a, b] if [a, b] == [directions, columns] => [directions, 1, columns],
                _ => bail!(Checkpoint, "operand {k} is {}, for weights {}", y.shape(), x.shape()),
            };
            Ok(Some(y.reshape(shape)))
        };
        let x = match of_columns(scale + 1)? {
            Some(zero) => &x - zero,
            None => x.clone(),
        };
        match of_columns(scale)? {
            Some(scale) => sound((x * scale).permute(&[0, 2, 1])),
            None => bail!(Checkpoint, "operand {scale} is missing"),
        }
    };
    recorded(call, &LSTM, [in_bytes(&call.float(0)?), weight(1, 8)?, weight(2, 10)?], true)
}

/// Numbers rounded to the nearest of 256.
fn in_bytes(x: &Var) -> Var {
    let (bytes, scale, zero) = dynamic(x);
    (bytes - zero) * scale
}

/// A layer of these steps, and weights of them and of the state.
fn recorded(call: &Call<'_>, kind: &Kind, [mut x, input, state]: [Var; 3], has_bytes: bool) -> Result<Vec<Value>> {
    let batch_first = call.flag("layout", false)?;
    let [a, b, _] = *x.shape().dims() else { bail!(Checkpoint, "steps {} are no [T, N, I]", x.shape()) };
    let [t, n] = if batch_first { [b, a] } else { [a, b] };
    if batch_first {
        x = x.permute(&[1, 0, 2]);
    }
    let [directions, rows, hidden] = *state.shape().dims() else {
        bail!(Checkpoint, "operand 2 is {}, not [D, {}·H, H]", state.shape(), kind.gates)
    };
    let reverse = match (call.text("direction", "forward")?, directions) {
        ("forward", 1) => vec![false],
        ("reverse", 1) => vec![true],
        ("bidirectional", 2) => vec![false, true],
        (direction, _) => bail!(Checkpoint, "the direction {direction:?} of weights {}", state.shape()),
    };
    let expected = [directions, kind.gates * hidden, x.shape()[2]];
    if rows != kind.gates * hidden || input.shape().dims() != expected {
        bail!(Checkpoint, "weights {} and {}; the first should be {expected:?}", input.shape(), state.shape());
    }
    if let Some(named) = call.optional_int("hidden_size")?.filter(|&named| usize::try_from(named) != Ok(hidden)) {
        bail!(Checkpoint, "the attribute `hidden_size` is {named}, and the weights have {hidden}");
    }
    if call.opset < 7 {
        // It said whether the first result is wanted.
        call.ignore(&["output_sequence"]);
    }
    let sized = |k: usize, dims: &[usize]| -> Result<Option<Var>> {
        match call.optional_float(k)? {
            Some(x) if x.shape().dims() != dims => bail!(Checkpoint, "operand {k} is {}, not {dims:?}", x.shape()),
            x => Ok(x),
        }
    };
    let biases = sized(3, &[directions, 2 * rows])?;
    let peepholes = if kind.parts == 2 { sized(7, &[directions, 3 * hidden])? } else { None };
    let lengths = sized(4, &[n])?;
    let mask = lengths.map(|lengths| call.tape.iota([t, n], 0).lt(lengths.reshape([1, n])));
    let initial = |k: usize| -> Result<Var> {
        let dims = if batch_first { [n, directions, hidden] } else { [directions, n, hidden] };
        Ok(match sized(k, &dims)? {
            Some(x) if batch_first => x.permute(&[1, 0, 2]),
            Some(x) => x,
            None => x.constant(0.0).expand([directions, n, hidden]),
        })
    };
    let initial = (0..kind.parts).map(|k| initial(5 + k)).collect::<Result<Vec<_>>>()?;
    let clip = call.real("clip", 0.0)?;
    let layer = Layer {
        kind,
        hidden,
        clip: (clip != 0.0).then_some(clip),
        input_forget: kind.parts == 2 && call.flag("input_forget", false)?,
        linear_before_reset: kind.gates == 3 && call.flag("linear_before_reset", false)?,
        has_bytes,
        mask,
    };
    let mut functions = Functions::of(call, kind, directions)?;
    let (mut all, mut last) = (Vec::new(), vec![Vec::new(); kind.parts]);
    for (k, &reverse) in reverse.iter().enumerate() {
        let weights = Weights {
            input: part(&input, k),
            state: part(&state, k),
            biases: biases.as_ref().map(|biases| {
                let both = part(biases, k);
                [both.slice(0, 0..rows), both.slice(0, rows..2 * rows)]
            }),
            peephole: peepholes.as_ref().map(|peepholes| part(peepholes, k)),
        };
        let state: Vec<_> = initial.iter().map(|initial| part(initial, k)).collect();
        let own: Vec<_> = functions.names.drain(..kind.functions.len()).collect();
        let (states, end) = match layer.formula(&own, &weights) {
            Some(formula) => layer.fused(&x, &weights, &state, formula, reverse),
            None => {
                let own = own.iter().map(|name| functions.next(name)).collect::<Result<Vec<_>>>()?;
                call.budget.charge(t.saturating_mul(64))?;
                layer.stepwise(&x, &weights, state, &own, reverse)
            }
        };
        let states = sound(states)?;
        // Steps that do not exist have no state.
        let states = match &layer.mask {
            Some(mask) => mask.reshape([t, n, 1]).where_cond(&states, &states.constant(0.0)),
            None => states,
        };
        all.push(states);
        last.iter_mut().zip(end).for_each(|(last, end)| last.push(end));
    }
    let stacked = |parts: &[Var], axis: usize| Var::stack(&parts.iter().collect::<Vec<_>>(), axis);
    let mut results = vec![stacked(&all, 1)];
    results.extend(last.iter().map(|parts| stacked(parts, 0)));
    if batch_first {
        results[0] = results[0].permute(&[2, 0, 1, 3]);
        results[1..].iter_mut().for_each(|x| *x = x.permute(&[1, 0, 2]));
    }
    let element = call.value(0)?.element();
    Ok(results.into_iter().map(|var| Value::Var(var, element)).collect())
}

/// Blocks of `H` rows in another order.
fn reordered(x: &Var, hidden: usize, order: &[usize]) -> Var {
    let blocks: Vec<_> = order.iter().map(|&k| x.slice(0, k * hidden..(k + 1) * hidden)).collect();
    Var::concat(&blocks.iter().collect::<Vec<_>>(), 0)
}

impl Layer<'_> {
    /// The formula of the framework's own layers, if this is one of them.
    fn formula(&self, functions: &[String], weights: &Weights) -> Option<RecurrentFormula> {
        let is_usual = functions.iter().map(String::as_str).eq(self.kind.functions.iter().copied());
        if self.has_bytes || self.clip.is_some() || self.input_forget || weights.peephole.is_some() {
            return None;
        }
        match self.kind.gates {
            1 if is_usual => Some(RecurrentFormula::Tanh),
            1 if functions == ["Relu"] => Some(RecurrentFormula::Relu),
            3 if is_usual && self.linear_before_reset => Some(RecurrentFormula::Gru),
            4 if is_usual => Some(RecurrentFormula::Lstm),
            _ => None,
        }
    }

    /// All states and the last one, as one operation.
    fn fused(
        &self,
        x: &Var,
        weights: &Weights,
        state: &[Var],
        formula: RecurrentFormula,
        reverse: bool,
    ) -> (Var, Vec<Var>) {
        let h = self.hidden;
        // From ONNX's order of gates: input, output, forget, cell; and update, reset, hidden.
        let order: &[usize] = match formula {
            RecurrentFormula::Lstm => &[0, 2, 3, 1],
            RecurrentFormula::Gru => &[1, 0, 2],
            _ => &[0],
        };
        let of = |x: &Var| reordered(x, h, order);
        let mut products = self.products(x, &of(&weights.input));
        let mut within = None;
        if let Some([input, state]) = &weights.biases {
            let (input, state) = (of(input), of(state));
            products = match formula {
                RecurrentFormula::Gru => {
                    within = Some(state.slice(0, 2 * h..3 * h));
                    let outside = state.slice(0, 0..2 * h).pad(&[(0, h)], 0.0);
                    products + (input + outside)
                }
                _ => products + (input + state),
            };
        } else if formula == RecurrentFormula::Gru {
            within = Some(x.constant(0.0).expand([h]));
        }
        let options = RecurrentOptions { formula, reverse, bias: within.as_ref(), mask: self.mask.as_ref() };
        products.recurrent(&of(&weights.state), state, options)
    }

    /// The products of all steps with the weight of the input, `[T, N, G·H]`.
    fn products(&self, x: &Var, weight: &Var) -> Var {
        let [t, n, i] = *x.shape().dims() else { return x.clone() };
        x.reshape([t * n, i]).matmul(&weight.t()).reshape([t, n, self.kind.gates * self.hidden])
    }

    /// All states and the last one, step by step.
    fn stepwise(
        &self,
        x: &Var,
        weights: &Weights,
        mut state: Vec<Var>,
        functions: &[Function],
        reverse: bool,
    ) -> (Var, Vec<Var>) {
        let products = self.products(x, &weights.input);
        let products = match &weights.biases {
            Some([input, _]) => products + input,
            None => products,
        };
        let steps = x.shape()[0];
        let mut states = vec![state[0].clone(); steps];
        for k in 0..steps {
            let k = if reverse { steps - 1 - k } else { k };
            let next = self.step(&part(&products, k), weights, &state, functions);
            let kept = |next: Var, before: &Var| match &self.mask {
                Some(mask) => part(mask, k).reshape([before.shape()[0], 1]).where_cond(&next, before),
                None => next,
            };
            state = next.into_iter().zip(&state).map(|(next, before)| kept(next, before)).collect();
            states[k] = state[0].clone();
        }
        (Var::stack(&states.iter().collect::<Vec<_>>(), 0), state)
    }

    /// The state after a step.
    fn step(&self, x: &Var, weights: &Weights, state: &[Var], functions: &[Function]) -> Vec<Var> {
        let hidden = self.hidden;
        let h = &if self.has_bytes { in_bytes(&state[0]) } else { state[0].clone() };
        let block = |x: &Var, k: usize| x.slice(x.shape().rank() - 1, k * hidden..(k + 1) * hidden);
        let clipped = |x: Var| match self.clip {
            Some(most) => x.clamp(-most, most),
            None => x,
        };
        let of = |f: usize, x: Var| functions[f](&clipped(x));
        let bias = weights.biases.as_ref().map(|[_, state]| state);
        let plus = |x: Var, k: usize| match bias {
            Some(bias) => x + block(bias, k),
            None => x,
        };
        let weight = |k: usize| weights.state.slice(0, k * hidden..(k + 1) * hidden).t();
        // The sum of gate `k`.
        let sum = |k: usize| block(x, k) + plus(h.matmul(&weight(k)), k);
        match self.kind.gates {
            1 => vec![of(0, sum(0))],
            3 => {
                let (update, reset) = (of(0, sum(0)), of(0, sum(1)));
                let inner = match self.linear_before_reset {
                    true => &reset * plus(h.matmul(&weight(2)), 2),
                    false => plus((&reset * h).matmul(&weight(2)), 2),
                };
                let new = of(1, block(x, 2) + inner);
                vec![&update * (h - &new) + &new]
            }
            _ => {
                let c = &state[1];
                let peep = |x: Var, c: &Var, k: usize| match &weights.peephole {
                    Some(peephole) => x + c * block(peephole, k),
                    None => x,
                };
                let input = of(0, peep(sum(0), c, 0));
                let forget = match self.input_forget {
                    true => input.constant(1.0) - &input,
                    false => of(0, peep(sum(2), c, 2)),
                };
                let cell = forget * c + input * of(1, sum(3));
                let output = of(0, peep(sum(1), &cell, 1));
                vec![output * functions[2](&cell), cell]
            }
        }
    }
}

/// The functions that a node names, and their numbers in the order in which they take them.
struct Functions {
    names: Vec<String>,
    alpha: std::vec::IntoIter<f64>,
    beta: std::vec::IntoIter<f64>,
}

impl Functions {
    fn of(call: &Call<'_>, kind: &Kind, directions: usize) -> Result<Self> {
        let usual =
            || kind.functions.iter().cycle().take(directions * kind.functions.len()).map(|&name| name.to_owned());
        let names = match call.texts("activations")? {
            Some(names) if names.len() != directions * kind.functions.len() => {
                bail!(Checkpoint, "{} functions for {directions} directions", names.len())
            }
            Some(names) => names,
            None => usual().collect(),
        };
        let numbers = |name: &str| Ok::<_, crate::Error>(call.reals(name)?.unwrap_or_default().into_iter());
        Ok(Self { names, alpha: numbers("activation_alpha")?, beta: numbers("activation_beta")? })
    }

    /// The function of this name.
    fn next(&mut self, name: &str) -> Result<Function> {
        let mut alpha = |usual: f64| self.alpha.next().unwrap_or(usual);
        let mut beta = |usual: f64| self.beta.next().unwrap_or(usual);
        Ok(match name {
            "Relu" => Box::new(Var::relu),
            "Tanh" => Box::new(Var::tanh),
            "Sigmoid" => Box::new(Var::sigmoid),
            "Softplus" => Box::new(Var::softplus),
            "Softsign" => Box::new(|x| x / (x.abs() + x.constant(1.0))),
            "Affine" => {
                let (a, b) = (alpha(1.0), beta(0.0));
                Box::new(move |x| x.scale(a) + x.constant(b))
            }
            "LeakyRelu" => {
                let a = alpha(0.01);
                Box::new(move |x| x.leaky_relu(a))
            }
            "ThresholdedRelu" => {
                let a = alpha(1.0);
                Box::new(move |x| x.gt(x.constant(a)).where_cond(x, &x.constant(0.0)))
            }
            "ScaledTanh" => {
                let (a, b) = (alpha(1.0), beta(1.0));
                Box::new(move |x| x.scale(b).tanh().scale(a))
            }
            "HardSigmoid" => {
                let (a, b) = (alpha(0.2), beta(0.5));
                Box::new(move |x| (x.scale(a) + x.constant(b)).clamp(0.0, 1.0))
            }
            "Elu" => {
                let a = alpha(1.0);
                Box::new(move |x| x.elu(a))
            }
            other => bail!(Checkpoint, "the function {other:?} is not supported"),
        })
    }
}
