//! Custom operations: what a plan and its executors know of them. Users write a `CustomOp`, in `functions/custom.rs`.

use std::any::{Any, TypeId};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Kernel, Primitive};
use crate::host::{try_collect, try_filled};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::{DType, Error, ErrorKind, Result, TensorType};

/// The types and kernels of a custom operation, as its user wrote them.
pub trait CustomKernel: Any + fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// The user's type and the attributes. Operations with the same identity are the same operation.
    fn identity(&self) -> (TypeId, String);

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String>;

    fn cpu(&self, types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]);

    fn wgsl(&self, types: &[TensorType]) -> (String, usize);
}

/// A custom operation behind a shared pointer.
#[derive(Clone)]
pub struct Custom(pub(crate) Arc<dyn CustomKernel>);

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.identity() == other.0.identity()
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.identity().hash(state);
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
}

impl Kernel for Custom {
    /// The user's code may read more than its operands.
    fn varies(&self) -> bool {
        true
    }

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
        let mut slices: Vec<_> = results.iter_mut().map(Vec::as_mut_slice).collect();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.0.cpu(&types, &x, &mut slices))) {
            let text = panic.downcast_ref::<&str>().copied();
            let said =
                text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message");
            let error = Error::new(ErrorKind::Panic, format!("the kernel for the CPU panicked: {said}"));
            return scratch.refuse(error.in_op(self.0.name()));
        }
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
