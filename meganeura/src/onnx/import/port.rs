//! Inputs and outputs of a model.

use std::collections::HashMap;
use std::fmt;

use super::element::{Element, Kind};
use crate::error::{bail, shortened};
use crate::onnx::proto::{self, element_name};
use crate::{DType, Result, Shape, Var};

/// An input or an output of a [`Model`](super::Model). Displayed as `image: float[N, 3, 32, 32]`.
#[derive(Clone, Debug)]
pub struct Port {
    name: String,
    form: Form,
    element: Element,
    /// `None` if the file does not specify them.
    extents: Option<Vec<Extent>>,
}

/// A tensor or a sequence of tensors, which may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Form {
    is_optional: bool,
    is_sequence: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Extent {
    Fixed(usize),
    /// Chosen by the caller; the same wherever the name occurs, unless it is empty.
    Open(String),
}

impl Port {
    pub(super) fn of(info: &proto::ValueInfo) -> Result<Self> {
        let name = &info.name;
        let inside = |nested: &'_ proto::Nested| nested.elem_type.as_deref().cloned();
        let optional = info.ty.as_ref().and_then(|ty| ty.optional.as_ref());
        let ty = optional.map_or_else(|| info.ty.clone(), inside);
        let sequence = ty.as_ref().and_then(|ty| ty.sequence.as_ref());
        let form = Form { is_optional: optional.is_some(), is_sequence: sequence.is_some() };
        let ty = sequence.map_or_else(|| ty.clone(), inside);
        let Some(ty) = ty.and_then(|ty| ty.tensor) else {
            bail!(
                Checkpoint,
                "`{}` is an input or output of a type that is not supported, or of none; supported are tensors, \
                 sequences of tensors, and optional values of these types",
                shortened(name)
            );
        };
        let extent = |dimension: &proto::Dimension| match (dimension.value, &dimension.param) {
            (Some(extent), _) if extent > 0 => match usize::try_from(extent) {
                Ok(extent) => Extent::Fixed(extent),
                Err(_) => Extent::Open(String::new()),
            },
            (_, param) => Extent::Open(param.clone().unwrap_or_default()),
        };
        let Some(element) = Element::of(ty.elem_type) else {
            bail!(
                Checkpoint,
                "`{}` holds elements of type {}, {}, which are not supported",
                shortened(name),
                ty.elem_type,
                element_name(ty.elem_type)
            );
        };
        let extents = ty.shape.as_ref().map(|shape| shape.dim.iter().map(extent).collect());
        Ok(Self { name: name.clone(), form, element, extents })
    }

    /// The name in the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `true` for a tensor of numbers or conditions. Values of other kinds, such as texts and sequences, are those of
    /// [`Model::evaluate`](super::Model::evaluate).
    #[must_use]
    pub fn is_tensor(&self) -> bool {
        self.form == Form { is_optional: false, is_sequence: false } && self.element.kind() != Kind::Text
    }

    pub(super) fn is_optional(&self) -> bool {
        self.form.is_optional
    }

    pub(super) fn is_sequence(&self) -> bool {
        self.form.is_sequence
    }

    /// Refuses values other than tensors of numbers.
    pub(super) fn expect_tensor(&self) -> Result<()> {
        if !self.is_tensor() {
            bail!(Argument, "{self} is no tensor of numbers: use `Model::evaluate`");
        }
        Ok(())
    }

    /// The shape, if the file fixes every extent.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        let fixed = |extent: &Extent| match extent {
            Extent::Fixed(extent) => Some(*extent),
            Extent::Open(_) => None,
        };
        Shape::try_new(&self.extents.as_ref()?.iter().map(fixed).collect::<Option<Vec<_>>>()?)
    }

    /// The type of its elements in the file.
    pub(super) fn element(&self) -> Element {
        self.element
    }

    /// The element type of a tensor for it, on a device whose floats are of type `float`: `i32` for integers of up to
    /// 32 bits, `i64` for `uint32` and those of 64 bits, and floats for conditions. Texts are in no tensor; they count
    /// as `i64`.
    #[must_use]
    pub fn dtype(&self, float: DType) -> DType {
        self.element.dtype(float)
    }

    /// `true` if the file allows these extents, as far as it fixes them.
    pub(super) fn allows(&self, extents: &[usize]) -> bool {
        let fits = |(extent, &given): (&Extent, &usize)| match extent {
            Extent::Fixed(fixed) => *fixed == given,
            Extent::Open(_) => true,
        };
        let Some(own) = &self.extents else { return true };
        own.len() == extents.len() && own.iter().zip(extents).all(fits)
    }

    /// Refuses a value that the file does not allow. `known` has the named extents so far.
    pub(super) fn expect<'a>(&'a self, x: &Var, known: &mut HashMap<&'a str, usize>) -> Result<()> {
        self.expect_tensor()?;
        // Integers of any type, and whole floats, are converted.
        if self.element.kind() == Kind::Float && !x.ty().dtype.is_float() {
            bail!(Argument, "input {self} is given {}", x.ty());
        }
        let (Some(extents), shape) = (&self.extents, x.shape()) else { return Ok(()) };
        let fits = |extent: &'a Extent, found: usize, known: &mut HashMap<&'a str, usize>| match extent {
            Extent::Fixed(expected) => *expected == found,
            Extent::Open(name) => name.is_empty() || *known.entry(name).or_insert(found) == found,
        };
        if extents.len() != shape.rank() || !extents.iter().zip(shape.dims()).all(|(e, &found)| fits(e, found, known)) {
            bail!(Argument, "input {self} is given {}", x.ty());
        }
        Ok(())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Form { is_optional, is_sequence } = self.form;
        let (optional, sequence) =
            (if is_optional { "optional(" } else { "" }, if is_sequence { "sequence(" } else { "" });
        let end = ")".repeat(usize::from(is_optional) + usize::from(is_sequence));
        write!(f, "{}: {optional}{sequence}{}", shortened(&self.name), self.element.name())?;
        let Some(extents) = &self.extents else { return write!(f, "[…]{end}") };
        let extent = |extent: &Extent| match extent {
            Extent::Fixed(extent) => extent.to_string(),
            Extent::Open(name) if name.is_empty() => "?".to_owned(),
            Extent::Open(name) => shortened(name).into_owned(),
        };
        write!(f, "[{}]{end}", extents.iter().map(extent).collect::<Vec<_>>().join(", "))
    }
}
