//! Windows over series in time.

use super::{Array, Examples};
use crate::Result;
use crate::error::{bail, here};

/// Windows over a series: the steps that a model sees, and those that it predicts.
///
/// A series is `[steps, columns]`. Example `i` has the inputs `[seen, columns]` from step `i` on, and the targets
/// `[predicted, columns]` of the steps after them. Windows overlap, so a chronological
/// [`split_at`](super::Dataset::split_at) leaves steps of the last training windows in the first test windows; split
/// the series instead, if that matters.
///
/// ```
/// use meganeura::data::{Array, Windows};
/// use meganeura::prelude::*;
///
/// // Ten hours of temperature and wind; the temperature of the next two hours is to be predicted from four.
/// let weather = Array::new((0..20u8).map(f32::from).collect(), [10, 2])?;
/// let windows = Dataset::of(Windows::new(weather, 4, 2)?.targets([0])?)?;
/// assert_eq!(windows.len(), 5);
/// let (seen, next) = windows.get(1)?;
/// assert_eq!(seen.shape(), Shape::from([4, 2]));
/// assert_eq!((next.shape(), next.values()), (Shape::from([2, 1]), &[10.0, 12.0][..]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Windows {
    series: Array<f32>,
    seen: usize,
    predicted: usize,
    gap: usize,
    every: usize,
    /// The columns of the targets.
    columns: Vec<usize>,
}

impl Windows {
    /// Windows of `seen` steps over a series `[steps, columns]` or `[steps]`, with the `predicted` steps after them.
    ///
    /// # Errors
    ///
    /// Fails if a window has no steps, or if the series has other axes.
    #[track_caller]
    pub fn new(series: Array<f32>, seen: usize, predicted: usize) -> Result<Self> {
        here(|| {
            if seen == 0 || predicted == 0 {
                bail!(Argument, "a window needs at least one step, and one to predict; not {seen} and {predicted}");
            }
            let columns = match *series.shape().dims() {
                [_] => 1,
                [_, columns] if columns > 0 => columns,
                _ => bail!(Shape, "a series has shape [steps] or [steps, columns], not {}", series.shape()),
            };
            Ok(Self { series, seen, predicted, gap: 0, every: 1, columns: (0..columns).collect() })
        })
    }

    /// Predicts only these columns.
    ///
    /// # Errors
    ///
    /// Fails if there is no such column, or none at all.
    #[track_caller]
    pub fn targets(self, columns: impl Into<Vec<usize>>) -> Result<Self> {
        here(|| {
            let (columns, all) = (columns.into(), self.width());
            if columns.is_empty() || columns.iter().any(|&column| column >= all) {
                bail!(Argument, "columns {columns:?} cannot be predicted: a step has {all} columns, from 0 on");
            }
            Ok(Self { columns, ..self })
        })
    }

    /// Leaves out this many steps between those that are seen and those that are predicted; 0 by default.
    pub fn gap(self, steps: usize) -> Self {
        Self { gap: steps, ..self }
    }

    /// Begins a window at every so many steps; 1 by default. 0 counts as 1.
    pub fn every(self, steps: usize) -> Self {
        Self { every: steps.max(1), ..self }
    }

    fn width(&self) -> usize {
        self.series.shape().dims().get(1).copied().unwrap_or(1)
    }

    fn steps(&self, from: usize, count: usize, columns: &[usize]) -> Result<Array<f32>> {
        let width = self.width();
        let mut values = Array::zeros([count, columns.len()])?;
        for (row, values) in values.values_mut().chunks_mut(columns.len()).enumerate() {
            let step = &self.series.values()[(from + row) * width..][..width];
            values.iter_mut().zip(columns).for_each(|(value, &column)| *value = step[column]);
        }
        Ok(values)
    }
}

impl Examples for Windows {
    type Inputs = Array<f32>;
    type Targets = Array<f32>;

    fn len(&self) -> usize {
        let whole = self.seen.saturating_add(self.gap).saturating_add(self.predicted);
        let starts = (self.series.shape()[0] + 1).saturating_sub(whole);
        starts.div_ceil(self.every)
    }

    fn read(&self, index: usize) -> Result<(Array<f32>, Array<f32>)> {
        let all: Vec<_> = (0..self.width()).collect();
        Ok((self.steps(index * self.every, self.seen, &all)?, self.read_targets(index)?))
    }

    fn read_targets(&self, index: usize) -> Result<Array<f32>> {
        self.steps(index * self.every + self.seen + self.gap, self.predicted, &self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Dataset;
    use crate::{ErrorKind, Shape};

    #[test]
    fn windows_slide_over_the_series() {
        let series = || Array::new((0..21u8).map(f32::from).collect(), [7, 3]).unwrap();
        let windows = Windows::new(series(), 2, 1).unwrap().gap(1).every(2).targets([2, 0]).unwrap();
        assert_eq!(windows.len(), 2);
        let (seen, next) = windows.read(1).unwrap();
        assert_eq!(seen.values(), [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        assert_eq!((next.shape(), next.values()), (Shape::from([1, 2]), &[17.0, 15.0][..]));
        let flat = Windows::new(Array::from(vec![1.0, 2.0, 3.0]), 1, 2).unwrap();
        assert_eq!((flat.len(), flat.read(0).unwrap().1.values()), (1, &[2.0, 3.0][..]));
        assert_eq!(Windows::new(Array::from(vec![1.0, 2.0]), 1, 2).unwrap().len(), 0);
        assert_eq!(Windows::new(Array::from(vec![1.0]), usize::MAX, 2).unwrap().len(), 0);
        for error in [
            Windows::new(series(), 0, 1).unwrap_err(),
            Windows::new(series(), 1, 0).unwrap_err(),
            Windows::new(series(), 1, 1).unwrap().targets([3]).unwrap_err(),
            Windows::new(series(), 1, 1).unwrap().targets([]).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        }
        let cube = Array::new(vec![0.0; 8], [2, 2, 2]).unwrap();
        assert_eq!(Windows::new(cube, 1, 1).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(Dataset::of(windows).unwrap().targets().unwrap().len(), 2);
    }
}
