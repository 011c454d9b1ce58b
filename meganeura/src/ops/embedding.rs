//! Embeddings: rows of a table by index, and the sums of their cotangents.

use std::panic::Location;

use super::{Kernel, Primitive};
use crate::host::try_collect;
use crate::kernel::gemm::sum_parts;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{DType, Error, ErrorKind, Result, Shape, TensorType};

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
    padding: Option<u32>,
}

/// `dtable` of [`Embedding`]: `dtable[r, d…] = Σ dy[i…, d…]` over the `i` with `index[i…] = r`, in order.
///
/// Shapes: `index u32 [I…]`, `dy [I…, D…]` → `dtable [R, D…]`. Gradient: the lookup itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EmbeddingGrad {
    forward: Embedding,
    rows: usize,
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let back = EmbeddingGrad { forward: self.clone(), rows: x[0].shape()[0] };
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(back, &[&x[1], dy])), None])
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

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::Case;
        let case = |padding, table: &[usize], index: &[usize]| {
            Case::new(Self { padding }).input(table).labels(index, table[0])
        };
        vec![
            case(None, &[1], &[1]),
            case(None, &[5, 3], &[7]),
            case(Some(2), &[5, 3], &[4, 6]),
            case(None, &[3, 2, 4], &[2, 1, 3]),
            case(Some(0), &[4, 70], &[150]),
            case(None, &[130, 1], &[9]),
            Case::recorded("embedding", &[&[4, 3]], |x| {
                let index = crate::Tensor::indices(&x[0].tape().device(), [6], &[3, 1, 1, 0, 3, 3]).expect("six");
                x[0].embedding(&x[0].tape().input(&index)).square()
            }),
        ]
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

    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None, dy[0].as_ref().map(|d| d.record(self.forward.clone(), &[d, &x[0]]))])
    }

    #[cfg(feature = "testing")]
    fn special() -> &'static [super::case::Special] {
        use super::case::Special::{AtBaseline, WithoutOnnx};
        &[AtBaseline, WithoutOnnx]
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::{Case, Operand};
        let case = |padding, rows, index: &[usize], row: &[usize]| {
            let case = Case::new(Self { forward: Embedding { padding }, rows }).labels(index, rows);
            debug_assert!(matches!(case.operands[0], Operand::Labels { .. }));
            // Sums of up to a hundred terms.
            case.input(&[index, row].concat()).tolerance(1e-5)
        };
        vec![
            case(None, 1, &[1], &[]),
            case(None, 5, &[7], &[3]),
            case(Some(1), 3, &[2, 2], &[2, 3]),
            // more indices, and longer rows, than invocations in a workgroup
            case(None, 4, &[300], &[5]),
            case(Some(3), 6, &[71], &[67]),
            case(None, 3, &[11], &[260]),
        ]
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

impl Var {
    /// Looks up rows of this table by index: `y[i…, d…] = x[index[i…], d…]`
    ///
    /// Shapes: `x [R, D…]`, `index u32 [I…]`, from [`Tensor::indices`](crate::Tensor::indices) → `y [I…, D…]`. The
    /// gradient of a row is the sum over all its uses, in order.
    ///
    /// An index past the end is an error if the host knows the indices, which is the case for
    /// [`Tape::input`](crate::Tape::input)s made by [`Tensor::indices`](crate::Tensor::indices). Otherwise that row of
    /// the result is NaN, and no row gets a gradient from it.
    #[must_use]
    #[track_caller]
    pub fn embedding(&self, index: &Self) -> Self {
        self.embedding_with(index, None)
    }

    /// Like [`embedding`](Self::embedding), with zeros where the index is `padding`. The padding row gets no gradient.
    #[must_use]
    #[track_caller]
    pub fn embedding_with(&self, index: &Self, padding: Option<u32>) -> Self {
        let rows = self.shape().dims().first().copied().unwrap_or(0);
        if let Some(largest) = index.largest_index(None).filter(|&largest| largest as usize >= rows) {
            let message = format!("index {largest} is past the end, the table has {rows} rows");
            let error = Error::new(ErrorKind::Argument, message).in_op("embedding").operand(self.ty(), self.path());
            return self.fail(error.operand(index.ty(), None).at(Location::caller()));
        }
        index.note_range(rows, None);
        self.record(Embedding { padding }, &[self, index])
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, ErrorKind, Result, Tape, Tensor};

    #[test]
    fn known_indices_past_the_end_are_errors_also_through_views() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let table = tape.input(&Tensor::from_slice(&device, [2, 1], &[1.0, 2.0])?);
        let index = tape.input(&Tensor::indices(&device, [2, 2], &[0, 1, 2, 1])?);
        for index in [index.clone(), index.reshape([4])] {
            let (y, line) = (table.embedding(&index), line!());
            let error = y.error().expect("2 is past the end");
            assert_eq!((error.kind(), error.location().expect("a line").line()), (ErrorKind::Argument, line));
            assert!(error.to_string().contains("embedding: index 2 is past the end, the table has 2 rows"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn other_indices_are_refused() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let table = tape.input(&Tensor::from_slice(&device, [2, 1], &[1.0, 2.0])?);
        let error = table.embedding(&table).error().expect("floats");
        assert!(error.to_string().contains("the indices must be u32, from `Tensor::indices`"), "{error}");
        let index = tape.input(&Tensor::indices(&device, [1], &[0])?);
        assert!(tape.scalar(1.0).embedding(&index).error().is_some());
        Ok(())
    }
}
