//! The list of cases that are refused: a reason, then the indented names of its cases.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use crate::case::Outcome;

/// The first lines of the list.
const HEAD: &str = "\
# Cases of ONNX's backend suite that the importer refuses, under the reason that its error gives: the operator, and the
# message with numbers as #. `cargo xtask onnx-suite --bless` rewrites this list.
";

/// Cases whose outputs the importer does not give, on purpose, each with the reason.
const DISPUTED: [(&str, &str); 4] = [
    (
        "node/test_resize_downsample_scales_linear_align_corners",
        "the suite takes corners of a length that is not rounded; `onnxruntime` 1.32 does as the importer does",
    ),
    (
        "node/test_resize_downsample_scales_cubic_align_corners",
        "the suite takes corners of a length that is not rounded; `onnxruntime` 1.32 does as the importer does",
    ),
    ("node/test_dft_inverse", "a part that is 0 is 2e-7 in the suite, more than its tolerance"),
    ("node/test_dft_inverse_opset19", "a part that is 0 is 2e-7 in the suite, more than its tolerance"),
];

/// `true` for a case whose outputs the importer does not give, on purpose.
pub fn is_disputed(name: &str) -> bool {
    DISPUTED.iter().any(|(case, _)| *case == name)
}

/// The reason for which each listed case is refused.
pub struct Expected(BTreeMap<String, String>);

impl Expected {
    pub fn of(refused: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(refused.into_iter().collect())
    }

    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut reasons = BTreeMap::new();
        let mut reason = None;
        for (k, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            match line.strip_prefix("    ") {
                None => reason = Some(line.to_owned()),
                Some(name) => {
                    let Some(reason) = &reason else {
                        return Err(format!("{}:{}: a case without a reason", path.display(), k + 1));
                    };
                    if reasons.insert(name.to_owned(), reason.clone()).is_some() {
                        return Err(format!("{}:{}: {name} is listed twice", path.display(), k + 1));
                    }
                }
            }
        }
        Ok(Self(reasons))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn reason(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// What is not as expected of a case, if anything.
    pub fn fault(&self, name: &str, outcome: &Outcome) -> Option<String> {
        match (outcome, self.reason(name)) {
            (Outcome::Right, None) => None,
            (Outcome::Wrong(_), None) if is_disputed(name) => None,
            (Outcome::Right, Some(reason)) => {
                Some(format!("{name}: right, and listed as refused: {reason}. Take it off the list"))
            }
            (Outcome::Refused(message), Some(reason)) => (outcome.reason().as_deref() != Some(reason))
                .then(|| format!("{name}: listed as {reason:?}: {message}")),
            (found, _) => Some(format!("{name}: {found}")),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, reason) in &self.0 {
            by_reason.entry(reason).or_default().push(name);
        }
        f.write_str(HEAD)?;
        for (reason, names) in by_reason {
            writeln!(f, "\n{reason}")?;
            names.iter().try_for_each(|name| writeln!(f, "    {name}"))?;
        }
        Ok(())
    }
}
