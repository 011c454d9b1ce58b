//! Linear models and trees. `onnxruntime` computes what they give: `cargo xtask onnx-suite`.

use super::{Graph, Value, assert_close};
use crate::Result;
use crate::onnx::import::learned::DOMAIN;
use crate::onnx::proto::element::{FLOAT, INT64};

/// A tree of one comparison with these attributes in place of its own.
fn tree(others: Vec<(&'static str, Value)>) -> Graph {
    let mut attributes = vec![
        ("nodes_treeids", Value::Ints(vec![0, 0, 0])),
        ("nodes_nodeids", Value::Ints(vec![0, 1, 2])),
        ("nodes_featureids", Value::Ints(vec![1, 0, 0])),
        ("nodes_modes", Value::Texts(&["BRANCH_LT", "LEAF", "LEAF"])),
        ("nodes_values", Value::Floats(vec![0.5, 0.0, 0.0])),
        ("nodes_truenodeids", Value::Ints(vec![1, 0, 0])),
        ("nodes_falsenodeids", Value::Ints(vec![2, 0, 0])),
        ("target_treeids", Value::Ints(vec![0, 0])),
        ("target_nodeids", Value::Ints(vec![1, 2])),
        ("target_ids", Value::Ints(vec![0, 0])),
        ("target_weights", Value::Floats(vec![3.0, -4.0])),
    ];
    attributes.retain(|(name, _)| others.iter().all(|(other, _)| other != name));
    attributes.extend(others);
    let graph = Graph::new(17).input("x", FLOAT, &[3, 2]).output("y", FLOAT);
    graph.node("TreeEnsembleRegressor", &["x"], &["y"], &attributes).of_domain(DOMAIN)
}

const X: [f64; 6] = [9.0, 0.25, 9.0, 0.5, 9.0, f64::NAN];

#[test]
fn examples_step_down() -> Result<()> {
    assert_close(&tree(Vec::new()).numbers(&[&X])?, &[3.0, -4.0, -4.0], "a missing number does not hold");
    let missing = vec![("nodes_missing_value_tracks_true", Value::Ints(vec![1, 0, 0]))];
    assert_close(&tree(missing).numbers(&[&X])?, &[3.0, -4.0, 3.0], "it holds");
    let leaf =
        vec![("nodes_modes", Value::Texts(&["LEAF", "LEAF", "LEAF"])), ("target_nodeids", Value::Ints(vec![0, 2]))];
    assert_close(&tree(leaf).numbers(&[&X])?, &[-1.0; 3], "three trees without comparisons");
    Ok(())
}

#[test]
fn graphs_that_are_no_trees_are_refused() {
    for (name, value, message) in [
        ("nodes_truenodeids", Value::Ints(vec![3, 0, 0]), "tree 0 has no node 3"),
        ("nodes_truenodeids", Value::Ints(vec![0, 0, 0]), "one of its nodes is in no tree"),
        ("nodes_truenodeids", Value::Ints(vec![1]), "the attribute `nodes_truenodeids` has 1 elements, not 3"),
        ("nodes_nodeids", Value::Ints(vec![0, 1, 1]), "two nodes of a tree have one number"),
        ("nodes_treeids", Value::Ints(vec![0, -1, 0]), "the attribute `nodes_treeids` has a negative element"),
        ("nodes_featureids", Value::Ints(vec![2, 0, 0]), "a node compares number 2 of examples with 2"),
        ("nodes_modes", Value::Texts(&["BRANCH_MEMBER", "LEAF", "LEAF"]), "a node has the mode \"BRANCH_MEMBER\""),
        ("nodes_values", Value::Floats(vec![0.0]), "the attribute `nodes_values` has 1 elements, not 3"),
        ("target_ids", Value::Ints(vec![0, 1]), "a weight of target 1; there are 1"),
        ("target_nodeids", Value::Ints(vec![1, 7]), "tree 0 has no node 7"),
        ("n_targets", Value::Int(0), "the attribute `n_targets` is not above 0"),
        ("n_targets", Value::Int(i64::MAX), "elements of constants"),
        ("base_values", Value::Floats(vec![1.0, 2.0]), "2 base values of 1 targets"),
        ("aggregate_function", Value::Text("MIN"), "`aggregate_function` is \"MIN\""),
        ("post_transform", Value::Text("PROBIT"), "`post_transform` is \"PROBIT\""),
        ("depth", Value::Int(1), "the attribute `depth` is not supported"),
    ] {
        let error = tree(vec![(name, value)]).error(&[&X]).to_string();
        assert!(error.contains("node `y` (TreeEnsembleRegressor)") && error.contains(message), "{message}: {error}");
    }
    // Four nodes, two of which lead to each other.
    let cycle = vec![
        ("nodes_treeids", Value::Ints(vec![0; 5])),
        ("nodes_nodeids", Value::Ints(vec![0, 1, 2, 3, 4])),
        ("nodes_featureids", Value::Ints(vec![0; 5])),
        ("nodes_modes", Value::Texts(&["BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF"])),
        ("nodes_values", Value::Floats(vec![0.0; 5])),
        ("nodes_truenodeids", Value::Ints(vec![1, 2, 1, 0, 0])),
        ("nodes_falsenodeids", Value::Ints(vec![3, 4, 4, 0, 0])),
        ("target_nodeids", Value::Ints(vec![3, 4])),
    ];
    let error = tree(cycle).error(&[&X]).to_string();
    assert!(error.contains("two ways lead to one of its nodes"), "{error}");
}

#[test]
fn linear_models_that_do_not_fit_are_refused() {
    let model = |op: &str, attributes: &[(&str, Value)]| {
        let graph = Graph::new(17).input("x", FLOAT, &[3, 2]).output("label", INT64).output("y", FLOAT);
        let results: &[&str] = if op.ends_with("Classifier") { &["label", "y"] } else { &["y"] };
        graph.node(op, &["x"], results, attributes).of_domain(DOMAIN).error(&[&X]).to_string()
    };
    let numbers = |count: usize| Value::Floats(vec![1.0; count]);
    let labels = || ("classlabels_ints", Value::Ints(vec![3, 4, 5]));
    for (op, attributes, message) in [
        ("LinearClassifier", vec![("coefficients", numbers(6))], "0 classes; 2 are the fewest"),
        ("LinearClassifier", vec![labels()], "the attribute `coefficients` is missing"),
        ("LinearClassifier", vec![labels(), ("coefficients", numbers(5))], "5 coefficients for 3 results of 2 numbers"),
        (
            "LinearClassifier",
            vec![labels(), ("coefficients", numbers(4)), ("intercepts", numbers(2))],
            "2 rows of coefficients for 3 classes",
        ),
        (
            "LinearClassifier",
            vec![labels(), ("classlabels_strings", Value::Texts(&["a", "b"])), ("coefficients", numbers(6))],
            "both integers and texts",
        ),
    ] {
        let error = model(op, &attributes);
        assert!(error.contains(&format!("({op})")) && error.contains(message), "{message}: {error}");
    }
}
