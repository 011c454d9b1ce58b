//! Embeddings: rows of a table by index, and the sums of their cotangents.

use super::{Kernel, Primitive};
use crate::host::try_collect;
use crate::kernel::gemm::sum_parts;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, Shape, TensorType};

/// In the `words` variants, the most indices that one workgroup examines. This bounds its loops.
const PART: usize = 1 << 19;

/// Looks up rows: `y[i…, d…] = table[index[i…], d…]`
///
/// Shapes: `table [R, D…]`, `index u32 [I…]` → `y [I…, D…]`. An index past the end gives NaN; the padding index gives
/// zeros.
/// Gradient: for each row, the sum of the cotangents of its uses, [`EmbeddingGrad`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Embedding {
    /// The index of the row that counts as zeros.
    pub(crate) padding: Option<u32>,
}

/// `dtable` of [`Embedding`]: `dtable[r, d…] = Σ dy[i…, d…]` over the `i` with `index[i…] = r`, in order.
///
/// Shapes: `index u32 [I…]`, `dy [I…, D…]` → `dtable [R, D…]`. Gradient: the lookup itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EmbeddingGrad {
    pub(crate) forward: Embedding,
    pub(crate) rows: usize,
}

impl Embedding {
    fn is_padding(&self, index: usize) -> bool {
        self.padding.is_some_and(|padding| padding as usize == index)
    }

    /// The WGSL condition that a row's index is the padding.
    fn padded(&self) -> String {
        self.padding.map_or_else(|| "false".to_owned(), |padding| format!("row == {padding}u"))
    }
}

impl Primitive for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [table, index] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        if index.dtype != DType::U32 {
            return Err(format!("the indices must be u32, from `Tensor::indices`; they are {index}"));
        }
        let ([_, row @ ..], true) = (table.shape.dims(), table.dtype.is_float()) else {
            return Err(format!("the table must be floats [rows, …], it is {table}"));
        };
        let dims = [index.shape.dims(), row].concat();
        let shape = Shape::try_new(&dims).ok_or_else(|| format!("the result would have {} axes", dims.len()))?;
        Ok(vec![table.with_shape(shape)])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (table, index) = (x[0].value, x[1].value);
        let rows = to.node("Gather", &[table, index], vec![("axis", form::Attribute::Int(0))]);
        let Some(padding) = self.padding else { return form::only(rows) };
        let padding = to.int(i64::from(padding));
        let is_padding = to.node("Equal", &[index, padding], Vec::new());
        // An axis of extent 1 for each axis of a row.
        let one = [x[1].ty.shape.dims(), &vec![1; x[0].ty.shape.rank() - 1][..]].concat();
        let is_padding = to.reshape(is_padding, Shape::new(&one));
        let zero = to.float(y[0].dtype, 0.0);
        form::only(to.node("Where", &[is_padding, zero, rows], Vec::new()))
    }
}

impl Kernel for Embedding {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (table, index) = (x[0].floats(), x[1].contiguous_indices());
        let width = x[0].layout().shape().elements() / x[0].dims()[0];
        native::parallel(y[0].floats(), native::grain(width) * width, &|first, part| {
            for (y, &row) in part.chunks_exact_mut(width).zip(&index[first / width..]) {
                let row = row as usize;
                match table.get(row.saturating_mul(width)..row.saturating_add(1).saturating_mul(width)) {
                    _ if self.is_padding(row) => y.fill(T::ZERO),
                    Some(row) => y.copy_from_slice(row),
                    None => y.fill(T::NAN),
                }
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (rows, elements) = (x[0].ty.shape[0], y[0].shape.elements());
        let mut defines = define![N: elements, ROWS: rows, WIDTH: x[0].ty.shape.elements() / rows];
        defines.push(("PADDED", self.padded()));
        let launch = Launch::new("embedding", defines, (2, 1), Workgroups::of_elements(elements));
        vec![Variant::simple("element", launch.stores_through_epilogue())]
    }
}

impl Primitive for EmbeddingGrad {
    fn name(&self) -> &'static str {
        "embedding_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [index, dy] = x else { return Err(format!("takes two operands, not {}", x.len())) };
        let (places, dims) = (index.shape.dims(), dy.shape.dims());
        if index.dtype != DType::U32 || !dy.dtype.is_float() || !dims.starts_with(places) || self.rows == 0 {
            return Err(format!("needs u32 indices [I…] and floats [I…, D…], not {index} and {dy}"));
        }
        let dims = [&[self.rows], &dims[places.len()..]].concat();
        let shape = Shape::try_new(&dims).ok_or_else(|| format!("the result would have {} axes", dims.len()))?;
        Ok(vec![dy.with_shape(shape)])
    }
}

impl Kernel for EmbeddingGrad {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let (index, dy, y) = (x[0].contiguous_indices(), x[1].floats(), y[0].floats());
        let width = y.len() / self.rows;
        let mut places = match try_collect(0..index.len()) {
            Ok(places) => places,
            Err(error) => return scratch.refuse(error),
        };
        places.sort_by_key(|&place| index[place]);
        let from = |row: usize| places.partition_point(|&place| (index[place] as usize) < row);
        native::parallel(y, native::grain(width) * width, &|first, part| {
            for (row, y) in (first / width..).zip(part.chunks_exact_mut(width)) {
                y.fill(T::ZERO);
                let places = &places[from(row)..];
                let same =
                    places.iter().take_while(|&&place| index[place] as usize == row && !self.forward.is_padding(row));
                for &place in same {
                    y.iter_mut().zip(&dy[place * width..]).for_each(|(y, &dy)| *y += dy);
                }
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let width = y[0].shape.elements() / self.rows;
        let lanes = if width > 64 { 256.min(caps.workgroup_size / 32 * 32) } else { 64 };
        let (count, words, blocks) = (x[0].ty.shape.elements(), lanes / 32, width.div_ceil(lanes));
        let launch = |parts: usize, marked: &str, to: &str, of_each: usize| {
            let mut defines = define![ROWS: self.rows, WIDTH: width, COUNT: count, PARTS: parts, BLOCKS: blocks];
            defines.extend(define![CHUNK: count.div_ceil(parts), MARKED: marked, TO: to]);
            defines.push(("PADDED", self.forward.padded()));
            let turns = count.div_ceil(parts).div_ceil(lanes);
            let workgroups = Workgroups::new(parts.saturating_mul(self.rows * blocks), lanes)
                .with_memory(&[4 * words])
                .looping(turns.saturating_mul(of_each).saturating_add(1));
            Launch::new("embedding_grad", defines, (2, 1), workgroups)
        };
        // An iteration reads the words of marks, and then every mark if any is set; in the `words` variants, the words
        // only.
        let each = launch(1, "one", "result", 2 + 2 * words + lanes).stores_through_epilogue();
        let mut variants = vec![Variant::simple("row", each)];
        let by_words = |parts, to| launch(parts, "word", to, 2 + words);
        variants.push(match count.div_ceil(PART) {
            1 => Variant::simple("words", by_words(1, "result").stores_through_epilogue()),
            parts => {
                let mut first = by_words(parts, "scratch");
                first.bindings[2] = Binding::Scratch(0);
                let elements = y[0].shape.elements();
                let scratch = vec![parts.saturating_mul(elements)];
                Variant { name: "words, split", launches: vec![first, sum_parts(parts, elements, 0)], scratch }
            }
        });
        variants
    }
}
