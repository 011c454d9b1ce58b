//! Prefixes that the names of a file have and those of a model lack, or vice versa. They are found by looking up the
//! rest of each name without its first segments.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use super::report::Lone;

/// A prefix of most names on one side, where the other side has the same names without it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    segments: String,
    /// The number of names that it explains.
    count: usize,
    /// `true` if the file has it, and the model does not.
    in_file: bool,
}

/// The maximum number of segments in a prefix.
const SEGMENTS: usize = 4;

impl Prefix {
    /// The prefix that would match at least half of the names that one side lacks, or of those that the other has in
    /// excess, with equal shapes. `None` if the rule would break names that were loaded.
    pub(super) fn between(loaded: &[String], missing: &[Lone], unexpected: &[Lone]) -> Option<Self> {
        let found = |longer: &[Lone], shorter: &[Lone]| {
            let (segments, count) = most_frequent(longer, shorter)?;
            (2 * count >= longer.len().min(shorter.len())).then_some((segments, count))
        };
        if let Some((segments, count)) = found(unexpected, missing) {
            let is_below = |path: &String| path.strip_prefix(&segments).is_some_and(|rest| rest.starts_with('.'));
            return (!loaded.iter().any(is_below)).then_some(Self { segments, count, in_file: true });
        }
        let (segments, count) = found(missing, unexpected).filter(|_| loaded.is_empty())?;
        Some(Self { segments, count, in_file: false })
    }
}

/// The most frequent prefix of a path of `shorter` among those of `longer`, and its count.
fn most_frequent(longer: &[Lone], shorter: &[Lone]) -> Option<(String, usize)> {
    let known: HashMap<&str, &[usize]> = shorter.iter().map(|lone| (&*lone.path, &lone.shape[..])).collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for Lone { path, shape, .. } in longer {
        for (dot, _) in path.match_indices('.').take(SEGMENTS) {
            if known.get(&path[dot + 1..]) == Some(&&shape[..]) {
                *counts.entry(&path[..dot]).or_default() += 1;
            }
        }
    }
    // In a pattern, `*` would be a wildcard.
    let plain = counts.into_iter().filter(|(segments, _)| !segments.contains('*'));
    let (segments, count) = plain.max_by_key(|&(segments, count)| (count, Reverse(segments)))?;
    Some((segments.to_owned(), count))
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segments, count, in_file } = self;
        if !in_file {
            return write!(
                f,
                "with `{segments}.` before them, {count} names of the file are the model's; load with \
                 `Names::new().rename(\"**\", \"{segments}.**\")`"
            );
        }
        let whose = match &segments[..] {
            "module" => ", which PyTorch's `DataParallel` puts there",
            "_orig_mod" => ", which `torch.compile` puts there",
            _ => "",
        };
        write!(
            f,
            "without `{segments}.` before them{whose}, {count} names of the file are the model's; load with \
             `Names::new().rename(\"{segments}.**\", \"**\")`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(names: &[&str]) -> Vec<Lone> {
        // The last letter determines the shape.
        let shape = |name: &str| vec![name.bytes().last().map_or(0, usize::from)];
        names.iter().map(|name| Lone { path: (*name).to_owned(), name: None, shape: shape(name) }).collect()
    }

    fn between(loaded: &[&str], missing: &[&str], unexpected: &[&str]) -> Option<String> {
        let loaded: Vec<_> = loaded.iter().map(|&path| path.to_owned()).collect();
        Prefix::between(&loaded, &side(missing), &side(unexpected)).map(|prefix| prefix.to_string())
    }

    #[test]
    fn prefixes_of_wrappers_are_removed() {
        let found = between(&[], &["a.w", "b.w", "b.bias"], &["module.a.w", "module.b.w", "module.b.bias", "epoch"]);
        let expected = "without `module.` before them, which PyTorch's `DataParallel` puts there, 3 names of the file are the \
                        model's; load with `Names::new().rename(\"module.**\", \"**\")`";
        assert_eq!(found.as_deref(), Some(expected));
        // A prefix of several segments, and a model that is only part of the file.
        let found = between(&[], &["0.w", "1.w"], &["_orig_mod.model.0.w", "_orig_mod.model.1.w", "_orig_mod.head.w"]);
        assert!(found.is_some_and(|found| found.contains("rename(\"_orig_mod.model.**\", \"**\")")));
    }

    #[test]
    fn prefixes_of_the_model_are_added() {
        let found = between(&[], &["net.a.w", "net.b.w", "head.w"], &["a.w", "b.w"]);
        assert!(found.is_some_and(|found| found.contains("2 names") && found.contains("rename(\"**\", \"net.**\")")));
        // The rule would also apply to names that fit already.
        assert_eq!(between(&["c.w"], &["net.a.w", "net.b.w"], &["a.w", "b.w"]), None);
        assert_eq!(between(&["module.w"], &["a.w"], &["module.a.w"]), None);
        assert!(between(&["modules.w"], &["a.w"], &["module.a.w"]).is_some());
    }

    #[test]
    fn coincidences_are_not_prefixes() {
        assert_eq!(between(&[], &["a.w", "b.w", "c.w"], &["x.a.w", "y.z.w", "y.q.w"]), None);
        assert_eq!(between(&[], &["w"], &["module.b"]), None, "another shape");
        assert_eq!(between(&[], &["a.w"], &["*.a.w"]), None);
        assert_eq!(between(&[], &[], &["module.a.w"]), None);
        let dots = ".".repeat(1_000_000);
        assert_eq!(between(&[], &["w"], &[&dots]), None);
    }
}
