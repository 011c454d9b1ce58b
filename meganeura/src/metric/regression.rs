//! The explained share of the variance of numbers, and errors by column.

use crate::error::{bail, here};
use crate::world::World;
use crate::{Result, Tensor};

/// Errors of predictions `[N]` or `[N, columns]`, column by column: the coefficient of determination R², and the mean
/// absolute and squared errors.
///
/// `R² = 1 − Σ (y − t)² / Σ (t − mean t)²`: 1 for perfect predictions, 0 for those that are no better than the mean.
///
/// ```
/// use meganeura::metric::Regression;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut errors = Regression::new();
/// let predictions = Tensor::new(&device, [[1.0, 10.0], [3.0, 30.0]])?;
/// errors.update(&predictions, &Tensor::new(&device, [[1.0, 20.0], [3.0, 40.0]])?)?;
/// assert_eq!(errors.mean_absolute_errors()?, [0.0, 10.0]);
/// assert_eq!(errors.r2()?, [1.0, 0.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Regression {
    count: f64,
    columns: Vec<Column>,
}

/// Sums over the rows so far. Targets are summed as differences from the first one, so that a large mean cancels
/// nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Column {
    origin: f64,
    absolute: f64,
    squared: f64,
    sum: f64,
    squares: f64,
}

impl Column {
    /// The sums for another origin.
    fn around(self, origin: f64, count: f64) -> Self {
        let shift = self.origin - origin;
        let squares = self.squares + shift * (2.0 * self.sum + count * shift);
        Self { origin, sum: self.sum + count * shift, squares, ..self }
    }
}

impl Regression {
    /// An accumulator without predictions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a batch: predictions and targets of one shape, whose first axis counts the examples.
    ///
    /// # Errors
    ///
    /// Fails if the shapes differ, or are not those of earlier batches; if one of them is not of floats, or a
    /// difference is NaN.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
        here(|| {
            let (found, expected) = (predictions.ty(), targets.ty());
            let shape = targets.shape();
            if found.shape != shape || !found.dtype.is_float() || !expected.dtype.is_float() || shape.rank() == 0 {
                bail!(
                    Shape,
                    "predictions and targets must be floats [N, …] of one shape, they are {found} and {expected}"
                );
            }
            let width = shape.elements() / shape[0].max(1);
            if !self.columns.is_empty() && self.columns.len() != width {
                bail!(Shape, "{width} columns, where earlier batches had {}", self.columns.len());
            }
            let (predictions, targets) = (predictions.to_f64_vec()?, targets.to_f64_vec()?);
            if let Some(at) = predictions.iter().zip(&targets).position(|(y, t)| (y - t).is_nan()) {
                bail!(NotFinite, "element {at}: the prediction is {}, the target {}", predictions[at], targets[at]);
            }
            if self.columns.is_empty() {
                let origins = targets.iter().take(width);
                self.columns = origins.map(|&origin| Column { origin, ..Column::default() }).collect();
            }
            for (at, (y, t)) in predictions.iter().zip(&targets).enumerate() {
                let column = &mut self.columns[at % width];
                column.absolute += (y - t).abs();
                column.squared += (y - t) * (y - t);
                column.sum += t - column.origin;
                column.squares += (t - column.origin) * (t - column.origin);
            }
            self.count += shape[0] as f64;
            Ok(())
        })
    }

    /// Adds the counts of another accumulator.
    ///
    /// # Errors
    ///
    /// Fails if the other has another number of columns.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        here(|| {
            if self.columns.is_empty() {
                *self = other.clone();
                return Ok(());
            }
            if other.columns.is_empty() {
                return Ok(());
            }
            if self.columns.len() != other.columns.len() {
                bail!(
                    Argument,
                    "errors of {} columns cannot be merged into {}",
                    other.columns.len(),
                    self.columns.len()
                );
            }
            for (own, other_column) in self.columns.iter_mut().zip(&other.columns) {
                let other = other_column.around(own.origin, other.count);
                own.absolute += other.absolute;
                own.squared += other.squared;
                own.sum += other.sum;
                own.squares += other.squares;
            }
            self.count += other.count;
            Ok(())
        })
    }

    /// An accumulator with the counts of all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left; if ranks have other numbers of columns.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| {
            // All ranks take the origin of rank 0 and its number of columns, which may be unknown elsewhere.
            let own = |is_own: bool, number: f64| if is_own { number } else { 0.0 };
            let width = world.sum(&[own(world.is_first(), self.columns.len() as f64)])?[0];
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of columns")]
            let width = width as usize;
            let fits = match self.columns.len() {
                0 => Ok(()),
                columns if columns == width => Ok(()),
                columns => Err(crate::Error::new(
                    crate::ErrorKind::Argument,
                    format!("{columns} columns, and rank 0 has {width}"),
                )),
            };
            world.expect_all(fits)?;
            let origins: Vec<f64> = match world.is_first() {
                true => self.columns.iter().map(|column| column.origin).collect(),
                false => vec![0.0; width],
            };
            let origins = world.sum(&origins)?;
            let mut numbers = vec![self.count];
            for (column, &origin) in origins.iter().enumerate() {
                let column =
                    self.columns.get(column).map_or_else(Column::default, |own| own.around(origin, self.count));
                numbers.extend([column.absolute, column.squared, column.sum, column.squares]);
            }
            let sums = world.sum(&numbers)?;
            let columns = origins.iter().zip(sums[1..].chunks(4));
            let column = |(&origin, sums): (&f64, &[f64])| Column {
                origin,
                absolute: sums[0],
                squared: sums[1],
                sum: sums[2],
                squares: sums[3],
            };
            Ok(Self { count: sums[0], columns: columns.map(column).collect() })
        })
    }

    fn each(&self, of: impl Fn(&Column, f64) -> f64) -> Result<Vec<f64>> {
        if self.count == 0.0 {
            bail!(Argument, "the errors of no examples: `update` has counted none");
        }
        Ok(self.columns.iter().map(|column| of(column, self.count)).collect())
    }

    /// The mean absolute error of each column.
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    pub fn mean_absolute_errors(&self) -> Result<Vec<f64>> {
        here(|| self.each(|column, count| column.absolute / count))
    }

    /// The mean squared error of each column.
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    pub fn mean_squared_errors(&self) -> Result<Vec<f64>> {
        here(|| self.each(|column, count| column.squared / count))
    }

    /// R² of each column: NaN for a column whose targets are all the same and predicted perfectly, −∞ if they are not.
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    pub fn r2(&self) -> Result<Vec<f64>> {
        here(|| self.each(|column, count| 1.0 - column.squared / (column.squares - column.sum * column.sum / count)))
    }

    /// The mean of [`r2`](Self::r2) over the columns.
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| Ok(self.r2()?.iter().sum::<f64>() / self.columns.len() as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ErrorKind, Precision};

    fn tensor(rows: &[f64], columns: usize) -> Tensor {
        let device = Device::cpu().with_precision(Precision::Double).unwrap();
        Tensor::from_f64(&device, [rows.len() / columns, columns], rows).unwrap()
    }

    #[test]
    fn sums_over_batches_are_those_of_the_whole() {
        // A mean that would cancel most digits of the squares.
        let targets: Vec<f64> = (0..12).map(|i| 1e6 + f64::from(i * i % 7)).collect();
        let predictions: Vec<f64> = targets.iter().enumerate().map(|(i, t)| t + 0.1 * (i as f64 - 5.0)).collect();
        let (mut whole, mut parts, mut rest) = (Regression::new(), Regression::new(), Regression::new());
        whole.update(&tensor(&predictions, 2), &tensor(&targets, 2)).unwrap();
        parts.update(&tensor(&predictions[..4], 2), &tensor(&targets[..4], 2)).unwrap();
        rest.update(&tensor(&predictions[4..], 2), &tensor(&targets[4..], 2)).unwrap();
        parts.merge(&rest).unwrap();
        parts.merge(&Regression::new()).unwrap();
        for column in 0..2 {
            let of = |numbers: &[f64]| numbers.iter().skip(column).step_by(2).copied().collect::<Vec<_>>();
            let (y, t) = (of(&predictions), of(&targets));
            let mean = t.iter().sum::<f64>() / 6.0;
            let squared: f64 = y.iter().zip(&t).map(|(y, t)| (y - t).powi(2)).sum();
            let expected = 1.0 - squared / t.iter().map(|t| (t - mean).powi(2)).sum::<f64>();
            for errors in [&whole, &parts] {
                assert!((errors.r2().unwrap()[column] - expected).abs() < 1e-9);
                assert!((errors.mean_squared_errors().unwrap()[column] - squared / 6.0).abs() < 1e-9);
            }
        }
        let alone = whole.over(&World::alone()).unwrap();
        assert_eq!(alone.value().unwrap(), whole.value().unwrap());
    }

    #[test]
    fn misuse_is_an_error() {
        let mut errors = Regression::new();
        assert_eq!(errors.r2().unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(
            errors.update(&tensor(&[1.0, 2.0], 1), &tensor(&[1.0, 2.0], 2)).unwrap_err().kind(),
            ErrorKind::Shape
        );
        let nan = tensor(&[f64::NAN], 1);
        assert_eq!(errors.update(&nan, &nan).unwrap_err().kind(), ErrorKind::NotFinite);
        errors.update(&tensor(&[1.0], 1), &tensor(&[2.0], 1)).unwrap();
        assert_eq!(
            errors.update(&tensor(&[1.0, 2.0], 2), &tensor(&[1.0, 2.0], 2)).unwrap_err().kind(),
            ErrorKind::Shape
        );
        let mut wide = Regression::new();
        wide.update(&tensor(&[1.0, 2.0], 2), &tensor(&[1.0, 2.0], 2)).unwrap();
        assert_eq!(errors.merge(&wide).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(errors.r2().unwrap(), [f64::NEG_INFINITY]);
    }
}
