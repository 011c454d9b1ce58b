//! A case of the suite: its model, its calls, and what the importer makes of them.

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use meganeura::onnx::{Item, Model, Port};
use meganeura::{DType, Device, Precision, Shape, Tape, Tensor, Var};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// A model with inputs and outputs, in three files.
pub struct Case {
    /// `KIND/NAME`.
    pub name: String,
    path: PathBuf,
}

/// What became of a case.
pub enum Outcome {
    Right,
    /// Refused by an error that names what it is about.
    Refused(String),
    /// Refused by an error that does not.
    Unclear(String),
    Wrong(String),
    Panicked(String),
}

/// A tensor of the suite, widened.
struct Numbers {
    shape: Vec<usize>,
    data: Data,
}

enum Data {
    Floats(Vec<f64>),
    /// Integers and conditions.
    Ints(Vec<i128>),
}

/// A value of the suite.
enum Given {
    Numbers(Numbers),
    Texts(Vec<usize>, Vec<String>),
    Sequence(Vec<Self>),
    Nothing,
}

impl Data {
    fn floats(&self) -> Vec<f64> {
        match self {
            Self::Floats(floats) => floats.clone(),
            Self::Ints(ints) => ints.iter().map(|&int| int as f64).collect(),
        }
    }
}

impl Case {
    /// The cases in a folder, by name.
    pub fn all(folder: &Path) -> Result<Vec<Self>, String> {
        let list = |folder: &Path| -> Result<Vec<PathBuf>, String> {
            let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.sort();
            Ok(paths)
        };
        let mut cases = Vec::new();
        for kind in list(folder)?.into_iter().filter(|path| path.is_dir()) {
            for path in list(&kind)?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "onnx"))
            {
                let part = |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned());
                let (Some(kind), Some(name)) = (part(&kind), part(&path)) else { continue };
                cases.push(Self { name: format!("{kind}/{name}"), path });
            }
        }
        Ok(cases)
    }

    pub fn kind(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    pub fn run(&self, device: &Device) -> Outcome {
        match catch_unwind(AssertUnwindSafe(|| self.outcome(device))) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(fault)) => Outcome::Unclear(format!("the case cannot be read: {fault}")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Outcome::Panicked(text.or(panic.downcast_ref().copied()).unwrap_or("no message").to_owned())
            }
        }
    }

    fn outcome(&self, device: &Device) -> Result<Outcome, String> {
        let read = |ending: &str| {
            let path = self.path.with_extension(ending);
            fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let info: Value = serde_json::from_slice(&read("json")?).map_err(|error| error.to_string())?;
        let bytes = read("safetensors")?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
        let number = |name: &str| info[name].as_f64().ok_or_else(|| format!("no number `{name}`"));
        let (rtol, atol) = (number("rtol")?, number("atol")?);
        let calls = info["calls"].as_array().ok_or("no calls")?;
        let refused = |message: String| Ok(refusal(message, &info));
        let file = read("onnx")?;
        let mut model = match Model::from_bytes(device, &file) {
            Ok(model) => model,
            Err(error) => return refused(text(&error)),
        };
        // Floats have the device's precision.
        let is_double = |port: &Port| port.to_string().contains(": double");
        let double = Device::cpu_with(Precision::Double);
        let mut device = device;
        if device.to_string() == Device::cpu().to_string() && model.inputs().iter().any(is_double) {
            device = &double;
            model = Model::from_bytes(device, &file).map_err(|error| text(&error))?;
        }
        for (call, counts) in calls.iter().enumerate() {
            let count = |k: usize| counts[k].as_u64().ok_or_else(|| format!("no counts of call {call}"));
            let list = |what: &str, count: u64| -> Result<Option<Vec<_>>, String> {
                (0..count).map(|k| given(&tensors, &info["others"], &format!("{call}.{what}.{k}"))).collect()
            };
            let (inputs, outputs) = (list("input", count(0)?)?, list("output", count(1)?)?);
            let (Some(inputs), Some(outputs)) = (inputs, outputs) else {
                return Ok(Outcome::Wrong("a model is accepted whose inputs or outputs have no values".to_owned()));
            };
            let is_plain = |given: &Given| matches!(given, Given::Numbers(numbers) if !numbers.shape.contains(&0));
            let is_plain = inputs.iter().chain(&outputs).all(is_plain)
                && model.inputs().iter().chain(model.outputs()).all(Port::is_tensor);
            let ways: &[(&str, Run)] =
                if is_plain { &[("", recorded), ("planned, ", planned)] } else { &[("", evaluated)] };
            let largest = if device.precision() == Precision::Double { f64::MAX } else { f32::MAX.into() };
            let mut all = Vec::new();
            for (way, run) in ways {
                let computed = match run(&model, device, &inputs) {
                    Ok(computed) => computed,
                    Err(message) => return refused(message),
                };
                if computed.len() != outputs.len() {
                    return Ok(Outcome::Wrong(format!("{way}{} outputs, not {}", computed.len(), outputs.len())));
                }
                all.extend(computed.into_iter().zip(&outputs).enumerate().map(move |(k, pair)| (way, k, pair)));
            }
            for (way, k, (found, expected)) in &all {
                let k = *k;
                // Two units in the last place: the suite computes in the types of the file, the importer in wider ones.
                let port = model.outputs()[k].to_string();
                let rtol = match port {
                    _ if port.contains(": bfloat16") => rtol.max(1.0 / 64.0),
                    _ if port.contains(": float16") => rtol.max(1.0 / 512.0),
                    _ => rtol,
                };
                if let Some(difference) = differing(found, expected, Tolerance { rtol, atol, largest }) {
                    return Ok(Outcome::Wrong(format!("{way}output {k}: {difference}")));
                }
            }
        }
        Ok(Outcome::Right)
    }
}

/// An error's message without the line of this program.
fn text(error: &meganeura::Error) -> String {
    let message = error.to_string();
    message.split_once("\n  at ").map_or(&*message, |(message, _)| message).to_owned()
}

/// The refusal of an error. It is clear if it names an operator of the model with its node, or one of its values.
fn refusal(message: String, info: &Value) -> Outcome {
    let names = |list: &str| {
        let names = info[list].as_array().into_iter().flatten().filter_map(Value::as_str);
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let has_node = names("operators").iter().any(|name| message.contains(&format!("({name})")));
    let has_value = names("values").iter().any(|name| message.contains(&format!("`{name}`")) || message.contains(name));
    if has_node && message.contains("node `") || has_value && !message.contains("node `") {
        Outcome::Refused(message)
    } else {
        Outcome::Unclear(message)
    }
}

/// A value of a call; `None` if it is of a kind that was not written.
fn given(tensors: &SafeTensors<'_>, others: &Value, name: &str) -> Result<Option<Given>, String> {
    let other = &others[name];
    if let Some(texts) = other["texts"].as_array() {
        let dims = other["dims"].as_array().into_iter().flatten();
        let dims = dims.filter_map(|extent| usize::try_from(extent.as_u64()?).ok()).collect();
        let texts = texts.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return Ok(Some(Given::Texts(dims, texts)));
    }
    if let Some(count) = other["sequence"].as_u64() {
        let items: Option<_> =
            (0..count).map(|k| given(tensors, others, &format!("{name}.{k}"))).collect::<Result<_, _>>()?;
        return Ok(items.map(Given::Sequence));
    }
    if other["nothing"].as_bool().is_some() {
        return Ok(Some(Given::Nothing));
    }
    let Ok(view) = tensors.tensor(name) else { return Ok(None) };
    let bytes = || view.data().as_chunks().0.iter();
    let data = match view.dtype() {
        Dtype::F64 => Data::Floats(bytes().map(|&bytes| f64::from_le_bytes(bytes)).collect()),
        Dtype::I64 => Data::Ints(bytes().map(|&bytes| i64::from_le_bytes(bytes).into()).collect()),
        Dtype::U64 => Data::Ints(bytes().map(|&bytes| u64::from_le_bytes(bytes).into()).collect()),
        other => return Err(format!("a tensor of type {other:?}")),
    };
    Ok(Some(Given::Numbers(Numbers { shape: view.shape().to_vec(), data })))
}

/// A way to run a model.
type Run = fn(&Model, &Device, &[Given]) -> Result<Vec<Given>, String>;

/// The results of a call with tensors, planned for their shapes: without their values, unless these decide.
fn planned(model: &Model, device: &Device, inputs: &[Given]) -> Result<Vec<Given>, String> {
    let input = |(port, given): (&Port, &Given)| match given {
        Given::Numbers(numbers) => tensor(device, port, numbers),
        _ => Err(format!("input {port}: no tensor is given")),
    };
    let inputs = model.inputs().iter().zip(inputs).map(input).collect::<Result<Vec<_>, _>>()?;
    let shapes: Vec<_> = inputs.iter().map(Tensor::shape).collect();
    if let Err(error) = model.compile_for(&shapes)
        && !shapes.is_empty()
        && !text(&error).contains("`Model::run`")
    {
        return Err(text(&error));
    }
    let results = model.run(&inputs.iter().collect::<Vec<_>>()).map_err(|error| text(&error))?;
    model.outputs().iter().zip(&results).map(|(port, tensor)| Ok(Given::Numbers(of(port, tensor)?))).collect()
}

/// The results of a call with tensors, recorded on a tape.
fn recorded(model: &Model, device: &Device, inputs: &[Given]) -> Result<Vec<Given>, String> {
    let tape = Tape::new(device);
    let input = |(port, given): (&Port, &Given)| match given {
        Given::Numbers(numbers) => {
            let tensor = tensor(device, port, numbers).map_err(|message| format!("input {port}: {message}"))?;
            Ok(tape.input(&tensor))
        }
        _ => Err(format!("input {port}: no tensor is given")),
    };
    let inputs = model.inputs().iter().zip(inputs).map(input).collect::<Result<Vec<_>, _>>()?;
    let results = model.record(&tape, &inputs).map_err(|error| text(&error))?;
    let tensor = |var: &Var| var.to_tensor().map_err(|error| text(&error));
    let of = |(port, var)| Ok(Given::Numbers(of(port, &tensor(var)?)?));
    model.outputs().iter().zip(&results).map(of).collect()
}

/// The results of a call with values of any kind.
fn evaluated(model: &Model, device: &Device, inputs: &[Given]) -> Result<Vec<Given>, String> {
    let input = |(port, given): (&Port, &Given)| {
        item(device, port, given).map_err(|message| format!("input {port}: {message}"))
    };
    let inputs = model.inputs().iter().zip(inputs).map(input).collect::<Result<Vec<_>, _>>()?;
    let results = model.evaluate(&inputs).map_err(|error| text(&error))?;
    model.outputs().iter().zip(&results).map(|(port, item)| of_item(port, item)).collect()
}

fn item(device: &Device, port: &Port, given: &Given) -> Result<Item, String> {
    Ok(match given {
        Given::Numbers(numbers) if numbers.shape.contains(&0) => Item::Empty(numbers.shape.clone()),
        Given::Numbers(numbers) => Item::Tensor(tensor(device, port, numbers)?),
        Given::Texts(dims, texts) => Item::Texts(dims.clone(), texts.clone()),
        Given::Sequence(items) => {
            Item::Sequence(items.iter().map(|given| item(device, port, given)).collect::<Result<_, _>>()?)
        }
        Given::Nothing => Item::Nothing,
    })
}

fn of_item(port: &Port, item: &Item) -> Result<Given, String> {
    Ok(match item {
        Item::Tensor(tensor) => Given::Numbers(of(port, tensor)?),
        Item::Empty(dims) => Given::Numbers(Numbers { shape: dims.clone(), data: Data::Floats(Vec::new()) }),
        Item::Texts(dims, texts) => Given::Texts(dims.clone(), texts.clone()),
        Item::Sequence(items) => {
            Given::Sequence(items.iter().map(|item| of_item(port, item)).collect::<Result<_, _>>()?)
        }
        Item::Nothing => Given::Nothing,
        other => return Err(format!("an output {other:?}")),
    })
}

/// Numbers on a device, for an input.
fn tensor(device: &Device, port: &Port, numbers: &Numbers) -> Result<Tensor, String> {
    let Some(shape) = Shape::try_new(&numbers.shape) else { return Err(format!("{} axes", numbers.shape.len())) };
    // The bits of numbers without a sign.
    let tensor = match (&numbers.data, port.dtype(DType::F32)) {
        (Data::Ints(ints), DType::I32) => {
            Tensor::from_i32(device, shape, &ints.iter().map(|&int| int as i32).collect::<Vec<_>>())
        }
        (Data::Ints(ints), DType::I64) => {
            Tensor::from_i64(device, shape, &ints.iter().map(|&int| int as i64).collect::<Vec<_>>())
        }
        _ => Tensor::from_f64(device, shape, &numbers.data.floats()),
    };
    tensor.map_err(|error| text(&error))
}

fn of(port: &Port, tensor: &Tensor) -> Result<Numbers, String> {
    let text = |error| text(&error);
    let data = match tensor.ty().dtype {
        DType::I32 | DType::I64 => {
            let is_unsigned = port.to_string().contains(": uint64");
            let wide = |int: i64| if is_unsigned { i128::from(int as u64) } else { i128::from(int) };
            Data::Ints(tensor.to_i64_vec().map_err(text)?.into_iter().map(wide).collect())
        }
        _ => Data::Floats(tensor.to_f64_vec().map_err(text)?),
    };
    Ok(Numbers { shape: tensor.shape().dims().to_vec(), data })
}

/// The difference that is allowed.
#[derive(Clone, Copy)]
struct Tolerance {
    rtol: f64,
    atol: f64,
    /// The largest number of the device's precision; those beyond are infinite.
    largest: f64,
}

/// What differs between a result and the suite's: the kind, texts, the items of a sequence, or numbers.
fn differing(found: &Given, expected: &Given, tolerance: Tolerance) -> Option<String> {
    match (found, expected) {
        (Given::Numbers(found), Given::Numbers(expected)) => difference(found, expected, tolerance),
        (Given::Texts(found, texts), Given::Texts(expected, others)) => (found != expected || texts != others)
            .then(|| format!("texts {found:?} {texts:?}, not {expected:?} {others:?}")),
        (Given::Sequence(found), Given::Sequence(expected)) if found.len() == expected.len() => {
            let each = |(k, (found, expected))| {
                differing(found, expected, tolerance).map(|message| format!("item {k}: {message}"))
            };
            found.iter().zip(expected).enumerate().find_map(each)
        }
        (Given::Nothing, Given::Nothing) => None,
        _ => Some("it is of another kind, or of another length".to_owned()),
    }
}

/// What differs between a result and the suite's: shapes, or numbers by more than the tolerance. Integers must be
/// equal.
fn difference(found: &Numbers, expected: &Numbers, tolerance: Tolerance) -> Option<String> {
    if found.shape != expected.shape {
        return Some(format!("the shape is {:?}, not {:?}", found.shape, expected.shape));
    }
    if let (Data::Ints(found), Data::Ints(expected)) = (&found.data, &expected.data) {
        let (k, (a, b)) = found.iter().zip(expected).enumerate().find(|(_, (a, b))| a != b)?;
        return Some(format!("element {k} is {a}, not {b}"));
    }
    let differs = |&(_, (a, b)): &(usize, (f64, f64))| {
        let Tolerance { rtol, atol, largest } = tolerance;
        let far = if matches!(expected.data, Data::Ints(_)) { 0.0 } else { atol + rtol * b.abs() };
        let overflows = b.abs() > largest && a == f64::INFINITY.copysign(b);
        !(a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= far && b.is_finite() || overflows)
    };
    let (found, expected) = (found.data.floats(), expected.data.floats());
    let (k, (a, b)) = found.into_iter().zip(expected).enumerate().find(differs)?;
    Some(format!("element {k} is {a}, not {b}"))
}

impl Outcome {
    /// The reason of a refusal, without the names and numbers of a single case.
    pub fn reason(&self) -> Option<String> {
        let (Self::Refused(message) | Self::Unclear(message)) = self else { return None };
        let mut reason = String::new();
        // `Op: message`
        let rest = match message.rsplit_once("node `").and_then(|(_, rest)| rest.split_once("` (")) {
            Some((_, rest)) => rest.replacen("): ", ": ", 1),
            None => message.clone(),
        };
        for (k, part) in rest.split('`').enumerate() {
            // Names of values are between backticks, as are those of operators and attributes.
            let part = if k % 2 == 1 && part.len() <= 2 { "…" } else { part };
            let quote = if k == 0 { "" } else { "`" };
            reason.push_str(quote);
            let digits = |c: char| c.is_ascii_digit();
            let mut number = false;
            for c in part.chars() {
                if !digits(c) || !number {
                    reason.push(if digits(c) && k % 2 == 0 { '#' } else { c });
                }
                number = digits(c) && k % 2 == 0;
            }
        }
        Some(reason.replace('\n', " "))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => f.write_str("right"),
            Self::Refused(message) => write!(f, "refused: {message}"),
            Self::Unclear(message) => write!(f, "refused, and not clear: {message}"),
            Self::Wrong(message) => write!(f, "wrong: {message}"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
        }
    }
}
