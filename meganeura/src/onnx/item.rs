//! Values of any kind that ONNX has, but maps.

use crate::Tensor;

/// A value that goes into a model or comes out of it, for [`Model::evaluate`](super::Model::evaluate).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Item {
    /// Numbers, or conditions.
    Tensor(Tensor),
    /// A tensor of numbers or conditions without elements. At least one of the extents is 0.
    Empty(Vec<usize>),
    /// A tensor of texts: its extents, and the texts in the order of memory, with the last axis fastest.
    Texts(Vec<usize>, Vec<String>),
    /// Tensors, or a list without any.
    Sequence(Vec<Self>),
    /// An optional value that is left out.
    Nothing,
}

impl Item {
    /// A vector of texts.
    ///
    /// ```
    /// use meganeura::onnx::Item;
    ///
    /// let Item::Texts(extents, _) = Item::texts(["monday", "tuesday"]) else { panic!("they are texts") };
    /// assert_eq!(extents, [2]);
    /// ```
    #[must_use]
    pub fn texts<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Self {
        let texts: Vec<_> = texts.into_iter().map(Into::into).collect();
        Self::Texts(vec![texts.len()], texts)
    }

    /// The tensor of numbers or conditions, if it is one with elements.
    #[must_use]
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl From<Tensor> for Item {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<&Tensor> for Item {
    fn from(tensor: &Tensor) -> Self {
        Self::Tensor(tensor.clone())
    }
}
