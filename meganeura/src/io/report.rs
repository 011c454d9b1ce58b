//! What loading did.

use crate::{Error, ErrorKind, Result};

/// Which names were loaded, and which only one side had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "names may be missing from the file; look, or make that an error: `net.load(path)?.strict()?`"]
pub struct LoadReport {
    /// Replaced by what the file has, in the order of the model.
    pub loaded: Vec<String>,
    /// In the model but not in the file: these kept their values.
    pub missing: Vec<String>,
    /// In the file but not in the model: these were ignored.
    pub unexpected: Vec<String>,
}

impl LoadReport {
    /// Makes names that only one side had an error.
    ///
    /// # Errors
    ///
    /// [`Checkpoint`](ErrorKind::Checkpoint), with all those names. What both sides had is loaded by then.
    pub fn strict(&self) -> Result<()> {
        if self.missing.is_empty() && self.unexpected.is_empty() { Ok(()) } else { Err(self.difference()) }
    }

    /// The names that only one side had, as an error.
    pub(super) fn difference(&self) -> Error {
        let mut parts = Vec::new();
        for (what, names) in [("missing from the file", &self.missing), ("only in the file", &self.unexpected)] {
            if !names.is_empty() {
                parts.push(format!("{what}: {}", names.join(", ")));
            }
        }
        Error::new(ErrorKind::Checkpoint, parts.join("; "))
    }
}
