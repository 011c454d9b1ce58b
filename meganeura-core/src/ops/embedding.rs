//! Embeddings: rows of a table by index, and the sums of their cotangents.

use super::sort::sort;
use super::{Kernel, Primitive};
use crate::host::try_collect;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define, tree};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, Shape, TensorType};

/// The most indices that each row examines: a workgroup of a row that is used often adds up its uses one by one.
const FEW: usize = 1024;

/// The most work of the rows, in turns of their workgroups, that takes less time than the launches of a sort.
const FEW_EXAMINED: usize = 1 << 12;

/// The fewest uses of a row that are added up as a chunk.
const LEAST_CHUNK: usize = 64;

/// Looks up rows: `y[i…, d…] = table[index[i…], d…]`
///
/// Shapes: `table [R, D…]`, `index u32 [I…]` → `y [I…, D…]`. An index past the end gives NaN, or the integer
/// farthest from the others; the padding index gives zeros.
/// Gradient: for each row, the sum of the cotangents of its uses, [`EmbeddingGrad`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Embedding {
    /// The index of the row that counts as zeros.
    pub(crate) padding: Option<u32>,
}

/// `dtable` of [`Embedding`]: `dtable[r, d…] = Σ dy[i…, d…]` over the `i` with `index[i…] = r`, in a fixed order.
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
            return Err(format!(
                "the indices must be integers, from `Tensor::indices` or `to_index`; they are {index}"
            ));
        }
        let [_, row @ ..] = table.shape.dims() else {
            return Err(format!("the table must be [rows, …], it is {table}"));
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
        let zero = to.number_as(y[0].dtype, 0.0);
        form::only(to.node("Where", &[is_padding, zero, rows], Vec::new()))
    }
}

impl Kernel for Embedding {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let index = x[1].contiguous_indices();
        let width = x[0].layout().shape().elements() / x[0].dims()[0];
        native::of_one_type!(x[0], y[0], |table, y| native::parallel(
            y,
            native::grain(width) * width,
            &|first, part| {
                for (y, &row) in part.chunks_exact_mut(width).zip(&index[first / width..]) {
                    let row = row as usize;
                    match table.get(row.saturating_mul(width)..row.saturating_add(1).saturating_mul(width)) {
                        _ if self.is_padding(row) => y.fill(Element::from_f64(0.0)),
                        Some(row) => y.copy_from_slice(row),
                        None => y.fill(Element::NOTHING),
                    }
                }
            }
        ));
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (rows, elements) = (x[0].ty.shape[0], y[0].shape.elements());
        let mut defines =
            define![N: elements, ROWS: rows, WIDTH: x[0].ty.shape.elements() / rows, ELEMENT: x[0].ty.dtype];
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
            return Err(format!("needs indices [I…] and floats [I…, D…], not {index} and {dy}"));
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
        let (count, width) = (x[0].ty.shape.elements(), y[0].shape.elements() / self.rows);
        let (row, examined) = self.by_row(count, width, caps);
        let mut variants = vec![row, self.sorted(count, width)];
        if count > FEW || examined > FEW_EXAMINED {
            variants.swap(0, 1);
        }
        variants
    }
}

impl EmbeddingGrad {
    /// A workgroup for each row, or for part of a wide one, that examines all indices: one launch, whose work is the
    /// product of rows and indices. Also returns how often a workgroup examines as many indices as it has invocations.
    fn by_row(&self, count: usize, width: usize, caps: &Caps) -> (Variant, usize) {
        let lanes = if width > 64 { 256.min(caps.workgroup_size / 32 * 32) } else { 64 };
        let (words, blocks, turns) = (lanes / 32, width.div_ceil(lanes), count.div_ceil(lanes));
        let mut defines = define![ROWS: self.rows, WIDTH: width, COUNT: count, BLOCKS: blocks];
        defines.push(("PADDED", self.forward.padded()));
        let groups = self.rows.saturating_mul(blocks);
        // A turn reads the words of marks, and then every mark if any is set.
        let loops = turns.saturating_mul(2 + 2 * words + lanes).saturating_add(1);
        let workgroups = Workgroups::new(groups, lanes).with_memory(&[4 * words]).looping(loops);
        let launch = Launch::new("embedding_grad", defines, (2, 1), workgroups).stores_through_epilogue();
        (Variant::simple("row", launch), groups.saturating_mul(turns))
    }

    /// Sorts the indices, then adds up the uses of each row: by chunks of equal indices first, so that even a row with
    /// all uses makes no long sum.
    fn sorted(&self, count: usize, width: usize) -> Variant {
        let Variant { mut launches, mut scratch, .. } = sort(DType::U32, (1, count, 1), (false, count), None);
        let [order, starts, sums] = [0, 1, 2].map(|next| Binding::Scratch(scratch.len() - 1 + next));
        // An invocation adds up a chunk, and another one as many sums of chunks.
        let chunk = count.isqrt().next_power_of_two().max(LEAST_CHUNK);
        let parts = count.div_ceil(chunk);
        scratch.extend([self.rows + 1, parts.saturating_mul(width)]);
        let launch = |kernel, defines, bindings: &[Binding], elements: usize, loops| {
            let workgroups = Workgroups::of_elements(elements).looping(loops);
            Launch { bindings: bindings.to_vec(), ..Launch::new(kernel, defines, (2, 1), workgroups) }
        };
        let [index, dy] = [0, 1].map(Binding::Input);
        let defines = define![ROWS: self.rows, COUNT: count];
        launches.push(launch("embedding_starts", defines, &[index, order, starts], self.rows + 1, tree(count) + 1));
        let shape = define![ROWS: self.rows, WIDTH: width, COUNT: count, CHUNK: chunk];
        let defines = [shape.clone(), define![PARTS: parts]].concat();
        let bindings = [index, dy, order, starts, sums];
        launches.push(launch("embedding_grad_parts", defines, &bindings, parts.saturating_mul(width), chunk + 1));
        let defines = [shape, vec![("PADDED", self.forward.padded())]].concat();
        let (bindings, elements) = ([dy, order, starts, sums], self.rows.saturating_mul(width));
        let last = launch("embedding_grad_sorted", defines, &bindings, elements, chunk + parts + 2);
        launches.push(Launch { stores: true, ..last });
        Variant { name: "sorted", launches, scratch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variants for `count` indices into `rows` rows of `width` numbers, best first.
    fn variants([rows, count, width]: [usize; 3], caps: &Caps) -> Vec<Variant> {
        let operands = [
            Argument::contiguous(TensorType::new(DType::U32, Shape::new(&[count]))),
            Argument::contiguous(TensorType::new(DType::F32, Shape::new(&[count, width]))),
        ];
        let grad = EmbeddingGrad { forward: Embedding { padding: None }, rows };
        grad.variants(&operands, &[TensorType::new(DType::F32, Shape::new(&[rows, width]))], caps)
    }

    #[test]
    fn large_tables_and_many_indices_are_sorted() {
        let best = |extents| variants(extents, &Caps::DISCRETE)[0].name;
        for extents in [[50_257, 8192, 768], [50_257, 64, 768], [2, 8192, 64], [64, 2048, 128]] {
            assert_eq!(best(extents), "sorted", "{extents:?}");
        }
        for extents in [[64, 256, 128], [10, 64, 512], [1, 1, 1], [200, 1000, 64]] {
            assert_eq!(best(extents), "row", "{extents:?}");
        }
    }

    /// No invocation looks at all indices, and no sum of any length is added up one by one.
    #[test]
    fn sorted_sums_are_as_long_as_the_root_of_the_number_of_indices() {
        for count in [2000, 8192, 100_003, 1 << 20, 1 << 25] {
            for rows in [1, 300, 50_257] {
                let extents = [rows, count, 64];
                let best = &variants(extents, &Caps::DISCRETE)[0];
                let most = best.launches.iter().map(|launch| launch.workgroups.loops).max().unwrap_or(0);
                assert!(most <= 4 * count.isqrt() + BLOCK_LOOPS, "{most} for {extents:?}");
                let invocations = |launch: &Launch| launch.workgroups.count * launch.workgroups.invocations;
                let all: usize = best.launches.iter().map(invocations).sum();
                // Each pass of the sort takes one for an index, the last launch one for an element of the table.
                let expected = (count.ilog2() as usize + 1) * count + (rows + 1) + (rows + count.isqrt() + 1) * 64;
                assert!(all <= expected + 256 * best.launches.len(), "{all} for {extents:?}");
                let scratch: usize = best.scratch.iter().sum();
                assert!(scratch <= 4 * count + rows + 1 + (count.isqrt() + 1) * 64, "{scratch} for {extents:?}");
            }
        }
    }

    /// An invocation that sorts a block compares its element with the others.
    const BLOCK_LOOPS: usize = 257;
}
