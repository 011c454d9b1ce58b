//! Embeddings: rows of a table by index, and the sums of their cotangents.

use std::panic::Location;

use super::{Vjp, named};
use crate::ops::embedding::{Embedding, EmbeddingGrad};
use crate::{Error, ErrorKind, Result, Var};

impl Var {
    /// Looks up rows of this table by index: `y[i…, d…] = x[index[i…], d…]`
    ///
    /// Shapes: `x [R, D…]`, `index [I…]` of integers → `y [I…, D…]`. The gradient of a row is the sum over all its
    /// uses, with the same bits in every run.
    ///
    /// An index past the end is an error if the host knows the indices, which is the case for
    /// [`Tape::input`](crate::Tape::input)s of numbers from the host. Otherwise that row of the result is NaN, and no
    /// row gets a gradient from it. A negative index is past the end.
    #[must_use]
    #[track_caller]
    pub fn embedding(&self, index: &Self) -> Self {
        self.embedding_with(index, None)
    }

    /// Like [`embedding`](Self::embedding), with zeros where the index is `padding`. The padding row gets no gradient.
    #[must_use]
    #[track_caller]
    pub fn embedding_with(&self, index: &Self, padding: Option<u32>) -> Self {
        let index = &index.as_index();
        let rows = self.shape().dims().first().copied().unwrap_or(0);
        if let Some(largest) = index.largest_index(None).filter(|&largest| largest as usize >= rows) {
            let message = format!("{} is past the end, the table has {rows} rows", named("index", largest));
            let error = Error::new(ErrorKind::Argument, message).in_op("embedding").operand(self.ty(), self.path());
            return self.fail(error.operand(index.ty(), None).at(Location::caller()));
        }
        index.note_range("embedding", rows, None);
        self.record(Embedding { padding }, &[self, index])
    }
}

impl Vjp for Embedding {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let back = EmbeddingGrad { forward: self.clone(), rows: x[0].shape()[0] };
        Ok(vec![dy[0].as_ref().map(|dy| dy.record(back, &[&x[1], dy])), None])
    }
}

impl Vjp for EmbeddingGrad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None, dy[0].as_ref().map(|d| d.record(self.forward.clone(), &[d, &x[0]]))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Case, Operand, Special, Tested};

    impl Tested for Embedding {
        fn cases() -> Vec<Case> {
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

    impl Tested for EmbeddingGrad {
        fn special() -> &'static [Special] {
            &[Special::AtBaseline, Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            // Indices below `bound`, which may differ from the number of rows.
            let of = |padding, rows, bound, index: &[usize], row: &[usize]| {
                let case = Case::new(Self { forward: Embedding { padding }, rows }).labels(index, bound);
                debug_assert!(matches!(case.operands[0], Operand::Labels { .. }));
                // Sums of K terms, up to thousands, in any order: ε·√K is 1e-5.
                case.input(&[index, row].concat()).tolerance(1e-5)
            };
            let case = |padding, rows, index: &[usize], row: &[usize]| of(padding, rows, rows, index, row);
            vec![
                case(None, 1, &[1], &[]),
                case(None, 5, &[7], &[3]),
                case(Some(1), 3, &[2, 2], &[2, 3]),
                // more indices, and longer rows, than invocations in a workgroup
                case(None, 4, &[300], &[5]),
                case(Some(3), 6, &[71], &[67]),
                case(None, 3, &[11], &[260]),
                // several merges, runs that begin and end inside of chunks, and rows without uses
                case(None, 1000, &[1300], &[3]),
                case(Some(2), 7, &[5, 257], &[9]),
                case(None, 70, &[256], &[4, 2]),
                // all indices the same, with and without other rows
                of(None, 9, 1, &[1100], &[5]),
                of(Some(0), 9, 1, &[300], &[2]),
                case(None, 1, &[5000], &[1]),
            ]
        }
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
        assert!(error.to_string().contains("the indices must be integers, from `Tensor::indices`"), "{error}");
        let index = tape.input(&Tensor::indices(&device, [1], &[0])?);
        assert!(tape.scalar(1.0).embedding(&index).error().is_some());
        Ok(())
    }
}
