//! Copies of views whose memory runs along another axis than the copy's.

use std::ops::Range;

use super::{Element, grain, parallel};
use crate::Layout;

/// Rows and columns of a tile of the copy. Its elements are read along the operand's memory, several lines of the cache
/// from each page, and written along the result's.
const ROWS: usize = 64;
const COLUMNS: usize = 16;

/// Extents below this are not worth tiles.
const LEAST: usize = 4;

/// A view as a stack of matrices that are transposed.
pub(crate) struct Transposed<'a, E> {
    data: &'a [E],
    layout: Layout,
    /// The axis along which the operand's memory runs; the copy's runs along the last one.
    axis: usize,
}

impl<'a, E: Element> Transposed<'a, E> {
    /// `None` if a copy of the view takes no transpose.
    pub(crate) fn of(data: &'a [E], layout: &Layout) -> Option<Self> {
        let layout = layout.collapse();
        let (shape, strides) = (layout.shape(), layout.strides());
        let (dims, last) = (shape.dims(), shape.rank().checked_sub(1)?);
        let axis = (0..last).find(|&axis| strides[axis] == 1 && dims[axis] >= LEAST)?;
        (dims[last] >= LEAST && strides[last] > 1).then_some(Self { data, layout, axis })
    }

    /// Writes the elements of the view in order, in threads.
    pub(crate) fn write(&self, y: &mut [E]) {
        let row = y.len() / self.layout.shape()[0];
        let rows = grain(1).div_ceil(row);
        let rows = if self.axis == 0 { rows.next_multiple_of(ROWS) } else { rows };
        parallel(y, rows * row, &|first, y| self.write_part(first / row..(first + y.len()) / row, y));
    }

    /// Writes the part of the copy with these numbers of the first axis.
    fn write_part(&self, part: Range<usize>, y: &mut [E]) {
        let (shape, strides) = (self.layout.shape(), self.layout.strides());
        let (dims, last) = (shape.dims(), shape.rank() - 1);
        let begin = |axis: usize| if axis == 0 { part.start } else { 0 };
        let extent = |axis: usize| if axis == 0 { part.len() } else { dims[axis] };
        let place = |axis: usize| dims[axis + 1..].iter().product::<usize>();
        let others: Vec<_> = (0..last).rev().filter(|&axis| axis != self.axis).collect();
        for mut number in 0..others.iter().map(|&axis| extent(axis)).product() {
            let (mut from, mut to) = (self.layout.offset() + begin(self.axis), 0);
            for &axis in &others {
                let at = number % extent(axis);
                number /= extent(axis);
                from += (begin(axis) + at) * strides[axis];
                to += at * place(axis);
            }
            let (x, y) = (&self.data[from..], &mut y[to..]);
            transpose(x, strides[last], y, place(self.axis), [extent(self.axis), dims[last]]);
        }
    }
}

/// `y[row·pitch + column] = x[column·stride + row]`
pub(crate) fn transpose<E: Element>(x: &[E], stride: usize, y: &mut [E], pitch: usize, [rows, columns]: [usize; 2]) {
    let mut lines = [[E::default(); ROWS]; COLUMNS];
    for row in (0..rows).step_by(ROWS) {
        for column in (0..columns).step_by(COLUMNS) {
            let [rows, columns] = [ROWS.min(rows - row), COLUMNS.min(columns - column)];
            // Read whole first: the operand's lines may push each other out of the cache.
            for (line, x) in lines.iter_mut().zip(x[column * stride..].chunks(stride)).take(columns) {
                match x[row..].first_chunk() {
                    // Without a call for each line.
                    Some(x) if rows == ROWS => *line = *x,
                    _ => line[..rows].copy_from_slice(&x[row..][..rows]),
                }
            }
            for (k, y) in y[row * pitch..].chunks_mut(pitch).take(rows).enumerate() {
                y[column..][..columns].iter_mut().zip(&lines).for_each(|(y, line)| *y = line[k]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    #[test]
    fn writes_every_element_in_its_place() {
        let x: Vec<u32> = (0..50_000).collect();
        for (dims, axes) in [
            (vec![37, 50], vec![1, 0]),
            (vec![16, 32], vec![1, 0]),
            (vec![4, 1000], vec![1, 0]),
            (vec![5, 33, 21], vec![2, 0, 1]),
            (vec![5, 33, 21], vec![2, 1, 0]),
            (vec![5, 33, 21], vec![0, 2, 1]),
            (vec![3, 5, 17, 20], vec![1, 3, 0, 2]),
            (vec![200, 200], vec![1, 0]),
        ] {
            let shape = Shape::new(&dims);
            let layout = Layout::contiguous(shape).permute(&axes);
            let elements = shape.elements();
            let expected: Vec<_> = (0..elements).map(|at| x[layout.at(at)]).collect();
            let mut y = vec![u32::MAX; elements];
            Transposed::of(&x, &layout).expect("a transpose").write(&mut y);
            assert_eq!(y, expected, "{dims:?} by {axes:?}");
        }
        let along = Layout::contiguous(Shape::new(&[8, 8]));
        assert!(Transposed::of(&x, &along).is_none());
    }
}
