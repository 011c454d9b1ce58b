//! A line that shows how far a training has come.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// The time between two lines.
const EVERY: Duration = Duration::from_millis(500);

/// The length of the bar.
const BAR: u64 = 20;

/// A line on stderr with the steps so far, their rate, and the time left. It is hidden if stderr is not a terminal.
///
/// ```
/// use meganeura::train::Progress;
///
/// let mut progress = Progress::new(1000, 0);
/// for step in 1..=1000 {
///     // …
///     if progress.is_due() {
///         progress.show(step, "loss 0.25"); // [###-----------------] 190/1000, 95.0/s, 9 s left, loss 0.25
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Progress {
    steps: u64,
    first: u64,
    started: Instant,
    shown: Option<Instant>,
    /// The length of the line on the screen.
    width: usize,
    is_visible: bool,
}

impl Progress {
    /// The progress of `steps` steps, of which `done` were made before.
    #[must_use]
    pub fn new(steps: u64, done: u64) -> Self {
        let is_visible = stderr().is_terminal();
        Self { steps, first: done, started: Instant::now(), shown: None, width: 0, is_visible }
    }

    /// A progress that is never shown.
    #[must_use]
    pub fn hidden() -> Self {
        Self { is_visible: false, ..Self::new(0, 0) }
    }

    /// `true` if it is time to show it again: twice a second.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_visible && self.shown.unwrap_or(self.started).elapsed() >= EVERY
    }

    /// Shows that `step` steps were made, with a note.
    pub fn show(&mut self, step: u64, note: impl Display) {
        if self.is_visible {
            self.shown = Some(Instant::now());
            let line = self.line(step, self.started.elapsed().as_secs_f64(), &note.to_string());
            self.write(&line);
        }
    }

    /// Removes the line, to print another.
    pub fn clear(&mut self) {
        if self.width > 0 {
            self.write("");
        }
    }

    /// Replaces the line on the screen. A terminal that cannot be written to is no reason to stop.
    fn write(&mut self, line: &str) {
        let (width, old) = (line.chars().count(), self.width);
        drop(write!(stderr(), "\r{line}{:1$}", "", old.saturating_sub(width)));
        if width == 0 {
            drop(write!(stderr(), "\r"));
        }
        drop(stderr().flush());
        self.width = width;
    }

    fn line(&self, step: u64, seconds: f64, note: &str) -> String {
        let step_in = step.min(self.steps);
        let filled = (BAR * step_in).checked_div(self.steps).unwrap_or(BAR);
        let bar: String = (0..BAR).map(|at| if at < filled { '#' } else { '-' }).collect();
        let rate = step.saturating_sub(self.first) as f64 / seconds.max(1e-9);
        let left = match rate > 0.0 {
            true => format!("{} left", duration((self.steps - step_in) as f64 / rate)),
            false => "starting".to_owned(),
        };
        let note = if note.is_empty() { String::new() } else { format!(", {note}") };
        format!("[{bar}] {step}/{}, {}/s, {left}{note}", self.steps, rounded(rate))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Three digits, or all digits before the point.
fn rounded(number: f64) -> String {
    match number {
        ..1.0 => format!("{number:.3}"),
        ..10.0 => format!("{number:.2}"),
        ..100.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// `42 s`, `3 min 20 s`, `5 h 7 min`
pub(super) fn duration(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time, which saturates")]
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_rate_and_time_left() {
        let progress = Progress { first: 100, ..Progress::new(1000, 0) };
        assert_eq!(progress.line(100, 0.0, ""), "[##------------------] 100/1000, 0.000/s, starting");
        assert_eq!(
            progress.line(550, 90.0, "loss 0.5"),
            "[###########---------] 550/1000, 5.00/s, 1 min 30 s left, loss 0.5"
        );
        assert_eq!(progress.line(1200, 11.0, ""), "[####################] 1200/1000, 100/s, 0 s left");
        assert_eq!(Progress::new(0, 0).line(0, 1.0, ""), "[####################] 0/0, 0.000/s, starting");
        assert_eq!([59.6, 3599.0, 7260.0].map(duration), ["1 min 0 s", "59 min 59 s", "2 h 1 min"]);
    }

    #[test]
    fn a_hidden_line_is_never_due() {
        let mut progress = Progress { shown: None, ..Progress::hidden() };
        progress.show(1, "note");
        assert!(!progress.is_due() && progress.width == 0);
    }
}
