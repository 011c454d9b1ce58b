//! Selections of a model's parameters: by a pattern of paths, or by a rule.

use std::fmt;

use super::Leaf;
use super::near::nearest;
use super::pattern::matches;
use crate::error::{bail, shortened};
use crate::{Param, Result};

/// A condition on a path, or on a parameter.
#[doc(hidden)]
pub enum Selection<'r> {
    /// Segments between dots: `**` matches any number of them, `*` in a segment any characters.
    Pattern(String),
    Rule(Rule<'r>),
}

/// `true` if a parameter is selected, given one of its paths.
type Rule<'r> = Box<dyn Fn(&str, &Param) -> bool + Send + Sync + 'r>;

impl Selection<'_> {
    /// The indices of the selected parameters among `leaves`.
    ///
    /// A tied parameter is selected if any of its paths is.
    ///
    /// # Errors
    ///
    /// Fails if there is none. The error for a pattern names similar paths.
    #[doc(hidden)]
    pub fn among(&self, leaves: &[Leaf<'_>]) -> Result<Vec<usize>> {
        let meant: Vec<_> = (0..leaves.len()).filter(|&index| self.selects(&leaves[index])).collect();
        if meant.is_empty() {
            self.fail(leaves)?;
        }
        Ok(meant)
    }

    /// `true` for a selected parameter.
    pub(crate) fn selects(&self, leaf: &Leaf<'_>) -> bool {
        let Some(param) = leaf.param() else { return false };
        leaf.paths().any(|path| match self {
            Self::Pattern(pattern) => matches(pattern, path),
            Self::Rule(rule) => rule(path, param),
        })
    }

    fn fail(&self, leaves: &[Leaf<'_>]) -> Result<()> {
        const SHOWN: usize = 4;
        let Self::Pattern(pattern) = self else { bail!(Argument, "the rule selects none of the model's parameters") };
        let paths = || leaves.iter().filter(|leaf| leaf.param().is_some()).flat_map(Leaf::paths);
        if paths().next().is_none() {
            bail!(Argument, "the pattern `{}` selects nothing: there are no parameters", shortened(pattern));
        }
        // A part of the model, where its parameters were meant.
        let below = format!("{pattern}.**");
        let hint = match paths().any(|path| matches(&below, path)) {
            true => format!("; for all below a field, write `{}`", shortened(&below)),
            false => String::new(),
        };
        let near = nearest(pattern, paths().map(|path| (path, 0, path)));
        let near: Vec<_> = near.into_iter().take(SHOWN).map(|(_, path)| format!("`{path}`")).collect();
        let near = if near.is_empty() { String::new() } else { format!("; near it are {}", near.join(", ")) };
        bail!(Argument, "the pattern `{}` selects no parameter{hint}{near}", shortened(pattern))
    }
}

impl fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(pattern) => write!(f, "{pattern:?}"),
            Self::Rule(_) => f.write_str("a rule"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::leaves::leaves;
    use crate::{Device, ErrorKind, Tensor};

    #[test]
    fn an_empty_selection_is_an_error_with_near_paths() {
        let param = || Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
        let maps = ["encoder", "head"].map(|key| (key.to_owned(), (param(), vec![param(), param()])));
        let net = std::collections::BTreeMap::from(maps);
        let leaves = leaves(&net);
        let fail = |pattern: &str| Selection::Pattern(pattern.into()).among(&leaves).unwrap_err();
        assert_eq!(fail("hed.0").kind(), ErrorKind::Argument);
        assert_eq!(
            fail("hed.0").to_string(),
            "the pattern `hed.0` selects no parameter; near it are `head.0`, `head.1.0`, `head.1.1`, `encoder.0`"
        );
        assert!(
            fail("encoder").to_string().contains("for all below a field, write `encoder.**`"),
            "{}",
            fail("encoder")
        );
        assert!(Selection::Pattern("**".into()).among(&[]).unwrap_err().to_string().contains("no parameters"));
        let rule = |rule: fn(&str, &Param) -> bool| Selection::Rule(Box::new(rule)).among(&leaves);
        assert_eq!(rule(|path, _| path.starts_with("head")).unwrap(), [3, 4, 5]);
        assert!(rule(|_, param| param.shape().rank() == 4).unwrap_err().to_string().contains("the rule selects none"));
    }
}
