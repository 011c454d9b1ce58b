//! Reports of gradient checks, as numbers and as text.

use std::fmt;

use crate::error::{bail, here};
use crate::{Result, Shape};

/// What a gradient check found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// One entry for each parameter that is trained, in the module's order, then one for each input; behind them, in a
    /// check of second derivatives, one for each cotangent of the outputs.
    pub entries: Vec<Entry>,
}

/// What a gradient check found for one tensor.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// The parameter's path, `input k` or `cotangent k`.
    pub name: String,
    /// The tensor's extents.
    pub shape: Shape,
    /// How many elements were checked.
    pub checked: usize,
    /// The largest difference of the two derivatives.
    pub largest_absolute: f64,
    /// The largest difference relative to the numeric derivative.
    pub largest_relative: f64,
    /// The row-major number of the element that agrees worst …
    pub worst: usize,
    /// … its derivative by the tape …
    pub analytic: f64,
    /// … and by finite differences.
    pub numeric: f64,
    /// Whether all elements agree.
    pub passed: bool,
}

impl Report {
    /// Whether every derivative agrees.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.entries.iter().all(|entry| entry.passed)
    }

    /// An error with the whole report unless every derivative agrees.
    ///
    /// # Errors
    ///
    /// If a derivative disagrees.
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
