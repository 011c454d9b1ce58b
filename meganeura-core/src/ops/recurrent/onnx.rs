//! The ONNX form of a recurrent layer: its steps, one after the other, as in the formula. ONNX's own recurrent
//! operators order gates in another way and compute the input's products themselves.

use super::{At, Recurrent, RecurrentFormula, WEIGHT};
use crate::ops::form::{Attribute, Form, Operand, Results, Value, int};
use crate::{Shape, TensorType};

fn axis(axis: i64) -> Vec<(&'static str, Attribute)> {
    vec![("axis", Attribute::Int(axis))]
}

/// Elements `start..end` along an axis.
fn slice(to: &mut Form, x: Value, along: usize, range: [usize; 2]) -> Value {
    let [start, end, along] = [range[0], range[1], along].map(|number| to.ints(vec![int(number)]));
    to.node("Slice", &[x, start, end, along], Vec::new())
}

pub(super) fn form(op: &Recurrent, x: &[Operand], y: &[TensorType], to: &mut Form) -> Results {
    let (formula, shape) = (op.formula, Recurrent::shape(y[0].shape));
    let (t, n, h) = (shape.t, shape.n, shape.h);
    let weight = to.node("Transpose", &[x[WEIGHT].value], vec![("perm", Attribute::Ints(vec![1, 0]))]);
    let mut state = [x[2].value, x[3 % x.len()].value];
    let (mut hidden, mut cells) = (vec![state[0]], vec![state[1]]);
    for step in 0..t {
        let At { time, .. } = op.at(step, t);
        let at = |to: &mut Form, x: Value, shape: Shape| {
            let own = slice(to, x, 0, [time, time + 1]);
            to.reshape(own, shape)
        };
        let input = at(to, x[0].value, Shape::from([n, formula.gates() * h]));
        let products = to.node("MatMul", &[state[0], weight], Vec::new());
        let mut next = match formula {
            RecurrentFormula::Tanh | RecurrentFormula::Relu => {
                let sum = to.node("Add", &[products, input], Vec::new());
                let name = if formula == RecurrentFormula::Tanh { "Tanh" } else { "Relu" };
                [to.node(name, &[sum], Vec::new()), state[1]]
            }
            RecurrentFormula::Lstm => lstm(to, [input, products], state, h),
            RecurrentFormula::Gru => {
                let bias = op.bias().map(|k| x[k].value);
                [gru(to, [input, products], bias, state[0], h), state[1]]
            }
        };
        if let Some(k) = op.mask() {
            let own = at(to, x[k].value, Shape::from([n, 1]));
            let is_there = to.condition(own);
            let parts = if formula.is_lstm() { 2 } else { 1 };
            for (next, last) in next.iter_mut().zip(state).take(parts) {
                *next = to.node("Where", &[is_there, *next, last], Vec::new());
            }
        }
        state = next;
        hidden.push(state[0]);
        cells.push(state[1]);
    }
    let mut all = |states: Vec<Value>| {
        let mut each: Vec<_> = states.into_iter().map(|state| to.reshape(state, Shape::from([1, n, h]))).collect();
        if op.reverse {
            each.reverse();
        }
        Some(to.node("Concat", &each, axis(0)))
    };
    let mut results = vec![all(hidden)];
    if formula.is_lstm() {
        results.push(Some(state[1]));
    }
    // What the gradient alone needs has no form.
    results.resize(y.len(), None);
    results
}

fn lstm(to: &mut Form, [input, products]: [Value; 2], state: [Value; 2], h: usize) -> [Value; 2] {
    let sums = to.node("Add", &[products, input], Vec::new());
    let gates = ["Sigmoid", "Sigmoid", "Tanh", "Sigmoid"];
    let mut number = 0;
    let [input, forget, candidate, output] = gates.map(|name| {
        let own = slice(to, sums, 1, [number * h, (number + 1) * h]);
        number += 1;
        to.node(name, &[own], Vec::new())
    });
    let kept = to.node("Mul", &[forget, state[1]], Vec::new());
    let new = to.node("Mul", &[input, candidate], Vec::new());
    let c = to.node("Add", &[kept, new], Vec::new());
    let of_cell = to.node("Tanh", &[c], Vec::new());
    [to.node("Mul", &[output, of_cell], Vec::new()), c]
}

fn gru(to: &mut Form, [input, products]: [Value; 2], bias: Option<Value>, state: Value, h: usize) -> Value {
    let block = |to: &mut Form, x: Value, k: usize| slice(to, x, 1, [k * h, (k + 1) * h]);
    let gate = |to: &mut Form, k: usize| {
        let [a, b] = [input, products].map(|x| block(to, x, k));
        let sum = to.node("Add", &[a, b], Vec::new());
        to.node("Sigmoid", &[sum], Vec::new())
    };
    let (reset, update) = (gate(to, 0), gate(to, 1));
    let mut of_state = block(to, products, 2);
    if let Some(bias) = bias {
        of_state = to.node("Add", &[of_state, bias], Vec::new());
    }
    let own = block(to, input, 2);
    let scaled = to.node("Mul", &[reset, of_state], Vec::new());
    let sum = to.node("Add", &[own, scaled], Vec::new());
    let new = to.node("Tanh", &[sum], Vec::new());
    let difference = to.node("Sub", &[state, new], Vec::new());
    let moved = to.node("Mul", &[update, difference], Vec::new());
    to.node("Add", &[moved, new], Vec::new())
}
