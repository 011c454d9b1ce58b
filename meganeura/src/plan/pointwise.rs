//! Fused pointwise operations: a straight-line program run for each element, and its WGSL.

use std::fmt::Write as _;

use super::{KernelWork, Load, Step};
use crate::graph::Exact;
use crate::kernel::launch::{self, Binding, Launch};
use crate::ops::{Pointwise, Primitive};
use crate::{DType, Shape};

/// Where an instruction's operand comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// Operand number `.0` of the step, at this element.
    Operand(usize),
    /// Word number `.0` of the host's block.
    Host(usize),
    Const(Exact),
    /// The result of an earlier instruction.
    Result(usize),
    /// This element of what the kernel computes into whose launch the program is merged.
    Kernel,
}

/// Pointwise operations on elements of one shape, in order, and which of their results are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) shape: Shape,
    pub(crate) instructions: Vec<(Pointwise, Vec<Input>)>,
    /// What result `k` of the program is.
    pub(crate) results: Vec<Input>,
}

/// What a program declares in a shader. All names in it begin with a prefix of its own.
struct Wgsl {
    declarations: String,
    functions: String,
}

/// Statements for the element whose index is the variable `i` with a suffix, which all local variables have.
#[derive(Default)]
struct Element {
    reads: String,
    /// With what a kernel computed in `value`.
    work: String,
    writes: String,
}

/// Elements from which an invocation computes several: what then takes the time is to start workgroups, and reading is faster with
/// more under way.
const MANY: usize = 1 << 20;

impl Program {
    /// The program that stores one thing.
    pub(crate) fn copy(shape: Shape, from: Input) -> Self {
        Self { shape, instructions: Vec::new(), results: vec![from] }
    }

    fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        self.instructions.iter().flat_map(|(_, inputs)| inputs).chain(&self.results).copied()
    }

    /// The row that makes an input, and that row's first operand.
    fn maker(&self, input: Input) -> Option<(Pointwise, Input)> {
        let Input::Result(k) = input else { return None };
        let (op, inputs) = &self.instructions[k];
        Some((*op, *inputs.first()?))
    }

    /// The operands of the step that this reads, in order.
    fn operands(&self) -> Vec<usize> {
        self.read(|input| if let Input::Operand(k) = input { Some(k) } else { None })
    }

    /// The words of the host's block that this reads, in order.
    fn words(&self) -> Vec<usize> {
        self.read(|input| if let Input::Host(at) = input { Some(at) } else { None })
    }

    /// What this reads of one kind, each once.
    fn read(&self, kind: impl Fn(Input) -> Option<usize>) -> Vec<usize> {
        let mut read: Vec<_> = self.inputs().filter_map(kind).collect();
        read.sort_unstable();
        read.dedup();
        read
    }

    /// What the statements of [`Program::element`] need, with its bindings appended to a launch's. Result `k` is result `results[k]`
    /// of the step; with no results given, nothing is stored. An operand in the memory of a result is read from there.
    fn wgsl(&self, step: &Step, results: &[usize], prefix: &str, bindings: &mut Vec<Binding>) -> Wgsl {
        let mut declarations = String::new();
        let mut declare = |binding, access, name: &str, dtype| {
            let (at, ty) = (bindings.len(), wgsl_type(dtype));
            let _ =
                writeln!(declarations, "@group(0) @binding({at}) var<storage, {access}> {prefix}{name}: array<{ty}>;");
            bindings.push(binding);
        };
        for k in self.operands() {
            if updated(step, results, k).is_none() {
                let operand = &step.inputs[k];
                declare(Binding::Input(k), "read", &format!("x{k}"), operand.argument.ty.dtype);
            }
        }
        if !self.words().is_empty() {
            declare(Binding::Host, "read", "host", DType::F32);
        }
        for &result in results {
            declare(Binding::Output(result), "read_write", &format!("y{result}"), step.outputs[result].1.dtype);
        }
        let mut rows: Vec<Pointwise> = Vec::new();
        for (op, _) in &self.instructions {
            if !rows.contains(op) {
                rows.push(*op);
            }
        }
        let functions: Vec<_> = rows.iter().map(|op| op.wgsl_function(prefix)).collect();
        Wgsl { declarations, functions: functions.join("\n") }
    }

    /// The statements for one element.
    fn element(&self, step: &Step, results: &[usize], prefix: &str, suffix: &str) -> Element {
        let mut element = Element::default();
        let index = format!("i{suffix}");
        for k in self.operands() {
            let source = updated(step, results, k).map_or_else(|| format!("x{k}"), |result| format!("y{result}"));
            let at = launch::offset(&step.inputs[k].argument.layout, &index);
            let _ = writeln!(element.reads, "    let a{k}{suffix} = {prefix}{source}[{at}];");
        }
        for at in self.words() {
            let _ = writeln!(element.reads, "    let h{at}{suffix} = {prefix}host[{at}u];");
        }
        for (k, (op, inputs)) in self.instructions.iter().enumerate() {
            let call = match op.of_itself(inputs, |input| self.maker(input)) {
                Some((function, input)) => format!("{function}({})", spell(&input, suffix)),
                None => {
                    let operands: Vec<_> = inputs.iter().map(|input| spell(input, suffix)).collect();
                    format!("{prefix}{}({})", op.name(), operands.join(", "))
                }
            };
            let _ = writeln!(element.work, "    let t{k}{suffix} = {call};");
        }
        for (result, input) in results.iter().zip(&self.results) {
            let _ = writeln!(element.writes, "    {prefix}y{result}[{index}] = {};", spell(input, suffix));
        }
        element
    }

    /// The `Epilogue` of a kernel whose first result goes through this, and its functions; see `shared/epilogue.wgsl`.
    fn epilogue(&self, step: &Step, results: &[usize], prefix: &str) -> String {
        let Element { reads, work, writes } = self.element(step, results, prefix, "");
        let (mut fields, mut held, mut values) = (String::new(), String::new(), String::new());
        let operand = |k: usize| (format!("a{k}"), wgsl_type(step.inputs[k].argument.ty.dtype));
        let word = |at| (format!("h{at}"), "f32");
        for (name, ty) in self.operands().into_iter().map(operand).chain(self.words().into_iter().map(word)) {
            let _ = writeln!(fields, "    {name}: {ty},");
            let _ = write!(values, ", {name}");
            let _ = writeln!(held, "    let {name} = e.{name};");
        }
        format!(
            "struct Epilogue {{\n    i: u32,\n{fields}}}\n\n\
             fn epilogue(i: u32) -> Epilogue {{\n{reads}    return Epilogue(i{values});\n}}\n\n\
             fn finish(e: Epilogue, value: f32) {{\n    let i = e.i;\n{held}{work}{writes}}}"
        )
    }

    /// The launch of a step that computes this and nothing else.
    pub(super) fn launch(&self, step: &Step) -> Launch {
        const GROUP: usize = 256;
        let mut bindings = Vec::new();
        let results: Vec<_> = (0..self.results.len()).collect();
        let wgsl = self.wgsl(step, &results, "p_", &mut bindings);
        let elements = self.shape.elements();
        let each = if elements >= MANY { 4 } else { 1 };
        let (mut reads, mut writes) = (String::new(), String::new());
        for r in 0..each {
            let element = self.element(step, &results, "p_", &format!("_{r}"));
            reads += &[element.reads, element.work].concat();
            let _ = writeln!(writes, "    if is_element(place_{r}) {{\n{}    }}", element.writes);
        }
        let defines = vec![
            ("BINDINGS", wgsl.declarations.trim_end().to_owned()),
            ("FUNCTIONS", wgsl.functions),
            ("WG", GROUP.to_string()),
            ("N", elements.to_string()),
            ("EACH", each.to_string()),
            ("VALUES", reads.trim_end().to_owned()),
            ("STORES", writes.trim_end().to_owned()),
        ];
        Launch { bindings, ..Launch::new("pointwise", defines, (0, 0), elements.div_ceil(GROUP * each)) }
    }
}

/// An element of this type in a shader.
fn wgsl_type(dtype: DType) -> &'static str {
    if dtype == DType::U32 { "u32" } else { "f32" }
}

/// The result of the step in whose memory operand `k` is, if there is one.
fn updated(step: &Step, results: &[usize], k: usize) -> Option<usize> {
    results.iter().copied().find(|&result| step.outputs[result].0 == step.inputs[k].storage)
}

fn spell(input: &Input, suffix: &str) -> String {
    match *input {
        Input::Operand(k) => format!("a{k}{suffix}"),
        Input::Host(at) => format!("h{at}{suffix}"),
        Input::Const(Exact(value)) => launch::literal(value),
        Input::Result(k) => format!("t{k}{suffix}"),
        Input::Kernel => "value".to_owned(),
    }
}

impl KernelWork {
    /// The number of bindings of a kernel's launch, with what its `load` and `store` need.
    pub(super) fn bindings(&self, step: &Step, launch: &Launch) -> usize {
        let mut launch = launch.clone();
        self.complete(step, &mut launch);
        launch.bindings.len()
    }

    /// Writes the `load` of a kernel's launch and the inside of its `store`, whose bindings are those of the step already.
    pub(super) fn complete(&self, step: &Step, launch: &mut Launch) {
        if let Some(operand) = launch.loads {
            let (wgsl, body, result) = match &self.load {
                Some(Load { program, .. }) => {
                    let wgsl = program.wgsl(step, &[], "load_", &mut launch.bindings);
                    let Element { reads, work, .. } = program.element(step, &[], "load_", "");
                    (wgsl, reads + &work, spell(&program.results[0], ""))
                }
                None => {
                    let operand = self.operand(operand);
                    let at = launch.bindings.len();
                    launch.bindings.push(Binding::Input(operand));
                    let declarations = format!("@group(0) @binding({at}) var<storage, read> load_x: array<f32>;\n");
                    let wgsl = Wgsl { declarations, functions: String::new() };
                    (wgsl, String::new(), "load_x[i]".to_owned())
                }
            };
            let Wgsl { declarations, functions } = wgsl;
            let function = format!("fn load(i: u32) -> f32 {{\n{body}    return {result};\n}}");
            launch.defines.push(("LOAD", [declarations, functions, function].join("\n")));
        }
        if launch.stores {
            let plain = Program::copy(Shape::SCALAR, Input::Kernel);
            let program = self.store.as_ref().unwrap_or(&plain);
            let results: Vec<_> = (0..program.results.len()).map(|k| self.stored(k)).collect();
            let Wgsl { declarations, functions } = program.wgsl(step, &results, "store_", &mut launch.bindings);
            let epilogue = program.epilogue(step, &results, "store_");
            launch.defines.push(("STORE", [declarations, functions, epilogue].join("\n")));
            if launch.plain {
                let result = if self.store.is_none() { format!("store_y{}", results[0]) } else { "none".to_owned() };
                launch.defines.push(("PLAIN", result));
            }
        }
    }
}
