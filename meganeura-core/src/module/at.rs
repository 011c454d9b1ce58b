//! The position of a visit in a model.

use std::fmt;

/// A position in a model during a visit: the path from the root, and whether anything on the path is frozen.
///
/// It is a linked list on the stack of the visit. Going down a level allocates nothing; only [`path`](Self::path) makes
/// a string.
///
/// ```
/// use meganeura::module::At;
///
/// let root = At::root();
/// let blocks = root.field("blocks");
/// let first = blocks.index(0);
/// assert_eq!(first.field("weight").path(), "blocks.0.weight");
/// ```
#[derive(Clone, Copy)]
pub struct At<'p> {
    parent: Option<&'p At<'p>>,
    segment: Segment<'p>,
    frozen: bool,
}

/// One level down.
#[derive(Clone, Copy)]
pub(super) enum Segment<'p> {
    Root,
    Field(&'p str),
    Index(usize),
}

impl<'p> At<'p> {
    /// The root of the model, with an empty path and nothing frozen.
    #[must_use]
    pub const fn root() -> Self {
        Self { parent: None, segment: Segment::Root, frozen: false }
    }

    /// The field, or the entry of a map, named `name`.
    #[must_use]
    pub const fn field<'a>(&'a self, name: &'a str) -> At<'a> {
        At { parent: Some(self), segment: Segment::Field(name), frozen: self.frozen }
    }

    /// The element at `index`.
    #[must_use]
    pub const fn index(&self, index: usize) -> At<'_> {
        At { parent: Some(self), segment: Segment::Index(index), frozen: self.frozen }
    }

    /// The same position, frozen: parameters from here down are not trained, unless thawed at run time.
    #[must_use]
    pub const fn frozen(self) -> Self {
        Self { frozen: true, ..self }
    }

    /// `true` if this position, or one above it, is frozen.
    #[must_use]
    pub const fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The path, its segments joined by dots; empty at the root.
    #[must_use]
    pub fn path(&self) -> String {
        self.to_string()
    }

    /// The segments from the root down, without the root.
    pub(super) fn segments(&self) -> Vec<Segment<'p>> {
        let up = std::iter::successors(Some(self), |at| at.parent).map(|at| at.segment);
        let mut segments: Vec<_> = up.filter(|segment| !matches!(segment, Segment::Root)).collect();
        segments.reverse();
        segments
    }
}

/// The path of `name` below the path `around`. Either may be empty.
pub(super) fn joined(around: &str, name: &str) -> String {
    match (around, name) {
        ("", path) | (path, "") => path.to_owned(),
        (around, name) => format!("{around}.{name}"),
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, segment) in self.segments().iter().enumerate() {
            if depth > 0 {
                f.write_str(".")?;
            }
            fmt::Display::fmt(segment, f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(name) => f.write_str(name),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

impl fmt::Debug for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "At({self}{})", if self.frozen { ", frozen" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_an_empty_path() {
        assert_eq!(At::root().path(), "");
        assert!(At::root().segments().is_empty());
    }

    #[test]
    fn segments_are_joined_by_dots() {
        let root = At::root();
        let blocks = root.field("blocks");
        let block = blocks.index(10);
        let weight = block.field("weight");
        assert_eq!(weight.path(), "blocks.10.weight");
        assert_eq!(weight.to_string(), weight.path());
        assert_eq!(weight.segments().iter().map(Segment::to_string).collect::<Vec<_>>(), ["blocks", "10", "weight"]);
    }

    #[test]
    fn a_path_may_begin_with_an_index() {
        assert_eq!(At::root().index(3).field("weight").path(), "3.weight");
    }

    #[test]
    fn frozen_holds_from_there_down_only() {
        let root = At::root();
        let frozen = root.field("encoder").frozen();
        assert!(frozen.index(0).field("weight").is_frozen());
        assert!(!root.field("decoder").is_frozen());
        assert!(!root.is_frozen());
        assert_eq!(frozen.path(), "encoder");
    }

    #[test]
    fn debug_shows_path_and_freezing() {
        assert_eq!(format!("{:?}", At::root().field("a").frozen()), "At(a, frozen)");
        assert_eq!(format!("{:?}", At::root().field("a")), "At(a)");
    }
}
