//! Texts, sequences and optional values as inputs and outputs.

use super::{Graph, Value};
use crate::onnx::Item;
use crate::onnx::import::Model;
use crate::onnx::proto::element::{BOOL, FLOAT, INT64, STRING};
use crate::onnx::proto::{Nested, Type};
use crate::{Device, ErrorKind, Result, Tensor};

fn model(graph: &Graph) -> Result<Model> {
    Model::from_bytes(&Device::cpu(), &graph.bytes())
}

fn floats(dims: &[usize], numbers: &[f32]) -> Result<Item> {
    Ok(Tensor::from_slice(&Device::cpu(), dims, numbers)?.into())
}

fn texts(item: &Item) -> (Vec<usize>, Vec<&str>) {
    let Item::Texts(dims, texts) = item else { panic!("{item:?}") };
    (dims.clone(), texts.iter().map(String::as_str).collect())
}

/// Makes the input that was added last a sequence of tensors, or an optional value.
fn nested(mut graph: Graph, is_optional: bool) -> Graph {
    for info in graph.graph.input.iter_mut().rev().take(1).chain(graph.graph.output.iter_mut().rev().take(1)) {
        let inner = Some(Nested { elem_type: info.ty.take().map(Box::new) });
        info.ty = Some(if is_optional {
            Type { optional: inner, ..Type::default() }
        } else {
            Type { sequence: inner, ..Type::default() }
        });
    }
    graph
}

/// A classifier whose result is the name of the class: indices that are computed choose texts.
#[test]
fn names_of_classes() -> Result<()> {
    let graph = Graph::new(21)
        .input("x", FLOAT, &[-1, 3])
        .output("name", STRING)
        .node("Constant", &[], &["names"], &[("value_strings", Value::Texts(&["cat", "dog", "yak"]))])
        .node("ArgMax", &["x"], &["best"], &[("axis", Value::Int(1)), ("keepdims", Value::Int(0))])
        .node("Gather", &["names", "best"], &["name"], &[]);
    let model = model(&graph)?;
    let x = floats(&[2, 3], &[0.1, 0.2, 0.7, 0.9, 0.0, 0.1])?;
    for _ in 0..2 {
        assert_eq!(texts(&model.evaluate(std::slice::from_ref(&x))?[0]), (vec![2], vec!["yak", "cat"]));
    }
    let error = model.run(&[x.as_tensor().expect("a tensor")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.to_string().contains("name: string[…] is no tensor of numbers: use `Model::evaluate`"), "{error}");
    assert!(model.compile_for(&[[2, 3].into()]).is_err());
    Ok(())
}

#[test]
fn operators_of_texts() -> Result<()> {
    let graph = Graph::new(21)
        .input("a", STRING, &[-1, 2])
        .input("b", STRING, &[-1])
        .output("joined", STRING)
        .output("is_b", BOOL)
        .output("parts", STRING)
        .output("counts", INT64)
        .output("is_word", BOOL)
        .node("StringConcat", &["a", "b"], &["joined"], &[])
        .node("Equal", &["a", "b"], &["is_b"], &[])
        .node("StringSplit", &["a"], &["parts", "counts"], &[("delimiter", Value::Text("-"))])
        .node("RegexFullMatch", &["a"], &["is_word"], &[("pattern", Value::Text(r"\w+|x-"))]);
    let a = Item::Texts(vec![2, 2], ["x", "y-z", "", "ü"].map(String::from).to_vec());
    let results = model(&graph)?.evaluate(&[a.clone(), Item::texts(["x", "ü"])])?;
    assert_eq!(texts(&results[0]), (vec![2, 2], vec!["xx", "y-zü", "x", "üü"]));
    let numbers = |item: &Item| item.as_tensor().expect("a tensor").to_vec();
    assert_eq!(numbers(&results[1])?, [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(texts(&results[2]), (vec![2, 2, 2], vec!["x", "", "y", "z", "", "", "ü", ""]));
    assert_eq!(results[3].as_tensor().expect("a tensor").to_i64_vec()?, [1, 2, 0, 1]);
    // Classes are those of ASCII.
    assert_eq!(numbers(&results[4])?, [1.0, 0.0, 0.0, 0.0]);
    let error = model(&graph)?.evaluate(&[a, Item::texts(["x", "y", "z"])]).unwrap_err();
    assert!(
        error.to_string().contains("node `joined` (StringConcat): texts [2, 2] and [3] do not broadcast"),
        "{error}"
    );
    Ok(())
}

#[test]
fn stop_words() -> Result<()> {
    let normalised = |attributes: super::Attributes<'_>, words: &[&str]| {
        let graph = Graph::new(21).input("x", STRING, &[-1]).output("y", STRING);
        let results = model(&graph.node("StringNormalizer", &["x"], &["y"], attributes))?
            .evaluate(&[Item::texts(words.iter().copied())])?;
        Ok::<_, crate::Error>(texts(&results[0]).1.join("|"))
    };
    let stop = ("stopwords", Value::Texts(&["The"]));
    assert_eq!(normalised(&[stop], &["the", "The", "ÉTÉ"])?, "ÉTÉ");
    let attributes = || {
        [
            ("stopwords", Value::Texts(&["The"])),
            ("is_case_sensitive", Value::Int(1)),
            ("case_change_action", Value::Text("LOWER")),
        ]
    };
    assert_eq!(normalised(&attributes(), &["the", "The", "ÉTÉ"])?, "the|été");
    assert_eq!(normalised(&attributes(), &["The"])?, "");
    for (attribute, value, part) in [
        ("case_change_action", "TITLE", "the attribute `case_change_action` is \"TITLE\""),
        ("locale", "tr_TR", "the attribute `locale` is \"tr_TR\""),
    ] {
        let error = normalised(&[(attribute, Value::Text(value))], &["i"]).unwrap_err().to_string();
        assert!(error.contains("node `y` (StringNormalizer)") && error.contains(part), "{error}");
    }
    Ok(())
}

#[test]
fn sequences_and_optional_values() -> Result<()> {
    let graph = Graph::new(21)
        .input("items", FLOAT, &[2])
        .output("turned", FLOAT)
        .ints("first", &[0.0])
        .node("Squeeze", &["first"], &["at"], &[])
        .node("SequenceAt", &["items", "at"], &["item"], &[])
        .node("SequenceErase", &["items", "at"], &["others"], &[])
        .node("SequenceInsert", &["others", "item"], &["turned"], &[]);
    let turned = model(&nested(graph, false))?;
    assert_eq!(turned.inputs()[0].to_string(), "items: sequence(float[2])");
    let items = Item::Sequence(vec![floats(&[2], &[1.0, 2.0])?, floats(&[2], &[3.0, 4.0])?]);
    let results = turned.evaluate(&[items])?;
    let Item::Sequence(items) = &results[0] else { panic!("{results:?}") };
    let numbers: Vec<_> =
        items.iter().map(|item| item.as_tensor().expect("a tensor").to_vec()).collect::<Result<_>>()?;
    assert_eq!(numbers, [[3.0, 4.0], [1.0, 2.0]]);
    for wrong in [floats(&[2], &[1.0, 2.0])?, Item::Sequence(vec![Item::texts(["x"])]), Item::Nothing] {
        let error = turned.evaluate(&[wrong]).unwrap_err();
        assert!(error.to_string().contains("input items: sequence(float[2]) is given"), "{error}");
    }

    let graph = Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT).node("Identity", &["x"], &["y"], &[]);
    let kept = model(&nested(graph, true))?;
    assert_eq!(kept.outputs()[0].to_string(), "y: optional(float[…])");
    assert!(matches!(kept.evaluate(&[Item::Nothing])?[..], [Item::Nothing]));
    let y = kept.evaluate(&[floats(&[2], &[1.0, 2.0])?])?;
    assert_eq!(y[0].as_tensor().expect("a tensor").to_vec()?, [1.0, 2.0]);
    Ok(())
}

#[test]
fn misuse_of_texts() -> Result<()> {
    let of = |graph: Graph| graph.input("x", STRING, &[2]).output("y", STRING);
    let given = || [Item::texts(["a", "b"])];
    for (op, part) in [
        ("Neg", "node `y` (Neg): operand 0 holds string, not a number"),
        ("Relu", "node `y` (Relu): operand 0 holds string, not a number"),
        ("Not", "node `y` (Not): operand 0 holds string, not bool"),
        ("Unique", "node `y` (Unique): operand 0 holds string, not a number or a condition"),
    ] {
        let error = model(&of(Graph::new(21)).node(op, &["x"], &["y"], &[]))?.evaluate(&given()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let cast = of(Graph::new(21)).node("Cast", &["x"], &["y"], &[("to", Value::Int(1))]);
    assert!(model(&cast)?.evaluate(&given()).unwrap_err().to_string().contains("node `y` (Cast)"));
    let same = model(&of(Graph::new(21)).node("Identity", &["x"], &["y"], &[]))?;
    for (wrong, part) in [
        (Item::texts(["a"]), "input x: string[2] is given texts [1]"),
        (Item::Texts(vec![2], vec![String::new()]), "input x: string[2] is given 1 texts of extents [2]"),
        (floats(&[2], &[1.0, 2.0])?, "input x: string[2] is given f32[2]"),
        (Item::Empty(vec![0]), "input x: string[2] is given a tensor of extents [0]"),
    ] {
        let error = same.evaluate(&[wrong]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(same.evaluate(&[]).is_err());
    assert!(same.compile().unwrap_err().to_string().contains("use `Model::evaluate`"));
    Ok(())
}

/// What has no elements is a result, too.
#[test]
fn nothing_is_left() -> Result<()> {
    let graph = Graph::new(21).input("x", FLOAT, &[2, -1]).output("y", INT64).node("NonZero", &["x"], &["y"], &[]);
    let model = model(&graph)?;
    let y = model.evaluate(&[floats(&[2, 1], &[0.0, 0.0])?])?;
    assert!(matches!(&y[0], Item::Empty(dims) if dims == &[2, 0]), "{y:?}");
    let y = model.evaluate(&[Item::Empty(vec![2, 0])])?;
    assert!(matches!(&y[0], Item::Empty(dims) if dims == &[2, 0]), "{y:?}");
    assert!(model.evaluate(&[Item::Empty(vec![3, 0])]).is_err());
    Ok(())
}
