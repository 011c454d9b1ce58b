//! Hessian-vector and Jacobian-vector products.

use libtest_mimic::Trial;
use meganeura::nn::{Conv2d, Flatten, GroupNorm, Linear, MaxPool2d, Silu};
use meganeura::{Device, ErrorKind, Init, Layer, Module, ModuleExt, Precision, Result, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("second::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("second::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("hvp_of_a_quadratic_form", quadratic);
    both("hvp_agrees_with_f64", agrees);
    both("power_iteration_finds_the_largest_eigenvalue", power_iteration);
    trials.push(Trial::test("second::hvp_is_symmetric_and_the_gradients_difference", symmetric));
    trials.push(Trial::test("second::jvp_is_the_transpose_of_backward", transposed));
    trials.push(Trial::test("second::misuse_of_vectors", misuse));
}

/// `½·xᵀAx + b·x` has the Hessian `(A + Aᵀ)/2` everywhere.
fn quadratic(device: &Device) -> Outcome {
    let a = [[2.0, -1.0, 0.5], [0.0, 3.0, 1.0], [-0.5, 2.0, 1.0]];
    let tape = Tape::new(device);
    let matrix = tape.input(&Tensor::from_slice(device, [3, 3], a.as_flattened())?);
    let x = tape.input(&Tensor::from_slice(device, [3, 1], &[1.0, -2.0, 0.5])?);
    let v = tape.input(&Tensor::from_slice(device, [3, 1], &[0.5, 1.0, -2.0])?);
    let loss = (x.t().matmul(&matrix.matmul(&x)) * 0.5 + x.sum()).sum();
    let expected: Vec<f64> = (0..3)
        .map(|i| [0.5, 1.0, -2.0].iter().enumerate().map(|(j, v)| v * f64::from(a[i][j] + a[j][i]) / 2.0).sum())
        .collect();
    let product = tape.hvp(&loss, &[(&x, &v)])?.of(&x).expect("not linear").to_tensor()?.to_f64_vec()?;
    compare("the product", &Computed(product), &Reference(expected), 1e-6)?;
    // A loss that is linear in a value has no Hessian to multiply.
    assert!(tape.hvp(&x.sum(), &[(&x, &v)])?.of(&x).is_none());
    Ok(())
}

/// A network that uses most gradient rules: convolution, normalisation, pooling, cross-entropy.
#[derive(Module, Debug)]
struct Net {
    stem: Conv2d,
    norm: GroupNorm,
    pool: MaxPool2d,
    head: Linear,
}

impl Net {
    fn on(device: &Device) -> Result<Self> {
        let seed = Seed::new(4);
        Ok(Self {
            stem: Conv2d::new(2, 4, 3).padding(1).init(device, seed.field("stem"))?,
            norm: GroupNorm::new(2, 4).init(device, seed.field("norm"))?,
            pool: MaxPool2d::new(2).init(device, seed.field("pool"))?,
            head: Linear::new(16, 3).init(device, seed.field("head"))?,
        })
    }

    fn loss(&self, tape: &Tape) -> Result<Var> {
        let x = tape.input(&tensor(&tape.device(), "x", [3, 2, 4, 4])?);
        let y = Silu.forward(&self.norm.forward(&self.stem.forward(&x)));
        let labels = Tensor::indices(&tape.device(), [3], &[2, 0, 1])?;
        Ok(self.head.forward(&Flatten.forward(&self.pool.forward(&y))).cross_entropy(&labels))
    }

    /// A vector with an entry for every parameter element.
    fn vector(&self, tape: &Tape, name: &str) -> Result<Vec<(String, Var)>> {
        let part = |(path, parameter): (String, &meganeura::Param)| {
            let numbers = tensor(&tape.device(), &format!("{name} {path}"), parameter.shape())?;
            Ok((path, tape.input(&numbers)))
        };
        self.named_parameters().into_iter().map(part).collect()
    }

    fn product(&self, tape: &Tape, name: &str) -> Result<Vec<f64>> {
        let product = tape.module_hvp(&self.loss(tape)?, self, &self.vector(tape, name)?)?.named(self)?;
        let parts = product.iter().map(|(_, part)| part.to_tensor()?.to_f64_vec()).collect::<Result<Vec<_>>>()?;
        Ok(parts.concat())
    }

    fn flat(parts: &[(String, Var)]) -> Result<Vec<f64>> {
        let parts = parts.iter().map(|(_, part)| part.to_tensor()?.to_f64_vec()).collect::<Result<Vec<_>>>()?;
        Ok(parts.concat())
    }
}

fn agrees(device: &Device) -> Outcome {
    let on = |device: &Device| Net::on(device)?.product(&Tape::new(device), "v");
    let reference = on(&Device::cpu_with(Precision::Double))?;
    // A chain of some fifty operations.
    compare("the product", &Computed(on(device)?), &Reference(reference), 1e-4)?;
    Ok(())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn symmetric() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let mut net = Net::on(&device)?;
    let tape = Tape::new(&device);
    let [u, v] = ["u", "v"].map(|name| net.vector(&tape, name).and_then(|vector| Net::flat(&vector)));
    let (u, v) = (u?, v?);
    let [hu, hv] = ["u", "v"].map(|name| net.product(&Tape::new(&device), name));
    let (hu, hv) = (hu?, hv?);
    let (a, b) = (dot(&u, &hv), dot(&v, &hu));
    assert!((a - b).abs() <= 1e-10 * a.abs().max(1.0), "{a} and {b}");
    assert!(hv.iter().any(|x| x.abs() > 1e-3), "only zeros were compared");
    // The difference of the gradients at θ + εv and θ − εv.
    let eps = 1e-5;
    let mut gradients = Vec::new();
    for step in [eps, -2.0 * eps] {
        let tape = Tape::new(&device);
        let vector = net.vector(&tape, "v")?.into_iter().map(|(path, part)| Ok((path, part.to_tensor()?)));
        let vector = vector.collect::<Result<std::collections::HashMap<_, _>>>()?;
        net.map(|leaf, x| match vector.get(&leaf.path) {
            Some(v) => x + x.tape().input(v) * step,
            None => x.clone(),
        })?;
        let tape = Tape::new(&device);
        gradients.push(Net::flat(&tape.backward(&net.loss(&tape)?)?.named(&net)?)?);
    }
    let difference = gradients[0].iter().zip(&gradients[1]).map(|(a, b)| (a - b) / (2.0 * eps)).collect();
    compare("the product", &Computed(hv), &Reference(difference), 1e-7)?;
    Ok(())
}

fn power_iteration(device: &Device) -> Outcome {
    // Eigenvalues 5, 2 and 1, with eigenvectors rotated by 1 radian in the first plane.
    let (sin, cos) = 1f32.sin_cos();
    let a = [5.0 * cos * cos + 2.0 * sin * sin, 3.0 * cos * sin, 0.0, 0.0];
    let a = [a[0], a[1], 0.0, a[1], 5.0 * sin * sin + 2.0 * cos * cos, 0.0, 0.0, 0.0, 1.0];
    let tape = Tape::new(device);
    let matrix = tape.input(&Tensor::from_slice(device, [3, 3], &a)?);
    let x = tape.input(&tensor(device, "x", [3, 1])?);
    let loss = (x.t().matmul(&matrix.matmul(&x)) * 0.5).sum();
    let mut v = tape.input(&Tensor::full(device, [3, 1], 1.0)?);
    let mut eigenvalue = v.norm();
    for _ in 0..25 {
        let product = tape.hvp(&loss, &[(&x, &v)])?.of(&x).expect("not linear");
        eigenvalue = product.norm();
        v = (product / &eigenvalue).detach();
    }
    assert!((eigenvalue.item()? - 5.0).abs() < 1e-4, "{}", eigenvalue.item()?);
    Ok(())
}

/// `uᵀ(Jv) = (Jᵀu)ᵀv` for a function of two values.
fn transposed() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let tape = Tape::new(&device);
    let input = |name, shape: [usize; 2]| Ok::<_, meganeura::Error>(tape.input(&tensor(&device, name, shape)?));
    let (a, b) = (input("a", [3, 4])?, input("b", [4, 2])?);
    let (va, vb) = (input("va", [3, 4])?, input("vb", [4, 2])?);
    let y = a.matmul(&b).tanh() * a.slice(1, 0..2).exp();
    let u = input("u", [3, 2])?;
    let along = (tape.jvp(&y, &[(&a, &va), (&b, &vb)])? * &u).sum();
    let grads = tape.backward_with(&y, &u)?;
    let back = (grads.of(&a).expect("depends") * va).sum() + (grads.of(&b).expect("depends") * vb).sum();
    let [along, back] = [along, back].map(|x| x.to_tensor()?.to_f64_vec().map(|x| x[0]));
    let (along, back) = (along?, back?);
    assert!((along - back).abs() < 1e-12 && along.abs() > 1e-3, "{along} and {back}");
    Ok(())
}

fn misuse() -> Outcome {
    let device = Device::cpu();
    let (tape, other) = (Tape::new(&device), Tape::new(&device));
    let x = tape.input(&tensor(&device, "x", [2, 3])?);
    let loss = x.square().sum();
    let v = tape.input(&tensor(&device, "v", [3, 2])?);
    let elsewhere = other.input(&tensor(&device, "x", [2, 3])?);
    for (error, line, kind, message) in [
        (tape.hvp(&loss, &[(&x, &v)]), line!(), ErrorKind::Shape, "hvp: the vector of value 0 must have"),
        (tape.hvp(&loss, &[(&x, &elsewhere)]), line!(), ErrorKind::Argument, "hvp: value 0 or"),
        (tape.hvp(&loss, &[(&v, &v)]), line!(), ErrorKind::NoGradient, "hvp: depends on none of the values"),
        (tape.hvp(&x, &[(&x, &x)]), line!(), ErrorKind::Shape, "backward: starts at a scalar"),
        (tape.jvp(&x, &[]).map(|_| unreachable!()), line!(), ErrorKind::NoGradient, "jvp: depends on none"),
        (tape.hvp(&loss, &[(&x.matmul(&x), &v)]), line!(), ErrorKind::Shape, "matmul"),
    ] {
        let error = error.expect_err(message);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.location().map(std::panic::Location::line), Some(line), "{error}");
    }
    let net = Linear::new(3, 2).init(&device, Seed::new(1))?;
    let loss = net.forward(&x).square().sum();
    let error = tape.module_hvp(&loss, &net, &[("wieght".to_owned(), v)]).expect_err("misspelt");
    assert!(error.to_string().starts_with("the module has no parameter at `wieght`; near it is `weight`"), "{error}");
    Ok(())
}
