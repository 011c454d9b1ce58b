//! What one axis of a resampling takes from where, in integers: no position depends on how a fraction rounds.

use std::ops::Range;

/// The positions of one axis of the result, made of those of the operand's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Axis {
    /// The extent of what is taken from.
    pub(super) taken: usize,
    /// The extent of what is made.
    pub(super) made: usize,
}

/// What a position is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Rule {
    /// Position `p` is the mean of `⌊p·taken/made⌋ .. ⌈(p+1)·taken/made⌉`.
    Mean,
    /// Interpolated between the two next to `(p + ½)·taken/made − ½`, or with corners on corners,
    /// `p·(taken−1)/(made−1)`.
    Linear { corners: bool },
    /// Interpolated between the four nearest by cubic polynomials, at the same places. Beyond the ends, the outermost
    /// counts.
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

/// Where a position of an interpolated axis lies: `max(p·slope + shift, 0)/unit`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) slope: usize,
    pub(super) shift: isize,
    pub(super) unit: usize,
}

impl Axis {
    pub(super) fn line(self, corners: bool) -> Line {
        let Self { taken, made } = self;
        match corners {
            // One position lies on the first.
            true if taken == 1 || made == 1 => Line { slope: 1, shift: 0, unit: made },
            true => Line { slope: taken - 1, shift: 0, unit: made - 1 },
            false => Line { slope: 2 * taken, shift: taken.cast_signed() - made.cast_signed(), unit: 2 * made },
        }
    }

    /// The positions that position `p` is made of.
    pub(super) fn window(self, rule: Rule, p: usize) -> Range<usize> {
        match rule {
            Rule::Mean => p * self.taken / self.made..((p + 1) * self.taken).div_ceil(self.made),
            Rule::Linear { corners } => {
                let line = self.line(corners);
                let low = line.at(p) / line.unit;
                low..(low + 2).min(self.taken)
            }
            Rule::Cubic { corners } => {
                let (low, _) = self.line(corners).around(p);
                let at = |position: isize| position.clamp(0, self.taken.cast_signed() - 1).cast_unsigned();
                at(low - 1)..at(low + 2) + 1
            }
        }
    }

    /// A bound on the positions that one is made of.
    pub(super) fn most_taken(self, rule: Rule) -> usize {
        match rule {
            Rule::Mean => (self.taken.div_ceil(self.made) + 1).min(self.taken),
            Rule::Linear { .. } => 2,
            Rule::Cubic { .. } => 4.min(self.taken),
        }
    }

    /// A bound on the positions of [`Axis::readers`].
    pub(super) fn most_readers(self, rule: Rule) -> usize {
        match rule {
            Rule::Mean => Self { taken: self.made, made: self.taken }.most_taken(rule),
            Rule::Linear { corners } => {
                let line = self.line(corners);
                ((2 * line.unit).div_ceil(line.slope) + 1).min(self.made)
            }
            Rule::Cubic { corners } => {
                let line = self.line(corners);
                ((4 * line.unit).div_ceil(line.slope) + 1).min(self.made)
            }
        }
    }

    /// What share position `h` has in position `p`; 0 outside of its window.
    #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    pub(super) fn share(self, rule: Rule, p: usize, h: usize) -> f64 {
        let window = self.window(rule, p);
        match rule {
            _ if !window.contains(&h) => 0.0,
            Rule::Mean => 1.0 / window.len() as f64,
            // The last has no neighbour.
            Rule::Linear { .. } if window.len() == 1 => 1.0,
            Rule::Linear { corners } => {
                let line = self.line(corners);
                let part = (line.at(p) % line.unit) as f64 / line.unit as f64;
                if h == window.start { 1.0 - part } else { part }
            }
            Rule::Cubic { corners } => {
                let (low, part) = self.line(corners).around(p);
                let last = self.taken.cast_signed() - 1;
                let taps = (-1..=2_i32).filter(|&tap| (low + tap as isize).clamp(0, last) == h.cast_signed());
                taps.map(|tap| cubic(part - f64::from(tap))).sum()
            }
        }
    }

    /// The positions in which position `h` may have a share: all that it has one in, and perhaps a few besides.
    pub(super) fn readers(self, rule: Rule, h: usize) -> Range<usize> {
        match rule {
            Rule::Mean => Self { taken: self.made, made: self.taken }.window(rule, h),
            Rule::Linear { corners } => {
                let line = self.line(corners);
                let end = line.first_at(h.cast_signed() + 1).min(self.made);
                // Where all that is made is the first position, others have no share.
                line.first_at(h.cast_signed() - 1).min(end)..end
            }
            Rule::Cubic { corners } => {
                let line = self.line(corners);
                let end = line.first_at(h.cast_signed() + 2).min(self.made);
                line.first_at(h.cast_signed() - 2).min(end)..end
            }
        }
    }
}

impl Line {
    fn at(self, p: usize) -> usize {
        (p * self.slope).saturating_add_signed(self.shift)
    }

    /// Where position `p` lies, before the start as well: rounded down, and what that leaves.
    #[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    fn around(self, p: usize) -> (isize, f64) {
        let (at, unit) = ((p * self.slope).cast_signed() + self.shift, self.unit.cast_signed());
        (at.div_euclid(unit), at.rem_euclid(unit) as f64 / unit as f64)
    }

    /// The first position that lies at `h` or past it.
    fn first_at(self, h: isize) -> usize {
        (h * self.unit.cast_signed() - self.shift).max(0).cast_unsigned().div_ceil(self.slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_is_found_from_both_sides_and_the_shares_of_a_position_add_up_to_1() {
        let interpolated = [false, true].map(|corners| [Rule::Linear { corners }, Rule::Cubic { corners }]);
        let rules = [&[Rule::Mean][..], interpolated.as_flattened()].concat();
        for (taken, made) in (1..12).flat_map(|taken| (1..25).map(move |made| (taken, made))) {
            for &rule in &rules {
                let axis = Axis { taken, made };
                for p in 0..made {
                    let window = axis.window(rule, p);
                    assert!(!window.is_empty() && window.end <= taken, "{axis:?} {rule:?} {p}: {window:?}");
                    assert!(window.len() <= axis.most_taken(rule), "{axis:?} {rule:?} {p}: {window:?}");
                    let sum: f64 = (0..taken).map(|h| axis.share(rule, p, h)).sum();
                    assert!((sum - 1.0).abs() < 1e-12, "{axis:?} {rule:?} {p}: {sum}");
                    for h in window.filter(|&h| axis.share(rule, p, h) != 0.0) {
                        assert!(axis.readers(rule, h).contains(&p), "{axis:?} {rule:?}: {h} in {p}");
                    }
                }
                let most = axis.most_readers(rule);
                let fits = |readers: Range<usize>| {
                    readers.start <= readers.end && readers.end <= made && readers.len() <= most
                };
                assert!((0..taken).all(|h| fits(axis.readers(rule, h))), "{axis:?} {rule:?}");
            }
        }
    }
}
