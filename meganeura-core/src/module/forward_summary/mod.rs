//! A printable forward pass: the output and the cost of each layer.

mod scopes;

use std::fmt;

use self::scopes::Scopes;
use super::leaves::leaves;
use super::summary::{bytes, thousands};
use super::{Counts, Module};
use crate::{Device, Inputs, Result, Tape, TensorType, Var};

/// The layers of a forward pass in the order of execution. `{}` prints them:
///
/// ```text
/// Digits              output            parameters  multiply-adds   memory
/// ├─ stem: Conv2d     f32[1, 32, 8, 8]         320         18,432  8,192 B
/// ├─ norm: GroupNorm  f32[1, 32, 8, 8]          64                 8,192 B
/// ├─ Relu             f32[1, 32, 8, 8]                             8,192 B
/// └─ head: Linear     f32[1, 10]            20,490         20,480     40 B
/// 20,874 parameters, 81.5 KiB with buffers
/// 38,912 multiply-adds
/// 256 B of input, 24.0 KiB of activations
/// ```
///
/// [`ModuleExt::summary_with`](super::ModuleExt::summary_with) makes it. A layer is named by its path, if its
/// parameters or the struct around it determine one. A layer that is used twice has two rows; in the second, its
/// parameters are marked `again`, and not counted. The same applies to tied parameters. Functions of values, such as
/// `x.relu()`, have no rows; their multiply-adds count for the layer that calls them.
#[derive(Debug, Clone)]
pub struct ForwardSummary {
    /// The root first, and each row before those below it.
    rows: Vec<LayerRow>,
    counts: Counts,
    model_bytes: usize,
    input_bytes: usize,
    depth: usize,
}

/// A layer of a [`ForwardSummary`], or a part of the model with several of them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LayerRow {
    /// The path in the model; empty for the model itself. `None` for a layer that holds nothing and that no field
    /// names.
    pub path: Option<String>,
    /// The name of its type; empty for a part that is known only from the paths of its layers.
    pub kind: String,
    /// The number of rows above it in the tree.
    pub depth: usize,
    /// The type of its output; of several, the first.
    pub output: TensorType,
    /// The number of elements in its parameters, frozen ones included. Tied parameters count for the first row that
    /// uses them.
    pub parameters: usize,
    /// `true` if it has parameters, all of which earlier rows have counted.
    pub is_again: bool,
    /// The multiply-adds of products and convolutions, including those of the rows below.
    pub multiply_adds: u64,
    /// The size of its output, in bytes.
    pub bytes: usize,
    /// `true` if there are no rows below.
    pub is_leaf: bool,
    /// The name within the row above.
    label: String,
}

impl ForwardSummary {
    /// The layers in the order of execution: the model first, and each part before its layers.
    #[must_use]
    pub fn rows(&self) -> &[LayerRow] {
        &self.rows
    }

    /// Shows rows down to this depth. Rows below it are counted in their part.
    #[must_use]
    pub fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// The number of elements in parameters and buffers of the whole model, each counted once.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The multiply-adds of all products and convolutions.
    #[must_use]
    pub fn multiply_adds(&self) -> u64 {
        self.rows[0].multiply_adds
    }

    /// The size of parameters and buffers, in bytes.
    #[must_use]
    pub fn model_bytes(&self) -> usize {
        self.model_bytes
    }

    /// The size of the inputs, in bytes.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// The size of all layers' outputs, in bytes, as if each had its own memory. A plan needs less: it fuses, and
    /// reuses memory ([`Device::plan_memory`]).
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        self.rows.iter().filter(|row| row.is_leaf).map(|row| row.bytes).sum()
    }
}

/// The device of a model's tensors; the CPU for a model without any.
pub(super) fn device_of(model: &(impl Module + ?Sized)) -> Device {
    leaves(model).first().map_or_else(Device::cpu, |leaf| leaf.value().device().clone())
}

/// A forward pass recorded for a summary.
pub(super) struct RecordedForward<V> {
    tape: Tape,
    types: Vec<TensorType>,
    pub(super) inputs: V,
}

impl<V> RecordedForward<V> {
    /// Starts a recording, with inputs on this device.
    #[track_caller]
    pub(super) fn new<I: Inputs<Vars = V>>(device: &Device, inputs: &I) -> Result<Self> {
        let (tape, types, inputs) = Tape::declared(device, inputs)?;
        tape.trace();
        Ok(Self { tape, types, inputs })
    }

    /// Fails if the recording did, with the path of the layer at fault.
    pub(super) fn expect_fit(&self, model: &(impl Module + ?Sized), outputs: &[Var]) -> Result<()> {
        let Some(error) = outputs.iter().find_map(Var::error) else { return Ok(()) };
        let input = self.types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let failed = self.tape.traced(|events, graph| {
            Scopes::new(model, self.types[0], events, graph).failed.filter(|path| !path.is_empty())
        });
        Err(match failed {
            Some(path) => error.context(format!("`{path}`, with an input {input} of the model")),
            None => error.context(format!("with an input {input} of the model")),
        })
    }

    /// The summary, or the error of the recording.
    pub(super) fn finish(self, model: &(impl Module + ?Sized), outputs: &[Var]) -> Result<ForwardSummary> {
        self.expect_fit(model, outputs)?;
        let leaves = leaves(model);
        let rows =
            self.tape.traced(|events, graph| Scopes::new(model, self.types[0], events, graph).rows(&leaves, outputs));
        Ok(ForwardSummary {
            rows,
            counts: Counts::of(&leaves),
            model_bytes: leaves.iter().map(|leaf| leaf.ty().bytes()).sum(),
            input_bytes: self.types.iter().map(TensorType::bytes).sum(),
            depth: usize::MAX,
        })
    }
}

impl LayerRow {
    fn cells(&self) -> [String; 5] {
        let label = match (&*self.label, &*self.kind) {
            ("", kind) => kind.to_owned(),
            (label, "") => label.to_owned(),
            (label, kind) => format!("{label}: {kind}"),
        };
        let parameters = match (self.parameters, self.is_again) {
            (_, true) => "again".to_owned(),
            (0, false) => String::new(),
            (n, false) => thousands(n),
        };
        let adds = usize::try_from(self.multiply_adds).unwrap_or(usize::MAX);
        let adds = if adds == 0 { String::new() } else { thousands(adds) };
        [label, self.output.to_string(), parameters, adds, bytes(self.bytes)]
    }
}

impl fmt::Display for ForwardSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self.rows[1..].iter().filter(|row| row.depth <= self.depth).collect();
        let heading = [self.rows[0].kind.as_str(), "output", "parameters", "multiply-adds", "memory"];
        let mut lines = vec![heading.map(str::to_owned)];
        // `true` if the branch at this depth goes on below the row.
        let goes_on = |from: usize, depth: usize| {
            shown[from + 1..].iter().map(|row| row.depth).take_while(|&next| next >= depth).any(|next| next == depth)
        };
        for (at, row) in shown.iter().enumerate() {
            let mut branch: String =
                (1..row.depth).map(|depth| if goes_on(at, depth) { "│  " } else { "   " }).collect();
            branch.push_str(if goes_on(at, row.depth) { "├─ " } else { "└─ " });
            let [label, rest @ ..] = row.cells();
            let [output, parameters, adds, bytes] = rest;
            lines.push([branch + &label, output, parameters, adds, bytes]);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let [names, outputs, counts, adds, sizes] = [0, 1, 2, 3, 4].map(width);
        for [name, output, count, add, size] in &lines {
            writeln!(f, "{name:names$}  {output:outputs$}  {count:>counts$}  {add:>adds$}  {size:>sizes$}")?;
        }
        let Counts { trained, frozen, .. } = self.counts;
        let frozen_part = if frozen == 0 { String::new() } else { format!(" ({} frozen)", thousands(frozen)) };
        let in_all = bytes(self.model_bytes);
        writeln!(f, "{} parameters{frozen_part}, {in_all} with buffers", thousands(trained + frozen))?;
        let adds = usize::try_from(self.multiply_adds()).unwrap_or(usize::MAX);
        writeln!(f, "{} multiply-adds", thousands(adds))?;
        write!(f, "{} of input, {} of activations", bytes(self.input_bytes), bytes(self.activation_bytes()))
    }
}
