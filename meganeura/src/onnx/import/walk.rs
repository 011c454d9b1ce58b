//! The walk over the nodes of a graph: values are computed on the host, or recorded on the tape.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::call::{Budget, Call};
use super::element::Element;
use super::initial::{Initial, SMALL};
use super::operators::{find, is_own, title};
use super::port::Port;
use super::quantize::Dequantised;
use super::spelled::{Found, Spelled};
use super::texts::Texts;
use super::value::{Value, sound};
use super::{Model, fold, graph, signature, spelled};
use crate::error::{bail, shortened};
use crate::onnx::proto;
use crate::{Device, Error, ErrorKind, Precision, Result, Tape};

/// The most elements to compute on the host, and [`GROWTH`] for each number in the file.
const MOST_FOLDED: usize = 1 << 21;

/// The most elements to compute when the model runs that depend on no input, and [`GROWTH`] for each number in the
/// file: an expanded constant takes no memory, but its reduction takes time.
const MOST_EXPANDED: usize = 1 << 26;

/// The elements that may be computed for each number in the file.
const GROWTH: usize = 16;

/// The values of a graph while it is recorded.
struct State<'a> {
    values: HashMap<&'a str, Value>,
    /// Names of values on the tape that depend on no input.
    fixed: HashSet<&'a str>,
    /// The bytes that values were, by name.
    dequantised: HashMap<&'a str, Dequantised>,
    /// Values that are parts of functions, by name.
    spelled: HashMap<&'a str, Spelled>,
    /// The values around a graph that is inside a node.
    outer: Option<&'a State<'a>>,
    recording: &'a Recording,
}

/// What the nodes of a model share while it is recorded.
pub(super) struct Recording {
    /// What may be computed on the host.
    pub(super) folded: Budget,
    /// What may be computed on the tape, without an input.
    expanded: Budget,
    pub(super) texts: RefCell<Texts>,
}

impl<'a> State<'a> {
    fn new(recording: &'a Recording, outer: Option<&'a State<'a>>) -> Self {
        let (values, fixed) = (HashMap::new(), HashSet::new());
        Self { values, fixed, dequantised: HashMap::new(), spelled: HashMap::new(), outer, recording }
    }

    /// A value of this graph or of one around it.
    fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).or_else(|| self.outer?.value(name))
    }

    /// `true` for a value that depends on no input.
    fn is_fixed(&self, name: &str) -> bool {
        match self.values.get(name) {
            Some(Value::Known(_) | Value::Nothing(_)) => true,
            Some(Value::Var(..) | Value::Sequence(..)) => self.fixed.contains(name),
            None => self.outer.is_some_and(|outer| outer.is_fixed(name)),
        }
    }
}

impl Model {
    pub(super) fn recording(&self) -> Recording {
        let budget = |most: usize| Budget::new(most.saturating_add(self.constants.saturating_mul(GROWTH)));
        let texts = RefCell::new(self.texts.clone());
        Recording { folded: budget(MOST_FOLDED), expanded: budget(MOST_EXPANDED), texts }
    }

    /// The outputs for these inputs.
    pub(super) fn values(&self, tape: &Tape, recording: &Recording, given: Vec<(&str, Value)>) -> Result<Vec<Value>> {
        let mut state = State::new(recording, None);
        state.values.extend(given);
        for (name, initial) in &self.initializers {
            let value = match initial {
                Initial::Known(array) => Value::Known(Arc::clone(array)),
                Initial::Tensor(tensor, element) => {
                    let var = tape.input(tensor);
                    if let Some(error) = var.error() {
                        return Err(error.context(format_args!("tensor `{}`", shortened(name))));
                    }
                    state.fixed.insert(name);
                    Value::Var(var, *element)
                }
            };
            state.values.insert(name, value);
        }
        for (name, (param, element)) in &self.weights {
            state.values.insert(name, Value::Var(tape.param(param), *element));
        }
        self.steps(&self.graph, tape, &mut state).map_err(|error| match &self.path {
            Some(path) => error.context(path.display()),
            None => error,
        })?;
        let output = |port: &Port| match state.values.get(port.name()) {
            Some(Value::Nothing(_)) if port.is_optional() => Ok(Value::Nothing(port.element())),
            Some(value) if value.element() != port.element() => {
                bail!(Checkpoint, "output {port} is computed as {}", value.element().name())
            }
            Some(Value::Nothing(_)) => bail!(Checkpoint, "output {port} is left out, and not optional"),
            Some(Value::Sequence(..)) if !port.is_sequence() => {
                bail!(Checkpoint, "output {port} is computed as a sequence, not a tensor")
            }
            Some(Value::Known(_) | Value::Var(..)) if port.is_sequence() => {
                bail!(Checkpoint, "output {port} is computed as a tensor, not a sequence")
            }
            Some(value) => Ok(value.clone()),
            None => bail!(Checkpoint, "no node computes the output `{}`", shortened(port.name())),
        };
        self.outputs.iter().map(output).collect()
    }

    /// Records or computes the nodes of a graph.
    fn steps<'a>(&self, graph: &'a proto::Graph, tape: &Tape, state: &mut State<'a>) -> Result<()> {
        let within = |node| move |error: Error| error.context(format_args!("node {}", title(node)));
        graph.node.iter().try_for_each(|node| self.step(node, tape, state).map_err(within(node)))
    }

    /// The results of a graph inside a node.
    fn body(&self, graph: &proto::Graph, operands: Vec<Value>, tape: &Tape, outer: &State<'_>) -> Result<Vec<Value>> {
        let mut state = State::new(outer.recording, Some(outer));
        if operands.len() != graph.input.len() {
            bail!(Checkpoint, "{} operands of a graph that has {}", operands.len(), graph.input.len());
        }
        for (info, value) in graph.input.iter().zip(operands) {
            state.values.insert(&info.name, value);
        }
        self.steps(graph, tape, &mut state)?;
        let result = |info: &proto::ValueInfo| match state.value(&info.name) {
            Some(value) => Ok(value.clone()),
            None => bail!(Checkpoint, "no node computes `{}`, a result of the graph inside it", shortened(&info.name)),
        };
        graph.output.iter().map(result).collect()
    }

    /// Records or computes a node.
    fn step<'a>(&self, node: &'a proto::Node, tape: &Tape, state: &mut State<'a>) -> Result<()> {
        let operand = |name: &String| match state.value(name) {
            _ if name.is_empty() => Ok(None),
            Some(value) => Ok(Some(value.clone())),
            None => bail!(Checkpoint, "it takes `{}`, which no earlier node computes", shortened(name)),
        };
        let inputs = node.input.iter().map(operand).collect::<Result<Vec<_>>>()?;
        if let Some(signature) = signature::of(node) {
            signature.check_types(&inputs)?;
        }
        // A graph inside the node may take inputs of the model.
        let is_fixed = graph::bodies(node).next().is_none()
            && node.input.iter().all(|name| name.is_empty() || state.is_fixed(name));
        if let ([name], Some(found)) = (&node.output[..], Dequantised::of(node, &inputs)) {
            state.dequantised.insert(name, found);
        }
        let parts: Vec<_> = node.input.iter().map(|name| state.spelled.get(&name[..]).cloned()).collect();
        let whole = match (spelled::found(node, &inputs, &parts, (self.opset, tape)), &node.output[..]) {
            (Some(Found::Whole(y)), _) => Some(y),
            (Some(Found::Part(part)), [name]) => {
                state.spelled.insert(name, *part);
                None
            }
            _ => None,
        };
        let results = match (self.computed(node, &inputs, state), whole) {
            (Some(results), _) => results,
            (None, Some(y)) => vec![Value::Var(sound(y?)?, inputs[0].as_ref().map_or(Element::F32, Value::element))],
            (None, None) => self.results(node, inputs, tape, state)?,
        };
        for (k, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let Some(value) = results.get(k) else {
                bail!(Checkpoint, "its result {k}, `{}`, is not computed", shortened(name));
            };
            if is_fixed {
                state.recording.expanded.charge(value.elements())?;
                state.fixed.insert(name);
            }
            state.values.insert(name, value.clone());
        }
        Ok(())
    }

    /// The results of a node, recorded on a tape, or computed if they can be folded.
    fn results(
        &self,
        node: &proto::Node,
        inputs: Vec<Option<Value>>,
        tape: &Tape,
        state: &State<'_>,
    ) -> Result<Vec<Value>> {
        let recorder = |graph: &proto::Graph, operands| self.body(graph, operands, tape, state);
        let mut call = Call::new(node, inputs, tape, self.opset, state.recording, &recorder)?;
        call.origins = node.input.iter().map(|name| state.dequantised.get(&name[..]).cloned()).collect();
        let folded = if is_own(&node.domain) { fold::fold(&call)? } else { None };
        let results = match folded {
            Some(results) => results,
            None => find(node)?(&call).map_err(|error| call.open().map_or(error, |name| self.undecided(name)))?,
        };
        if let Some(error) = results.iter().find_map(Value::error) {
            return Err(Error::new(ErrorKind::Checkpoint, error.to_string()));
        }
        if self.opset < 6 {
            // It said which operands may be overwritten.
            call.ignore(&["consumed_inputs"]);
        }
        call.finish()?;
        Ok(results)
    }

    /// The results of a node whose operands are few numbers that are known, computed now on the CPU: other nodes may
    /// need them while they are recorded. `None` if there are other operands, if the results are large, or if there is
    /// an error, which recording the node gives as well.
    fn computed(&self, node: &proto::Node, inputs: &[Option<Value>], state: &State<'_>) -> Option<Vec<Value>> {
        let is_known = inputs.iter().any(Option::is_some) && inputs.iter().flatten().all(|value| value.is_known(SMALL));
        if !is_known || graph::bodies(node).next().is_some() {
            return None;
        }
        let tape = Tape::inference(self.host());
        let results = self.results(node, inputs.to_vec(), &tape, state).ok()?;
        let elements = results.iter().fold(0usize, |sum, value| sum.saturating_add(value.elements()));
        if elements > fold::MOST {
            return None;
        }
        state.recording.folded.charge(elements).ok()?;
        results.iter().map(|value| value.known(&tape).ok()).collect()
    }

    /// The CPU, for numbers that are needed while the model is recorded.
    fn host(&self) -> &Device {
        self.host.get_or_init(|| match self.device.precision() {
            Precision::Double => Device::cpu_with(Precision::Double),
            _ => Device::cpu(),
        })
    }

    /// The error for a value that decides what is recorded, and depends on values that are not known.
    fn undecided(&self, name: &str) -> Error {
        let mut from = self.sources(name).iter().map(|input| format!("`{}`", shortened(input))).collect::<Vec<_>>();
        from.truncate(3);
        let from = if from.is_empty() { "the inputs".to_owned() } else { from.join(", ") };
        let message = format!(
            "`{}` decides what is computed, and depends on the values of {from}: use `Model::run`, which plans for \
             each of them",
            shortened(name)
        );
        Error::new(ErrorKind::Checkpoint, message)
    }

    /// The inputs of the model on whose values a value depends.
    fn sources(&self, name: &str) -> Vec<&str> {
        let makers: HashMap<&str, &proto::Node> = (self.graph.node.iter())
            .filter(|node| !matches!(&node.op_type[..], "Shape" | "Size"))
            .flat_map(|node| node.output.iter().map(move |name| (&name[..], node)))
            .collect();
        let (mut names, mut next) = (HashSet::from([name]), vec![name]);
        while let Some(name) = next.pop() {
            let operands = makers.get(name).into_iter().flat_map(|node| &node.input);
            next.extend(operands.map(String::as_str).filter(|name| names.insert(name)));
        }
        self.inputs.iter().map(Port::name).filter(|name| names.contains(name)).collect()
    }
}
