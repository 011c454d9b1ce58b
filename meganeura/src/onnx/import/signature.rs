//! The operands of each operator: how many, of which types, and the operator set that introduced it.

use super::element::{Element, Kind};
use super::operators::is_own;
use super::texts;
use super::value::Value;
use super::{learned, microsoft, training};
use crate::Result;
use crate::error::bail;
use crate::onnx::proto;

/// The name, the first operator set, and a letter for the type of each operand. Those after `?` may be left
/// out, and `*` repeats the last:
///
/// | letter | type |
/// |---|---|
/// | `S` `V` | a sequence, a tensor or a sequence |
/// | `T` `N` `F` | any, a number, a float: the same for all operands of this letter |
/// | `A` `U` `G` | any, a number, a float; of numbers and floats, those of more than 4 and 8 bits |
/// | `B` | a condition |
/// | `W` | a text; `T` and `A` are one if the operator [moves texts](texts::moves) |
/// | `I` `L` | `int32` or `int64`, `int64` |
const SIGNATURES: &[(&str, i64, &str)] = &[
    ("Abs", 1, "N"),
    ("Acos", 7, "F"),
    ("Acosh", 9, "F"),
    ("Add", 1, "NN"),
    ("AffineGrid", 20, "FL"),
    ("And", 1, "BB"),
    ("ArgMax", 1, "N"),
    ("ArgMin", 1, "N"),
    ("Asin", 7, "F"),
    ("Asinh", 9, "F"),
    ("Atan", 7, "F"),
    ("Atanh", 9, "F"),
    ("Attention", 23, "FFF?AGGL"),
    ("AveragePool", 1, "F"),
    ("BatchNormalization", 1, "FGGGG"),
    ("BitShift", 11, "NN"),
    ("BitwiseAnd", 18, "NN"),
    ("BitwiseNot", 18, "N"),
    ("BitwiseOr", 18, "NN"),
    ("BitwiseXor", 18, "NN"),
    ("BlackmanWindow", 17, "I"),
    ("Cast", 1, "A"),
    ("CastLike", 15, "AA"),
    ("CausalConvWithState", 27, "FF?FF"),
    ("Ceil", 1, "F"),
    ("Celu", 12, "F"),
    ("CenterCropPad", 18, "TI"),
    ("Clip", 1, "N?NN"),
    ("Col2Im", 18, "FLL"),
    ("Compress", 9, "AB"),
    ("Concat", 1, "T*"),
    ("ConcatFromSequence", 11, "S"),
    ("Constant", 1, ""),
    ("ConstantOfShape", 9, "L"),
    ("Conv", 1, "FF?F"),
    ("ConvInteger", 10, "AA?AA"),
    ("ConvTranspose", 1, "FF?F"),
    ("Cos", 7, "F"),
    ("Cosh", 9, "F"),
    ("CumProd", 26, "NI"),
    ("CumSum", 11, "NI"),
    ("DFT", 17, "F?IL"),
    ("DeformConv", 19, "FFF?FF"),
    ("DepthToSpace", 1, "T"),
    ("DequantizeLinear", 10, "AG?A"),
    ("Div", 1, "NN"),
    ("Dropout", 1, "F?GB"),
    ("DynamicQuantizeLinear", 11, "F"),
    ("Einsum", 12, "N*"),
    ("Elu", 1, "F"),
    ("Equal", 1, "TT"),
    ("Erf", 9, "F"),
    ("Exp", 1, "F"),
    ("Expand", 8, "TL"),
    ("EyeLike", 9, "A"),
    ("Flatten", 1, "T"),
    ("Floor", 1, "F"),
    ("Gather", 1, "TI"),
    ("GRU", 1, "FFF?FIF"),
    ("GatherElements", 11, "TI"),
    ("GatherND", 11, "AI"),
    ("Gelu", 20, "F"),
    ("Gemm", 1, "NN?N"),
    ("GlobalAveragePool", 1, "F"),
    ("GlobalLpPool", 1, "F"),
    ("GlobalMaxPool", 1, "F"),
    ("Greater", 1, "NN"),
    ("GreaterOrEqual", 12, "NN"),
    ("GridSample", 16, "FG"),
    ("GroupNormalization", 18, "FFF"),
    ("HammingWindow", 17, "I"),
    ("HannWindow", 17, "I"),
    ("HardSigmoid", 1, "F"),
    ("HardSwish", 14, "F"),
    ("Hardmax", 1, "F"),
    ("Identity", 1, "V"),
    ("If", 1, "B"),
    ("InstanceNormalization", 1, "FFF"),
    ("IsInf", 10, "F"),
    ("IsNaN", 9, "F"),
    ("LRN", 1, "F"),
    ("LSTM", 1, "FFF?FIFFF"),
    ("LayerNormalization", 17, "FF?F"),
    ("LeakyRelu", 1, "F"),
    ("Less", 1, "NN"),
    ("LessOrEqual", 12, "NN"),
    ("LinearAttention", 27, "FFF?GFF"),
    ("Log", 1, "F"),
    ("LogSoftmax", 1, "F"),
    ("Loop", 1, "?LBV*"),
    ("LpNormalization", 1, "F"),
    ("LpPool", 1, "F"),
    ("MatMul", 1, "NN"),
    ("MatMulInteger", 10, "AA?AA"),
    ("Max", 1, "N*"),
    ("MaxPool", 1, "N"),
    ("MaxUnpool", 9, "FL?L"),
    ("Mean", 1, "F*"),
    ("MeanVarianceNormalization", 9, "F"),
    ("MelWeightMatrix", 17, "IIIFF"),
    ("Min", 1, "N*"),
    ("Mish", 18, "F"),
    ("Mod", 10, "NN"),
    ("Mul", 1, "NN"),
    ("Neg", 1, "N"),
    ("NegativeLogLikelihoodLoss", 12, "FI?F"),
    ("NonMaxSuppression", 10, "FF?LFF"),
    ("NonZero", 9, "A"),
    ("Not", 1, "B"),
    ("OneHot", 9, "UUA"),
    ("Optional", 15, "?V"),
    ("OptionalGetElement", 15, "V"),
    ("OptionalHasElement", 15, "?V"),
    ("Or", 1, "BB"),
    ("PRelu", 1, "FF"),
    ("Pad", 1, "T?LTI"),
    ("Pow", 1, "NU"),
    ("QLinearConv", 10, "AGAAGAGA?I"),
    ("QLinearMatMul", 10, "AGAAGAGA"),
    ("QuantizeLinear", 10, "UG?A"),
    ("RMSNormalization", 23, "FG"),
    ("RNN", 1, "FFF?FIF"),
    ("Range", 11, "NNN"),
    ("Reciprocal", 1, "F"),
    ("ReduceL1", 1, "N?L"),
    ("ReduceL2", 1, "N?L"),
    ("ReduceLogSum", 1, "N?L"),
    ("ReduceLogSumExp", 1, "N?L"),
    ("ReduceMax", 1, "A?L"),
    ("ReduceMean", 1, "N?L"),
    ("ReduceMin", 1, "A?L"),
    ("ReduceProd", 1, "N?L"),
    ("ReduceSum", 1, "N?L"),
    ("ReduceSumSquare", 1, "N?L"),
    ("RegexFullMatch", 20, "W"),
    ("Relu", 1, "N"),
    ("Reshape", 1, "T?L"),
    ("Resize", 10, "T?GGL"),
    ("ReverseSequence", 10, "AI"),
    ("RoiAlign", 10, "FFL"),
    ("RotaryEmbedding", 23, "FFF?L"),
    ("Round", 11, "F"),
    ("STFT", 17, "FI?FI"),
    ("Scan", 9, "A*"),
    ("Scatter", 9, "TIT"),
    ("ScatterElements", 11, "TIT"),
    ("ScatterND", 11, "TIT"),
    ("Selu", 1, "F"),
    ("SequenceAt", 11, "SI"),
    ("SequenceConstruct", 11, "T*"),
    ("SequenceEmpty", 11, ""),
    ("SequenceErase", 11, "S?I"),
    ("SequenceInsert", 11, "SA?I"),
    ("SequenceLength", 11, "S"),
    ("SequenceMap", 17, "S?V*"),
    ("Shape", 1, "A"),
    ("Shrink", 9, "N"),
    ("Sigmoid", 1, "F"),
    ("Sign", 9, "N"),
    ("SimplifiedLayerNormalization", 1, "FG"),
    ("Sin", 7, "F"),
    ("Sinh", 9, "F"),
    ("Size", 1, "A"),
    ("Slice", 1, "T?IIII"),
    ("Softmax", 1, "F"),
    ("SoftmaxCrossEntropyLoss", 12, "FI?F"),
    ("Softplus", 1, "F"),
    ("Softsign", 1, "F"),
    ("SpaceToDepth", 1, "T"),
    ("Split", 1, "T?L"),
    ("SplitToSequence", 11, "A?I"),
    ("Sqrt", 1, "F"),
    ("Squeeze", 1, "T?L"),
    ("StringConcat", 20, "WW"),
    ("StringNormalizer", 10, "W"),
    ("StringSplit", 20, "W"),
    ("Sub", 1, "NN"),
    ("Sum", 1, "F*"),
    ("SwiGLU", 28, "FF"),
    ("Swish", 24, "F"),
    ("Tan", 7, "F"),
    ("Tanh", 1, "F"),
    ("TensorScatter", 24, "TT?I"),
    ("ThresholdedRelu", 10, "F"),
    ("Tile", 6, "TL"),
    ("TopK", 1, "N?L"),
    ("Transpose", 1, "T"),
    ("Trilu", 14, "T?L"),
    ("Unique", 11, "A"),
    ("Unsqueeze", 1, "T?L"),
    ("Upsample", 1, "T?G"),
    ("Where", 9, "BTT"),
    ("Xor", 1, "BB"),
];

/// The operands of an operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    since: i64,
    types: &'static str,
    moves_texts: bool,
}

/// The signature of a node's operator.
pub(super) fn of(node: &proto::Node) -> Option<Signature> {
    let table = match &node.domain[..] {
        learned::DOMAIN => learned::SIGNATURES,
        microsoft::DOMAIN => microsoft::SIGNATURES,
        training::DOMAIN => training::SIGNATURES,
        _ => SIGNATURES,
    };
    let (_, since, types) = table.iter().find(|(name, ..)| *name == node.op_type)?;
    // The operator set of another domain is not that of the file's own operators.
    let since = if is_own(&node.domain) { *since } else { 1 };
    Some(Signature { since, types, moves_texts: texts::moves(&node.op_type) })
}

impl Signature {
    /// Refuses an operator that its operator set does not have yet, missing operands and additional ones.
    pub(super) fn check(self, opset: i64, operands: &[String]) -> Result<()> {
        if opset < self.since {
            bail!(Checkpoint, "the operator is part of operator set {}, and the file has set {opset}", self.since);
        }
        let letters = self.types.trim_end_matches('*').chars().filter(|&letter| letter != '?').count();
        let most = if self.types.ends_with('*') { usize::MAX } else { letters };
        let given = match self.types.find('?') {
            Some(least) => least,
            None if most == usize::MAX => operands.len().max(letters),
            None => letters,
        };
        if let Some(k) = (0..given).find(|&k| operands.get(k).is_none_or(String::is_empty)) {
            bail!(Checkpoint, "operand {k} is missing");
        }
        if operands.len() > most {
            bail!(Checkpoint, "{} operands, and the operator has at most {most}", operands.len());
        }
        Ok(())
    }

    /// Refuses operands of types that the operator does not take.
    pub(super) fn check_types(self, operands: &[Option<Value>]) -> Result<()> {
        let letters = self.types.trim_end_matches('*').chars().filter(|&letter| letter != '?');
        let last = letters.clone().next_back();
        let mut letters = letters.map(Some).chain(std::iter::repeat(last));
        let mut known: [Option<(usize, Element)>; 3] = [None; 3];
        for (k, operand) in operands.iter().enumerate() {
            let (Some(Some(letter)), Some(operand)) = (letters.next(), operand) else { continue };
            match (letter, operand) {
                ('S', Value::Known(_) | Value::Var(..)) => bail!(Checkpoint, "operand {k} is a tensor, not a sequence"),
                ('S', Value::Nothing(_)) => bail!(Checkpoint, "operand {k} is an optional value that is left out"),
                ('S' | 'V', _) | (_, Value::Known(_) | Value::Var(..)) => {}
                (_, Value::Sequence(..)) => bail!(Checkpoint, "operand {k} is a sequence, not a tensor"),
                (_, Value::Nothing(_)) => bail!(Checkpoint, "operand {k} is an optional value that is left out"),
            }
            let (element, kind) = (operand.element(), operand.kind());
            let expected = match letter {
                'N' | 'U' | 'F' | 'G' if element.is_stored_only() => "a type to compute with",
                'W' if kind != Kind::Text => "string",
                'W' => "",
                'N' | 'U' if matches!(kind, Kind::Bool | Kind::Text) => "a number",
                'T' | 'A' if kind == Kind::Text && !self.moves_texts => "a number or a condition",
                'F' | 'G' if kind != Kind::Float => "a float",
                'B' if kind != Kind::Bool => "bool",
                'I' if !matches!(element, Element::I32 | Element::I64) => "int32 or int64",
                'L' if element != Element::I64 => "int64",
                _ => "",
            };
            if !expected.is_empty() {
                bail!(Checkpoint, "operand {k} holds {}, not {expected}", element.name());
            }
            let Some(group) = "TNF".find(letter) else { continue };
            match known[group] {
                Some((first, other)) if other != element => bail!(
                    Checkpoint,
                    "operand {first} holds {} and operand {k} {}, which must be the same",
                    other.name(),
                    element.name()
                ),
                _ => known[group] = Some((k, element)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_a_signature() {
        let listed = crate::onnx::import::operators::tables().into_iter().flatten().map(|(name, _)| *name);
        let rows = crate::ops::Pointwise::ALL.iter().filter(|row| row.arity() == 1).filter_map(|row| row.operator());
        let own = listed.chain(rows).map(|name| (name, ""));
        let others = microsoft::OPERATORS.iter().map(|(name, _)| (*name, microsoft::DOMAIN));
        let steps = training::OPERATORS.iter().map(|(name, _)| (*name, training::DOMAIN));
        let models = learned::OPERATORS.iter().map(|(name, _)| (*name, learned::DOMAIN));
        for (name, domain) in own.chain(others).chain(steps).chain(models) {
            let node = proto::Node { op_type: name.into(), domain: domain.into(), ..proto::Node::default() };
            assert!(of(&node).is_some(), "{domain} {name}");
        }
    }

    #[test]
    fn the_guide_lists_every_operator() {
        // Their column of the table.
        let rows = include_str!("../../guide/onnx.md").lines().filter(|line| line.starts_with("| "));
        let guide: String = rows.filter_map(|row| row.split(" | ").nth(1)).collect();
        let names = |table: &[(&'static str, i64, &str)]| table.iter().map(|(name, ..)| *name).collect::<Vec<_>>();
        let missing: Vec<_> = [names(SIGNATURES), names(microsoft::SIGNATURES), names(training::SIGNATURES)]
            .concat()
            .into_iter()
            .filter(|name| !guide.contains(&format!("`{name}`")))
            .collect();
        assert!(missing.is_empty(), "guide/onnx.md does not name {missing:?}");
    }
}
