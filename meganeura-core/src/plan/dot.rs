//! Plans as Graphviz drawings.

use std::collections::{BTreeSet, HashMap};

use super::{Place, Plan, Program, Step, StorageId, Work};
use crate::dot::{Dot, Look};
use crate::ops::Primitive;

/// The node of a drawing that has the contents of a storage.
#[derive(Clone, Copy)]
enum Holder {
    Leaf(StorageId),
    Step(usize),
}

impl Holder {
    fn id(self) -> String {
        match self {
            Self::Leaf(storage) => format!("s{storage}"),
            Self::Step(number) => format!("n{number}"),
        }
    }
}

impl Plan {
    /// The plan in Graphviz's language. Each step is a box with the operations fused into it, the kernels of its
    /// launches and the bytes of its results; the caller's tensors are ellipses.
    pub(crate) fn to_dot(&self) -> String {
        let mut dot = Dot::new("plan");
        // The node that wrote each storage last, up to this step of the plan.
        let mut written: HashMap<StorageId, Holder> = HashMap::new();
        for (storage, info) in self.storages.iter().enumerate() {
            if let Place::Leaf(_) = info.place {
                let holder = Holder::Leaf(storage);
                dot.node(&holder.id(), Look::Data, &[self.name(storage), format!("{} B", info.bytes())]);
                written.insert(storage, holder);
            }
        }
        for (number, step) in self.steps.iter().enumerate() {
            let holder = Holder::Step(number);
            let id = holder.id();
            dot.node(&id, Look::Work, &self.lines(number, step));
            let read: BTreeSet<_> = step.reads().collect();
            for storage in read {
                if let Some(from) = written.get(&storage) {
                    let info = self.storages[storage];
                    let label = format!("{}, {} B", self.name(storage), info.bytes());
                    dot.edge(&from.id(), &id, if matches!(info.place, Place::Leaf(_)) { "" } else { &label });
                }
            }
            for storage in step.writes() {
                written.insert(storage, holder);
            }
        }
        for (storage, info) in self.storages.iter().enumerate() {
            let (what, from) = match (info.place, written.get(&storage)) {
                (Place::Output(_), Some(from)) => ("", from),
                (Place::Leaf(_), Some(from @ Holder::Step(_))) => (", updated", from),
                _ => continue,
            };
            let id = format!("r{storage}");
            dot.node(&id, Look::Data, &[format!("{}{what}", self.name(storage)), format!("{} B", info.bytes())]);
            dot.edge(&from.id(), &id, "");
        }
        dot.finish()
    }

    fn lines(&self, number: usize, step: &Step) -> Vec<String> {
        let names = |program: &Program| {
            let names: Vec<_> = program.instructions.iter().map(|(op, _)| op.name()).collect();
            names.join(", ")
        };
        let mut lines = Vec::new();
        match &step.work {
            Work::Pointwise(program) => lines.extend([format!("{number}  fused"), wrapped(&names(program))]),
            Work::Kernel(kernel) => {
                lines.push(format!("{number}  {}", kernel.op.name()));
                lines
                    .extend(kernel.load.iter().map(|load| wrapped(&format!("loads through {}", names(&load.program)))));
                lines.extend(kernel.store.iter().map(|store| wrapped(&format!("stores through {}", names(store)))));
            }
        }
        for &(storage, ty) in &step.outputs {
            lines.push(format!("{}: {ty}, {} B", self.name(storage), self.storages[storage].bytes()));
        }
        if !step.variant.is_empty() {
            lines.push(step.variant.to_owned());
        }
        lines.extend(step.launches.iter().map(|launch| format!("{}×{}", launch.kernel, launch.workgroups.count)));
        lines
    }
}

/// A list of names in lines of about forty characters.
fn wrapped(names: &str) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for word in names.split(' ') {
        if width > 0 {
            text.push(if width + word.len() > 40 { '\n' } else { ' ' });
            width = if width + word.len() > 40 { 0 } else { width + 1 };
        }
        text.push_str(word);
        width += word.len();
    }
    text
}
