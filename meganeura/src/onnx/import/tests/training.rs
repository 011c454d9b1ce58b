//! Gradients and steps of optimizers as nodes.

use super::{Attributes, Graph, Value, assert_close};
use crate::Result;
use crate::onnx::import::training::DOMAIN;
use crate::onnx::proto::element::{FLOAT, INT64};

/// `y = Σ sin(x·w)` with `dy/dx` and `dy/dw`.
fn gradients(xs: &'static [&'static str]) -> Graph {
    let attributes = [("xs", Value::Texts(xs)), ("y", Value::Text("y"))];
    // The node comes before those that compute its target.
    Graph::new(21)
        .input("x", FLOAT, &[2, 2])
        .input("w", FLOAT, &[2])
        .output("dx", FLOAT)
        .output("dw", FLOAT)
        .node("Gradient", &["x", "w"], &["dx", "dw"], &attributes)
        .of_domain(DOMAIN)
        .node("Mul", &["x", "w"], &["product"], &[])
        .node("Sin", &["product"], &["y"], &[])
}

#[test]
fn gradients_are_those_of_the_function() -> Result<()> {
    let (x, w) = ([0.5, -1.0, 2.0, 0.25], [0.75, -0.5]);
    let results = gradients(&["x", "w"]).run(&[&x, &w])?;
    let sum = |x: &[f64], w: &[f64]| (0..4).map(|k| (x[k] * w[k % 2]).sin()).sum::<f64>();
    let step = 1e-6;
    let slope = |k: usize, of_x: bool| {
        let at = |by: f64| {
            let (mut x, mut w) = (x, w);
            if of_x {
                x[k] += by;
            } else {
                w[k] += by;
            }
            sum(&x, &w)
        };
        (at(step) - at(-step)) / (2.0 * step)
    };
    let close = |found: &[f64], expected: Vec<f64>| {
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
    };
    close(&results[0].1, (0..4).map(|k| slope(k, true)).collect());
    close(&results[1].1, (0..2).map(|k| slope(k, false)).collect());
    Ok(())
}

#[test]
fn gradients_elsewhere_are_refused() {
    let error = gradients(&["x", "product"]).error(&[&[0.0; 4], &[0.0; 2]]);
    assert!(error.to_string().contains("node `dx` (Gradient): the gradient of `product` where it is `w`"), "{error}");
    let graph = Graph::new(21).input("x", FLOAT, &[1]).output("y", FLOAT).node("Gradient", &["x"], &["y"], &[]);
    let error = graph.of_domain(DOMAIN).error(&[&[0.0]]);
    assert!(error.to_string().contains("the attribute `y` is missing"), "{error}");
}

/// A step of one parameter of two numbers.
fn step(op: &str, names: &[&str], attributes: Attributes<'_>, numbers: &[[f64; 2]]) -> Result<Vec<Vec<f64>>> {
    let mut graph = Graph::new(21).input("r", FLOAT, &[]).input("t", INT64, &[]);
    for name in names {
        graph = graph.input(name, FLOAT, &[2]);
    }
    let results: Vec<_> = names.iter().filter(|name| **name != "g").map(|name| format!("{name}_new")).collect();
    let results: Vec<_> = results.iter().map(String::as_str).collect();
    for result in &results {
        graph = graph.output(result, FLOAT);
    }
    let graph = graph.node(op, &[&["r", "t"], names].concat(), &results, attributes).of_domain(DOMAIN);
    let inputs: Vec<&[f64]> = [&[0.1][..], &[3.0]].into_iter().chain(numbers.iter().map(|x| &x[..])).collect();
    Ok(graph.run(&inputs)?.into_iter().map(|(_, numbers)| numbers).collect())
}

#[test]
fn steps_are_those_of_the_definitions() -> Result<()> {
    let (x, g, v, h) = ([1.0, -2.0], [0.5, 0.25], [0.125, -0.5], [2.0, 0.5]);
    let of = |f: fn(f64, f64, f64, f64) -> f64| (0..2).map(|k| f(x[k], g[k], v[k], h[k])).collect::<Vec<_>>();
    let norm = || ("norm_coefficient", Value::Float(0.5));

    let results = step("Adagrad", &["x", "g", "h"], &[norm(), ("decay_factor", Value::Float(0.25))], &[x, g, h])?;
    assert_close(&results[1], &of(|x, g, _, h| h + (0.5 * x + g).powi(2)), "squares");
    let rate = "0.1 / (1 + 0.25·3)";
    let expected = of(|x, g, _, h| {
        let g = 0.5 * x + g;
        x - 0.1 / 1.75 * g / ((h + g * g).sqrt() + 1e-6)
    });
    assert_close(&results[0], &expected, rate);

    let attributes = [norm(), ("norm_coefficient_post", Value::Float(0.25)), ("alpha", Value::Float(0.75))];
    let results = step("Adam", &["x", "g", "v", "h"], &attributes, &[x, g, v, h])?;
    let expected = of(|x, g, v, h| {
        let g = 0.5 * x + g;
        let (v, h) = (0.75 * v + 0.25 * g, 0.999 * h + 0.001 * g * g);
        let rate = 0.1 * (1.0 - 0.999f64.powi(3)).sqrt() / (1.0 - 0.75f64.powi(3));
        0.75 * (x - rate * v / (h.sqrt() + 1e-6))
    });
    // The correction 1 − βᵗ loses digits in f32.
    assert!(results[0].iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{results:?} {expected:?}");

    for (mode, ahead) in [("standard", false), ("nesterov", true)] {
        let attributes =
            [norm(), ("alpha", Value::Float(0.75)), ("beta", Value::Float(0.5)), ("mode", Value::Text(mode))];
        let results = step("Momentum", &["x", "g", "v"], &attributes, &[x, g, v])?;
        let (expected, moved): (Vec<_>, Vec<_>) = (0..2)
            .map(|k| {
                let g = 0.5 * x[k] + g[k];
                let v = 0.75 * v[k] + 0.5 * g;
                (x[k] - 0.1 * if ahead { g + 0.75 * v } else { v }, v)
            })
            .unzip();
        assert_close(&results[0], &expected, mode);
        assert_close(&results[1], &moved, mode);
    }
    let error = step("Momentum", &["x", "g", "v"], &[("mode", Value::Text("standard"))], &[x, g, v]).unwrap_err();
    assert!(error.to_string().contains("the attribute `alpha` is missing"), "{error}");
    let error = step("Adagrad", &["x", "g"], &[], &[x, g]).unwrap_err();
    assert!(error.to_string().contains("2 tensors, which are no 3 groups"), "{error}");
    Ok(())
}
