//! Custom operations: gradient rule, native kernel and WGSL from the user.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

use super::{Kernel, Primitive};
use crate::host::{try_collect, try_filled};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::tape::Var;
use crate::{DType, Result, TensorType};

/// A custom operation. Operands are contiguous; results must be written completely.
///
/// ```
/// use meganeura::ops::CustomOp;
/// use meganeura::prelude::*;
///
/// /// `y = x³`
/// #[derive(Debug)]
/// struct Cube;
///
/// impl CustomOp for Cube {
///     fn name(&self) -> &'static str {
///         "cube"
///     }
///     fn key(&self) -> String {
///         String::new() // no attributes
///     }
///     fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
///         Ok(vec![x[0]])
///     }
///     fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> meganeura::Result<Vec<Option<Var>>> {
///         Ok(vec![dy[0].as_ref().map(|dy| dy * x[0].square() * 3.0)])
///     }
///     fn cpu(&self, _types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
///         y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = x * x * x);
///     }
///     fn wgsl(&self, types: &[TensorType]) -> (String, usize) {
///         let n = types[0].shape.elements();
///         let source = format!(
///             "@group(0) @binding(0) var<storage, read> x: array<f32>;
///              @group(0) @binding(1) var<storage, read_write> y: array<f32>;
///              @compute @workgroup_size(64)
///              fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,
///                      @builtin(local_invocation_index) lane: u32) {{
///                  let i = (id.x + id.y * n.x) * 64u + lane;
///                  if (i < {n}u) {{ y[i] = x[i] * x[i] * x[i]; }}
///              }}"
///         );
///         (source, n.div_ceil(64))
///     }
/// }
///
/// let device = Device::cpu();
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::from_slice(&device, [2], &[2.0, -1.0])?);
/// let y = x.custom(Cube, &[]);
/// assert_eq!(y.to_vec()?, [8.0, -1.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub trait CustomOp: Any + fmt::Debug + Send + Sync {
    /// The name of the operation in error messages and dumps.
    fn name(&self) -> &'static str;

    /// All attributes that affect the result, as text; empty if there are none. Two operations with the same type and
    /// key are the same operation: they share plans, and equal uses are computed once.
    fn key(&self) -> String;

    /// The types of the results.
    ///
    /// # Errors
    ///
    /// A message that states the requirement, if the operands do not meet it.
    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// The gradient rule: the cotangent of each operand, or `None` where it has none, from the operands `x`, the
    /// results `y` and their cotangents `dy`. A result that the loss does not depend on has no cotangent. The rule
    /// records operations by the methods of `x`, `y` and `dy`.
    ///
    /// # Errors
    ///
    /// If the operation has no derivative.
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>>;

    /// The native kernel for operands of these types. `x` are their elements in row-major order, `y` the results to
    /// write. Single-precision devices round the results.
    ///
    /// It runs on one of the threads that compute. It may use `rayon`, whose tasks run on these threads as well, and
    /// may call a compiled function. But it must not wait for another run, such as the step that trains the function's
    /// parameters.
    fn cpu(&self, types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]);

    /// A WGSL module with entry point `main`, and the number of workgroups, for operands of these types. Binding `i` is
    /// operand `i`; results follow. The grid may be folded: compute the workgroup's number as `x + y·num_workgroups.x`,
    /// and expect some numbers past the end.
    fn wgsl(&self, types: &[TensorType]) -> (String, usize);
}

/// A [`CustomOp`] behind a shared pointer.
#[derive(Clone)]
pub struct Custom(Arc<dyn CustomOp>);

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || ((*self.0).type_id() == (*other.0).type_id() && self.0.key() == other.0.key())
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (*self.0).type_id().hash(state);
        self.0.key().hash(state);
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Primitive for Custom {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if x.iter().any(|ty| !ty.dtype.is_float()) {
            return Err("custom operations take floats".into());
        }
        let outputs = self.0.outputs(x)?;
        let fits = |ty: &TensorType| x.first().is_none_or(|x| ty.dtype == x.dtype) && ty.shape.elements() > 0;
        match outputs.iter().find(|ty| !fits(ty)) {
            Some(odd) => {
                Err(format!("results must have the operands' element type and at least one element, not {odd}"))
            }
            None if outputs.is_empty() => Err("custom operations return at least one result".into()),
            None => Ok(outputs),
        }
    }

    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        self.0.vjp(x, y, dy)
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        // The author of an operation tests it; `check::gradcheck` checks gradients of any.
        Vec::new()
    }
}

impl Kernel for Custom {
    /// Converts to `f64` and back, so that an operation is written only once.
    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let types: Vec<_> = x.iter().map(|x| TensorType::new(T::DTYPE, x.layout().shape())).collect();
        let wide =
            |x: &View<'_, T>| try_collect(x.floats()[..x.layout().shape().elements()].iter().map(|x| x.to_f64()));
        let (x, mut results) = match (
            x.iter().map(wide).collect::<Result<Vec<_>>>(),
            y.iter_mut().map(|y| try_filled(y.floats().len(), f64::NAN)).collect::<Result<Vec<_>>>(),
        ) {
            (Ok(x), Ok(results)) => (x, results),
            (Err(error), _) | (_, Err(error)) => return scratch.refuse(error),
        };
        let x: Vec<&[f64]> = x.iter().map(Vec::as_slice).collect();
        self.0.cpu(&types, &x, &mut results.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        for (y, result) in y.iter_mut().zip(results) {
            y.floats().iter_mut().zip(result).for_each(|(y, x)| *y = T::from_f64(x));
        }
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let types: Vec<_> = x.iter().map(|x| x.ty).collect();
        debug_assert!(types.iter().all(|ty| ty.dtype == DType::F32), "GPUs compute in f32");
        let (source, count) = self.0.wgsl(&types);
        let launch = Launch::new("custom", vec![("SOURCE", source)], (x.len(), y.len()), Workgroups::new(count, 0));
        vec![Variant::simple("custom", launch)]
    }
}

impl Var {
    /// Appends a custom operation and returns its first result. `others` are the operands after `self`.
    #[must_use]
    #[track_caller]
    pub fn custom(&self, op: impl CustomOp, others: &[&Self]) -> Self {
        let x: Vec<&Self> = std::iter::once(self).chain(others.iter().copied()).collect();
        self.tape().record(Custom(Arc::new(op)).into(), &x, Location::caller()).swap_remove(0)
    }
}
