//! Fused pointwise operations: a straight-line program that runs for each element, and its WGSL.

use std::fmt::Write as _;

use super::{Step, padded};
use crate::graph::Exact;
use crate::kernel::launch::{self, Binding, Format, LINE, Launch, Workgroups};
use crate::kernel::offset::{Places, offset};
use crate::ops::{Pointwise, Primitive};
use crate::{DType, Layout, Shape};

/// The source of an instruction's operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// Operand number `.0` of the step, at this element.
    Operand(usize),
    /// Word number `.0` of the host's block.
    Host(usize),
    Const(Exact),
    /// The result of an earlier instruction.
    Result(usize),
    /// The current element of result `.0` of the kernel that hosts the program.
    Kernel(usize),
}

/// Pointwise operations on elements of one shape, in order, and the results to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) shape: Shape,
    /// The format by which elements are counted: in its order, and by lines if it has lines.
    pub(crate) order: Format,
    pub(crate) instructions: Vec<(Pointwise, Vec<Input>)>,
    /// The source of each result.
    pub(crate) results: Vec<Input>,
    /// The storage format of each result.
    pub(crate) formats: Vec<Format>,
    /// For each result that is a part of a larger tensor, its layout there. The layout maps the element order of the
    /// result's format.
    pub(crate) places: Vec<Option<Layout>>,
}

/// A program's declarations in a shader. All names start with the program's own prefix.
pub(super) struct Wgsl {
    pub(super) declarations: String,
    pub(super) functions: String,
}

/// The statements for one element. Its index is the variable `i`; all local variables have a suffix.
#[derive(Default)]
pub(super) struct Element {
    pub(super) reads: String,
    /// The computation. A kernel's result is in `value`.
    pub(super) work: String,
    pub(super) writes: String,
}

/// From this many elements on, an invocation computes several: starting workgroups would dominate the time, and memory
/// is faster with more reads in flight.
const MANY: usize = 1 << 20;

impl Program {
    /// The program that stores a copy of one input.
    pub(crate) fn copy(shape: Shape, from: Input) -> Self {
        let (instructions, results) = (Vec::new(), vec![from]);
        Self { shape, order: Format::Full, instructions, results, formats: vec![Format::Full], places: vec![None] }
    }

    /// The program that stores the first results of the kernel that hosts it.
    pub(crate) fn copies(shape: Shape, count: usize) -> Self {
        let (formats, places) = (vec![Format::Full; count], vec![None; count]);
        Self {
            results: (0..count).map(Input::Kernel).collect(),
            formats,
            places,
            ..Self::copy(shape, Input::Kernel(0))
        }
    }

    fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        self.instructions.iter().flat_map(|(_, inputs)| inputs).chain(&self.results).copied()
    }

    /// The operation that computes an input, and that operation's first operand.
    fn maker(&self, input: Input) -> Option<(Pointwise, Input)> {
        let Input::Result(k) = input else { return None };
        let (op, inputs) = &self.instructions[k];
        Some((*op, *inputs.first()?))
    }

    /// The step's operands that the program reads, in order.
    pub(super) fn operands(&self) -> Vec<usize> {
        self.read(|input| if let Input::Operand(k) = input { Some(k) } else { None })
    }

    /// The words of the host's block that the program reads, in order.
    pub(super) fn words(&self) -> Vec<usize> {
        self.read(|input| if let Input::Host(at) = input { Some(at) } else { None })
    }

    /// The inputs of one kind, each once, in order.
    pub(super) fn read(&self, kind: impl Fn(Input) -> Option<usize>) -> Vec<usize> {
        let mut read: Vec<_> = self.inputs().filter_map(kind).collect();
        read.sort_unstable();
        read.dedup();
        read
    }

    /// The declarations for the statements of [`Program::element`] or, with `lines`, of [`Program::line`]. Appends the
    /// program's bindings to those of a launch. Result `k` of the program is result `results[k]` of the step; with no
    /// results given, nothing is stored. An operand that shares the memory of a result is read through that binding.
    /// With `lines`, bf16 is accessed in whole lines, and so are other elements that are adjacent.
    pub(super) fn wgsl(
        &self,
        step: &Step,
        results: &[usize],
        prefix: &str,
        lines: bool,
        bindings: &mut Vec<Binding>,
    ) -> Wgsl {
        let mut declarations = String::new();
        let mut declare = |binding, access, name: &str, ty: &str| {
            let at = bindings.len();
            let _ =
                writeln!(declarations, "@group(0) @binding({at}) var<storage, {access}> {prefix}{name}: array<{ty}>;");
            bindings.push(binding);
        };
        let bf16 = if lines { "vec4<u32>" } else { "u32" };
        for k in self.operands() {
            if updated(step, results, k).is_some() {
                continue;
            }
            let argument = &step.inputs[k].argument;
            let ty = match argument.format {
                format if format.is_bf16() => bf16.to_owned(),
                _ if lines && self.fours(step, results, k, "").is_some() => {
                    format!("vec4<{}>", wgsl_type(argument.ty.dtype))
                }
                _ => wgsl_type(argument.ty.dtype).to_owned(),
            };
            declare(Binding::Input(k), "read", &format!("x{k}"), &ty);
        }
        if !self.words().is_empty() {
            declare(Binding::Host, "read", "host", wgsl_type(DType::F32));
        }
        for (k, (&result, &format)) in results.iter().zip(&self.formats).enumerate() {
            if bound(step, results, result) != result {
                continue;
            }
            let ty = match format {
                format if format.is_bf16() => bf16.to_owned(),
                _ if lines && self.stores_fours(k) => {
                    format!("vec4<{}>", wgsl_type(step.outputs[result].1.dtype))
                }
                _ => wgsl_type(step.outputs[result].1.dtype).to_owned(),
            };
            declare(Binding::Output(result), "read_write", &format!("y{result}"), &ty);
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

    /// The operands that are stored as bf16.
    pub(super) fn bf16(&self, step: &Step) -> Vec<usize> {
        let mut operands = self.operands();
        operands.retain(|&k| step.inputs[k].argument.format.is_bf16());
        operands
    }

    /// The statements for one element. In the order of bf16, `i` counts places in memory and `l` elements in the
    /// order of the API.
    pub(super) fn element(&self, step: &Step, results: &[usize], prefix: &str, suffix: &str) -> Element {
        let mut element = Element::default();
        let index = self.index(&mut element.reads, suffix);
        for k in self.operands() {
            let name = format!("a{k}{suffix}");
            let argument = &step.inputs[k].argument;
            let read = if argument.format.is_bf16() {
                let at = offset(&argument.layout, &format!("i{suffix}"));
                format!("bf16_at({prefix}x{k}[({at}) / 2u], {at})")
            } else {
                self.read_full(step, results, k, prefix, &index)
            };
            let _ = writeln!(element.reads, "    let {name} = {read};");
        }
        self.read_words(&mut element.reads, prefix, suffix);
        element.work = self.work(prefix, suffix);
        for (k, (result, input)) in results.iter().zip(&self.results).enumerate() {
            let (place, result) = (self.place(k, &index), bound(step, results, *result));
            let _ = writeln!(element.writes, "    {prefix}y{result}[{place}] = {};", spell(input, suffix));
        }
        element
    }

    /// The place in memory of element `index` of result `k`.
    fn place(&self, k: usize, index: &str) -> String {
        self.places[k].as_ref().map_or_else(|| index.to_owned(), |layout| offset(layout, index))
    }

    /// The variable that counts elements in the order of the API. It is declared if the program counts in another
    /// order.
    fn index(&self, statements: &mut String, suffix: &str) -> String {
        if !self.order.is_bf16() {
            return format!("i{suffix}");
        }
        let _ = writeln!(statements, "    let l{suffix} = {};", self.order.element(&format!("i{suffix}")));
        format!("l{suffix}")
    }

    fn read_full(&self, step: &Step, results: &[usize], k: usize, prefix: &str, index: &str) -> String {
        let place = offset(&step.inputs[k].argument.layout, index);
        format!("{prefix}{}[{place}]", source(step, results, k))
    }

    fn read_words(&self, statements: &mut String, prefix: &str, suffix: &str) {
        for at in self.words() {
            let _ = writeln!(statements, "    let h{at}{suffix} = {prefix}host[{at}u];");
        }
    }

    fn work(&self, prefix: &str, suffix: &str) -> String {
        let mut work = String::new();
        for (k, (op, inputs)) in self.instructions.iter().enumerate() {
            let call = match op.of_itself(inputs, |input| self.maker(input)) {
                Some((function, input)) => format!("{function}({})", spell(&input, suffix)),
                None => {
                    let operands: Vec<_> = inputs.iter().map(|input| spell(input, suffix)).collect();
                    format!("{prefix}{}({})", op.name(), operands.join(", "))
                }
            };
            let _ = writeln!(work, "    let t{k}{suffix} = {call};");
        }
        work
    }

    /// The variables that hold a line of bf16 of the step's operand `k`, without their suffix. The second is there if
    /// the operand is a slice of channels whose lines are parts of two.
    pub(super) fn held(step: &Step, k: usize) -> impl Iterator<Item = String> {
        let is_shifted = !step.inputs[k].argument.layout.offset().is_multiple_of(LINE);
        std::iter::once(format!("w{k}")).chain(is_shifted.then(|| format!("u{k}")))
    }

    /// The statements for one line, whose first element is `i` with the suffix. `reads` loads only bf16, into the
    /// variables [`held`](Self::held) with the suffix.
    pub(super) fn line(&self, step: &Step, results: &[usize], prefix: &str, suffix: &str) -> Element {
        let mut line = Element::default();
        let bf16 = self.bf16(step);
        let shift = |k: usize| step.inputs[k].argument.layout.offset() % LINE;
        for k in &bf16 {
            let at = offset(&step.inputs[*k].argument.layout, &format!("i{suffix}"));
            for (next, name) in Self::held(step, *k).enumerate() {
                // The last line may lie in one, which may be the last in memory.
                let lies_in_one = self.order.tail().is_some_and(|tail| shift(*k) + tail <= LINE);
                let next = match self.order.has_zeros(&format!("i{suffix}")).filter(|_| next == 1 && lies_in_one) {
                    Some(is_last) => format!("select(1u, 0u, {is_last})"),
                    None => format!("{next}u"),
                };
                let _ = writeln!(line.reads, "    let {name}{suffix} = {prefix}x{k}[({at}) / {LINE}u + {next}];");
            }
        }
        let full = |k: &usize| !bf16.contains(k);
        let rows = self.order.padded_rows();
        line.work += &padded::zeros(self.order, suffix);
        if let Some(rows) = rows {
            line.work += &padded::variables(rows, suffix);
        } else if self.operands().iter().any(full) || self.formats.contains(&Format::Full) {
            let [c, s] = self.order.of_line(&format!("i{suffix}"));
            let _ = writeln!(line.work, "    let c{suffix} = {c};\n    let s{suffix} = {s};");
        }
        for k in self.operands().into_iter().filter(full) {
            line.work += &self.line_of_full(step, results, k, prefix, suffix);
        }
        for e in 0..LINE {
            let own = format!("{suffix}_{e}");
            for k in &bf16 {
                let (from, at) = (["w", "u"][(shift(*k) + e) / LINE], (shift(*k) + e) % LINE);
                let _ = writeln!(line.work, "    let a{k}{own} = bf16_at({from}{k}{suffix}[{}u], {at}u);", at / 2);
            }
            self.read_words(&mut line.work, prefix, &own);
            line.work += &self.work(prefix, &own);
        }
        for (k, ((result, input), format)) in results.iter().zip(&self.results).zip(&self.formats).enumerate() {
            let result = bound(step, results, *result);
            if *format == Format::Full && self.stores_fours(k) {
                for (four, values) in fours(input, suffix).into_iter().enumerate() {
                    let place = format!("i{suffix} / 4u + {four}u");
                    let _ = writeln!(line.writes, "    {prefix}y{result}[{place}] = vec4({values});");
                }
            } else if *format == Format::Full {
                for e in 0..LINE {
                    let value = spell(input, &format!("{suffix}_{e}"));
                    let pixels = self.order.pixels();
                    let number = match rows {
                        Some(rows) => padded::index(rows, e, suffix),
                        None => format!("((c{suffix} + {e}u) * {pixels}u + s{suffix})"),
                    };
                    let store = format!("{prefix}y{result}[{}] = {value};", self.place(k, &number));
                    let _ = match padded::condition(self.order, e, suffix) {
                        Some(there) => writeln!(line.writes, "    if {there} {{ {store} }}"),
                        None => writeln!(line.writes, "    {store}"),
                    };
                }
            } else {
                let (value, place) = (eight(input, suffix), self.place(k, &format!("i{suffix}")));
                let words = padded::masked(self.order, format!("line_of({value})"), suffix);
                let _ = writeln!(line.writes, "    {prefix}y{result}[({place}) / {LINE}u] = {words};");
            }
        }
        line
    }

    /// The places of a line's elements in an operand that is not stored as bf16. The line starts at channel `c` (with
    /// the suffix), counted through all images, of pixel `s`.
    fn places(&self, step: &Step, k: usize, suffix: &str) -> Places {
        let layout = &step.inputs[k].argument.layout;
        Places::new(layout, self.order, [&format!("c{suffix}"), &format!("s{suffix}"), &format!("z{suffix}")])
    }

    /// The place of the first four elements of a line in such an operand, if two vectors of four hold the line.
    fn fours(&self, step: &Step, results: &[usize], k: usize, suffix: &str) -> Option<String> {
        if self.order.tail().is_some() {
            return None;
        }
        let is_bound_so = self.in_fours() || updated(step, results, k).is_none();
        self.places(step, k, suffix).fours().filter(|_| is_bound_so)
    }

    /// `true` if the elements of a line are adjacent in `f32` as well.
    fn in_fours(&self) -> bool {
        self.order == Format::Bf16
    }

    /// `true` if result `k`, in `f32`, is written four elements at a time.
    fn stores_fours(&self, k: usize) -> bool {
        self.in_fours() && self.places[k].is_none()
    }

    /// The statements that read a line of an operand that is not stored as bf16.
    fn line_of_full(&self, step: &Step, results: &[usize], k: usize, prefix: &str, suffix: &str) -> String {
        let source = format!("{prefix}{}", source(step, results, k));
        let element = |e: usize| format!("a{k}{suffix}_{e}");
        if let Some(rows) = self.order.padded_rows() {
            return padded::read(rows, &step.inputs[k].argument.layout, &source, &format!("a{k}{suffix}"), suffix);
        }
        let mut line = String::new();
        if let Some(first) = self.fours(step, results, k, suffix) {
            let _ = writeln!(line, "    let p{k}{suffix} = {first};");
            for four in 0..2 {
                let _ = writeln!(line, "    let v{k}{suffix}_{four} = {source}[p{k}{suffix} + {four}u];");
            }
            for e in 0..LINE {
                let _ = writeln!(line, "    let {} = v{k}{suffix}_{}[{}u];", element(e), e / 4, e % 4);
            }
            return line;
        }
        match self.places(step, k, suffix) {
            Places::Regular { first, steps, .. } => {
                let _ = writeln!(line, "    let p{k}{suffix} = {first};");
                let tail = self.order.tail().unwrap_or(LINE);
                for (e, step) in steps.iter().enumerate() {
                    // Elements at the same place are read once. For the padding, the last element is read again.
                    let step_there = match steps.get(tail - 1).filter(|_| e >= tail) {
                        Some(last) => format!("select({step}u, {last}u, z{suffix})"),
                        None => format!("{step}u"),
                    };
                    let _ = match steps.iter().position(|other| other == step).filter(|&other| other < e) {
                        Some(other) => writeln!(line, "    let {} = {};", element(e), element(other)),
                        None => writeln!(line, "    let {} = {source}[p{k}{suffix} + {step_there}];", element(e)),
                    };
                }
            }
            Places::Each(places) => {
                for (e, place) in places.iter().enumerate() {
                    let _ = writeln!(line, "    let {} = {source}[{place}];", element(e));
                }
            }
        }
        line
    }

    /// The launch of a step that consists of this program alone.
    pub(super) fn launch(&self, step: &Step) -> Launch {
        const GROUP: usize = 256;
        if let Some(launch) = self.conversion(step) {
            return launch;
        }
        let mut bindings = Vec::new();
        let results: Vec<_> = (0..self.results.len()).collect();
        let wgsl = self.wgsl(step, &results, "p_", self.order.is_bf16(), &mut bindings);
        let elements = self.shape.elements();
        let (units, each) = match self.order {
            Format::Full => (elements, if elements >= MANY { 4 } else { 1 }),
            order => (order.stored(elements) / LINE, 1),
        };
        let (mut reads, mut writes) = (String::new(), String::new());
        for r in 0..each {
            let suffix = format!("_{r}");
            let unit = if self.order.is_bf16() {
                let _ = writeln!(reads, "    let i{suffix} = unit{suffix} * {LINE}u;");
                self.line(step, &results, "p_", &suffix)
            } else {
                let _ = writeln!(reads, "    let i{suffix} = unit{suffix};");
                self.element(step, &results, "p_", &suffix)
            };
            reads += &[unit.reads, unit.work].concat();
            let _ = writeln!(writes, "    if is_unit(place{suffix}) {{\n{}    }}", unit.writes);
        }
        let workgroups = Workgroups::of(units.div_ceil(each), GROUP);
        let defines = vec![
            ("BINDINGS", wgsl.declarations.trim_end().to_owned()),
            ("FUNCTIONS", wgsl.functions),
            ("N", units.to_string()),
            ("EACH", each.to_string()),
            ("VALUES", reads.trim_end().to_owned()),
            ("STORES", writes.trim_end().to_owned()),
        ];
        Launch { bindings, ..Launch::new("pointwise", defines, (0, 0), workgroups) }
    }

    /// The launch that converts a contiguous value to the other format, if the program does nothing else.
    fn conversion(&self, step: &Step) -> Option<Launch> {
        let (Format::ChannelsLast(of), [Input::Operand(0)], []) =
            (self.order, &self.results[..], &self.instructions[..])
        else {
            return None;
        };
        if self.places[0].is_some() {
            return None;
        }
        let argument = &step.inputs[0].argument;
        let to = match (argument.format, self.formats[0]) {
            (Format::Full, Format::ChannelsLast(_)) if argument.layout.is_contiguous() => "bf16",
            (Format::ChannelsLast(_), Format::Full) if argument.layout.is_contiguous() => "full",
            _ => return None,
        };
        let images = self.shape.elements() / of.image();
        Some(launch::conversion(to, [images, of.channels, of.pixels]))
    }
}

/// The expression for the eight elements of an input's line.
pub(super) fn eight(input: &Input, suffix: &str) -> String {
    let [first, second] = fours(input, suffix);
    format!("Eight(vec4({first}), vec4({second}))")
}

/// The expressions for the first and the last four of them.
fn fours(input: &Input, suffix: &str) -> [String; 2] {
    let four =
        |first| (first..first + 4).map(|e| spell(input, &format!("{suffix}_{e}"))).collect::<Vec<_>>().join(", ");
    [four(0), four(4)]
}

/// The WGSL type of an element.
pub(super) fn wgsl_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F64 => "f32",
        DType::U32 => "u32",
        DType::I32 => "i32",
        // The lower word first; see `shared/i64`.
        DType::I64 => "vec2<u32>",
    }
}

/// The result of the step that shares memory with operand `k`, if there is one.
fn updated(step: &Step, results: &[usize], k: usize) -> Option<usize> {
    results.iter().copied().find(|&result| step.outputs[result].0 == step.inputs[k].storage)
}

/// The result that binds the memory of `result`: the first result there, as several may be parts of one buffer.
fn bound(step: &Step, results: &[usize], result: usize) -> usize {
    let storage = step.outputs[result].0;
    results.iter().copied().find(|&other| step.outputs[other].0 == storage).unwrap_or(result)
}

/// The name of the buffer from which operand `k` is read.
fn source(step: &Step, results: &[usize], k: usize) -> String {
    updated(step, results, k).map_or_else(|| format!("x{k}"), |result| format!("y{result}"))
}

pub(super) fn spell(input: &Input, suffix: &str) -> String {
    match *input {
        Input::Operand(k) => format!("a{k}{suffix}"),
        Input::Host(at) => format!("h{at}{suffix}"),
        Input::Const(Exact(value)) => launch::literal(value),
        Input::Result(k) => format!("t{k}{suffix}"),
        Input::Kernel(0) => format!("value{suffix}"),
        Input::Kernel(k) => format!("more{k}{suffix}"),
    }
}
