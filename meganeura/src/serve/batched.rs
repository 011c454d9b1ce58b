//! A compiled function of batches of any size.

use std::fmt;
use std::marker::PhantomData;

use super::Answers;
use crate::data::{Array, Fields, OnTape};
use crate::error::{bail, here};
use crate::tape::Compiled;
use crate::{DType, Device, Result, Shape, Tensor, TensorType, Var};

/// A function of an example that was recorded and planned for several batch sizes. A batch of another size is filled up
/// to the next larger one, and one beyond the largest is split.
///
/// `F` is an example, and `A` what the function gives: a [`Var`], or several.
///
/// Threads may share it. Parameters are live, as in a [`Compiled`] function: a clone of the model keeps its own.
pub struct Batched<F, A = Var> {
    device: Device,
    /// The types of an example's fields.
    types: Vec<TensorType>,
    /// By batch size, the smallest first.
    functions: Vec<(usize, Function)>,
    /// The shape of each result.
    shapes: Vec<Shape>,
    signature: PhantomData<fn(F) -> A>,
}

/// The function of a batch of one size.
type Function = Compiled<Vec<Tensor>, Vec<Tensor>>;

/// The fields of a batch as a function is recorded.
type VarsOf<F> = <<<F as Fields>::Stacked as Fields>::Tensors as OnTape>::Vars;

impl<F, A> Batched<F, A>
where
    F: Fields + Clone,
    A: Answers,
    <F::Stacked as Fields>::Tensors: OnTape,
{
    /// Records and plans a function of batches of these sizes. All examples have the shapes of `example`, whose numbers
    /// do not matter. The function takes a batch `[N, …]`, as in training, and returns `[N, …]`, or several of
    /// these.
    ///
    /// More sizes waste less time on padding, and take longer to start: each is recorded and planned here, so that no
    /// request waits for it.
    ///
    /// # Errors
    ///
    /// Fails if there are no sizes, or one is 0; with the error of recording; and if a result does not have one row for
    /// each example.
    #[track_caller]
    pub fn compile(
        device: &Device,
        sizes: impl IntoIterator<Item = usize>,
        example: F,
        function: impl Fn(&VarsOf<F>) -> A,
    ) -> Result<Self> {
        let types = example.types();
        drop(example);
        here(|| {
            let mut sizes: Vec<usize> = sizes.into_iter().collect();
            sizes.sort_unstable();
            sizes.dedup();
            if sizes.first().is_none_or(|&size| size == 0) {
                bail!(Argument, "a function is compiled for at least one batch size, and none is 0");
            }
            let (mut functions, mut shapes) = (Vec::new(), Vec::new());
            for size in sizes {
                let of_batch = |ty: &TensorType| {
                    let dims = [&[size], ty.shape.dims()].concat();
                    let Some(shape) = Shape::try_new(&dims) else {
                        bail!(Shape, "an example of shape {} leaves no axis for the batch", ty.shape);
                    };
                    let dtype = if ty.dtype == DType::F32 { device.precision().dtype() } else { ty.dtype };
                    Ok(TensorType::new(dtype, shape))
                };
                let inputs = types.iter().map(of_batch).collect::<Result<Vec<_>>>()?;
                let record = |vars: &Vec<Var>| {
                    let vars = <<F::Stacked as Fields>::Tensors as OnTape>::record(&mut vars.iter().cloned());
                    function(&vars).vars()
                };
                let compiled = device.compile(inputs, record)?;
                let row = |ty: &TensorType| match *ty.shape.dims() {
                    [rows, ref rest @ ..] if rows == size && ty.dtype.is_float() => Ok(Shape::new(rest)),
                    _ => bail!(Shape, "the function must give floats [{size}, …] for {size} examples, not {ty}"),
                };
                shapes = compiled.output_types().iter().map(row).collect::<Result<Vec<_>>>()?;
                functions.push((size, compiled));
            }
            Ok(Self { device: device.clone(), types, functions, shapes, signature: PhantomData })
        })
    }

    /// The results for any number of examples, in order.
    ///
    /// # Errors
    ///
    /// Fails if an example has other shapes than the one that the function was compiled for, and if the device does.
    #[track_caller]
    pub fn call(&self, examples: Vec<F>) -> Result<Vec<A::Arrays>> {
        here(|| {
            examples.iter().try_for_each(|example| self.expect(example))?;
            let mut results = Vec::with_capacity(examples.len());
            let mut examples = examples.into_iter();
            while examples.len() > 0 {
                let (size, function) = self.function(examples.len());
                self.run(function, *size, examples.by_ref().take(*size), &mut results)?;
            }
            Ok(results)
        })
    }

    /// The largest batch that runs at once.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.functions.last().map_or(0, |(size, _)| *size)
    }

    /// The function for this many examples, or for the first of them.
    fn function(&self, count: usize) -> &(usize, Function) {
        let fits = self.functions.iter().find(|(size, _)| *size >= count);
        fits.or(self.functions.last()).expect("there is a size")
    }

    /// Fails unless an example has the right types.
    pub(super) fn expect(&self, example: &F) -> Result<()> {
        let types = example.types();
        if types == self.types {
            return Ok(());
        }
        let shown = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        bail!(Shape, "an example is {}, and the function was compiled for {}", shown(&types), shown(&self.types))
    }

    fn run(
        &self,
        function: &Function,
        size: usize,
        mut examples: impl Iterator<Item = F>,
        results: &mut Vec<A::Arrays>,
    ) -> Result<()> {
        let Some(first) = examples.next() else { return Ok(()) };
        // Copies of the first example fill the batch: they are valid, and their results are dropped.
        let (filler, mut batch, mut count) = (first.clone(), first.stack(size)?, 1);
        for example in examples {
            example.push_onto(&mut batch)?;
            count += 1;
        }
        for _ in count..size {
            filler.clone().push_onto(&mut batch)?;
        }
        let mut tensors = Vec::new();
        batch.into_tensors(&self.device)?.push_onto(&mut tensors);
        let outputs = function.call(&tensors.iter().collect::<Vec<_>>())?;
        #[expect(clippy::cast_possible_truncation, reason = "results have single precision")]
        let numbers = |output: &Tensor| match output.ty().dtype {
            DType::F64 => Ok(output.to_f64_vec()?.into_iter().map(|number| number as f32).collect()),
            _ => output.to_vec(),
        };
        let outputs = outputs.iter().map(numbers).collect::<Result<Vec<Vec<f32>>>>()?;
        for row in 0..count {
            let of = |(output, &shape): (&Vec<f32>, &Shape)| {
                let begin = row * shape.elements();
                Array::new(output[begin..begin + shape.elements()].to_vec(), shape)
            };
            let arrays = outputs.iter().zip(&self.shapes).map(of).collect::<Result<Vec<_>>>()?;
            results.push(A::arrays(&mut arrays.into_iter()));
        }
        Ok(())
    }
}

impl<F, A> fmt::Debug for Batched<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.functions.iter().map(|(size, _)| size).collect();
        write!(f, "Batched({sizes:?} on {})", self.device)
    }
}
