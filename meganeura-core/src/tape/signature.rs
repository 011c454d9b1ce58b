//! Signatures of compiled functions: a tensor, a tuple or a `Vec`; results may also be an array.

use super::Var;
use crate::{Error, Result, Shape, Tensor, TensorType};

/// Declarations of the inputs of a [compiled function](crate::Compiled).
///
/// One input is declared by a [`TensorType`], a shape (`[8, 3, 32, 32]`, for floats of the device's precision), or a
/// tensor of the type, `&x`. Several inputs are a tuple of these, or a `Vec<TensorType>` if their number is known only
/// at run time.
pub trait Inputs {
    /// The arguments of a call: [`Tensor`], or a tuple or `Vec` of them.
    type Tensors: Tensors;
    /// The arguments of the function while it is recorded: [`Var`], or a tuple or `Vec` of them.
    type Vars;

    /// The types in order; floats have the type `float`.
    #[doc(hidden)]
    fn types(&self, float: crate::DType) -> Vec<TensorType>;

    /// The inputs in the form that the function takes.
    #[doc(hidden)]
    fn vars(&self, inputs: &mut dyn Iterator<Item = Var>) -> Self::Vars;
}

/// The results of a function that is [compiled](crate::Compiled): a [`Var`], or a tuple, an array or a `Vec` of them.
/// A function that can fail returns a [`Result`](crate::Result) of these.
pub trait Outputs: Sized {
    /// The results of a call: [`Tensor`], or a tuple, an array or a `Vec` of them.
    type Tensors: Tensors;

    /// The values in order, or the error of the function.
    #[doc(hidden)]
    fn vars(self) -> Result<Vec<Var>>;

    /// Builds the results from as many values as there are, in order.
    #[doc(hidden)]
    fn collect(vars: &mut dyn Iterator<Item = Var>) -> Self;
}

/// A [`Tensor`], or a tuple, an array or a `Vec` of them: inputs and results of a [compiled function](crate::Compiled).
pub trait Tensors: Sized {
    /// The borrowed form: `&Tensor`, a tuple or an array of them, or for a `Vec` a slice, `&[&a, &b]`.
    type Refs<'a>;

    /// The tensors in order.
    #[doc(hidden)]
    fn list(refs: Self::Refs<'_>) -> Vec<&Tensor>;

    /// Builds the value from as many tensors as there are, in order.
    #[doc(hidden)]
    fn collect(tensors: &mut dyn Iterator<Item = Tensor>) -> Self;
}

/// The next item; the type guarantees that there are enough.
fn next<T>(items: &mut dyn Iterator<Item = T>) -> T {
    items.next().expect("there are as many as the signature has")
}

macro_rules! one_input {
    ($([$($generic:tt)*] $declared:ty, |$this:ident, $float:ident| $ty:expr;)+) => {$(
        impl<$($generic)*> Inputs for $declared {
            type Tensors = Tensor;
            type Vars = Var;

            fn types(&self, $float: crate::DType) -> Vec<TensorType> {
                let $this = self;
                vec![$ty]
            }

            fn vars(&self, inputs: &mut dyn Iterator<Item = Var>) -> Var {
                next(inputs)
            }
        }
    )+};
}

one_input! {
    [] TensorType, |ty, _float| *ty;
    [] Shape, |shape, float| TensorType::new(float, *shape);
    [const N: usize] [usize; N], |dims, float| TensorType::new(float, Shape::from(*dims));
    [] &Tensor, |tensor, _float| tensor.ty();
}

impl Outputs for Var {
    type Tensors = Tensor;

    fn vars(self) -> Result<Vec<Var>> {
        Ok(vec![self])
    }

    fn collect(vars: &mut dyn Iterator<Item = Var>) -> Self {
        next(vars)
    }
}

impl Tensors for Tensor {
    type Refs<'a> = &'a Self;

    fn list(tensor: Self::Refs<'_>) -> Vec<&Tensor> {
        vec![tensor]
    }

    fn collect(tensors: &mut dyn Iterator<Item = Tensor>) -> Self {
        next(tensors)
    }
}

impl<const N: usize> Outputs for [Var; N] {
    type Tensors = [Tensor; N];

    fn vars(self) -> Result<Vec<Var>> {
        Ok(self.into())
    }

    fn collect(vars: &mut dyn Iterator<Item = Var>) -> Self {
        std::array::from_fn(|_| next(vars))
    }
}

impl<const N: usize> Tensors for [Tensor; N] {
    type Refs<'a> = [&'a Tensor; N];

    fn list(tensors: Self::Refs<'_>) -> Vec<&Tensor> {
        tensors.into()
    }

    fn collect(tensors: &mut dyn Iterator<Item = Tensor>) -> Self {
        std::array::from_fn(|_| next(tensors))
    }
}

impl Inputs for Vec<TensorType> {
    type Tensors = Vec<Tensor>;
    type Vars = Vec<Var>;

    fn types(&self, _float: crate::DType) -> Vec<TensorType> {
        self.clone()
    }

    fn vars(&self, inputs: &mut dyn Iterator<Item = Var>) -> Vec<Var> {
        inputs.take(self.len()).collect()
    }
}

impl Outputs for Vec<Var> {
    type Tensors = Vec<Tensor>;

    fn vars(self) -> Result<Vec<Var>> {
        Ok(self)
    }

    fn collect(vars: &mut dyn Iterator<Item = Var>) -> Self {
        vars.collect()
    }
}

impl<O: Outputs> Outputs for Result<O, Error> {
    type Tensors = O::Tensors;

    fn vars(self) -> Result<Vec<Var>> {
        self?.vars()
    }

    fn collect(vars: &mut dyn Iterator<Item = Var>) -> Self {
        Ok(O::collect(vars))
    }
}

impl Tensors for Vec<Tensor> {
    type Refs<'a> = &'a [&'a Tensor];

    fn list(tensors: Self::Refs<'_>) -> Vec<&Tensor> {
        tensors.to_vec()
    }

    fn collect(tensors: &mut dyn Iterator<Item = Tensor>) -> Self {
        tensors.collect()
    }
}

/// A tuple type with as many elements as there are names.
macro_rules! repeated {
    ($item:ty; $($name:ident)+) => { ($(repeated!(@ $name $item),)+) };
    (@ $name:ident $item:ty) => { $item };
}

macro_rules! several {
    ($($name:ident)+) => {
        impl<$($name: Inputs<Tensors = Tensor, Vars = Var>),+> Inputs for ($($name,)+) {
            type Tensors = repeated!(Tensor; $($name)+);
            type Vars = repeated!(Var; $($name)+);

            #[expect(non_snake_case, reason = "elements are named as their types")]
            fn types(&self, float: crate::DType) -> Vec<TensorType> {
                let ($($name,)+) = self;
                [$($name.types(float)),+].concat()
            }

            #[expect(non_snake_case, reason = "elements are named as their types")]
            fn vars(&self, inputs: &mut dyn Iterator<Item = Var>) -> Self::Vars {
                let ($($name,)+) = self;
                ($($name.vars(inputs),)+)
            }
        }

        impl Outputs for repeated!(Var; $($name)+) {
            type Tensors = repeated!(Tensor; $($name)+);

            #[expect(non_snake_case, reason = "elements are named as their types were")]
            fn vars(self) -> Result<Vec<Var>> {
                let ($($name,)+) = self;
                Ok(vec![$($name),+])
            }

            fn collect(vars: &mut dyn Iterator<Item = Var>) -> Self {
                ($(next::<repeated!(@ $name Var)>(vars),)+)
            }
        }

        impl Tensors for repeated!(Tensor; $($name)+) {
            type Refs<'a> = repeated!(&'a Tensor; $($name)+);

            #[expect(non_snake_case, reason = "elements are named as their types were")]
            fn list(($($name,)+): Self::Refs<'_>) -> Vec<&Tensor> {
                vec![$($name),+]
            }

            fn collect(tensors: &mut dyn Iterator<Item = Tensor>) -> Self {
                ($(next::<repeated!(@ $name Tensor)>(tensors),)+)
            }
        }
    };
}

several!(A B);
several!(A B C);
several!(A B C D);
