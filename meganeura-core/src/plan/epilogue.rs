//! The WGSL of elementwise work that stores a kernel's results.

use std::fmt::Write as _;

use super::pointwise::{Element, spell, wgsl_type};
use super::{Input, Program, Step};
use crate::kernel::launch::LINE;

impl Program {
    /// The `Epilogue` struct and functions of a kernel whose first result goes through this program, or `all`; see
    /// `shared/epilogue.wgsl` and `shared/epilogue_all.wgsl`.
    pub(super) fn epilogue(&self, step: &Step, results: &[usize], prefix: &str, all: bool) -> String {
        let Element { reads, work, writes } = self.element(step, results, prefix, "");
        let (mut fields, mut held, mut values) = (String::new(), String::new(), String::new());
        let operand = |k: usize| (format!("a{k}"), wgsl_type(step.inputs[k].argument.ty.dtype));
        let word = |at| (format!("h{at}"), "f32");
        for (name, ty) in self.operands().into_iter().map(operand).chain(self.words().into_iter().map(word)) {
            let _ = writeln!(fields, "    {name}: {ty},");
            let _ = write!(values, ", {name}");
            let _ = writeln!(held, "    let {name} = e.{name};");
        }
        let stored = wgsl_type(step.outputs[results[0]].1.dtype);
        let (alias, parameter) = match all {
            true => (String::new(), "values: vec4<f32>"),
            false => (format!("alias Stored = {stored};\n\n"), "value: Stored"),
        };
        let own = self.read(|input| if let Input::Kernel(k) = input { Some(k) } else { None });
        for k in own.into_iter().filter(|_| all) {
            let _ = writeln!(held, "    let {} = values[{k}u];", spell(&Input::Kernel(k), ""));
        }
        format!(
            "{alias}struct Epilogue {{\n    i: u32,\n{fields}}}\n\n\
             fn epilogue(i: u32) -> Epilogue {{\n{reads}    return Epilogue(i{values});\n}}\n\n\
             fn finish(e: Epilogue, {parameter}) {{\n    let i = e.i;\n{held}{work}{writes}}}"
        )
    }

    /// Like [`Program::epilogue`], for a kernel that stores lines; see `shared/epilogue_lines.wgsl`.
    pub(super) fn epilogue_of_lines(&self, step: &Step, results: &[usize], prefix: &str) -> String {
        let Element { reads, work, writes } = self.line(step, results, prefix, "");
        let (mut fields, mut held, mut words) = (String::new(), String::new(), String::new());
        for name in self.bf16(step).into_iter().flat_map(|k| Self::held(step, k)) {
            let _ = writeln!(fields, "    {name}: vec4<u32>,");
            let _ = write!(words, ", {name}");
            let _ = writeln!(held, "    let {name} = e.{name};");
        }
        for e in 0..LINE {
            let half = if e < LINE / 2 { "first" } else { "second" };
            let _ = writeln!(held, "    let value_{e} = line.{half}[{}u];", e % (LINE / 2));
        }
        format!(
            "struct Epilogue {{\n    i: u32,\n{fields}}}\n\n\
             fn epilogue(i: u32) -> Epilogue {{\n{reads}    return Epilogue(i{words});\n}}\n\n\
             fn finish(e: Epilogue, line: Eight) {{\n    let i = e.i;\n{held}{work}{writes}}}"
        )
    }
}
