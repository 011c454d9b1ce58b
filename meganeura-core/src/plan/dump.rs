//! Plans as text: steps, the places of their results, and costs. Golden tests compare this text.

use std::fmt;

use super::{Input, Operand, Place, Plan, Program, Step, StorageId, Work};
use crate::TensorType;
use crate::graph::Exact;
use crate::kernel::launch::{Binding, Format};
use crate::ops::{Op, Primitive};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            write!(f, "{at:>3}  ")?;
            self.fmt_step(step, f)?;
        }
        let outputs: Vec<_> = self.outputs.iter().map(|&s| self.name(s)).collect();
        writeln!(f, "outputs: {}", outputs.join(", "))?;
        writeln!(f, "slots: {:?} bytes, {} in all", self.slots, self.slot_bytes())?;
        writeln!(
            f,
            "launches: {}{}",
            self.launches(),
            if self.once { ", once for each version of its leaves" } else { "" }
        )
    }
}

impl Plan {
    pub(super) fn name(&self, storage: StorageId) -> String {
        match self.storages[storage].place {
            Place::Leaf(leaf) => format!("leaf{leaf}"),
            Place::Host => "host".into(),
            Place::Output(k) => format!("out{k}"),
            Place::Slot(slot) => format!("slot{slot}"),
            Place::Unplaced => "nowhere".into(),
            Place::Range { collective, value } => format!("range{collective}.{value}"),
        }
    }

    fn operand(&self, step: &Step, k: usize) -> String {
        let Operand { storage, argument } = &step.inputs[k];
        let begin = begin(step, Binding::Input(k));
        let lies = match (argument.format, argument.layout.is_contiguous()) {
            (Format::Full, true) => "",
            (Format::Full, false) => "~",
            (_, _) => " bf16",
        };
        format!("{}{begin}{lies}{}", self.name(*storage), argument.ty.shape)
    }

    fn program(&self, step: &Step, program: &Program) -> String {
        let spell = |input: &Input| match *input {
            Input::Operand(k) => self.operand(step, k),
            Input::Host(at) => format!("host[{at}]"),
            Input::Const(Exact(value)) => value.to_string(),
            Input::Result(k) => format!("t{k}"),
            Input::Kernel(0) => "it".into(),
            Input::Kernel(k) => format!("it.{k}"),
        };
        let rows = program.instructions.iter().enumerate().map(|(k, (op, inputs))| {
            format!("t{k} = {}({})", op.name(), inputs.iter().map(spell).collect::<Vec<_>>().join(", "))
        });
        let stores = program.results.iter().map(spell).collect::<Vec<_>>().join(", ");
        let rows: Vec<_> = rows.chain(std::iter::once(stores)).collect();
        format!("{{ {} }}", rows.join("; "))
    }

    fn fmt_step(&self, step: &Step, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spell = |(k, &(storage, ty)): (usize, &(StorageId, TensorType))| {
            let (begin, part) = (begin(step, Binding::Output(k)), if step.stores_part(k) { "~" } else { "" });
            match self.storages[storage].format {
                Format::Full => format!("{}{begin}{part}: {ty}", self.name(storage)),
                _ => format!("{}{begin}{part}: bf16{}", self.name(storage), ty.shape),
            }
        };
        let results: Vec<_> = step.outputs.iter().enumerate().map(spell).collect();
        let results = results.chunk_by(|one, other| one == other).map(|alike| match alike {
            [one] => one.clone(),
            _ => format!("{} × {}", alike.len(), alike[0]),
        });
        write!(f, "{} = ", results.collect::<Vec<_>>().join(", "))?;
        match &step.work {
            Work::Kernel(kernel) => {
                let operand = |k: usize| match &kernel.load {
                    Some(load) if load.operand == k => self.program(step, &load.program),
                    _ => self.operand(step, kernel.operand(k)),
                };
                let operands: Vec<_> = (0..kernel.operands).map(operand).collect();
                write!(f, "{}({})", Op::Kernel(kernel.op.clone()), operands.join(", "))?;
                if let Some(program) = &kernel.store {
                    write!(f, " → {}", self.program(step, program))?;
                }
            }
            Work::Pointwise(program) => write!(f, "fused {}", self.program(step, program))?,
        }
        if !step.launches.is_empty() {
            let grids: Vec<_> = step.launches.iter().map(|l| format!("{}×{}", l.kernel, l.workgroups.count)).collect();
            let grids: Vec<_> = grids
                .chunk_by(|one, other| one == other)
                .map(|alike| match alike {
                    [one] => one.clone(),
                    _ => format!("{} times {}", alike.len(), alike[0]),
                })
                .collect();
            let variant = if step.variant.is_empty() { String::new() } else { format!("{}: ", step.variant) };
            write!(f, "  [{variant}{}]", grids.join(", "))?;
        }
        writeln!(f)
    }
}

/// The first element of a binding, unless it is that of the storage.
fn begin(step: &Step, binding: Binding) -> String {
    match step.binding_offset(binding) {
        0 => String::new(),
        begin => format!("@{begin}"),
    }
}
