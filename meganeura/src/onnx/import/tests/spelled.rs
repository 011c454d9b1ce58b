//! Functions that a file spells out.

use super::{Graph, Value};
use crate::onnx::import::Model;
use crate::onnx::proto::element::FLOAT;
use crate::{Device, Result, Tape, Tensor};

/// The value of a function at a number.
type Expected<'a> = &'a dyn Fn(f64) -> f64;

/// Heads, queries, keys, and features of keys and of values.
const EXTENTS: [usize; 5] = [2, 3, 5, 4, 6];

fn numbers(seed: usize, len: usize) -> Vec<f64> {
    (0..len).map(|at| ((at * 37 + seed * 11) % 23) as f64 / 8.0 - 1.4).collect()
}

fn operands() -> [Vec<f64>; 3] {
    let [h, l, s, d, e] = EXTENTS;
    [numbers(1, h * l * d), numbers(2, h * s * d), numbers(3, h * s * e)]
}

/// `q`, the transpose `t` of the keys `k`, and values `v`.
fn graph() -> Graph {
    let [h, l, s, d, e] = EXTENTS.map(|extent| extent as i64);
    Graph::new(17)
        .input("q", FLOAT, &[1, h, l, d])
        .input("k", FLOAT, &[1, h, s, d])
        .input("v", FLOAT, &[1, h, s, e])
        .output("y", FLOAT)
        .node("Transpose", &["k"], &["t"], &[("perm", Value::Ints(vec![0, 1, 3, 2]))])
}

/// `softmax(factor·q·kᵀ + mask)·v` by its definition.
fn expected(factor: f64, mask: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let ([h, l, s, d, e], [q, k, v]) = (EXTENTS, operands());
    let mut y = Vec::new();
    for (head, query) in (0..h).flat_map(|head| (0..l).map(move |query| (head, query))) {
        let score = |key: usize| {
            let terms = (0..d).map(|i| q[(head * l + query) * d + i] * k[(head * s + key) * d + i]);
            factor * terms.sum::<f64>() + mask(query, key)
        };
        let weights: Vec<_> = (0..s).map(|key| score(key).exp()).collect();
        let mass: f64 = weights.iter().sum();
        let sum = |i: usize| (0..s).map(|key| weights[key] * v[(head * s + key) * e + i]).sum::<f64>() / mass;
        y.extend((0..e).map(sum));
    }
    y
}

/// The numbers of a model's result, and whether an attention computes it.
fn results(graph: &Graph) -> Result<(Vec<f64>, bool)> {
    let device = Device::cpu();
    let model = Model::from_bytes(&device, &graph.bytes())?;
    // Training keeps the products.
    let tape = Tape::inference(&device);
    let inputs = model.inputs().iter().zip(operands()).map(|(port, numbers)| {
        Ok(tape.input(&Tensor::from_f64(&device, port.shape().expect("fixed extents"), &numbers)?))
    });
    let y = model.record(&tape, &inputs.collect::<Result<Vec<_>>>()?)?.swap_remove(0);
    let numbers = y.to_tensor()?.to_f64_vec()?;
    Ok((numbers, device.plan_dumps().concat().contains("attention")))
}

fn hold(graph: &Graph, factor: f64, mask: impl Fn(usize, usize) -> f64, is_one: bool, what: &str) -> Result<()> {
    let (found, is_attention) = results(graph)?;
    assert_eq!(is_attention, is_one, "{what}");
    for (found, expected) in found.iter().zip(expected(factor, mask)) {
        // Of a few roundings of scores below 10, and of sums.
        assert!((found - expected).abs() < 4e-6, "{what}: {found} {expected}");
    }
    Ok(())
}

#[test]
fn products_around_a_softmax_are_one_operation() -> Result<()> {
    let none = |_: usize, _: usize| 0.0;
    let end = |graph: Graph, scores: &str| {
        graph.node("Softmax", &[scores], &["w"], &[("axis", Value::Int(-1))]).node("MatMul", &["w", "v"], &["y"], &[])
    };
    let plain = end(graph().node("MatMul", &["q", "t"], &["s"], &[]), "s");
    hold(&plain, 1.0, none, true, "without a factor")?;
    let half = || graph().constant("half", FLOAT, &[], &[0.5]);
    let after = half().node("MatMul", &["q", "t"], &["p"], &[]).node("Mul", &["half", "p"], &["s"], &[]);
    hold(&end(after, "s"), 0.5, none, true, "a factor of the scores")?;
    let before = half()
        .node("Mul", &["q", "half"], &["r"], &[])
        .node("Div", &["t", "half"], &["u"], &[])
        .node("Mul", &["u", "half"], &["x"], &[])
        .node("MatMul", &["r", "x"], &["s"], &[]);
    hold(&end(before, "s"), 0.5, none, true, "factors of the operands")?;
    let [_, l, s, ..] = EXTENTS;
    let mask = numbers(4, l * s);
    let masked = half()
        .constant("mask", FLOAT, &[1, l as i64, s as i64], &mask)
        .node("MatMul", &["q", "t"], &["p"], &[])
        .node("Div", &["p", "half"], &["r"], &[])
        .node("Add", &["mask", "r"], &["s"], &[]);
    hold(&end(masked, "s"), 2.0, |query, key| mask[query * s + key], true, "a mask")
}

#[test]
fn other_chains_are_what_they_say() -> Result<()> {
    let product = || graph().node("MatMul", &["q", "t"], &["p"], &[]);
    // The softmax of columns.
    let columns =
        product().node("Softmax", &["p"], &["w"], &[("axis", Value::Int(2))]).node("MatMul", &["w", "v"], &["y"], &[]);
    assert!(!results(&columns)?.1);
    // A factor after the mask belongs to both.
    let both = product()
        .constant("half", FLOAT, &[], &[0.5])
        .constant("one", FLOAT, &[1], &[1.0])
        .node("Add", &["p", "one"], &["m"], &[])
        .node("Mul", &["m", "half"], &["s"], &[])
        .node("Softmax", &["s"], &["w"], &[])
        .node("MatMul", &["w", "v"], &["y"], &[]);
    hold(&both, 0.5, |_, _| 0.5, false, "a factor of the mask")?;
    // A factor for each head.
    let heads = product()
        .constant("f", FLOAT, &[1, 2, 1, 1], &[0.5, 2.0])
        .node("Mul", &["p", "f"], &["s"], &[])
        .node("Softmax", &["s"], &["w"], &[])
        .node("MatMul", &["w", "v"], &["y"], &[]);
    assert!(!results(&heads)?.1);
    Ok(())
}

#[test]
fn gelu_is_one_operation() -> Result<()> {
    let x: Vec<f64> = (0..40).map(|at| f64::from(at) / 5.0 - 4.0).collect();
    let graph = || {
        let constant = |graph: Graph, name: &str, number: f64| graph.constant(name, FLOAT, &[], &[number]);
        let graph = Graph::new(17).input("x", FLOAT, &[40]).output("y", FLOAT);
        let graph = constant(constant(constant(graph, "half", 0.5), "one", 1.0), "root", std::f64::consts::SQRT_2);
        graph.node("Div", &["x", "root"], &["r"], &[]).node("Erf", &["r"], &["e"], &[])
    };
    let both = || graph().node("Add", &["e", "one"], &["d"], &[]);
    let after = both().node("Mul", &["x", "d"], &["p"], &[]).node("Mul", &["p", "half"], &["y"], &[]);
    let before = both().node("Mul", &["half", "x"], &["h"], &[]).node("Mul", &["h", "d"], &["y"], &[]);
    let last = both().node("Mul", &["half", "d"], &["h"], &[]).node("Mul", &["h", "x"], &["y"], &[]);
    // Twice as much, and half as much more.
    let twice = both().node("Mul", &["x", "d"], &["y"], &[]);
    let more = graph().node("Add", &["e", "half"], &["d"], &[]).node("Mul", &["x", "d"], &["y"], &[]);
    let erf = |x: f64| libm::erf(x / std::f64::consts::SQRT_2);
    let half = |x: f64| 0.5 * x * (1.0 + erf(x));
    let cases: [(Graph, bool, Expected<'_>); 5] = [
        (after, true, &half),
        (before, true, &half),
        (last, true, &half),
        (twice, false, &|x| 2.0 * half(x)),
        (more, false, &|x| x * (0.5 + erf(x))),
    ];
    for (case, (graph, is_one, expected)) in cases.iter().enumerate() {
        let device = Device::cpu();
        let model = Model::from_bytes(&device, &graph.bytes())?;
        let tape = Tape::new(&device);
        let y = model.record(&tape, &[tape.input(&Tensor::from_f64(&device, [40], &x)?)])?.swap_remove(0);
        let found = y.to_tensor()?.to_f64_vec()?;
        assert_eq!(device.plan_dumps().concat().contains("gelu"), *is_one, "case {case}");
        for (found, &x) in found.iter().zip(&x) {
            assert!((found - expected(x)).abs() < 1e-6, "case {case}: {found} at {x}");
        }
    }
    Ok(())
}
