//! Fused pointwise operations: a straight-line program run for each element, and its WGSL.

use std::fmt::Write as _;

use crate::graph::Exact;
use crate::kernel::launch::{self, Argument, Binding, Launch};
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
}

/// Pointwise operations on elements of one shape, in order, and which of their results are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) shape: Shape,
    pub(crate) instructions: Vec<(Pointwise, Vec<Input>)>,
    /// What result `k` of the step is.
    pub(crate) results: Vec<Input>,
}

impl Program {
    /// The program that stores one thing.
    pub(crate) fn copy(shape: Shape, from: Input) -> Self {
        Self { shape, instructions: Vec::new(), results: vec![from] }
    }

    fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        self.instructions.iter().flat_map(|(_, inputs)| inputs).chain(&self.results).copied()
    }

    /// The launch that computes this. Operand `k` lives in the same memory as result `in_place[k]`, where that is given.
    pub(super) fn launch(&self, operands: &[Argument], dtypes: &[DType], in_place: &[Option<usize>]) -> Launch {
        let mut bindings = Vec::new();
        let mut declarations = String::new();
        let mut declare = |bindings: &mut Vec<Binding>, binding, access, name: &str, ty| {
            let at = bindings.len();
            let _ = writeln!(declarations, "@group(0) @binding({at}) var<storage, {access}> {name}: array<{ty}>;");
            bindings.push(binding);
        };
        let wgsl_type = |dtype| if dtype == DType::U32 { "u32" } else { "f32" };
        for (k, argument) in operands.iter().enumerate().filter(|(k, _)| in_place[*k].is_none()) {
            let name = format!("x{k}");
            declare(&mut bindings, Binding::Input(k), "read", &name, wgsl_type(argument.ty.dtype));
        }
        if self.inputs().any(|input| matches!(input, Input::Host(_))) {
            declare(&mut bindings, Binding::Host, "read", "host", "f32");
        }
        for (k, &dtype) in dtypes.iter().enumerate() {
            declare(&mut bindings, Binding::Output(k), "read_write", &format!("y{k}"), wgsl_type(dtype));
        }

        let mut body = String::new();
        for (k, argument) in operands.iter().enumerate() {
            let source = in_place[k].map_or_else(|| format!("x{k}"), |result| format!("y{result}"));
            let at = launch::offset(&argument.layout, "i");
            let _ = writeln!(body, "    let a{k} = {source}[{at}];");
        }
        let spell = |input: &Input| match *input {
            Input::Operand(k) => format!("a{k}"),
            Input::Host(at) => format!("host[{at}u]"),
            Input::Const(Exact(value)) => launch::literal(value),
            Input::Result(k) => format!("t{k}"),
        };
        let mut rows: Vec<Pointwise> = Vec::new();
        for (k, (op, inputs)) in self.instructions.iter().enumerate() {
            let inputs: Vec<_> = inputs.iter().map(spell).collect();
            let _ = writeln!(body, "    let t{k} = p_{}({});", op.name(), inputs.join(", "));
            if !rows.contains(op) {
                rows.push(*op);
            }
        }
        for (k, result) in self.results.iter().enumerate() {
            let _ = writeln!(body, "    y{k}[i] = {};", spell(result));
        }
        let functions: Vec<_> = rows.iter().map(|op| op.wgsl_function()).collect();
        let elements = self.shape.elements();
        Launch {
            kernel: "pointwise",
            defines: vec![
                ("BINDINGS", declarations.trim_end().to_owned()),
                ("FUNCTIONS", functions.join("\n")),
                ("WG", "256".to_owned()),
                ("N", elements.to_string()),
                ("BODY", body.trim_end().to_owned()),
            ],
            bindings,
            workgroups: elements.div_ceil(256),
        }
    }
}
