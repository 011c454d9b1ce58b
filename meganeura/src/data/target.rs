//! Targets: what a model should answer for each example.

use crate::error::bail;
use crate::host::try_collect;
use crate::{Result, Shape};

/// The target of one example.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// The index of a class.
    Label(u32),
    /// Numbers, row by row: for regression, masks and images.
    Values(Vec<f32>),
}

impl Target {
    /// The index of the class; `None` if the target is numbers.
    #[must_use]
    pub fn label(&self) -> Option<u32> {
        match self {
            Self::Label(label) => Some(*label),
            Self::Values(_) => None,
        }
    }
}

/// The targets of all examples of a [`Dataset`](super::Dataset) in memory: labels from a `Vec<u32>`, or numbers from a
/// `(Vec<f32>, shape)`.
///
/// ```
/// use meganeura::data::Target;
/// use meganeura::prelude::*;
///
/// let labelled = Dataset::new(vec![0.0; 6], [3], vec![0, 1])?;
/// assert_eq!(labelled.get(1)?.1, Target::Label(1));
///
/// let regression = Dataset::new(vec![0.0; 6], [3], (vec![0.5, -2.0], [1]))?;
/// assert_eq!(regression.get(1)?.1, Target::Values(vec![-2.0]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Targets {
    /// The index of a class for each example.
    Labels(Vec<u32>),
    /// Numbers for each example, one example after the other.
    Values {
        /// The numbers of all examples.
        values: Vec<f32>,
        /// The shape of one target.
        shape: Shape,
    },
}

impl From<Vec<u32>> for Targets {
    fn from(labels: Vec<u32>) -> Self {
        Self::Labels(labels)
    }
}

impl<S: Into<Shape>> From<(Vec<f32>, S)> for Targets {
    fn from((values, shape): (Vec<f32>, S)) -> Self {
        Self::Values { values, shape: shape.into() }
    }
}

impl Targets {
    /// The number of examples that these are the targets of.
    pub(super) fn count(&self) -> Result<usize> {
        match self {
            Self::Labels(labels) => Ok(labels.len()),
            Self::Values { values, shape } => {
                if shape.elements() == 0 {
                    bail!(Shape, "a target needs at least one number, shape {shape} has none");
                }
                if values.len() % shape.elements() != 0 {
                    bail!(Shape, "{} numbers given for targets of shape {shape} each", values.len());
                }
                Ok(values.len() / shape.elements())
            }
        }
    }

    pub(super) fn shape(&self) -> Option<Shape> {
        match self {
            Self::Labels(_) => None,
            Self::Values { shape, .. } => Some(*shape),
        }
    }

    /// The target of an example that there is.
    pub(super) fn get(&self, index: usize) -> Result<Target> {
        match self {
            Self::Labels(labels) => Ok(Target::Label(labels[index])),
            Self::Values { values, shape } => {
                let size = shape.elements();
                try_collect(values[index * size..][..size].iter().copied()).map(Target::Values)
            }
        }
    }
}
