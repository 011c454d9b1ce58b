//! Rules for files whose names are not the model's paths.

use crate::Result;
use crate::error::{bail, here};
use crate::module::pattern::{captures, fill, wildcards};

/// The mapping from names in a file to paths in a model: a list of rules, each applied to the result of the one before.
///
/// In a pattern, `*` matches any characters of a segment between dots, and `**` any number of segments. Their matches
/// replace the same wildcards of the new name, in order. A name that a rule does not match stays unchanged.
///
/// [`load_with`](super::Checkpoint::load_with) applies the rules, and [`save_with`](super::Checkpoint::save_with)
/// inverts them, so the same value imports a model from elsewhere and exports it again. If rules map several names to
/// one path, the last rule determines the name for saving.
///
/// For the file of a torchvision ResNet, and a model with other names for its parts:
///
/// ```
/// use meganeura::io::Names;
///
/// let mut names = Names::new().rename("conv1.*", "stem.*").rename("bn1.*", "norm.*").rename("fc.*", "head.*");
/// for stage in 0..4 {
///     names = names.rename(format!("layer{}.**", stage + 1), format!("stages.{stage}.**"));
/// }
/// let names = names.rename("stages.**.bn*.*", "stages.**.norm*.*").rename("**.downsample.**", "**.skip.**");
/// assert_eq!(names.path("layer2.0.bn1.running_mean")?, "stages.1.0.norm1.running_mean");
/// assert_eq!(names.path("layer2.0.downsample.1.weight")?, "stages.1.0.skip.1.weight");
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Names(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// One tensor becomes one, or several equal parts along its first axis.
    Rename {
        from: String,
        to: Vec<String>,
    },
    Ignore(String),
    /// Tensors of these names have so many axes in the file.
    Rank {
        of: String,
        rank: usize,
    },
}

/// A tensor, or one of `of` equal parts along its first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Part {
    pub(crate) const WHOLE: Self = Self { index: 0, of: 1 };

    /// A part of this part.
    const fn then(self, inner: Self) -> Self {
        Self { index: self.index * inner.of + inner.index, of: self.of * inner.of }
    }
}

impl Names {
    /// No rules: names stay as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the name `from` in the file to the path `to` in the model.
    pub fn rename(self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.and(Rule::Rename { from: from.into(), to: vec![to.into()] })
    }

    /// Splits one tensor in the file into several in the model: equal parts along its first axis, in this order.
    ///
    /// PyTorch stores the projections of its attention as one tensor:
    ///
    /// ```
    /// use meganeura::io::Names;
    ///
    /// let names = Names::new()
    ///     .split("**.in_proj_*", ["**.query.*", "**.key.*", "**.value.*"])
    ///     .rename("**.out_proj.*", "**.output.*");
    /// # let _ = names;
    /// ```
    pub fn split<T: Into<String>>(self, from: impl Into<String>, to: impl IntoIterator<Item = T>) -> Self {
        self.and(Rule::Rename { from: from.into(), to: to.into_iter().map(Into::into).collect() })
    }

    /// Ignores these names in the file. The counters of PyTorch's batch normalisation, `num_batches_tracked`, are
    /// always skipped.
    pub fn ignore(self, pattern: impl Into<String>) -> Self {
        self.and(Rule::Ignore(pattern.into()))
    }

    /// Tensors of these names in the file have so many axes there: axes of extent 1 are missing at the end, or are
    /// there in addition. A 1×1 convolution becomes a linear layer, and `[C]` becomes `[C, 1, 1]`.
    ///
    /// ```
    /// use meganeura::io::Names;
    ///
    /// // timm's MobileNetV3 has a convolution where torchvision has a linear layer.
    /// let names = Names::new().rank("conv_head.weight", 4).rename("conv_head.*", "classifier.0.*");
    /// # let _ = names;
    /// ```
    pub fn rank(self, of: impl Into<String>, rank: usize) -> Self {
        self.and(Rule::Rank { of: of.into(), rank })
    }

    /// The number of axes in the file of the tensor of this name there, if a rule gives it.
    pub(crate) fn rank_of(&self, name: &str) -> Option<usize> {
        self.0.iter().rev().find_map(|rule| match rule {
            Rule::Rank { of, rank } if captures(of, name).is_some() => Some(*rank),
            _ => None,
        })
    }

    fn and(mut self, rule: Rule) -> Self {
        self.0.push(rule);
        self
    }

    /// The path for `name` in a file.
    ///
    /// # Errors
    ///
    /// Fails if a rule is invalid, or if there is not exactly one path because the name is ignored or split.
    #[track_caller]
    pub fn path(&self, name: &str) -> Result<String> {
        here(|| {
            self.check()?;
            match &self.paths(name)[..] {
                [(path, _)] => Ok(path.clone()),
                [] => bail!(Argument, "the rules ignore `{name}`"),
                paths => bail!(Argument, "the rules split `{name}` into {}", paths.len()),
            }
        })
    }

    /// Checks the rules.
    pub(crate) fn check(&self) -> Result<()> {
        for rule in &self.0 {
            let Rule::Rename { from, to } = rule else { continue };
            if to.is_empty() {
                bail!(Argument, "the rule for `{from}` splits it into nothing; `Names::ignore` skips it");
            }
            if let Some(to) = to.iter().find(|to| wildcards(to) != wildcards(from)) {
                bail!(Argument, "the rule from `{from}` to `{to}` must have the same wildcards on both sides");
            }
        }
        Ok(())
    }

    /// The paths for a name in the file; empty if it is ignored.
    pub(crate) fn paths(&self, name: &str) -> Vec<(String, Part)> {
        let mut names = vec![(name.to_owned(), Part::WHOLE)];
        for rule in &self.0 {
            names = names.into_iter().flat_map(|(name, part)| rule.apply(name, part)).collect();
        }
        names
    }

    /// The name in a file for the tensor at `path`.
    ///
    /// # Errors
    ///
    /// Fails if the tensor would not be found there again.
    pub(crate) fn name(&self, path: &str) -> Result<(String, Part)> {
        let back = |(path, part): (String, Part), rule: &Rule| rule.revert(path, part);
        let (name, part) = self.0.iter().rev().fold((path.to_owned(), Part::WHOLE), back);
        if !self.paths(&name).iter().any(|(found, at)| found == path && *at == part) {
            bail!(Argument, "`{path}` would be saved as `{name}`, which by the same rules is not loaded as `{path}`");
        }
        Ok((name, part))
    }
}

impl Rule {
    fn apply(&self, name: String, part: Part) -> Vec<(String, Part)> {
        match self {
            Self::Ignore(pattern) if captures(pattern, &name).is_some() => Vec::new(),
            Self::Ignore(_) | Self::Rank { .. } => vec![(name, part)],
            Self::Rename { from, to } => match captures(from, &name) {
                Some(found) => {
                    let inner = |index| part.then(Part { index, of: to.len() });
                    to.iter().enumerate().map(|(index, to)| (fill(to, &found), inner(index))).collect()
                }
                None => vec![(name, part)],
            },
        }
    }

    /// The name that [`apply`](Self::apply) maps to this path.
    fn revert(&self, path: String, part: Part) -> (String, Part) {
        let Self::Rename { from, to } = self else { return (path, part) };
        let found = to.iter().enumerate().find_map(|(index, to)| Some((index, captures(to, &path)?)));
        match found {
            Some((index, found)) => (fill(from, &found), Part { index, of: to.len() }.then(part)),
            None => (path, part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn rules_follow_each_other() {
        let names = Names::new()
            .ignore("**.counter")
            .rename("conv1.*", "stem.*")
            .rename("layer1.**", "stages.0.**")
            .rename("**.bn*.*", "**.norm*.*")
            .split("**.qkv.*", ["**.q.*", "**.kv.*"])
            .split("**.kv.*", ["**.k.*", "**.v.*"]);
        let one = |name: &str| names.path(name).unwrap();
        assert_eq!(one("conv1.weight"), "stem.weight");
        assert_eq!(one("layer1.0.conv1.weight"), "stages.0.0.conv1.weight");
        assert_eq!(one("layer1.0.bn2.bias"), "stages.0.0.norm2.bias");
        assert_eq!(one("other"), "other");
        assert!(names.paths("bn1.counter").is_empty());
        assert_eq!(names.path("bn1.counter").unwrap_err().message(), "the rules ignore `bn1.counter`");
        let parts = [("a.q.bias", 0, 2), ("a.k.bias", 2, 4), ("a.v.bias", 3, 4)];
        assert_eq!(names.paths("a.qkv.bias"), parts.map(|(path, index, of)| (path.to_owned(), Part { index, of })));
        assert!(names.path("a.qkv.bias").unwrap_err().to_string().contains("into 3"));
        for (path, name, index, of) in [
            ("stem.weight", "conv1.weight", 0, 1),
            ("stages.0.0.norm2.bias", "layer1.0.bn2.bias", 0, 1),
            ("a.q.bias", "a.qkv.bias", 0, 2),
            ("a.v.bias", "a.qkv.bias", 3, 4),
        ] {
            assert_eq!(names.name(path).unwrap(), (name.to_owned(), Part { index, of }), "{path}");
        }
    }

    #[test]
    fn names_that_do_not_round_trip_are_errors() {
        let names = Names::new().rename("a", "b").rename("b", "c").ignore("d");
        let error = |path: &str| names.name(path).unwrap_err().to_string();
        assert_eq!(error("a"), "`a` would be saved as `a`, which by the same rules is not loaded as `a`");
        assert!(error("b").contains("would be saved as `a`"), "{}", error("b"));
        assert!(error("d").contains("`d`"));
        assert_eq!(names.name("c").unwrap().0, "a");
    }

    #[test]
    fn rules_without_sense_are_errors() {
        for (names, part) in [
            (Names::new().rename("a.*", "b"), "from `a.*` to `b`"),
            (Names::new().rename("a.*.**", "b.**.*"), "the same wildcards"),
            (Names::new().split("a.*", ["b.*", "c"]), "to `c`"),
            (Names::new().split("a", [""; 0]), "into nothing"),
        ] {
            let error = names.path("x").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
