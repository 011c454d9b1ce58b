//! CSV files: rows of numbers as text, with or without quotes, as in RFC 4180.

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
    divisor: f32,
    classes: Option<u32>,
    unpacked_limit: Option<u64>,
    gather: Gather<T>,
}

impl<T> Clone for Csv<T> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), ..*self }
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

    /// Divides the numbers of the inputs: by the largest pixel value, for example, to scale them to 0 to 1.
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
        file = file.limited(self.unpacked_limit, "Csv::unpacked_limit");
        let (mut rows, mut reader) = (Rows::default(), Reader::new(self.separator));
        let mut places = self.places();
        let mut is_header = self.has_header;
        while reader.read(&mut file, longest)? {
            let wrong = |(at, what)| file.wrong(at, format!("line {}{what}", reader.line));
            if std::mem::take(&mut is_header) {
                places = self.named_places(&reader, places).map_err(wrong)?;
            } else {
                self.row(&reader, &places, &mut rows).map_err(wrong)?;
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
    fn row(&self, row: &Reader, places: &Places, rows: &mut Rows) -> Result<(), (u64, String)> {
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
                let number = text.parse().ok().map(|number: f32| number / divisor);
                number.filter(|number: &f32| number.is_finite()).ok_or_else(|| wrong("finite number"))
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
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn read<T: Columns>(csv: Csv<T>, text: &str) -> Result<Vec<(Array<f32>, T::Fields)>> {
        let dataset = csv.read_from("some.csv", text.as_bytes())?;
        (0..dataset.len()).map(|index| dataset.get(index)).collect()
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let text = "kind\theight\tnote\twidth\n1\t2.5\t\"a\tb\"\t3\n0\t\t\t4\n";
        let csv = || Csv::new([2]).columns(["width", "height"]).target_columns(["kind"]).separator(b'\t');
        let rows = read(csv().gaps(f32::NAN), text).unwrap();
        assert_eq!(rows[0], (Array::from(vec![3.0, 2.5]), 1));
        assert!(rows[1].0.values()[0] == 4.0 && rows[1].0.values()[1].is_nan() && rows[1].1 == 0);
        let message = |csv: Csv, text: &str| read(csv, text).unwrap_err().to_string();
        let error = message(csv(), text);
        assert!(error.contains("line 3, column 2: \"\" is not a finite number"), "{error}");
        let error = message(csv().columns(["width", "depth"]), text);
        assert!(error.contains("line 1: no column \"depth\" among [\"kind\", \"height\""), "{error}");
        let error = message(csv().columns(["width"]), text);
        assert!(error.contains("1 columns were named for an input of 2 numbers"), "{error}");
        let error = message(csv(), "kind\theight\twidth\twidth\n");
        assert!(error.contains("several columns \"width\""), "{error}");
        let error = message(csv(), "kind\theight\twidth\n1\t2\n");
        assert!(error.contains("line 2: 2 columns, where the first row names 3"), "{error}");
        let error = message(Csv::new([1]).columns(["a"]), "a,b\n");
        assert!(error.contains("goes with `Csv::target_columns`"), "{error}");
        let error = message(csv().gaps(0.0), "kind\theight\twidth\n\t1\t1\n");
        assert!(error.contains("is not a label"), "{error}");
        assert_eq!(read(csv().separator(b'"'), text).unwrap_err().kind(), ErrorKind::Argument);
    }

    #[test]
    fn rows_become_examples() {
        let csv = Csv::new([1, 1, 2]).divided_by(16.0);
        let input = |numbers: [f32; 2]| Array::new(numbers.to_vec(), [1, 1, 2]).unwrap();
        let expected = vec![(input([0.0, 1.0]), 3), (input([0.5, -0.25]), 0)];
        assert_eq!(read(csv.clone(), "0,16,3\n8,-4,0\n").unwrap(), expected);
        assert_eq!(read(csv.clone(), "0,16,3\r\n 8 , -4.0,0").unwrap(), expected);
        assert_eq!(read(csv.clone().header(), "a,b,label\n0,16,3\n8,-4,0\n").unwrap(), expected);
        assert_eq!(read(csv.clone().target_first(), "3,0,16\n0,8,-4\n").unwrap(), expected);
        assert_eq!(read(csv.clone(), "").unwrap(), []);
    }

    #[test]
    fn cells_may_have_quotes() {
        let csv = Csv::new([1]).targets([1]);
        let expected = [(1.5, 2.0), (3.0, 4.0)].map(|(input, target)| (vec![input].into(), vec![target].into()));
        for text in [
            "\"1.5\",\"2\"\n\"3\",4\n",
            "\"1.5\",2\r\n3,\"4\"\r\n",
            "1.5,\"2\n\"\n\" 3\",\"4\"",
            "\u{feff}\"1.5\",2\n3,4",
        ] {
            assert_eq!(read(csv.clone(), text).unwrap(), expected, "{text:?}");
        }
        // Commas, line breaks and quotes in names.
        let names = "\"width, in \"\"cm\"\"\",\"price\n(EUR)\"\n";
        assert_eq!(read(csv.clone().header(), &format!("{names}1.5,2\n3,\"4\"\n")).unwrap(), expected);
        for (text, part) in [
            ("1.5,\"2,5\"\n", "byte 4: line 1, column 2: \"2,5\" is not a finite number"),
            ("1.5,2\n3,\"\"\"4\"\n", "byte 8: line 2, column 2: \"\\\"4\" is not"),
            ("\"1.5\n\",2\n3,x", "byte 11: line 3, column 2: \"x\" is not"),
            ("1.5,2\n3,\"4\n5,6\n", "byte 8: line 2: a quote that does not end"),
        ] {
            let error = read(csv.clone(), text).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        let long = format!("1,\"{}", "2\n".repeat(70_000));
        let error = read(csv.clone(), &long).unwrap_err().to_string();
        assert!(error.contains("byte 0: a row of more than 65536 bytes") && error.len() < 200, "{error}");
    }

    #[test]
    fn targets_may_be_numbers() {
        let csv = Csv::new([1]).targets([2]).divided_by(4.0);
        let expected = [(0.5, [3.0, -4.5]), (0.25, [0.0, 1.0])];
        let expected = expected.map(|(input, target)| (Array::from(vec![input]), Array::from(target.to_vec())));
        assert_eq!(read(csv.clone(), "2,3,-4.5\n1,0,1\n").unwrap(), expected);
        assert_eq!(read(csv.clone().target_first(), "3,-4.5,2\n0,1,1\n").unwrap(), expected);
        for (csv, text, part) in [
            (csv.clone(), "2,3", "line 1: 2 columns, 3 were expected: a target [2] and an input [1]"),
            (csv.clone(), "2,3,x", "line 1, column 3: \"x\" is not a finite number"),
            (Csv::new([1]).classes(2).targets([2]), "2,3,4", "`Csv::classes` is for labels"),
            (Csv::new([1]).targets([0]), "2", "a target needs at least one number"),
            (Csv::new([1]).targets([1; 8]), "2,3", "a target of shape [1, 1, 1, 1, 1, 1, 1, 1] leaves no axis"),
        ] {
            let error = read(csv.clone(), text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn errors_name_the_byte_the_line_and_the_column() {
        let csv = Csv::new([2]).classes(10);
        let long = "1".repeat(70_000);
        let cell = format!("1,{},3", "x".repeat(60_000));
        for (text, part) in [
            ("1,2,3\n1,2\n", "some.csv, byte 6: line 2: 2 columns, 3 were expected"),
            ("1,2,3,4", "byte 0: line 1: 4 columns"),
            ("1,2,3\n\n1,2,3", "byte 6: line 2: 0 columns"),
            ("\n", "line 1: 0 columns"),
            ("1,2,3\n1,x,3", "byte 8: line 2, column 2: \"x\" is not a finite number"),
            ("1,,3", "byte 2: line 1, column 2"),
            ("1,nan,3", "byte 2: line 1, column 2"),
            ("1,1e99,3", "byte 2: line 1, column 2"),
            ("1,2,10", "byte 4: line 1, column 3: \"10\" is not a label of 10 classes"),
            ("1,2,-1", "\"-1\" is not a label"),
            ("1,2,3.5", "\"3.5\" is not a label"),
            ("a,b,c\n1,2,3", "byte 0: line 1, column 1: \"a\""),
            (&long, "byte 0: a line of more than 65536 bytes"),
            (&cell, "xxx\"… is not a finite number"),
        ] {
            let error = read(csv.clone(), text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
            assert!(error.to_string().contains(part) && error.to_string().len() < 200, "{part}: {error}");
        }
        assert!(
            read(csv.clone().divided_by(1e-30), "1e30,2,3").unwrap_err().to_string().contains("not a finite number")
        );
        assert_eq!(read(csv.clone().divided_by(0.0), "1,2,3").unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(read(Csv::new([0]), "3").unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(Csv::new([2]).read("no such file").unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn memory_that_runs_out_is_an_error() {
        let (csv, text) = (Csv::new([2]), "1,2,3\n".repeat(100));
        let mut failed = 0;
        while let (result, true) =
            crate::host::shortage::at(failed, || csv.clone().read_from("some.csv", text.as_bytes()))
        {
            let error = result.unwrap_err();
            assert!(error.to_string().starts_with("some.csv") && error.to_string().contains("no room"), "{error}");
            failed += 1;
        }
        assert!(failed > 100, "{failed}");
    }

    #[cfg(feature = "gzip")]
    #[test]
    fn the_unpacked_size_of_a_table_is_limited() {
        use std::io::Write;
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        // Zeros compress well, so a small file unpacks to a huge table.
        let row = format!("{0},{0},0\n", "0".repeat(30_000));
        (0..1200).for_each(|_| gz.write_all(row.as_bytes()).unwrap());
        let packed = gz.finish().unwrap();
        let error = Csv::new([2]).read_from("bomb.csv.gz", &packed[..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        for part in ["bomb.csv.gz, byte ", "more than 67108864, the limit", "or raise `Csv::unpacked_limit`"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        let error = Csv::new([2]).unpacked_limit(6000).read_from("bomb.csv.gz", &packed[..]).unwrap_err();
        assert!(error.to_string().contains("more than 6000, the limit"), "{error}");
        let whole = Csv::new([2]).unpacked_limit(1 << 30).read_from("table.csv.gz", &packed[..]).unwrap();
        assert_eq!(whole.len(), 1200);
    }
}
