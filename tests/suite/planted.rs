//! Planted mistakes: the checks that all other tests rely on must find and name each one.

use libtest_mimic::{Failed, Trial};
use meganeura::check::{Report, gradcheck};
use meganeura::ops::CustomOp;
use meganeura::{Device, ErrorKind, Module, Param, Precision, Result, Shape, Tape, TensorType, Var};

use crate::adapter::gpu_trial;
use crate::nets::tensor;
use crate::numbers::{Computed, Reference, compare};

type Rule = fn(&[Var], &[Var], &Var) -> Vec<Option<Var>>;

/// An operation with a correct gradient rule and several wrong ones.
struct Family {
    name: &'static str,
    inputs: &'static [&'static [usize]],
    output: &'static [usize],
    cpu: fn(&[&[f64]], &mut [f64]),
    right: Rule,
    /// The mistake, the rule, and the operand whose gradient is wrong.
    wrong: Vec<(&'static str, Rule, usize)>,
}

/// An operation of a family, with one of its rules.
#[derive(Clone)]
struct Planted {
    name: &'static str,
    output: &'static [usize],
    cpu: fn(&[&[f64]], &mut [f64]),
    rule: Rule,
}

impl std::fmt::Debug for Planted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl CustomOp for Planted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![x[0].with_shape(Shape::new(self.output))])
    }

    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(dy[0].as_ref().map_or_else(|| vec![None; x.len()], |dy| (self.rule)(x, y, dy)))
    }

    fn cpu(&self, _: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        (self.cpu)(x, y[0]);
    }

    fn wgsl(&self, _: &[TensorType]) -> (String, usize) {
        unreachable!("gradients are checked on the CPU")
    }
}

fn families() -> Vec<Family> {
    vec![
        Family {
            name: "elementwise",
            inputs: &[&[2, 3]],
            output: &[2, 3],
            cpu: |x, y| y.iter_mut().zip(x[0]).for_each(|(y, x)| *y = x.powi(3)),
            right: |x, _, dy| vec![Some(dy * x[0].square() * 3.0)],
            wrong: vec![
                ("a factor of 1.01", |x, _, dy| vec![Some(dy * x[0].square() * 3.03)], 0),
                ("the sign", |x, _, dy| vec![Some(-(dy * x[0].square() * 3.0))], 0),
                ("nothing at all", |_, _, _| vec![None], 0),
            ],
        },
        Family {
            name: "sum",
            inputs: &[&[3, 4]],
            output: &[3],
            cpu: |x, y| y.iter_mut().zip(x[0].chunks(4)).for_each(|(y, row)| *y = row.iter().sum()),
            right: |_, _, dy| vec![Some(dy.reshape([3, 1]).expand([3, 4]))],
            // Correct only if all cotangents are 1.
            wrong: vec![("ones", |x, _, _| vec![Some(x[0].clone() * 0.0 + 1.0)], 0)],
        },
        Family {
            name: "broadcast",
            inputs: &[&[4, 3], &[3]],
            output: &[4, 3],
            cpu: |x, y| y.iter_mut().enumerate().for_each(|(i, y)| *y = x[0][i] + x[1][i % 3]),
            right: |_, _, dy| vec![Some(dy.clone()), Some(dy.sum_over(&[0]))],
            wrong: vec![
                ("the mean over the batch", |_, _, dy| vec![Some(dy.clone()), Some(dy.mean_over(&[0]))], 1),
                ("the first row alone", |_, _, dy| vec![Some(dy.clone()), Some(dy.slice(0, 0..1).reshape([3]))], 1),
            ],
        },
        Family {
            name: "max_pool",
            inputs: &[&[3, 2]],
            output: &[3],
            cpu: |x, y| y.iter_mut().zip(x[0].chunks(2)).for_each(|(y, window)| *y = window[0].max(window[1])),
            right: |x, y, dy| vec![Some(x[0].eq(y[0].reshape([3, 1])) * dy.reshape([3, 1]))],
            wrong: vec![("shared by the window", |_, _, dy| vec![Some(dy.reshape([3, 1]).expand([3, 2]) * 0.5)], 0)],
        },
        Family {
            name: "normalisation",
            inputs: &[&[2, 5]],
            output: &[2, 5],
            cpu: normalise,
            right: |x, y, dy| {
                let centred = dy - dy.mean_keep(&[1]) - &y[0] * (dy * &y[0]).mean_keep(&[1]);
                vec![Some(centred / deviation(&x[0]))]
            },
            wrong: vec![
                (
                    "the mean's term left out",
                    |x, y, dy| vec![Some((dy - &y[0] * (dy * &y[0]).mean_keep(&[1])) / deviation(&x[0]))],
                    0,
                ),
                (
                    "the variance's term left out",
                    |x, _, dy| vec![Some((dy - dy.mean_keep(&[1])) / deviation(&x[0]))],
                    0,
                ),
            ],
        },
        Family {
            name: "product of matrices",
            inputs: &[&[3, 3], &[3, 3]],
            output: &[3, 3],
            cpu: |x, y| {
                y.iter_mut().enumerate().for_each(|(i, y)| {
                    *y = (0..3).map(|k| x[0][i / 3 * 3 + k] * x[1][k * 3 + i % 3]).sum();
                });
            },
            right: |x, _, dy| vec![Some(dy.matmul(&x[1].t())), Some(x[0].t().matmul(dy))],
            wrong: vec![
                ("da transposed", |x, _, dy| vec![Some(x[1].matmul(&dy.t())), Some(x[0].t().matmul(dy))], 0),
                ("db transposed", |x, _, dy| vec![Some(dy.matmul(&x[1].t())), Some(dy.t().matmul(&x[0]))], 1),
                ("b not transposed", |x, _, dy| vec![Some(dy.matmul(&x[1])), Some(x[0].t().matmul(dy))], 0),
            ],
        },
        Family {
            name: "fused",
            inputs: &[&[5], &[5]],
            output: &[5],
            cpu: |x, y| y.iter_mut().enumerate().for_each(|(i, y)| *y = (x[0][i] * x[1][i]).tanh()),
            right: |x, y, dy| {
                let inner = dy - dy * y[0].square();
                vec![Some(&inner * &x[1]), Some(inner * &x[0])]
            },
            wrong: vec![
                ("b dropped", |x, y, dy| vec![Some((dy - dy * y[0].square()) * &x[1]), None], 1),
                ("a dropped", |x, y, dy| vec![None, Some((dy - dy * y[0].square()) * &x[0])], 0),
            ],
        },
    ]
}

fn normalise(x: &[&[f64]], y: &mut [f64]) {
    for (x, y) in x[0].chunks(5).zip(y.chunks_mut(5)) {
        let mean = x.iter().sum::<f64>() / 5.0;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5.0;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean) / variance.sqrt());
    }
}

fn deviation(x: &Var) -> Var {
    x.variance_keep(&[1], 0).sqrt()
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for Family { name, inputs, output, cpu, right, wrong } in families() {
        let op = Planted { name, output, cpu, rule: right };
        let right = op.clone();
        trials.push(Trial::test(format!("planted::{name}::right"), move || Ok(check(&right, inputs)?.ok()?)));
        for (what, rule, operand) in wrong {
            let op = Planted { rule, ..op.clone() };
            let found = move || is_found(&check(&op, inputs)?, &format!("input {operand}"));
            trials.push(Trial::test(format!("planted::{name}::{what}"), found));
        }
    }
    trials.push(Trial::test("planted::a_parameter_is_named", parameter));
    trials.push(Trial::test("planted::a_gradient_of_the_wrong_shape_is_an_error", wrong_shape));
    for (what, formula, last, kind) in [
        ("right", "x[i] * x[i] * x[i]", 0, Shader::Right),
        ("wrong formula", "x[i] * x[i]", 0, Shader::Wrong),
        ("wrong by a thousandth", "x[i] * x[i] * x[i] * 1.001", 0, Shader::Wrong),
        ("last element not written", "x[i] * x[i] * x[i]", 1, Shader::Wrong),
        ("does not compile", "x[i] +* x[i]", 0, Shader::Broken),
    ] {
        let test = move |device: &Device| shader(device, formula, last, kind);
        trials.push(gpu_trial(format!("planted::wgsl::{what}"), test));
    }
}

fn check(op: &Planted, shapes: &[&[usize]]) -> Result<Report> {
    let device = Device::cpu();
    let draw = |(k, shape): (usize, &&[usize])| tensor(&device, &format!("operand {k}"), Shape::new(shape));
    let inputs = shapes.iter().enumerate().map(draw).collect::<Result<Vec<_>>>()?;
    gradcheck(&(), &inputs, |(), x| vec![x[0].custom(op.clone(), &x[1..].iter().collect::<Vec<_>>())])
}

/// The report must fail at this entry, and at no other.
fn is_found(report: &Report, name: &str) -> Result<(), Failed> {
    let failed: Vec<_> = report.entries.iter().filter(|entry| !entry.passed).map(|entry| &*entry.name).collect();
    let message = report.ok().err().map(|error| error.to_string()).unwrap_or_default();
    if failed != [name] || !message.contains(&format!("FAIL {name}")) {
        return Err(format!("only {name} should have failed:\n{report}").into());
    }
    Ok(())
}

#[derive(Module)]
struct Gains {
    left: Vec<Param>,
    right: Param,
}

fn parameter() -> Result<(), Failed> {
    let fused = families().pop().expect("there are families");
    let (device, (_, rule, _)) = (Device::cpu(), fused.wrong[0]);
    let param = |name| tensor(&device, name, [5]).map(Param::new);
    let gains = Gains { left: vec![param("a")?, param("b")?], right: param("c")? };
    let op = Planted { name: "fused", output: fused.output, cpu: fused.cpu, rule };
    let report = gradcheck(&gains, &[tensor(&device, "x", [5])?], |gains, x| {
        let [first, second, right] = [&gains.left[0], &gains.left[1], &gains.right].map(|param| x[0].param(param));
        vec![&x[0] * first * right, x[0].custom(op.clone(), &[&second])]
    })?;
    is_found(&report, "left.1")
}

fn wrong_shape() -> Result<(), Failed> {
    let op = Planted {
        name: "product",
        output: &[2, 4],
        cpu: |_, y| y.fill(0.0),
        rule: |x, _, dy| vec![Some(x[1].matmul(&dy.t())), None],
    };
    let error = check(&op, &[&[2, 3], &[3, 4]]).expect_err("da is [3, 2] for an operand [2, 3]");
    assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
    let message = error.to_string();
    assert!(message.contains("product") && message.contains("[3, 2]") && message.contains("[2, 3]"), "{message}");
    assert!(error.location().is_some_and(|at| at.file().ends_with("planted.rs")), "{message}");
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Shader {
    Right,
    Wrong,
    Broken,
}

/// `x³`, with a shader that may compute something else.
#[derive(Debug)]
struct Cube {
    formula: &'static str,
    unwritten: usize,
}

impl CustomOp for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![x[0]])
    }

    fn vjp(&self, x: &[Var], _: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![dy[0].as_ref().map(|dy| dy * x[0].square() * 3.0)])
    }

    fn cpu(&self, _: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = x.powi(3));
    }

    fn wgsl(&self, types: &[TensorType]) -> (String, usize) {
        let (formula, n) = (self.formula, types[0].shape.elements() - self.unwritten);
        let source = format!(
            "@group(0) @binding(0) var<storage, read> x: array<f32>;
             @group(0) @binding(1) var<storage, read_write> y: array<f32>;
             @compute @workgroup_size(64)
             fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
                     @builtin(local_invocation_index) lane: u32) {{
                 let i = (id.x + id.y * n.x) * 64u + lane;
                 if (i < {n}u) {{ y[i] = {formula}; }}
             }}"
        );
        (source, n.div_ceil(64))
    }
}

fn shader(device: &Device, formula: &'static str, unwritten: usize, kind: Shader) -> Result<(), Failed> {
    let run = |device: &Device| {
        let x = Tape::new(device).input(&tensor(device, "x", [201])?);
        x.custom(Cube { formula, unwritten }, &[]).to_tensor()?.to_f64_vec()
    };
    // A separate adapter, so that the driver's errors do not reach other tests.
    let device = Device::named(&device.to_string())?.for_testing(0);
    let reference = Reference(run(&Device::cpu_with(Precision::Double))?);
    match (run(&device), kind) {
        (Err(error), Shader::Broken) => {
            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
            // Other kernels still work.
            let x = Tape::new(&device).input(&tensor(&device, "x", [3])?);
            x.custom(Cube { formula: "x[i]", unwritten: 0 }, &[]).to_vec()?;
            Ok(())
        }
        (Ok(_), Shader::Broken) => Err("compiled".into()),
        (computed, kind) => match (compare("cube", &Computed(computed?), &reference, 1e-6), kind) {
            (Err(why), Shader::Right) => Err(why),
            (Ok(_), Shader::Wrong) => Err("the difference was not found".into()),
            _ => Ok(()),
        },
    }
}
