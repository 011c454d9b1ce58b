//! Fills in the `load` and `store` functions of a kernel's launch, with the elementwise work merged into them.

use super::pointwise::{Element, Program, Wgsl, eight, spell, wgsl_type};
use super::{KernelWork, Load, Step};
use crate::Shape;
use crate::kernel::launch::{Access, Binding, Format, LINE, Launch, workgroup_memory};

impl KernelWork {
    /// The number of bindings of a kernel's launch, including those of its `load` and `store`.
    pub(super) fn bindings(&self, step: &Step, launch: &Launch) -> usize {
        let mut launch = launch.clone();
        self.complete(step, &mut launch);
        launch.bindings.len()
    }

    /// `true` if result 0 takes the memory of the operand that it may overwrite.
    fn overwrites(&self, step: &Step) -> bool {
        let overwritten = self.op.overwrites().map(|operand| step.inputs[self.operand(operand)].storage);
        overwritten == Some(step.outputs[0].0)
    }

    /// Writes the `load` function of a kernel's launch and the body of its `store`. The step already has their
    /// bindings.
    pub(super) fn complete(&self, step: &Step, launch: &mut Launch) {
        if launch.access == Access::ElementsOrLines && self.store.as_ref().is_some_and(|store| store.order.is_bf16()) {
            launch.defines.push(("ROWS", "1".to_owned()));
            launch.access = Access::Lines;
            launch.workgroups.memory = workgroup_memory(&[4 * launch.workgroups.invocations]);
        }
        if let Some(operand) = self.op.overwrites() {
            let (operand, overwritten) = (self.operand(operand), self.overwrites(step));
            launch.bindings.retain(|binding| !overwritten || *binding != Binding::Input(operand));
            launch.defines.push(("X", if overwritten { "store_y0" } else { "x" }.to_owned()));
        }
        let lines = launch.access == Access::Lines;
        if let Some(operand) = launch.loads {
            let format = match &self.load {
                Some(load) => load.argument.format,
                None => step.inputs[self.operand(operand)].argument.format,
            };
            // A kernel that stores lines may still load elements of an operand in `f32`.
            let lines = lines && format.is_bf16();
            let ty = match &self.load {
                Some(load) => load.argument.ty.dtype,
                None => step.inputs[self.operand(operand)].argument.ty.dtype,
            };
            let (wgsl, body, result) = match &self.load {
                Some(Load { program, .. }) => self.load_program(step, program, lines, launch),
                None => {
                    let operand = self.operand(operand);
                    let at = launch.bindings.len();
                    launch.bindings.push(Binding::Input(operand));
                    let (ty, result) = match (format, lines) {
                        (Format::Full, _) => (wgsl_type(ty), "load_x[i]".to_owned()),
                        (_, false) => ("u32", "bf16_at(load_x[i / 2u], i)".to_owned()),
                        (_, true) => ("vec4<u32>", format!("eight_of(load_x[i / {LINE}u])")),
                    };
                    let declarations = format!("@group(0) @binding({at}) var<storage, read> load_x: array<{ty}>;\n");
                    (Wgsl { declarations, functions: String::new() }, String::new(), result)
                }
            };
            let Wgsl { declarations, functions } = wgsl;
            let head = if lines {
                "load_line(i: u32) -> Eight".to_owned()
            } else {
                format!("load(i: u32) -> {}", wgsl_type(ty))
            };
            let function = format!("fn {head} {{\n{body}    return {result};\n}}");
            launch.defines.push(("LOAD", [declarations, functions, function].join("\n")));
        }
        if launch.stores {
            let all = self.op.stores_all();
            let plain = Program::copies(Shape::SCALAR, if all { self.types.len() } else { 1 });
            let program = self.store.as_ref().unwrap_or(&plain);
            debug_assert_eq!(program.order.is_bf16(), lines, "{:?}: how it stores", self.op);
            let results: Vec<_> = (0..program.results.len()).map(|k| self.stored(k)).collect();
            let Wgsl { declarations, functions } = program.wgsl(step, &results, "store_", lines, &mut launch.bindings);
            let epilogue = if lines {
                program.epilogue_of_lines(step, &results, "store_")
            } else {
                program.epilogue(step, &results, "store_", all)
            };
            launch.defines.push(("STORE", [declarations, functions, epilogue].join("\n")));
            if launch.access == Access::ElementsOrPlain {
                let result = if self.store.is_none() { format!("store_y{}", results[0]) } else { "none".to_owned() };
                launch.defines.push(("PLAIN", result));
            }
        }
    }

    /// For the program that computes a launch's loaded operand, by `lines` or elements: its declarations, its
    /// statements, and the expression for the result.
    fn load_program(&self, step: &Step, program: &Program, lines: bool, launch: &mut Launch) -> (Wgsl, String, String) {
        let wgsl = program.wgsl(step, &[], "load_", lines, &mut launch.bindings);
        if lines {
            let Element { reads, work, .. } = program.line(step, &[], "load_", "");
            return (wgsl, reads + &work, eight(&program.results[0], ""));
        }
        let Element { reads, work, .. } = program.element(step, &[], "load_", "");
        (wgsl, reads + &work, spell(&program.results[0], ""))
    }
}
