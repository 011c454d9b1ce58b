//! Texts, and the operators that read them. Texts are numbered, so that other operators move their numbers as they move
//! integers.

use std::collections::HashMap;
use std::sync::Arc;

use regex_lite::Regex;

use super::call::{Call, Operators, known};
use super::element::Element;
use super::value::{Array, Data, Value};
use crate::error::{bail, shortened};
use crate::{Result, Shape};

pub(super) const OPERATORS: Operators = &[
    ("RegexFullMatch", matches),
    ("StringConcat", concatenated),
    ("StringNormalizer", normalised),
    ("StringSplit", split),
];

/// Operators with operands of any type that move elements or compare them, in the order of the alphabet.
const MOVERS: [&str; 34] = [
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "Equal",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "If",
    "Loop",
    "OneHot",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Reshape",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "Shape",
    "Size",
    "Slice",
    "Split",
    "SplitToSequence",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// `true` for an operator whose operands of any type may be texts.
pub(super) fn moves(operator: &str) -> bool {
    MOVERS.binary_search(&operator).is_ok()
}

/// The texts of a model by their numbers. Equal texts have one number.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    all: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, i64>,
}

impl Texts {
    pub(super) fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let (text, number) = (Arc::<str>::from(text), i64::try_from(self.all.len()).unwrap_or(i64::MAX));
        self.all.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    /// A tensor of texts.
    pub(super) fn array<S: AsRef<str>>(&mut self, dims: Vec<usize>, texts: &[S]) -> Array {
        let numbers = texts.iter().map(|text| self.number(text.as_ref())).collect();
        Array { dims, element: Element::String, data: Data::Ints(numbers) }
    }

    /// The texts of a tensor.
    pub(super) fn of(&self, array: &Array) -> Result<Vec<Arc<str>>> {
        let text = |&number: &i64| match usize::try_from(number).ok().and_then(|number| self.all.get(number)) {
            Some(text) => Ok(Arc::clone(text)),
            None => bail!(Checkpoint, "{number} is the number of no text"),
        };
        array.as_ints().unwrap_or_default().iter().map(text).collect()
    }
}

/// The extents and texts of an operand.
fn operand(call: &Call<'_>, k: usize) -> Result<(Vec<usize>, Vec<Arc<str>>)> {
    let array = call.known(k)?;
    let texts = call.texts.borrow().of(&array)?;
    Ok((array.dims.clone(), texts))
}

/// Texts as a result. The budget is charged for their lengths.
fn result<S: AsRef<str>>(call: &Call<'_>, dims: Vec<usize>, texts: &[S]) -> Result<Value> {
    let memory = |text: &S| 1 + text.as_ref().len() / size_of::<f64>();
    call.budget.charge(texts.iter().map(memory).fold(0, usize::saturating_add))?;
    Ok(Value::Known(Arc::new(call.texts.borrow_mut().array(dims, texts))))
}

/// Whether a regular expression matches each whole text. Its classes of characters are those of ASCII, as in ONNX.
fn matches(call: &Call<'_>) -> Result<Vec<Value>> {
    let (dims, texts) = operand(call, 0)?;
    let pattern = call.text("pattern", "")?;
    let regex = match Regex::new(&format!(r"\A(?:{pattern})\z")) {
        Ok(regex) => regex,
        Err(error) => bail!(Checkpoint, "the attribute `pattern`, {:?}: {error}", shortened(pattern)),
    };
    call.budget.charge(texts.len())?;
    let truths = texts.iter().map(|text| i64::from(regex.is_match(text))).collect();
    known(Array { dims, element: Element::Bool, data: Data::Ints(truths) })
}

/// Each text of the first operand, followed by that of the second. Both broadcast.
fn concatenated(call: &Call<'_>) -> Result<Vec<Value>> {
    let ((of_a, a), (of_b, b)) = (operand(call, 0)?, operand(call, 1)?);
    let shapes = Shape::try_new(&of_a).zip(Shape::try_new(&of_b));
    let Some(shape) = shapes.and_then(|(a, b)| a.broadcast(&b)) else {
        bail!(Checkpoint, "texts {of_a:?} and {of_b:?} do not broadcast");
    };
    let dims = shape.dims().to_vec();
    call.budget.charge(shape.elements())?;
    let source = |own: &[usize], mut at: usize| {
        let (mut place, mut step) = (0, 1);
        for (axis, &extent) in dims.iter().enumerate().rev() {
            let Some(axis) = (axis + own.len()).checked_sub(dims.len()) else { break };
            place += step * (at % extent).min(own[axis] - 1);
            step *= own[axis];
            at /= extent;
        }
        place
    };
    let pair = |at| [&*a[source(&of_a, at)], &*b[source(&of_b, at)]].concat();
    let joined: Vec<_> = (0..shape.elements()).map(pair).collect();
    Ok(vec![result(call, dims, &joined)?])
}

/// The texts of a vector `[C]` or `[1, C]` without stop words, in upper or lower case. If all are left out, one empty
/// text is left.
fn normalised(call: &Call<'_>) -> Result<Vec<Value>> {
    let (mut dims, texts) = operand(call, 0)?;
    if !matches!(dims[..], [_] | [1, _]) {
        bail!(Checkpoint, "texts of {dims:?}; they must be a vector, [C] or [1, C]");
    }
    // Unicode's own mapping is that of every other language.
    let locale = call.text("locale", "en_US")?;
    if ["az", "lt", "tr"].iter().any(|language| locale.to_ascii_lowercase().starts_with(language)) {
        bail!(Checkpoint, "the attribute `locale` is {locale:?}, whose letters have upper cases of their own");
    }
    type Change = fn(&str) -> String;
    let change: Change = match call.text("case_change_action", "NONE")? {
        "NONE" => str::to_owned,
        "LOWER" => str::to_lowercase,
        "UPPER" => str::to_uppercase,
        other => bail!(Checkpoint, "the attribute `case_change_action` is {other:?}"),
    };
    let compared: Change = if call.flag("is_case_sensitive", false)? { str::to_owned } else { str::to_lowercase };
    let stop: Vec<_> = call.texts("stopwords")?.unwrap_or_default().iter().map(|word| compared(word)).collect();
    let kept = texts.iter().filter(|text| !stop.contains(&compared(text)));
    let mut kept: Vec<_> = kept.map(|text| change(text)).collect();
    if kept.is_empty() {
        kept.push(String::new());
    }
    if let Some(last) = dims.last_mut() {
        *last = kept.len();
    }
    Ok(vec![result(call, dims, &kept)?])
}

/// The parts of each text, filled up with empty ones along a new last axis, and their numbers.
fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let (mut dims, texts) = operand(call, 0)?;
    let delimiter = call.text("delimiter", "")?;
    let most = match call.optional_int("maxsplit")? {
        None => usize::MAX,
        Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
    };
    let parts: Vec<_> = texts.iter().map(|text| parts_of(text, delimiter, most)).collect();
    let longest = parts.iter().map(Vec::len).max().unwrap_or(0);
    call.budget.charge(parts.len().saturating_mul(longest))?;
    let all: Vec<_> =
        parts.iter().flat_map(|parts| (0..longest).map(|k| parts.get(k).copied().unwrap_or(""))).collect();
    let counts = parts.iter().map(|parts| i64::try_from(parts.len()).unwrap_or(i64::MAX)).collect();
    let counts = Array { dims: dims.clone(), element: Element::I64, data: Data::Ints(counts) };
    dims.push(longest);
    Ok(vec![result(call, dims, &all)?, Value::Known(Arc::new(counts))])
}

/// The parts of a text between delimiters, of which the first `most` separate. Without a delimiter, runs of white space
/// separate, and there are no empty parts.
fn parts_of<'a>(text: &'a str, delimiter: &str, most: usize) -> Vec<&'a str> {
    if text.is_empty() {
        return Vec::new();
    }
    let limit = most.saturating_add(1);
    if !delimiter.is_empty() {
        return text.splitn(limit, delimiter).collect();
    }
    let (mut parts, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let end = if parts.len() == most { None } else { rest.find(char::is_whitespace) };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(part);
        rest = after.trim_start();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn movers_are_in_order() {
        assert!(MOVERS.is_sorted());
        assert!(moves("Where") && moves("Compress") && !moves("Add"));
    }

    #[test]
    fn equal_texts_have_one_number() -> Result<()> {
        let mut texts = Texts::default();
        let array = texts.array(vec![2, 2], &["b", "a", "", "b"]);
        assert_eq!(array.as_ints(), Some(&[0, 1, 2, 0][..]));
        assert_eq!(texts.of(&array)?.iter().map(|text| &**text).collect::<Vec<_>>(), ["b", "a", "", "b"]);
        assert!(texts.of(&Array { data: Data::Ints(vec![-1]), ..array }).is_err());
        Ok(())
    }

    /// As Python's `str.split`, but for the empty text, which has no parts in ONNX.
    #[test]
    fn texts_are_split_as_in_python() {
        let of = |text, delimiter, most| parts_of(text, delimiter, most);
        assert_eq!(of("a,b,,c", ",", usize::MAX), ["a", "b", "", "c"]);
        assert_eq!(of("a,b,,c", ",", 1), ["a", "b,,c"]);
        assert_eq!(of(" a  b\tc ", "", usize::MAX), ["a", "b", "c"]);
        assert_eq!(of(" a  b c ", "", 1), ["a", "b c "]);
        assert_eq!(of("a", "", 0), ["a"]);
        assert!(of("  ", "", 3).is_empty() && of("", ",", 3).is_empty());
    }
}
