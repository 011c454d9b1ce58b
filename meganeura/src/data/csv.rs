//! Rows of numbers as text.
//!
//! Numbers need neither quotes nor escapes, so a row is a line cut at its commas.

use std::io::{BufReader, Read};
use std::path::Path;

use super::Dataset;
use super::file::Contents;
use crate::error::{bail, here};
use crate::host::reserve;
use crate::{Result, Shape};

/// The longest name or number that a cell can be expected to have.
const CELL: u64 = 64;

/// How examples stand in a CSV file: a row for each, its numbers and its label.
///
/// ```
/// use meganeura::data::Csv;
///
/// // Images of 1×2 pixels from 0 to 16.
/// let csv = "4,16,1\n0,8,0\n";
/// let digits = Csv::new([1, 1, 2]).divided_by(16.0).classes(2).read_from("two.csv", csv.as_bytes())?;
/// assert_eq!(digits.get(0)?, (vec![0.25, 1.0], 1));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Csv {
    shape: Shape,
    is_label_first: bool,
    has_header: bool,
    divisor: f32,
    classes: Option<u32>,
    unpacked_limit: Option<u64>,
}

impl Csv {
    /// Rows of as many numbers as an example of this shape has, and then the label.
    pub fn new(shape: impl Into<Shape>) -> Self {
        let (divisor, classes, unpacked_limit) = (1.0, None, None);
        Self { shape: shape.into(), is_label_first: false, has_header: false, divisor, classes, unpacked_limit }
    }

    /// With the label in the first column instead of the last.
    pub fn label_first(self) -> Self {
        Self { is_label_first: true, ..self }
    }

    /// With the names of the columns in the first line, which is passed over.
    pub fn header(self) -> Self {
        Self { has_header: true, ..self }
    }

    /// With the numbers divided by this one: the largest that a pixel can be, to have them from 0 to 1.
    pub fn divided_by(self, divisor: f32) -> Self {
        Self { divisor, ..self }
    }

    /// With labels below this number; others are an error.
    pub fn classes(self, classes: u32) -> Self {
        Self { classes: Some(classes), ..self }
    }

    /// With at most this many bytes unpacked from a file that is packed with gzip. The default is 250 times what is packed, or 64 MiB
    /// where that is more: a table that shrinks further says next to nothing, and a file made to fill the memory shrinks 1000 times.
    pub fn unpacked_limit(self, bytes: u64) -> Self {
        Self { unpacked_limit: Some(bytes), ..self }
    }

    /// The examples of a file, packed with gzip or not (the feature `gzip`).
    ///
    /// # Errors
    ///
    /// If the file cannot be read; if a row has not as many columns as it should, a number is none or not finite, or a label none, all
    /// of which are said with file, line, column and byte; if a packed file grows beyond the [limit](Self::unpacked_limit), or there
    /// is no memory for the rows.
    #[track_caller]
    pub fn read(self, path: impl AsRef<Path>) -> Result<Dataset> {
        here(|| self.parse(Contents::open(path.as_ref())?))
    }

    /// As [`read`](Self::read), from whatever has bytes, such as a file that is part of the program. The name is for messages.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[track_caller]
    pub fn read_from(self, name: &str, bytes: impl Read) -> Result<Dataset> {
        here(|| self.parse(Contents::new(name.to_owned(), BufReader::new(bytes))?))
    }

    fn parse(self, mut file: Contents<'_>) -> Result<Dataset> {
        if !self.divisor.is_normal() {
            bail!(Argument, "the numbers of a CSV file cannot be divided by {}", self.divisor);
        }
        let longest = CELL.saturating_mul(self.shape.elements() as u64).max(1 << 16);
        file = file.limited(self.unpacked_limit, "Csv::unpacked_limit");
        let (mut features, mut labels, mut number) = (Vec::new(), Vec::new(), 0_u64);
        loop {
            let start = file.offset();
            let Some(line) = file.line(longest)? else { break };
            number += 1;
            if number > 1 || !self.has_header {
                let room = reserve(&mut labels, 1).map_err(|error| (0, format!(": {error}")));
                let label = room.and_then(|()| self.row(&line, &mut features));
                let wrong = |(at, what)| file.wrong(start + at as u64, format!("line {number}{what}"));
                labels.push(label.map_err(wrong)?);
            }
        }
        Dataset::new(features, self.shape, labels).map_err(|error| error.context(file.name()))
    }

    /// Appends the numbers of a row and returns its label, or where in it something is wrong, and what.
    fn row(&self, line: &[u8], features: &mut Vec<f32>) -> Result<u32, (usize, String)> {
        let expected = self.shape.elements().saturating_add(1);
        let cells = line.split(|&byte| byte == b',');
        let found = if line.is_empty() { 0 } else { cells.clone().count() };
        if found != expected {
            return Err((
                0,
                format!(": {found} columns, {expected} were expected: the label and an example {}", self.shape),
            ));
        }
        // Every column has a byte at least, so there are not more than were read.
        reserve(features, expected - 1).map_err(|error| (0, format!(": {error}")))?;
        let label_at = if self.is_label_first { 0 } else { expected - 1 };
        let (mut at, mut label) = (0, 0);
        for (column, cell) in cells.enumerate() {
            let wrong = |what: &str| (at, format!(", column {}: {} is no {what}", column + 1, shown(cell)));
            let text = str::from_utf8(cell).unwrap_or_default().trim();
            if column == label_at {
                label = text.parse().map_err(|_| wrong("label, which is a whole number"))?;
                if let Some(classes) = self.classes.filter(|&classes| label >= classes) {
                    return Err(wrong(&format!("label of {classes} classes")));
                }
            } else {
                let number = text.parse().ok().map(|number: f32| number / self.divisor);
                features.push(number.filter(|number| number.is_finite()).ok_or_else(|| wrong("finite number"))?);
            }
            at += cell.len() + 1;
        }
        Ok(label)
    }
}

/// A cell for a message, or the beginning of a long one.
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

    fn read(csv: Csv, text: &str) -> Result<Vec<(Vec<f32>, u32)>> {
        let dataset = csv.read_from("some.csv", text.as_bytes())?;
        (0..dataset.len()).map(|index| dataset.get(index)).collect()
    }

    #[test]
    fn rows_become_examples() {
        let csv = Csv::new([1, 1, 2]).divided_by(16.0);
        let expected = vec![(vec![0.0, 1.0], 3), (vec![0.5, -0.25], 0)];
        assert_eq!(read(csv, "0,16,3\n8,-4,0\n").unwrap(), expected);
        assert_eq!(read(csv, "0,16,3\r\n 8 , -4.0,0").unwrap(), expected);
        assert_eq!(read(csv.header(), "a,b,label\n0,16,3\n8,-4,0\n").unwrap(), expected);
        assert_eq!(read(csv.label_first(), "3,0,16\n0,8,-4\n").unwrap(), expected);
        assert_eq!(read(csv, "").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let csv = Csv::new([2]).classes(10);
        let long = "1".repeat(70_000);
        let cell = format!("1,{},3", "x".repeat(60_000));
        for (text, part) in [
            ("1,2,3\n1,2\n", "some.csv, byte 6: line 2: 2 columns, 3 were expected"),
            ("1,2,3,4", "byte 0: line 1: 4 columns"),
            ("1,2,3\n\n1,2,3", "byte 6: line 2: 0 columns"),
            ("\n", "line 1: 0 columns"),
            ("1,2,3\n1,x,3", "byte 8: line 2, column 2: \"x\" is no finite number"),
            ("1,,3", "byte 2: line 1, column 2"),
            ("1,nan,3", "byte 2: line 1, column 2"),
            ("1,1e99,3", "byte 2: line 1, column 2"),
            ("1,2,10", "byte 4: line 1, column 3: \"10\" is no label of 10 classes"),
            ("1,2,-1", "\"-1\" is no label"),
            ("1,2,3.5", "\"3.5\" is no label"),
            ("a,b,c\n1,2,3", "byte 0: line 1, column 1: \"a\""),
            (&long, "byte 0: a line of more than 65536 bytes"),
            (&cell, "xxx\"… is no finite number"),
        ] {
            let error = read(csv, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
            assert!(error.to_string().contains(part) && error.to_string().len() < 200, "{part}: {error}");
        }
        assert!(read(csv.divided_by(1e-30), "1e30,2,3").unwrap_err().to_string().contains("no finite number"));
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
    fn a_packed_table_grows_to_a_limit() {
        use std::io::Write;
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        // A number may have as many zeros as it likes.
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
