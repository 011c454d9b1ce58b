//! Reports of loading: what was loaded, and what was not found.

use std::collections::HashMap;

use super::prefix::Prefix;
use crate::error::{here, shortened};
use crate::module::near::nearest;
use crate::{Error, ErrorKind, Result};

/// The number of names of each side that a message lists.
pub(super) const LISTED: usize = 8;

/// The names that were loaded, and those that only one side had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "names may be missing from the file; look, or make that an error: `net.load(path)?.strict()?`"]
pub struct LoadReport {
    /// Paths whose values were replaced by the file's, in the order of the model.
    pub loaded: Vec<String>,
    /// Paths in the model but not in the file, which kept their values.
    pub missing: Vec<String>,
    /// Names in the file but not in the model, which were not used.
    pub unexpected: Vec<String>,
    /// Names in the file that were skipped because of [`Names::ignore`](super::Names::ignore), and the counters of
    /// PyTorch's batch normalisation.
    pub ignored: Vec<String>,
    /// Paths whose values share memory in the file, as in a model that was saved with ties, but that are tensors of
    /// their own in this model. They have equal values now, and are still separate.
    /// [`Param::tied`](crate::Param::tied) ties them.
    pub shared: Vec<Vec<String>>,
    /// The contents of `missing` and `unexpected`, for comparing.
    pub(super) sides: [Vec<Lone>; 2],
}

/// A tensor that only one side has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lone {
    /// Its path in the model, actual or mapped.
    pub(super) path: String,
    /// Its name in the file, if it comes from there.
    pub(super) name: Option<String>,
    pub(super) shape: Vec<usize>,
}

impl LoadReport {
    pub(super) fn new(loaded: Vec<String>, missing: Vec<Lone>, unexpected: Vec<Lone>, ignored: Vec<String>) -> Self {
        let names = |side: &[Lone]| side.iter().map(|lone| lone.own_name().to_owned()).collect();
        let (missing_names, unexpected_names) = (names(&missing), names(&unexpected));
        let (shared, sides) = (Vec::new(), [missing, unexpected]);
        Self { loaded, missing: missing_names, unexpected: unexpected_names, ignored, shared, sides }
    }

    /// Makes names that only one side had an error. Ignored names are fine.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](ErrorKind::Checkpoint), which lists the first of those names on either side, the
    /// number of others, and a suggestion. If the names of one side have a prefix that the other's lack, the suggestion
    /// is the rule of [`Names`](super::Names) that maps them; otherwise it is, for each name, a very similar name of
    /// the other side. Names that both sides had are loaded by then.
    #[track_caller]
    pub fn strict(&self) -> Result<()> {
        here(|| if self.missing.is_empty() && self.unexpected.is_empty() { Ok(()) } else { Err(self.difference()) })
    }

    /// The error for names that only one side had.
    pub(super) fn difference(&self) -> Error {
        let [missing, unexpected] = &self.sides;
        let prefix = Prefix::between(&self.loaded, missing, unexpected);
        let mut lines = Vec::new();
        for (what, own, others) in
            [("missing from the file:", missing, unexpected), ("only in the file:", unexpected, missing)]
        {
            if own.is_empty() {
                continue;
            }
            lines.push(what.to_owned());
            // A prefix explains all of them.
            let (own_shapes, other_shapes) = (Shapes::of(own), Shapes::of(others));
            let meant = |lone: &Lone| match prefix {
                Some(_) => None,
                None => lone.nearest(others, own_shapes.has_one(lone) && other_shapes.has_one(lone)),
            };
            lines.extend(own.iter().take(LISTED).map(|lone| format!("  {}", lone.describe(meant(lone)))));
            lines.extend(and_more(own.len()));
        }
        lines.extend(prefix.map(|prefix| prefix.to_string()));
        Error::new(ErrorKind::Checkpoint, lines.join("\n"))
    }
}

/// The last line of a list that was cut.
pub(super) fn and_more(count: usize) -> Option<String> {
    count.checked_sub(LISTED).filter(|&more| more > 0).map(|more| format!("  and {more} more"))
}

/// The number of names with each shape.
struct Shapes<'a>(HashMap<&'a [usize], usize>);

impl<'a> Shapes<'a> {
    fn of(side: &'a [Lone]) -> Self {
        let mut counts = HashMap::new();
        side.iter().for_each(|lone| *counts.entry(&lone.shape[..]).or_default() += 1);
        Self(counts)
    }

    fn has_one(&self, lone: &Lone) -> bool {
        self.0.get(&lone.shape[..]) == Some(&1)
    }
}

impl Lone {
    fn own_name(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.path)
    }

    fn describe(&self, meant: Option<&Self>) -> String {
        let renamed = match &self.name {
            Some(name) if *name != self.path => format!(", by the rules `{}`", shortened(&self.path)),
            _ => String::new(),
        };
        let hint = match meant {
            Some(other) => format!("; did you mean `{}` {:?}?", other.own_name(), other.shape),
            None => String::new(),
        };
        format!("`{}` {:?}{renamed}{hint}", shortened(self.own_name()), self.shape)
    }

    /// The most similar of `others`, if it is not a wild guess: a fifth of the letters may differ, or half of them if
    /// both are the `only` ones with their shape. Another shape counts as three letters.
    pub(super) fn nearest<'o>(&self, others: impl IntoIterator<Item = &'o Self>, only: bool) -> Option<&'o Self> {
        let misfit = |other: &Self| if other.shape == self.shape { 0 } else { 3 };
        let names = others.into_iter().map(|other| (&*other.path, misfit(other), other));
        let (score, other) = nearest(&self.path, names).into_iter().next()?;
        let share = if only && other.shape == self.shape { 2 } else { 5 };
        (share * score <= self.path.len().max(other.path.len())).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lone(path: &str, name: Option<&str>, shape: &[usize]) -> Lone {
        Lone { path: path.to_owned(), name: name.map(str::to_owned), shape: shape.to_vec() }
    }

    #[test]
    fn each_name_comes_with_the_nearest_of_the_other_side() {
        let missing = vec![lone("stem.weight", None, &[4]), lone("head.weight", None, &[3]), lone("gain", None, &[])];
        let unexpected = vec![
            lone("stem.wieght", Some("stem.wieght"), &[4]),
            lone("hed.weight", Some("fc.weight"), &[3]),
            lone("something.else.altogether", Some("something.else.altogether"), &[1]),
        ];
        let error = LoadReport::new(vec![], missing, unexpected, vec![]).strict().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Checkpoint);
        assert_eq!(
            error.message(),
            "missing from the file:\n  \
             `stem.weight` [4]; did you mean `stem.wieght` [4]?\n  \
             `head.weight` [3]; did you mean `fc.weight` [3]?\n  \
             `gain` []\n\
             only in the file:\n  \
             `stem.wieght` [4]; did you mean `stem.weight` [4]?\n  \
             `fc.weight` [3], by the rules `hed.weight`; did you mean `head.weight` [3]?\n  \
             `something.else.altogether` [1]"
        );
    }

    #[test]
    fn equal_distances_are_decided_by_shape() {
        let others = [lone("a1.weight", None, &[3]), lone("a2.weight", None, &[4]), lone("b.bias", None, &[4])];
        assert_eq!(lone("a.weight", None, &[4]).nearest(&others, false), Some(&others[1]));
        assert_eq!(lone("zz", None, &[4]).nearest(&others, false), None);
        assert_eq!(lone(&"a".repeat(300), None, &[4]).nearest(&others, false), None);
    }

    #[test]
    fn guesses_are_not_wild() {
        let fc = [lone("fc.weight", None, &[10, 32])];
        let head = lone("head.weight", None, &[10, 32]);
        // Four of eleven letters differ: a suggestion only if there is no other candidate.
        assert_eq!((head.nearest(&fc, false), head.nearest(&fc, true)), (None, Some(&fc[0])));
        assert_eq!(lone("decoder.weight", None, &[10, 32]).nearest(&fc, true), Some(&fc[0]));
        assert_eq!(lone("classifier.bias", None, &[10, 32]).nearest(&fc, true), None);
    }

    #[test]
    fn many_names_are_compared_at_once_and_few_are_listed() {
        let side =
            |prefix: &str| (0..10_000).map(|i| lone(&format!("{prefix}.{i}.weight"), None, &[i])).collect::<Vec<_>>();
        let report = LoadReport::new(vec![], side("blocks"), side("layers"), vec![]);
        assert_eq!((report.missing.len(), report.unexpected.len()), (10_000, 10_000));
        let error = report.strict().unwrap_err();
        let message = error.message();
        assert!(
            message.contains("`blocks.7.weight` [7]; did you mean `layers.7.weight` [7]?\n  and 9992 more\n"),
            "{message}"
        );
        assert_eq!(message.lines().count(), 2 * (1 + LISTED + 1));
    }

    #[test]
    fn names_of_a_megabyte_make_a_short_message() {
        let names: Vec<_> = (0..3).map(|i| lone(&"a.".repeat(500_000 + i), Some("a"), &[1])).collect();
        let report = LoadReport::new(vec![], vec![lone("weight", None, &[1])], names, vec![]);
        let message = report.strict().unwrap_err().to_string();
        assert!(message.len() < 2_000 && message.contains("… (1000004 bytes)"), "{message}");
    }
}
