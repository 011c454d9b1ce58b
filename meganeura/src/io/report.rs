//! What loading did, and what it could not find.

use crate::module::pattern::distance;
use crate::{Error, ErrorKind, Result};

/// Which names were loaded, and which only one side had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "names may be missing from the file; look, or make that an error: `net.load(path)?.strict()?`"]
pub struct LoadReport {
    /// Replaced by what the file has: paths in the order of the model.
    pub loaded: Vec<String>,
    /// Paths in the model but not in the file: these kept their values.
    pub missing: Vec<String>,
    /// Names in the file but not in the model: nothing was made of these.
    pub unexpected: Vec<String>,
    /// Names in the file that were passed over as [`Names::ignore`](super::Names::ignore) says, and the counters of PyTorch's
    /// batch normalisation.
    pub ignored: Vec<String>,
    /// What is in `missing` and `unexpected`, to be compared.
    pub(super) sides: [Vec<Lone>; 2],
}

/// A tensor that only one side has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lone {
    /// The path that it has in the model, or would have.
    pub(super) path: String,
    /// What the file calls it, where it is from there.
    pub(super) name: Option<String>,
    pub(super) shape: Vec<usize>,
}

impl LoadReport {
    pub(super) fn new(loaded: Vec<String>, missing: Vec<Lone>, unexpected: Vec<Lone>, ignored: Vec<String>) -> Self {
        let names = |side: &[Lone]| side.iter().map(|lone| lone.own_name().to_owned()).collect();
        let (missing_names, unexpected_names) = (names(&missing), names(&unexpected));
        Self { loaded, missing: missing_names, unexpected: unexpected_names, ignored, sides: [missing, unexpected] }
    }

    /// Makes names that only one side had an error. What is ignored is none.
    ///
    /// # Errors
    ///
    /// [`Checkpoint`](ErrorKind::Checkpoint), with all those names, and for each what the other side has instead that is most like
    /// it. What both sides had is loaded by then.
    pub fn strict(&self) -> Result<()> {
        if self.missing.is_empty() && self.unexpected.is_empty() { Ok(()) } else { Err(self.difference()) }
    }

    /// The names that only one side had, as an error.
    pub(super) fn difference(&self) -> Error {
        let [missing, unexpected] = &self.sides;
        let mut lines = Vec::new();
        for (what, own, others) in
            [("missing from the file:", missing, unexpected), ("only in the file:", unexpected, missing)]
        {
            if !own.is_empty() {
                lines.push(what.to_owned());
                lines.extend(own.iter().map(|lone| format!("  {}", lone.describe(others))));
            }
        }
        Error::new(ErrorKind::Checkpoint, lines.join("\n"))
    }
}

impl Lone {
    fn own_name(&self) -> &str {
        self.name.as_ref().unwrap_or(&self.path)
    }

    fn describe(&self, others: &[Self]) -> String {
        let renamed = match &self.name {
            Some(name) if *name != self.path => format!(", by the rules `{}`", self.path),
            _ => String::new(),
        };
        let hint = match self.nearest(others) {
            Some(other) => format!("; did you mean `{}` {:?}?", other.own_name(), other.shape),
            None => String::new(),
        };
        format!("`{}` {:?}{renamed}{hint}", self.own_name(), self.shape)
    }

    /// What is most like this one, if anything is: half of the letters may differ, a shape counts as three.
    pub(super) fn nearest<'o>(&self, others: &'o [Self]) -> Option<&'o Self> {
        /// Longer ones are nobody's, and dear to compare.
        const LONGEST: usize = 256;
        /// So many are compared letter by letter: models have thousands of names.
        const COMPARED: usize = 16;
        let longest = |other: &Self| other.path.len().max(self.path.len());
        let misfit = |other: &Self| if other.shape == self.shape { 0 } else { 3 };
        let unlike = |other: &Self| misfit(other) + longest(other) - shared_ends(&self.path, &other.path);
        let likely = others.iter().filter(|other| longest(other) <= LONGEST);
        let mut likely: Vec<_> = likely.enumerate().map(|(index, other)| ((unlike(other), index), other)).collect();
        if likely.len() > COMPARED {
            likely.select_nth_unstable_by_key(COMPARED, |(unlike, _)| *unlike);
            likely.truncate(COMPARED);
        }
        let score = |(_, other): ((usize, usize), &'o Self)| (misfit(other) + distance(&other.path, &self.path), other);
        let scored = likely.into_iter().map(score);
        let (score, nearest) = scored.min_by_key(|(score, _)| *score)?;
        (2 * score <= longest(nearest)).then_some(nearest)
    }
}

/// How many letters two names have in common at their beginnings and at their ends.
fn shared_ends(a: &str, b: &str) -> usize {
    let same = |(a, b): &(u8, u8)| a == b;
    let (front, back) = (a.bytes().zip(b.bytes()), a.bytes().rev().zip(b.bytes().rev()));
    (front.take_while(same).count() + back.take_while(same).count()).min(a.len().min(b.len()))
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
            error.to_string(),
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
    fn a_shape_that_fits_decides_between_names_that_are_as_near() {
        let others = [lone("a1.weight", None, &[3]), lone("a2.weight", None, &[4]), lone("b.bias", None, &[4])];
        assert_eq!(lone("a.weight", None, &[4]).nearest(&others), Some(&others[1]));
        assert_eq!(lone("a1.weight", None, &[4]).nearest(&others[..1]), Some(&others[0]));
        assert_eq!(lone("zz", None, &[4]).nearest(&others), None);
        assert_eq!(lone(&"a".repeat(300), None, &[4]).nearest(&others), None);
    }

    #[test]
    fn many_names_are_compared_at_once() {
        let side =
            |prefix: &str| (0..1000).map(|i| lone(&format!("{prefix}.{i}.weight"), None, &[i])).collect::<Vec<_>>();
        let report = LoadReport::new(vec![], side("blocks"), side("layers"), vec![]);
        let message = report.strict().unwrap_err().to_string();
        assert!(message.contains("`blocks.123.weight` [123]; did you mean `layers.123.weight` [123]?"), "{message}");
    }
}
