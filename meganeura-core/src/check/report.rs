//! Reports of gradient checks, as numbers and as text.

use std::fmt;

use crate::error::{bail, here};
use crate::{Result, Shape};

/// The result of a gradient check.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// One entry for each trained parameter, in the module's order, then one for each input. A check of second
    /// derivatives adds one for each cotangent of the outputs.
    pub entries: Vec<Entry>,
}

/// The result of a gradient check for one tensor.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// The parameter's path, `input k` or `cotangent k`.
    pub name: String,
    /// The tensor's extents.
    pub shape: Shape,
    /// The number of checked elements.
    pub checked: usize,
    /// The largest difference between the two derivatives.
    pub largest_absolute: f64,
    /// The largest difference relative to the numeric derivative.
    pub largest_relative: f64,
    /// The row-major index of the element with the worst agreement.
    pub worst: usize,
    /// The derivative of that element by the tape.
    pub analytic: f64,
    /// The derivative of that element by finite differences.
    pub numeric: f64,
    /// `true` if all elements agree.
    pub passed: bool,
}

impl Report {
    /// `true` if every derivative agrees.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.entries.iter().all(|entry| entry.passed)
    }

    /// Fails with the whole report unless every derivative agrees.
    ///
    /// # Errors
    ///
    /// Fails if a derivative disagrees.
    #[track_caller]
    pub fn ok(&self) -> Result<()> {
        here(|| {
            if !self.passed() {
                bail!(Argument, "gradients disagree with finite differences\n{self}");
            }
            Ok(())
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry { name, shape, checked, largest_absolute, largest_relative, worst, analytic, numeric, passed } in
            &self.entries
        {
            let verdict = if *passed { "ok  " } else { "FAIL" };
            writeln!(
                f,
                "{verdict} {name} {shape}: {checked} checked, largest error {largest_absolute:.1e} absolute, \
                 {largest_relative:.1e} relative; worst at {worst}: {analytic:.6e}, numerically {numeric:.6e}"
            )?;
        }
        Ok(())
    }
}
