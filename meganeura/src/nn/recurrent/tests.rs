use super::*;
use crate::{Device, ErrorKind, Init, Layer, ModuleExt, Param, Result, Seed, Shape, Tape, Tensor, Var};

fn input(tape: &Tape, shape: &[usize]) -> Var {
    let numbers: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| ((i * 7 % 11) as f32 - 5.0) / 4.0).collect();
    tape.input(&Tensor::from_slice(&tape.device(), Shape::new(shape), &numbers).unwrap())
}

fn numbers(cell: &mut RnnCell, weights: [f32; 2], biases: [f32; 2]) {
    let device = Device::cpu();
    let set = |param: &mut Param, shape: &[usize], x: f32| {
        param.set(Tensor::from_slice(&device, Shape::new(shape), &[x]).unwrap()).unwrap();
    };
    set(&mut cell.weight_ih, &[1, 1], weights[0]);
    set(&mut cell.weight_hh, &[1, 1], weights[1]);
    set(cell.bias_ih.as_mut().unwrap(), &[1], biases[0]);
    set(cell.bias_hh.as_mut().unwrap(), &[1], biases[1]);
}

#[test]
fn computes_the_formula() {
    let device = Device::cpu();
    let config = || Rnn::new(1, 1).nonlinearity(RnnNonlinearity::Relu);
    let mut rnn = config().bidirectional(true).init(&device, Seed::new(0)).unwrap();
    numbers(&mut rnn.cells[0], [1.0, 2.0], [0.25, 0.25]);
    numbers(&mut rnn.cells[1], [10.0, 1.0], [0.0, 0.0]);
    let tape = Tape::inference(&device);
    let x = tape.input(&Tensor::from_slice(&device, [1, 3, 1], &[1.0, -9.0, 2.0]).unwrap());
    let (y, state) = rnn.forward_with(&x, None, Steps::All);
    // Forward: 1.5, relu(2·1.5 − 8.5) = 0, 2.5. Backward: 20, relu(20 − 90) = 0, 10.
    assert_eq!(y.to_vec().unwrap(), [1.5, 10.0, 0.0, 0.0, 2.5, 20.0]);
    assert_eq!(state.to_vec().unwrap(), [2.5, 10.0]);
}

#[test]
fn parameters_have_the_names_and_shapes_of_pytorch() {
    let lstm = Lstm::new(3, 4).layers(2).bidirectional(true).init(&Device::cpu(), Seed::new(0)).unwrap();
    let parameters: Vec<_> =
        lstm.named_parameters().into_iter().map(|(path, param)| (path, param.shape().to_string())).collect();
    let of = |layer: usize, suffix: &str, inputs: usize| {
        let name = |name: &str| format!("{name}_l{layer}{suffix}");
        [
            (name("weight_ih"), format!("[16, {inputs}]")),
            (name("weight_hh"), "[16, 4]".to_owned()),
            (name("bias_ih"), "[16]".to_owned()),
            (name("bias_hh"), "[16]".to_owned()),
        ]
    };
    assert_eq!(parameters, [of(0, "", 3), of(0, "_reverse", 3), of(1, "", 8), of(1, "_reverse", 8)].concat());
    assert!(format!("{lstm:#}").contains("weight_hh_l1_reverse  f32[16, 4]"), "{lstm:#}");
    let gru = Gru::new(3, 4).bias(false).init(&Device::cpu(), Seed::new(0)).unwrap();
    let paths: Vec<_> = gru.named_parameters().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["weight_ih_l0", "weight_hh_l0"]);
    let cell = GruCell::new(3, 4).init(&Device::cpu(), Seed::new(0)).unwrap();
    let paths: Vec<_> = cell.named_parameters().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]);
}

#[test]
fn initial_values_lie_within_the_bound_and_differ() {
    let gru = Gru::new(3, 16).layers(2).init(&Device::cpu(), Seed::new(0)).unwrap();
    let all: Vec<_> = gru.named_parameters().iter().map(|(_, param)| param.value().to_vec().unwrap()).collect();
    for values in &all {
        assert!(values.iter().all(|x| x.abs() <= 0.25 && *x != 0.0));
    }
    assert_ne!(all[2], all[6]);
}

/// The contents of padding do not matter: each sequence gets the results of its own length.
#[test]
fn sequences_of_a_batch_are_as_if_alone() -> Result<()> {
    let device = Device::cpu();
    let lstm = Lstm::new(2, 3).layers(2).bidirectional(true).init(&device, Seed::new(1))?;
    let tape = Tape::inference(&device);
    let x = input(&tape, &[3, 4, 2]);
    let mask = [[1.0f32, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0; 4]];
    let mask = tape.input(&Tensor::from_slice(&device, [3, 4], mask.as_flattened())?);
    let x = mask.reshape([3, 4, 1]).where_cond(&x, &tape.scalar(f64::NAN));
    let lengths = tape.input(&Tensor::indices(&device, [3], &[4, 2, 0])?);
    let (y, state) = lstm.forward_with(&x, None, Steps::Lengths(&lengths));
    let (same, _) = lstm.forward_with(&x, None, Steps::Mask(&mask));
    assert_eq!(y.to_vec()?, same.to_vec()?);
    let (first, of_first) = lstm.forward_with(&x.slice(0, 0..1), None, Steps::All);
    let (second, of_second) = lstm.forward_with(&x.slice(0, 1..2).slice(1, 0..2), None, Steps::All);
    let close = |a: &Var, b: &Var| -> Result<bool> {
        Ok(a.to_vec()?.iter().zip(b.to_vec()?).all(|(a, b)| (a - b).abs() < 1e-6))
    };
    assert!(close(&y.slice(0, 0..1), &first)? && close(&y.slice(0, 1..2).slice(1, 0..2), &second)?);
    assert!(close(&state.c.slice(1, 0..1), &of_first.c)? && close(&state.h.slice(1, 1..2), &of_second.h)?);
    assert_eq!(y.slice(0, 1..3).slice(1, 2..4).to_vec()?, [0.0; 24]);
    assert_eq!(state.h.slice(1, 2..3).to_vec()?, [0.0; 12]);
    Ok(())
}

/// NaN in padding reaches neither the result nor a gradient.
#[test]
fn padding_may_be_nan_in_training() -> Result<()> {
    let device = Device::cpu();
    let layer = Gru::new(2, 3).init(&device, Seed::new(1))?;
    let gradients = |padding: f64| -> Result<Vec<Vec<f32>>> {
        let tape = Tape::new(&device);
        let mask = tape.input(&Tensor::from_slice(&device, [2, 3], &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0])?);
        let x = mask.reshape([2, 3, 1]).where_cond(&input(&tape, &[2, 3, 2]), &tape.scalar(padding));
        let grads = tape.backward(&layer.forward_with(&x, None, Steps::Mask(&mask)).0.square().sum())?;
        layer.named_parameters().iter().map(|(_, param)| grads.get(param).expect("it is used").to_vec()).collect()
    };
    assert_eq!(gradients(f64::NAN)?, gradients(7.0)?);
    Ok(())
}

/// A bias that is missing counts as zeros.
#[test]
fn either_bias_may_be_missing() -> Result<()> {
    let device = Device::cpu();
    let layer = Gru::new(2, 3).init(&device, Seed::new(1))?;
    let tape = Tape::inference(&device);
    let x = input(&tape, &[2, 3, 2]);
    for of_input in [true, false] {
        let (mut missing, mut zeros) = (layer.clone(), layer.clone());
        let bias = |layer: &mut Gru| {
            let cell = &mut layer.cells[0];
            std::mem::take(if of_input { &mut cell.bias_ih } else { &mut cell.bias_hh })
        };
        let replaced = bias(&mut missing).expect("there is a bias");
        let zero = Param::new(Tensor::zeros(&device, replaced.shape())?);
        bias(&mut zeros);
        let cell = &mut zeros.cells[0];
        *if of_input { &mut cell.bias_ih } else { &mut cell.bias_hh } = Some(zero);
        assert_eq!(missing.forward(&x).to_vec()?, zeros.forward(&x).to_vec()?);
        assert_ne!(missing.forward(&x).to_vec()?, layer.forward(&x).to_vec()?);
    }
    Ok(())
}

#[test]
fn cells_are_steps_of_layers() -> Result<()> {
    let device = Device::cpu();
    let tape = Tape::inference(&device);
    let x = input(&tape, &[2, 2, 3]);
    let lstm = Lstm::new(3, 4).init(&device, Seed::new(1))?;
    let first = lstm.cells[0].step(&x.slice(1, 0..1).reshape([2, 3]), None);
    let second = lstm.cells[0].step(&x.slice(1, 1..2).reshape([2, 3]), Some(&first));
    let (_, state) = lstm.forward_with(&x, None, Steps::All);
    assert_eq!((second.h.to_vec()?, second.c.to_vec()?), (state.h.to_vec()?, state.c.to_vec()?));
    Ok(())
}

#[test]
fn dropout_is_between_layers_in_training() -> Result<()> {
    let device = Device::cpu();
    let mut gru = Gru::new(3, 8).layers(2).dropout(0.5).init(&device, Seed::new(1))?;
    let run = |gru: &Gru, tape: &Tape| gru.forward(&input(tape, &[2, 3, 3])).to_vec();
    let plain = run(&gru, &Tape::inference(&device))?;
    assert_ne!(run(&gru, &Tape::with_seed(&device, 1))?, plain);
    gru.evaluate("**")?;
    assert_eq!(run(&gru, &Tape::with_seed(&device, 1))?, plain);
    gru.train("**")?;
    gru.dropout = 0.0;
    assert_eq!(run(&gru, &Tape::with_seed(&device, 1))?, plain);
    Ok(())
}

#[test]
fn senseless_settings_are_errors() {
    let fails = |config: RecurrentConfig<GruGates>, why: &str| {
        let error = config.init(&Device::cpu(), Seed::new(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().contains(why), "{error}");
    };
    fails(Gru::new(0, 1), "gru: from 0 numbers to a state of 1");
    fails(Gru::new(1, 0), "at least 1");
    fails(Gru::new(1, 1).layers(0), "0 layers");
    fails(Gru::new(1, 1).layers(2).dropout(1.0), "the probability 1");
    fails(Gru::new(1, 1).dropout(0.5), "between layers");
    assert!(LstmCell::new(0, 1).init(&Device::cpu(), Seed::new(0)).is_err());
}

#[test]
fn misfits_name_the_parameter_and_the_callers_line() {
    let device = Device::cpu();
    let lstm = Lstm::new(3, 4).init(&device, Seed::new(0)).unwrap();
    lstm.cells[0].weight_ih.set_path("encoder.weight_ih_l0");
    let tape = Tape::new(&device);
    let holds = |error: crate::Error, line: u32, why: &str| {
        assert_eq!(error.location().unwrap().line(), line, "{error}");
        let message = error.to_string();
        assert!(message.starts_with("lstm: ") && message.contains(why), "{message}");
    };
    for (shape, why) in [(&[2, 3][..], "must be floats [N, T, 3], it is f32[2, 3]"), (&[2, 5, 4], "these have 4")] {
        let (y, line) = (lstm.forward(&input(&tape, shape)), line!());
        let error = y.error().unwrap();
        assert!(error.to_string().contains("(parameter encoder.weight_ih_l0)"), "{error}");
        holds(error, line, why);
    }
    let x = input(&tape, &[2, 5, 3]);
    let state = LstmState { h: input(&tape, &[1, 2, 4]), c: input(&tape, &[2, 1, 4]) };
    let ((y, last), line) = (lstm.forward_with(&x, Some(&state), Steps::All), line!());
    holds(y.error().unwrap(), line, "the initial state must be [1, 2, 4], it is [2, 1, 4]");
    assert!(last.c.error().is_some());
    let lengths = |numbers: &[u32]| tape.input(&Tensor::indices(&device, [numbers.len()], numbers).unwrap());
    let ((y, _), line) = (lstm.forward_with(&x, None, Steps::Lengths(&lengths(&[5, 6]))), line!());
    holds(y.error().unwrap(), line, "a length of 6, the sequences have 5 steps");
    let ((y, _), line) = (lstm.forward_with(&x, None, Steps::Lengths(&lengths(&[5]))), line!());
    holds(y.error().unwrap(), line, "the lengths must be integers [2]");
    let ((y, _), line) = (lstm.forward_with(&x, None, Steps::Mask(&input(&tape, &[5, 2]))), line!());
    holds(y.error().unwrap(), line, "the mask must be floats [2, 5]");
    let (state, line) = (lstm.cells[0].step(&x, None), line!());
    holds(state.h.error().unwrap(), line, "the input must be floats [N, 3]");
    let (state, line) = (lstm.cells[0].step(&input(&tape, &[1, 3]), Some(&state)), line!());
    holds(state.h.error().unwrap(), line - 2, "the input must be floats");
}
