//! Weights of a file as parameters, which can be trained.

use std::collections::{BTreeMap, HashMap};

use super::element::{Element, Kind};
use super::initial::Initial;
use super::{Model, graph};
use crate::error::here;
use crate::module::{At, Module, Slot, SlotMut};
use crate::onnx::proto;
use crate::{Param, Result, Tensor};

/// A weight of a file, and the type of its elements there.
pub(super) type Weights = BTreeMap<String, (Param, Element)>;

/// Operands that are weights, of any size.
const WEIGHTS: &[(&str, &[usize])] = &[
    ("Attention", &[1, 2]),
    ("BatchNormalization", &[1, 2]),
    ("BiasGelu", &[1]),
    ("CausalConvWithState", &[1, 2]),
    ("Conv", &[1, 2]),
    ("ConvTranspose", &[1, 2]),
    ("DeformConv", &[1, 3]),
    ("EmbedLayerNormalization", &[2, 3, 4, 5, 6]),
    ("FastGelu", &[1]),
    ("FusedConv", &[1, 2]),
    ("FusedGemm", &[0, 1, 2]),
    ("GRU", &[1, 2, 3]),
    ("Gemm", &[0, 1, 2]),
    ("GroupNormalization", &[1, 2]),
    ("InstanceNormalization", &[1, 2]),
    ("LSTM", &[1, 2, 3, 7]),
    ("LayerNormalization", &[1, 2]),
    ("PRelu", &[1]),
    ("RMSNormalization", &[1]),
    ("RNN", &[1, 2, 3]),
    ("SimplifiedLayerNormalization", &[1]),
    ("SkipLayerNormalization", &[2, 3, 4]),
    ("SkipSimplifiedLayerNormalization", &[2, 3]),
];

/// Operands that are weights if they have several elements: single numbers are constants of a formula.
const MAYBE_WEIGHTS: &[(&str, &[usize])] = &[
    ("Add", &[0, 1]),
    ("Concat", &[0, 1, 2, 3, 4, 5, 6, 7]),
    ("Div", &[0, 1]),
    ("Einsum", &[0, 1, 2, 3]),
    ("Expand", &[0]),
    ("FusedMatMul", &[0, 1]),
    ("Gather", &[0]),
    ("MatMul", &[0, 1]),
    ("Mul", &[0, 1]),
    ("Sub", &[0, 1]),
];

/// Operators whose result is a weight if their operand is.
const MOVERS: &[&str] = &["Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"];

/// What the uses of a value say of it; the least counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Constant,
    MaybeWeight,
    Weight,
}

impl Use {
    fn of(node: &proto::Node, operand: usize, uses: &HashMap<&str, Self>) -> Self {
        let lists = |table: &[(&str, &[usize])]| {
            table.iter().any(|(op, operands)| *op == node.op_type && operands.contains(&operand))
        };
        if lists(WEIGHTS) {
            return Self::Weight;
        }
        if lists(MAYBE_WEIGHTS) {
            return Self::MaybeWeight;
        }
        let result = node.output.first().filter(|_| operand == 0 && MOVERS.contains(&&node.op_type[..]));
        result.and_then(|name| uses.get(&name[..])).copied().unwrap_or(Self::Constant)
    }
}

/// The uses of the values of a graph, from its last node to its first, and of graphs inside its nodes.
fn uses<'a>(graph: &'a proto::Graph, all: &mut HashMap<&'a str, Use>) {
    let add = |all: &mut HashMap<&'a str, Use>, name: &'a str, found| {
        let own = all.entry(name).or_insert(found);
        *own = found.min(*own);
    };
    for output in &graph.output {
        add(all, &output.name, Use::Constant);
    }
    for node in graph.node.iter().rev() {
        graph::bodies(node).for_each(|body| uses(body, all));
        for (operand, name) in node.input.iter().enumerate() {
            let found = Use::of(node, operand, all);
            add(all, name, found);
        }
    }
}

impl Model {
    /// The model with its weights as parameters. It is a [`Module`]: an optimizer trains them, `save` and `load` write
    /// and read them, and [`freeze`](crate::module::ModuleExt::freeze) excludes some. Their paths are the names in the
    /// file.
    ///
    /// Weights are constants of floats that are operands of products, convolutions, normalisations, recurrent layers
    /// and embeddings, and those of several numbers that are added, multiplied or concatenated. So constants that
    /// normalise the input, windows, filters and matrices of Fourier transforms are among them: freeze those,
    /// `model.freeze("stft*")?`. Running statistics of batch normalisation stay constants, as
    /// do quantised weights.
    ///
    /// ```
    /// use meganeura::onnx::{self, Model};
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let net = (Linear::new(4, 8), Tanh, Linear::new(8, 3)).init(&device, Seed::new(1))?;
    /// let bytes = onnx::export(&device, [6, 4], |x| net.forward(x))?.to_bytes()?;
    ///
    /// let mut model = Model::from_bytes(&device, &bytes)?.trainable()?;
    /// assert_eq!(model.parameter_count(), 4 * 8 + 8 + 8 * 3 + 3);
    /// let (x, labels) = (Tensor::randn(&device, [6, 4], 2)?, Tensor::indices(&device, [6], &[0, 1, 2, 0, 1, 2])?);
    /// let mut optimizer = AdamW::new(0.05);
    /// let mut losses = Vec::new();
    /// for _ in 0..20 {
    ///     let tape = Tape::new(&device);
    ///     let scores = model.record(&tape, &[tape.input(&x)])?.swap_remove(0);
    ///     let loss = scores.cross_entropy(&labels);
    ///     optimizer.step(&mut model, &tape.backward(&loss)?)?;
    ///     losses.push(loss.item()?);
    /// }
    /// assert!(losses[19] < 0.5 * losses[0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the device has no room for the weights.
    #[track_caller]
    pub fn trainable(mut self) -> Result<Self> {
        here(|| {
            let mut found = HashMap::new();
            uses(&self.graph, &mut found);
            let is_weight = |name: &str, initial: &Initial| {
                let (element, count) = (initial.element(), initial.len());
                let of_uses = found.get(name).copied().unwrap_or(Use::Constant);
                element.kind() == Kind::Float
                    && count > 0
                    && of_uses > if count > 1 { Use::Constant } else { Use::MaybeWeight }
            };
            let names: Vec<_> = self
                .initializers
                .iter()
                .filter(|(name, initial)| is_weight(name, initial))
                .map(|(name, _)| name.clone())
                .collect();
            let mut weights = Weights::new();
            for name in names {
                let initial = &self.initializers[&name];
                let tensor = match initial {
                    Initial::Tensor(tensor, _) => tensor.clone(),
                    Initial::Known(array) => Tensor::from_f64(&self.device, array.shape()?, &array.as_floats())?,
                };
                let param = Param::new(tensor);
                param.set_path(&name);
                weights.insert(name, (param, initial.element()));
            }
            for name in weights.keys() {
                self.initializers.remove(name);
            }
            self.weights.append(&mut weights);
            self.plans.forget();
            Ok(self)
        })
    }
}

/// The weights of a [trainable](Model::trainable) model; of others, there are none.
impl Module for Model {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        for (name, (param, _)) in &self.weights {
            param.visit(at.field(name), f);
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        for (name, (param, _)) in &mut self.weights {
            param.visit_mut(at.field(name), f);
        }
    }
}
