//! Times in full and in fast precision, and whether fast is slower.

/// The most that fast precision may take of full precision's time. Times of one program vary by a few percent.
const LIMIT: f64 = 1.05;

/// A step, or a pass of a kernel, in both precisions, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The name of the pass, or `step`.
    pub pass: String,
    /// The time in full precision.
    pub full: f64,
    /// The time in fast precision.
    pub fast: f64,
}

impl Pair {
    /// The pairs of two lists of passes and times; of each pass the better times of those `before`, if there are any,
    /// and these.
    #[must_use]
    pub fn of(full: Vec<(String, f64)>, fast: Vec<(String, f64)>, before: &[Self]) -> Vec<Self> {
        let mut found = Vec::with_capacity(full.len());
        for ((pass, full), (_, fast)) in full.into_iter().zip(fast) {
            let best =
                before.get(found.len()).map_or((full, fast), |old: &Self| (full.min(old.full), fast.min(old.fast)));
            found.push(Self { pass, full: best.0, fast: best.1 });
        }
        found
    }

    /// The time in fast precision over that in full.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.fast / self.full
    }

    /// `true` if fast precision is slower, by more than times vary.
    #[must_use]
    pub fn is_slower(&self) -> bool {
        self.ratio().is_nan() || self.ratio() > LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pass: &str, ms: f64) -> Vec<(String, f64)> {
        vec![(pass.to_owned(), ms)]
    }

    #[test]
    fn five_percent_are_tolerated() {
        for (full, fast, slower) in [(2.0, 1.0, false), (2.0, 2.09, false), (2.0, 2.11, true), (2.0, f64::NAN, true)] {
            let found = Pair::of(times("step", full), times("step", fast), &[]);
            assert_eq!(found.iter().map(Pair::is_slower).collect::<Vec<_>>(), [slower], "{found:?}");
        }
    }

    #[test]
    fn a_second_measurement_keeps_the_better_times() {
        let first = Pair::of(times("both", 2.0), times("both", 3.0), &[]);
        let second = Pair::of(times("both", 2.5), times("both", 1.5), &first);
        assert_eq!(second, [Pair { pass: "both".to_owned(), full: 2.0, fast: 1.5 }]);
        assert_eq!(second[0].ratio(), 0.75);
    }
}
