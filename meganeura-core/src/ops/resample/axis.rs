//! The source positions and weights along one axis of a resampling. Positions are integers, so none depends on how a
//! fraction rounds.

use std::ops::Range;

/// One axis of a resampling: positions of the result computed from those of the operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Axis {
    /// The extent of the operand.
    pub(crate) inputs: usize,
    /// The extent of the result.
    pub(crate) outputs: usize,
}

/// The rule for computing a position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Rule {
    /// Position `p` is the mean of `⌊p·inputs/outputs⌋ .. ⌈(p+1)·inputs/outputs⌉`.
    Mean,
    /// Interpolated between the two neighbours of `(p + ½)·inputs/outputs − ½` or, with aligned corners,
    /// `p·(inputs−1)/(outputs−1)`.
    Linear { corners: bool },
    /// Interpolated between the four nearest neighbours by cubic polynomials, at the same places. Positions past an end
    /// use the outermost one.
    Cubic { corners: bool },
}

/// The parameter of the cubic polynomials.
pub(super) const CUBIC: f64 = -0.75;

/// The weight of a position at this distance. [Keys, 1981](https://doi.org/10.1109/TASSP.1981.1163711).
fn cubic(distance: f64) -> f64 {
    let d = distance.abs();
    match d {
        d if d <= 1.0 => ((CUBIC + 2.0) * d - (CUBIC + 3.0)) * d * d + 1.0,
        d if d < 2.0 => ((CUBIC * d - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC,
        _ => 0.0,
    }
}

/// The source place of a position on an interpolated axis: `max(p·slope + shift, 0)/unit`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) slope: usize,
    pub(super) shift: isize,
    pub(super) unit: usize,
}

impl Axis {
    pub(super) fn line(self, corners: bool) -> Line {
        let Self { inputs, outputs } = self;
        match corners {
            // A single position maps to the first.
            true if inputs == 1 || outputs == 1 => Line { slope: 1, shift: 0, unit: outputs },
            true => Line { slope: inputs - 1, shift: 0, unit: outputs - 1 },
            false => Line { slope: 2 * inputs, shift: inputs.cast_signed() - outputs.cast_signed(), unit: 2 * outputs },
        }
    }

    /// The source positions of position `p`.
    pub(super) fn window(self, rule: Rule, p: usize) -> Range<usize> {
        match rule {
            Rule::Mean => p * self.inputs / self.outputs..((p + 1) * self.inputs).div_ceil(self.outputs),
            Rule::Linear { corners } => {
                let line = self.line(corners);
                let low = line.at(p) / line.unit;
                low..(low + 2).min(self.inputs)
            }
            Rule::Cubic { corners } => {
                let (low, _) = self.line(corners).around(p);
                let at = |position: isize| position.clamp(0, self.inputs.cast_signed() - 1).cast_unsigned();
                at(low - 1)..at(low + 2) + 1
            }
        }
    }

    /// An upper bound on the source positions of one position.
    pub(super) fn most_sources(self, rule: Rule) -> usize {
        match rule {
            Rule::Mean => (self.inputs.div_ceil(self.outputs) + 1).min(self.inputs),
            Rule::Linear { .. } => 2,
            Rule::Cubic { .. } => 4.min(self.inputs),
        }
    }

    /// An upper bound on the positions of [`Axis::readers`].
    pub(super) fn most_readers(self, rule: Rule) -> usize {
        match rule {
            Rule::Mean => Self { inputs: self.outputs, outputs: self.inputs }.most_sources(rule),
            Rule::Linear { corners } => {
                let line = self.line(corners);
                ((2 * line.unit).div_ceil(line.slope) + 1).min(self.outputs)
            }
            Rule::Cubic { corners } => {
                let line = self.line(corners);
                ((4 * line.unit).div_ceil(line.slope) + 1).min(self.outputs)
            }
        }
    }

    /// The weight of source position `h` in position `p`; 0 outside its window.
    #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    pub(super) fn share(self, rule: Rule, p: usize, h: usize) -> f64 {
        let window = self.window(rule, p);
        match rule {
            _ if !window.contains(&h) => 0.0,
            Rule::Mean => 1.0 / window.len() as f64,
            // The last position has no neighbour.
            Rule::Linear { .. } if window.len() == 1 => 1.0,
            Rule::Linear { corners } => {
                let line = self.line(corners);
                let part = (line.at(p) % line.unit) as f64 / line.unit as f64;
                if h == window.start { 1.0 - part } else { part }
            }
            Rule::Cubic { corners } => {
                let (low, part) = self.line(corners).around(p);
                let last = self.inputs.cast_signed() - 1;
                let taps = (-1..=2_i32).filter(|&tap| (low + tap as isize).clamp(0, last) == h.cast_signed());
                taps.map(|tap| cubic(part - f64::from(tap))).sum()
            }
        }
    }

    /// The positions that may have a nonzero weight for source position `h`: all that do, and perhaps a few more.
    pub(super) fn readers(self, rule: Rule, h: usize) -> Range<usize> {
        match rule {
            Rule::Mean => Self { inputs: self.outputs, outputs: self.inputs }.window(rule, h),
            Rule::Linear { corners } => {
                let line = self.line(corners);
                let end = line.first_at(h.cast_signed() + 1).min(self.outputs);
                // If all positions map to the first source position, others have no weight.
                line.first_at(h.cast_signed() - 1).min(end)..end
            }
            Rule::Cubic { corners } => {
                let line = self.line(corners);
                let end = line.first_at(h.cast_signed() + 2).min(self.outputs);
                line.first_at(h.cast_signed() - 2).min(end)..end
            }
        }
    }
}

impl Line {
    fn at(self, p: usize) -> usize {
        (p * self.slope).saturating_add_signed(self.shift)
    }

    /// The source place of position `p`, possibly before the start: rounded down, and the remainder.
    #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    fn around(self, p: usize) -> (isize, f64) {
        let (at, unit) = ((p * self.slope).cast_signed() + self.shift, self.unit.cast_signed());
        (at.div_euclid(unit), at.rem_euclid(unit) as f64 / unit as f64)
    }

    /// The first position whose source place is `h` or later.
    fn first_at(self, h: isize) -> usize {
        (h * self.unit.cast_signed() - self.shift).max(0).cast_unsigned().div_ceil(self.slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_agree_from_both_sides_and_add_up_to_1() {
        let interpolated = [false, true].map(|corners| [Rule::Linear { corners }, Rule::Cubic { corners }]);
        let rules = [&[Rule::Mean][..], interpolated.as_flattened()].concat();
        for (inputs, outputs) in (1..12).flat_map(|inputs| (1..25).map(move |outputs| (inputs, outputs))) {
            for &rule in &rules {
                let axis = Axis { inputs, outputs };
                for p in 0..outputs {
                    let window = axis.window(rule, p);
                    assert!(!window.is_empty() && window.end <= inputs, "{axis:?} {rule:?} {p}: {window:?}");
                    assert!(window.len() <= axis.most_sources(rule), "{axis:?} {rule:?} {p}: {window:?}");
                    let sum: f64 = (0..inputs).map(|h| axis.share(rule, p, h)).sum();
                    assert!((sum - 1.0).abs() < 1e-12, "{axis:?} {rule:?} {p}: {sum}");
                    for h in window.filter(|&h| axis.share(rule, p, h) != 0.0) {
                        assert!(axis.readers(rule, h).contains(&p), "{axis:?} {rule:?}: {h} in {p}");
                    }
                }
                let most = axis.most_readers(rule);
                let fits = |readers: Range<usize>| {
                    readers.start <= readers.end && readers.end <= outputs && readers.len() <= most
                };
                assert!((0..inputs).all(|h| fits(axis.readers(rule, h))), "{axis:?} {rule:?}");
            }
        }
    }
}
