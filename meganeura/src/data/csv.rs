//! CSV files: rows of numbers as text, with or without quotes, as in RFC 4180.

use std::io::{BufReader, Read};
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use csv_core::{ReadFieldResult, Terminator};

use super::fields::Columns;
use super::file::Contents;
use super::{Array, Dataset};
use crate::error::{bail, here};
use crate::host::reserve;
use crate::{Result, Shape};

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
/// Cells may be in quotes, as in [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180); the separator is a comma.
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
    divisor: f32,
    classes: Option<u32>,
    unpacked_limit: Option<u64>,
    gather: Gather<T>,
}

impl<T> Clone for Csv<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Csv<T> {}

impl Csv {
    /// Rows with the numbers of an input of this shape, followed by the label.
    pub fn new(shape: impl Into<Shape>) -> Self {
        Self {
            shape: shape.into(),
            target_shape: None,
            is_target_first: false,
            has_header: false,
            divisor: 1.0,
            classes: None,
            unpacked_limit: None,
            gather: |rows, _| Ok((rows.inputs, rows.labels)),
        }
    }

    /// Expects the numbers of a target of this shape, in place of the label.
    pub fn targets(self, shape: impl Into<Shape>) -> Csv<Array<f32>> {
        let Self { shape: of_input, is_target_first, has_header, divisor, classes, unpacked_limit, .. } = self;
        Csv {
            shape: of_input,
            target_shape: Some(shape.into()),
            is_target_first,
            has_header,
            divisor,
            classes,
            unpacked_limit,
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
        let longest = CELL.saturating_mul(self.columns() as u64).max(1 << 16);
        file = file.limited(self.unpacked_limit, "Csv::unpacked_limit");
        let (mut rows, mut reader) = (Rows::default(), Reader::new());
        let mut is_header = self.has_header;
        while reader.read(&mut file, longest)? {
            if !std::mem::take(&mut is_header) {
                let wrong = |(at, what)| file.wrong(at, format!("line {}{what}", reader.line));
                self.row(&reader, &mut rows).map_err(wrong)?;
            }
        }
        let dataset = || {
            let (inputs, targets) = (self.gather)(rows, self.target_shape)?;
            Dataset::new(inputs, self.shape, targets)
        };
        dataset().map_err(|error| error.context(file.name()))
    }

    /// The number of columns of a target.
    fn target_columns(&self) -> usize {
        self.target_shape.map_or(1, |shape| shape.elements())
    }

    fn columns(&self) -> usize {
        self.shape.elements().saturating_add(self.target_columns())
    }

    /// Appends a row, or returns the position and the description of an error in it.
    fn row(&self, row: &Reader, rows: &mut Rows) -> Result<(), (u64, String)> {
        let expected = self.columns();
        let found = row.cells.len();
        if found != expected {
            let target = self.target_shape.map_or("the label".to_owned(), |shape| format!("a target {shape}"));
            let what = format!(": {found} columns, {expected} were expected: {target} and an input {}", self.shape);
            return Err((row.start, what));
        }
        // Every column has at least one byte, so there are at most as many as were read.
        let target_columns = self.target_columns();
        let room = reserve(&mut rows.inputs, expected - target_columns).and_then(|()| match self.target_shape {
            Some(_) => reserve(&mut rows.values, target_columns),
            None => reserve(&mut rows.labels, 1),
        });
        room.map_err(|error| (row.start, format!(": {error}")))?;
        let first = if self.is_target_first { 0 } else { expected - target_columns };
        for (column, (at, cell)) in row.cells().enumerate() {
            let wrong = |what: &str| (at, format!(", column {}: {} is not a {what}", column + 1, shown(cell)));
            let text = str::from_utf8(cell).unwrap_or_default().trim();
            let finite = |divisor: f32| {
                let number = text.parse().ok().map(|number: f32| number / divisor);
                number.filter(|number: &f32| number.is_finite()).ok_or_else(|| wrong("finite number"))
            };
            if !(first..first + target_columns).contains(&column) {
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

/// The current row of a file. A cell in quotes may contain commas, line breaks, and quotes as pairs of quotes.
struct Reader {
    core: csv_core::Reader,
    /// The number of lines read.
    lines: u64,
    /// The row's first line and byte.
    line: u64,
    start: u64,
    /// The text of all cells, without their quotes.
    text: Vec<u8>,
    /// For each cell, its first byte in the file, and its end in the text.
    cells: Vec<(u64, usize)>,
}

impl Reader {
    fn new() -> Self {
        let core = csv_core::ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        Self { core, lines: 0, line: 0, start: 0, text: Vec::new(), cells: Vec::new() }
    }

    /// Reads the next row, if there is one. One with more than `most` bytes is an error.
    fn read(&mut self, file: &mut Contents<'_>, most: u64) -> Result<bool> {
        self.text.clear();
        self.cells.clear();
        (self.line, self.start) = (self.lines + 1, file.offset());
        let (mut begin, mut end) = (self.start, 0);
        loop {
            let (is_first, at) = (self.lines < self.line, file.offset());
            let Some(mut line) = file.line(most)? else {
                if is_first {
                    return Ok(false);
                }
                return Err(file.wrong(begin, format!("line {}: a quote that does not end", self.line)));
            };
            self.lines += 1;
            if is_first && line.is_empty() {
                // Which the parser would skip.
                return Ok(true);
            }
            if file.offset() - self.start > most.saturating_add(2) {
                return Err(
                    file.wrong(self.start, format!("a row of more than {most} bytes, which is not one of numbers"))
                );
            }
            let room = reserve(&mut line, 1).and_then(|()| reserve(&mut self.text, line.len() + 1));
            room.map_err(|error| error.context(file.name()))?;
            line.push(b'\n');
            self.text.resize(end + line.len(), 0);
            let mut done = 0;
            while done < line.len() {
                let (result, read, written) = self.core.read_field(&line[done..], &mut self.text[end..]);
                (done, end) = (done + read, end + written);
                if let ReadFieldResult::Field { record_end } = result {
                    reserve(&mut self.cells, 1).map_err(|error| error.context(file.name()))?;
                    self.cells.push((begin, end));
                    begin = at + done as u64;
                    if record_end {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// The cells of the row, each with its first byte in the file.
    fn cells(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let begins = std::iter::once(0).chain(self.cells.iter().map(|&(_, end)| end));
        self.cells.iter().zip(begins).map(|(&(at, end), begin)| (at, &self.text[begin..end]))
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
    fn rows_become_examples() {
        let csv = Csv::new([1, 1, 2]).divided_by(16.0);
        let input = |numbers: [f32; 2]| Array::new(numbers.to_vec(), [1, 1, 2]).unwrap();
        let expected = vec![(input([0.0, 1.0]), 3), (input([0.5, -0.25]), 0)];
        assert_eq!(read(csv, "0,16,3\n8,-4,0\n").unwrap(), expected);
        assert_eq!(read(csv, "0,16,3\r\n 8 , -4.0,0").unwrap(), expected);
        assert_eq!(read(csv.header(), "a,b,label\n0,16,3\n8,-4,0\n").unwrap(), expected);
        assert_eq!(read(csv.target_first(), "3,0,16\n0,8,-4\n").unwrap(), expected);
        assert_eq!(read(csv, "").unwrap(), []);
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
            assert_eq!(read(csv, text).unwrap(), expected, "{text:?}");
        }
        // Commas, line breaks and quotes in names.
        let names = "\"width, in \"\"cm\"\"\",\"price\n(EUR)\"\n";
        assert_eq!(read(csv.header(), &format!("{names}1.5,2\n3,\"4\"\n")).unwrap(), expected);
        for (text, part) in [
            ("1.5,\"2,5\"\n", "byte 4: line 1, column 2: \"2,5\" is not a finite number"),
            ("1.5,2\n3,\"\"\"4\"\n", "byte 8: line 2, column 2: \"\\\"4\" is not"),
            ("\"1.5\n\",2\n3,x", "byte 11: line 3, column 2: \"x\" is not"),
            ("1.5,2\n3,\"4\n5,6\n", "byte 8: line 2: a quote that does not end"),
        ] {
            let error = read(csv, text).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        let long = format!("1,\"{}", "2\n".repeat(70_000));
        let error = read(csv, &long).unwrap_err().to_string();
        assert!(error.contains("byte 0: a row of more than 65536 bytes") && error.len() < 200, "{error}");
    }

    #[test]
    fn targets_may_be_numbers() {
        let csv = Csv::new([1]).targets([2]).divided_by(4.0);
        let expected = [(0.5, [3.0, -4.5]), (0.25, [0.0, 1.0])];
        let expected = expected.map(|(input, target)| (Array::from(vec![input]), Array::from(target.to_vec())));
        assert_eq!(read(csv, "2,3,-4.5\n1,0,1\n").unwrap(), expected);
        assert_eq!(read(csv.target_first(), "3,-4.5,2\n0,1,1\n").unwrap(), expected);
        for (csv, text, part) in [
            (csv, "2,3", "line 1: 2 columns, 3 were expected: a target [2] and an input [1]"),
            (csv, "2,3,x", "line 1, column 3: \"x\" is not a finite number"),
            (Csv::new([1]).classes(2).targets([2]), "2,3,4", "`Csv::classes` is for labels"),
            (Csv::new([1]).targets([0]), "2", "a target needs at least one number"),
            (Csv::new([1]).targets([1; 8]), "2,3", "a target of shape [1, 1, 1, 1, 1, 1, 1, 1] leaves no axis"),
        ] {
            let error = read(csv, text).unwrap_err().to_string();
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
            let error = read(csv, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
            assert!(error.to_string().contains(part) && error.to_string().len() < 200, "{part}: {error}");
        }
        assert!(read(csv.divided_by(1e-30), "1e30,2,3").unwrap_err().to_string().contains("not a finite number"));
        assert_eq!(read(csv.divided_by(0.0), "1,2,3").unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(read(Csv::new([0]), "3").unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(Csv::new([2]).read("no such file").unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn memory_that_runs_out_is_an_error() {
        let (csv, text) = (Csv::new([2]), "1,2,3\n".repeat(100));
        let mut failed = 0;
        while let (result, true) = crate::host::shortage::at(failed, || csv.read_from("some.csv", text.as_bytes())) {
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
