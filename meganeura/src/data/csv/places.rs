//! Which columns are inputs, and which are targets.

use std::ops::Range;

use super::Csv;
use super::reader::Reader;
use crate::data::Columns;

/// The places of inputs and targets in a row.
pub(super) struct Places {
    /// The number of cells in a row.
    pub(super) width: usize,
    /// Which of the cells that are taken are those of the target.
    pub(super) targets: Range<usize>,
    /// The columns that are taken, in order; `None` for all.
    pub(super) named: Option<Vec<usize>>,
}

impl<T: Columns> Csv<T> {
    /// The places of inputs and targets in a row whose columns have no names.
    pub(super) fn places(&self) -> Places {
        let (width, targets) = (self.width(), self.target_width());
        let first = if self.is_target_first { 0 } else { width - targets };
        Places { width, targets: first..first + targets, named: None }
    }

    /// The places of inputs and targets by the names in the first row, if they were given.
    pub(super) fn named_places(&self, row: &Reader, places: Places) -> Result<Places, (u64, String)> {
        let [Some(inputs), Some(targets)] = &self.names else {
            return match self.names.iter().any(Option::is_some) {
                true => Err((row.start, ": `Csv::columns` goes with `Csv::target_columns`".to_owned())),
                false => Ok(places),
            };
        };
        let header: Vec<_> = row.cells().map(|(_, cell)| str::from_utf8(cell).unwrap_or_default().trim()).collect();
        let find = |names: &[String], expected: usize, what: &str| {
            if names.len() != expected {
                let given = names.len();
                return Err((row.start, format!(": {given} columns were named for {what} of {expected} numbers")));
            }
            let place = |name: &String| {
                let mut places = (0..header.len()).filter(|&place| header[place] == name);
                match (places.next(), places.next()) {
                    (Some(place), None) => Ok(place),
                    (None, _) => Err((row.start, format!(": no column {name:?} among {header:?}"))),
                    _ => Err((row.start, format!(": several columns {name:?}"))),
                }
            };
            names.iter().map(place).collect::<Result<Vec<_>, _>>()
        };
        let mut named = find(inputs, self.shape.elements(), "an input")?;
        let first = named.len();
        named.extend(find(targets, self.target_width(), "a target")?);
        Ok(Places { width: header.len(), targets: first..named.len(), named: Some(named) })
    }
}
