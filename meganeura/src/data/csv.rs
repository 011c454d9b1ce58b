//! CSV files: rows of numbers as text, with or without quotes, as in RFC 4180.

mod dates;
mod places;
mod reader;

use std::io::{BufReader, Read};
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use super::fields::Columns;
use super::file::Contents;
use super::{Array, Dataset};
use crate::error::{bail, here};
use crate::host::reserve;
use crate::{Result, Shape};
use places::Places;
use reader::Reader;

/// The longest plausible name or number in a cell.
const CELL: u64 = 64;

/// The layout of examples in a CSV file: one row each, with its numbers and its label, or with the
/// [numbers](Self::targets) of its target.
///
/// ```
/// use meganeura::data::{Array, Csv};
///
/// // Images of 1×2 pixels from 0 to 16.
/// let csv = "4,16,1\n0,8,0\n";
/// let digits = Csv::new([1, 1, 2]).divided_by(16.0).classes(2).read_from("two.csv", csv.as_bytes())?;
/// assert_eq!(digits.get(0)?, (Array::new(vec![0.25, 1.0], [1, 1, 2])?, 1));
///
/// // Two measurements and the price to be predicted.
/// let prices = Csv::new([2]).targets([1]).read_from("prices.csv", "3,80,1.5\n2,45,0.9\n".as_bytes())?;
/// assert_eq!(prices.get(1)?, (Array::from(vec![2.0, 45.0]), Array::from(vec![0.9])));
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// Cells may be in quotes, as in [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180). The separator is a comma, or
/// [another](Self::separator).
///
/// ```
/// use meganeura::data::{Array, Csv};
///
/// // By the names of the columns, in any order; a gap becomes a number of your choice.
/// let text = "date;rent;rooms;size\n2026-03-01;900;3;80\n2026-04-01;;2;45\n";
/// let csv = Csv::new([2]).columns(["size", "rooms"]).targets([1]).target_columns(["rent"]);
/// let flats = csv.separator(b';').gaps(-1.0).read_from("flats.csv", text.as_bytes())?;
/// assert_eq!(flats.get(0)?, (Array::from(vec![80.0, 3.0]), Array::from(vec![900.0])));
/// assert_eq!(flats.get(1)?.1, Array::from(vec![-1.0]));
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// ```
/// use meganeura::data::{Array, Csv};
///
/// // Dates, with or without a time, as days from a first day.
/// let text = "time,load\n2026-03-01T06:00,7.5\n2026-03-02T12:00,8\n";
/// let csv = Csv::new([1]).columns(["time"]).targets([1]).target_columns(["load"]);
/// let loads = csv.dates_from("2026-03-01").read_from("loads.csv", text.as_bytes())?;
/// assert_eq!(loads.get(0)?, (Array::from(vec![0.25]), Array::from(vec![7.5])));
/// assert_eq!(loads.get(1)?.0, Array::from(vec![1.5]));
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// `T` holds the targets of all rows: labels, unless [`targets`](Self::targets) says otherwise.
#[derive(Debug)]
#[must_use]
pub struct Csv<T = Vec<u32>> {
    shape: Shape,
    /// `None` for labels.
    target_shape: Option<Shape>,
    is_target_first: bool,
    has_header: bool,
    separator: u8,
    /// The names of the columns of the inputs, and of those of the targets; `None` for all columns in order.
    names: [Option<Vec<String>>; 2],
    /// The number in place of a cell without text.
    gap: Option<f32>,
    /// The day from which dates are counted, as it was given; `None` where there are no dates.
    first_day: Option<String>,
    divisor: f32,
    classes: Option<u32>,
    unpacked_limit: Option<u64>,
    gather: Gather<T>,
}

impl<T> Clone for Csv<T> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), first_day: self.first_day.clone(), ..*self }
    }
}

impl Csv {
    /// Rows with the numbers of an input of this shape, followed by the label.
    pub fn new(shape: impl Into<Shape>) -> Self {
        Self {
            shape: shape.into(),
            target_shape: None,
            is_target_first: false,
            has_header: false,
            separator: b',',
            names: [None, None],
            gap: None,
            first_day: None,
            divisor: 1.0,
            classes: None,
            unpacked_limit: None,
            gather: |rows, _| Ok((rows.inputs, rows.labels)),
        }
    }

    /// Expects the numbers of a target of this shape, in place of the label.
    pub fn targets(self, shape: impl Into<Shape>) -> Csv<Array<f32>> {
        Csv {
            shape: self.shape,
            target_shape: Some(shape.into()),
            is_target_first: self.is_target_first,
            has_header: self.has_header,
            separator: self.separator,
            names: self.names,
            gap: self.gap,
            first_day: self.first_day,
            divisor: self.divisor,
            classes: self.classes,
            unpacked_limit: self.unpacked_limit,
            gather: |Rows { inputs, values, .. }, shape| {
                let shape = shape.unwrap_or(Shape::from([]));
                if shape.elements() == 0 {
                    bail!(Shape, "a target needs at least one number, shape {shape} has none");
                }
                if shape.rank() == crate::MAX_RANK {
                    bail!(Shape, "a target of shape {shape} leaves no axis for the batch");
                }
                let count = values.len() / shape.elements();
                Ok((inputs, Array::new(values, Shape::new(&[&[count], shape.dims()].concat()))?))
            },
        }
    }

    /// Expects labels below this number; others are an error.
    pub fn classes(self, classes: u32) -> Self {
        Self { classes: Some(classes), ..self }
    }
}

impl<T: Columns> Csv<T> {
    /// Expects the label, or the numbers of the target, in the first columns instead of the last.
    pub fn target_first(self) -> Self {
        Self { is_target_first: true, ..self }
    }

    /// Skips the first row, which names the columns.
    pub fn header(self) -> Self {
        Self { has_header: true, ..self }
    }

    /// The byte between two cells: `b';'` or `b'\t'`, for example.
    pub fn separator(self, separator: u8) -> Self {
        Self { separator, ..self }
    }

    /// Takes the inputs from the columns of these names, in this order, and leaves out others. The first row names the
    /// columns.
    pub fn columns<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let [_, targets] = self.names;
        Self { has_header: true, names: [Some(names.into_iter().map(Into::into).collect()), targets], ..self }
    }

    /// Takes the label, or the numbers of the target, from the columns of these names, as in
    /// [`columns`](Self::columns). One goes with the other.
    pub fn target_columns<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        let [inputs, _] = self.names;
        Self { has_header: true, names: [inputs, Some(names.into_iter().map(Into::into).collect())], ..self }
    }

    /// Takes this number, which may be NaN, for cells without text. Without it they are an error, and for labels they
    /// always are.
    pub fn gaps(self, number: f32) -> Self {
        Self { gap: Some(number), ..self }
    }

    /// Takes dates for numbers: the days from this one, with a fraction for the time. A date is `2026-03-01`,
    /// `2026-03-01 06:00` or `2026-03-01T06:00:00.5+02:00`, as in ISO 8601 and RFC 3339; without an offset, a time is
    /// taken as it is. Single precision tells minutes apart within 20 years of the first day, and seconds
    /// within 120 days.
    pub fn dates_from(self, first_day: impl Into<String>) -> Self {
        Self { first_day: Some(first_day.into()), ..self }
    }

    /// Divides the numbers of the inputs, but no dates: by the largest pixel value, for example, to scale them to 0 to
    /// 1.
    pub fn divided_by(self, divisor: f32) -> Self {
        Self { divisor, ..self }
    }

    /// Limits the unpacked size of a file packed with gzip.
    ///
    /// The default is 250 times the packed size, or 64 MiB if that is more: a table that shrinks further contains
    /// almost nothing, and a file made to exhaust memory shrinks 1000 times.
    pub fn unpacked_limit(self, bytes: u64) -> Self {
        Self { unpacked_limit: Some(bytes), ..self }
    }

    /// Reads the examples of a file, packed with gzip or not (the feature `gzip`).
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read; if a row has another number of columns, a value is not a finite number, or a
    /// label is invalid; if a packed file grows beyond the [limit](Self::unpacked_limit), or if memory runs out. The
    /// error names file, line, column and byte.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn read(self, path: impl AsRef<Path>) -> Result<Dataset<Array<f32>, T::Fields>> {
        here(|| self.parse(Contents::open(path.as_ref())?))
    }

    /// Like [`read`](Self::read), but reads any source of bytes, such as a file embedded in the program. The name is
    /// for messages.
    ///
    /// # Errors
    ///
    /// Fails like [`read`](Self::read).
    #[track_caller]
    pub fn read_from(self, name: &str, bytes: impl Read) -> Result<Dataset<Array<f32>, T::Fields>> {
        here(|| self.parse(Contents::new(name.to_owned(), BufReader::new(bytes))?))
    }

    fn parse(self, mut file: Contents<'_>) -> Result<Dataset<Array<f32>, T::Fields>> {
        if !self.divisor.is_normal() {
            bail!(Argument, "the numbers of a CSV file cannot be divided by {}", self.divisor);
        }
        if self.classes.is_some() && self.target_shape.is_some() {
            bail!(Argument, "`Csv::classes` is for labels, but the targets are numbers");
        }
        if [b'"', b'\n', b'\r'].contains(&self.separator) {
            bail!(Argument, "cells cannot be separated by {:?}", char::from(self.separator));
        }
        let longest = CELL.saturating_mul(self.width() as u64).max(1 << 16);
        let first_day = match &self.first_day {
            Some(text) => match dates::days(text) {
                Some(days) => Some(days),
                None => bail!(Argument, "`Csv::dates_from` takes a date like \"2026-03-01\", not {text:?}"),
            },
            None => None,
        };
        file = file.limited(self.unpacked_limit, "Csv::unpacked_limit");
        let (mut rows, mut reader) = (Rows::default(), Reader::new(self.separator));
        let mut places = self.places();
        let mut is_header = self.has_header;
        while reader.read(&mut file, longest)? {
            let wrong = |(at, what)| file.wrong(at, format!("line {}{what}", reader.line));
            if std::mem::take(&mut is_header) {
                places = self.named_places(&reader, places).map_err(wrong)?;
            } else {
                self.row(&reader, &places, first_day, &mut rows).map_err(wrong)?;
            }
        }
        let dataset = || {
            let (inputs, targets) = (self.gather)(rows, self.target_shape)?;
            Dataset::new(inputs, self.shape, targets)
        };
        dataset().map_err(|error| error.context(file.name()))
    }

    /// The number of columns of a target.
    fn target_width(&self) -> usize {
        self.target_shape.map_or(1, |shape| shape.elements())
    }

    /// The number of columns of a row whose columns have no names.
    fn width(&self) -> usize {
        self.shape.elements().saturating_add(self.target_width())
    }

    /// Appends a row, or returns the position and the description of an error in it.
    fn row(&self, row: &Reader, places: &Places, first_day: Option<f64>, rows: &mut Rows) -> Result<(), (u64, String)> {
        let expected = places.width;
        let found = row.cells.len();
        if found != expected && places.named.is_some() {
            return Err((row.start, format!(": {found} columns, where the first row names {expected}")));
        }
        if found != expected {
            let target = self.target_shape.map_or("the label".to_owned(), |shape| format!("a target {shape}"));
            let what = format!(": {found} columns, {expected} were expected: {target} and an input {}", self.shape);
            return Err((row.start, what));
        }
        // Every column has at least one byte, so there are at most as many as were read.
        let target_columns = self.target_width();
        let room = reserve(&mut rows.inputs, self.shape.elements()).and_then(|()| match self.target_shape {
            Some(_) => reserve(&mut rows.values, target_columns),
            None => reserve(&mut rows.labels, 1),
        });
        room.map_err(|error| (row.start, format!(": {error}")))?;
        let cells: Vec<_> = match &places.named {
            None => row.cells().enumerate().collect(),
            Some(named) => {
                let all: Vec<_> = row.cells().collect();
                named.iter().map(|&column| (column, all[column])).collect()
            }
        };
        for (place, (column, (at, cell))) in cells.into_iter().enumerate() {
            let wrong = |what: &str| (at, format!(", column {}: {} is not a {what}", column + 1, shown(cell)));
            let text = str::from_utf8(cell).unwrap_or_default().trim();
            let finite = |divisor: f32| {
                if let Some(gap) = self.gap.filter(|_| text.is_empty()) {
                    return Ok(gap);
                }
                #[expect(clippy::cast_possible_truncation, reason = "examples have single precision")]
                let date = || first_day.and_then(|first| Some((dates::days(text)? - first) as f32));
                let number = text.parse().ok().map(|number: f32| number / divisor).or_else(date);
                let what = if first_day.is_some() { "finite number or a date" } else { "finite number" };
                number.filter(|number: &f32| number.is_finite()).ok_or_else(|| wrong(what))
            };
            if !places.targets.contains(&place) {
                rows.inputs.push(finite(self.divisor)?);
            } else if self.target_shape.is_some() {
                rows.values.push(finite(1.0)?);
            } else {
                let label = text.parse().map_err(|_| wrong("label, which is a whole number"))?;
                if let Some(classes) = self.classes.filter(|&classes| label >= classes) {
                    return Err(wrong(&format!("label of {classes} classes")));
                }
                rows.labels.push(label);
            }
        }
        Ok(())
    }
}

/// The inputs and targets of all rows, given the shape of a target of numbers.
type Gather<T> = fn(Rows, Option<Shape>) -> Result<(Vec<f32>, T)>;

/// The rows so far. Either labels or values are the targets.
#[derive(Default)]
struct Rows {
    inputs: Vec<f32>,
    labels: Vec<u32>,
    values: Vec<f32>,
}

/// A cell for a message; of a long one, only the beginning.
fn shown(cell: &[u8]) -> String {
    match cell.get(..CELL as usize) {
        Some(start) if cell.len() > start.len() => format!("{:?}…", String::from_utf8_lossy(start)),
        _ => format!("{:?}", String::from_utf8_lossy(cell)),
    }
}

#[cfg(test)]
mod tests;
