//! The rows of a CSV file, as cells of text.

use csv_core::{ReadFieldResult, Terminator};

use crate::Result;
use crate::data::file::Contents;
use crate::host::reserve;

/// The current row of a file. A cell in quotes may contain commas, line breaks, and quotes as pairs of quotes.
pub(super) struct Reader {
    core: csv_core::Reader,
    /// The number of lines read.
    lines: u64,
    /// The row's first line and byte.
    pub(super) line: u64,
    pub(super) start: u64,
    /// The text of all cells, without their quotes.
    text: Vec<u8>,
    /// For each cell, its first byte in the file, and its end in the text.
    pub(super) cells: Vec<(u64, usize)>,
}

impl Reader {
    pub(super) fn new(separator: u8) -> Self {
        let core = csv_core::ReaderBuilder::new().delimiter(separator).terminator(Terminator::Any(b'\n')).build();
        Self { core, lines: 0, line: 0, start: 0, text: Vec::new(), cells: Vec::new() }
    }

    /// Reads the next row, if there is one. One with more than `most` bytes is an error.
    pub(super) fn read(&mut self, file: &mut Contents<'_>, most: u64) -> Result<bool> {
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
    pub(super) fn cells(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let begins = std::iter::once(0).chain(self.cells.iter().map(|&(_, end)| end));
        self.cells.iter().zip(begins).map(|(&(at, end), begin)| (at, &self.text[begin..end]))
    }
}
