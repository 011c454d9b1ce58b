//! The operator sets in which an attribute is one of its operator's, for attributes that came later than the operator
//! or went before it. Others are checked where they are read.

use super::operators::is_own;
use crate::Result;
use crate::error::bail;
use crate::onnx::proto;

/// The first set with an attribute, the first set without it again (0 if there is none), its name, and operators.
type Era = (i64, i64, &'static str, &'static [&'static str]);

/// Operators with an operand that takes the place of the attribute `axes`.
const REDUCTIONS: &[&str] = &[
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
];

const ALIGNED: &[&str] = &["Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"];

const RECURRENT: &[&str] = &["GRU", "LSTM", "RNN"];

const ERAS: &[Era] = &[
    (1, 2, "paddings", &["Pad"]),
    (1, 5, "shape", &["Reshape"]),
    (1, 7, "axis", ALIGNED),
    (1, 7, "broadcast", ALIGNED),
    (1, 7, "broadcast", &["Gemm"]),
    (1, 7, "height_scale", &["Upsample"]),
    (1, 7, "is_test", &["BatchNormalization", "Dropout"]),
    (1, 7, "output_sequence", RECURRENT),
    (1, 7, "width_scale", &["Upsample"]),
    (1, 9, "spatial", &["BatchNormalization"]),
    (1, 10, "axes", &["Slice"]),
    (1, 10, "ends", &["Slice"]),
    (1, 10, "k", &["TopK"]),
    (1, 10, "starts", &["Slice"]),
    (1, 11, "max", &["Clip"]),
    (1, 11, "min", &["Clip"]),
    (1, 11, "value", &["Pad"]),
    (1, 12, "ratio", &["Dropout"]),
    (1, 13, "axes", &["ReduceSum", "Squeeze", "Unsqueeze"]),
    (1, 13, "split", &["Split"]),
    (1, 18, "axes", REDUCTIONS),
    (2, 11, "pads", &["Pad"]),
    (3, 0, "linear_before_reset", &["GRU"]),
    (7, 0, "count_include_pad", &["AveragePool"]),
    (7, 9, "scales", &["Upsample"]),
    (8, 0, "storage_order", &["MaxPool"]),
    (9, 0, "scan_input_axes", &["Scan"]),
    (9, 0, "scan_input_directions", &["Scan"]),
    (9, 0, "scan_output_axes", &["Scan"]),
    (9, 0, "scan_output_directions", &["Scan"]),
    (10, 0, "ceil_mode", &["AveragePool", "MaxPool"]),
    (10, 0, "dilations", &["MaxPool"]),
    (11, 0, "coordinate_transformation_mode", &["Resize"]),
    (11, 0, "cubic_coeff_a", &["Resize"]),
    (11, 0, "exclude_outside", &["Resize"]),
    (11, 0, "extrapolation_value", &["Resize"]),
    (11, 0, "largest", &["TopK"]),
    (11, 0, "mode", &["DepthToSpace"]),
    (11, 0, "nearest_mode", &["Resize"]),
    (11, 0, "sorted", &["TopK"]),
    (11, 0, "sparse_value", &["Constant"]),
    (12, 0, "batch_dims", &["GatherND"]),
    (12, 0, "seed", &["Dropout"]),
    (12, 0, "select_last_index", &["ArgMax", "ArgMin"]),
    (12, 0, "value_float", &["Constant"]),
    (12, 0, "value_floats", &["Constant"]),
    (12, 0, "value_int", &["Constant"]),
    (12, 0, "value_ints", &["Constant"]),
    (12, 0, "value_string", &["Constant"]),
    (12, 0, "value_strings", &["Constant"]),
    (13, 0, "axis", &["DequantizeLinear", "QuantizeLinear"]),
    (13, 0, "noop_with_empty_axes", &["ReduceSum"]),
    (14, 0, "allowzero", &["Reshape"]),
    (14, 0, "layout", RECURRENT),
    (14, 0, "training_mode", &["BatchNormalization"]),
    (15, 0, "end", &["Shape"]),
    (15, 0, "start", &["Shape"]),
    (16, 0, "coordinate_transformation_mode", &["RoiAlign"]),
    (16, 0, "reduction", &["ScatterElements", "ScatterND"]),
    (17, 20, "axis", &["DFT"]),
    (18, 0, "antialias", &["Resize"]),
    (18, 0, "axes", &["Resize"]),
    (18, 0, "ceil_mode", &["LpPool"]),
    (18, 0, "dilations", &["LpPool"]),
    (18, 0, "keep_aspect_ratio_policy", &["Resize"]),
    (18, 0, "noop_with_empty_axes", REDUCTIONS),
    (18, 0, "num_outputs", &["Split"]),
    (19, 0, "dilations", &["AveragePool"]),
    (19, 0, "saturate", &["Cast", "CastLike", "QuantizeLinear"]),
    (21, 0, "block_size", &["DequantizeLinear", "QuantizeLinear"]),
    (21, 0, "output_dtype", &["QuantizeLinear"]),
    (21, 0, "stash_type", &["GroupNormalization"]),
    (23, 0, "output_dtype", &["DequantizeLinear"]),
    (23, 0, "precision", &["QuantizeLinear"]),
    (24, 0, "round_mode", &["Cast", "CastLike"]),
    (25, 0, "left_window_size", &["Attention"]),
    (25, 0, "right_window_size", &["Attention"]),
    (27, 0, "stash_type", &["Range"]),
    (28, 0, "mode", &["SpaceToDepth"]),
];

/// Refuses attributes that a node's operator does not have in the operator set of the file.
pub(super) fn check(node: &proto::Node, opset: i64) -> Result<()> {
    if !is_own(&node.domain) {
        return Ok(());
    }
    for attribute in &node.attribute {
        let is_of = |era: &&Era| era.2 == attribute.name && era.3.contains(&&node.op_type[..]);
        match ERAS.iter().find(is_of) {
            Some(&(first, ..)) if opset < first => bail!(
                Checkpoint,
                "the attribute `{}` is part of operator set {first}, and the file has set {opset}",
                attribute.name
            ),
            Some(&(_, end, ..)) if end != 0 && opset >= end => bail!(
                Checkpoint,
                "the attribute `{}` is no longer part of operator set {end}, and the file has set {opset}",
                attribute.name
            ),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attribute_has_one_era() {
        for (k, (first, end, name, operators)) in ERAS.iter().enumerate() {
            assert!(*end == 0 || first < end, "{name}");
            for (_, _, other, others) in &ERAS[..k] {
                let shared = operators.iter().find(|operator| others.contains(operator));
                assert!(name != other || shared.is_none(), "{name} of {shared:?}");
            }
        }
    }

    #[test]
    fn attributes_of_other_sets_are_refused() {
        let node = |op: &str, name: &str| proto::Node {
            op_type: op.into(),
            attribute: vec![proto::Attribute { name: name.into(), ..proto::Attribute::default() }],
            ..proto::Node::default()
        };
        assert!(check(&node("Shape", "start"), 15).is_ok() && check(&node("Softmax", "start"), 1).is_ok());
        let error = check(&node("Shape", "start"), 14).unwrap_err();
        assert_eq!(error.message(), "the attribute `start` is part of operator set 15, and the file has set 14");
        assert!(check(&node("ReduceMax", "axes"), 17).is_ok());
        let error = check(&node("ReduceMax", "axes"), 18).unwrap_err();
        assert!(error.message().contains("no longer part of operator set 18"), "{error}");
    }
}
