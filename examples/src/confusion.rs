//! How often each class was taken for each other.

use std::fmt;

use crate::digits::CLASSES;

/// Counts of predictions: a row for each digit, a column for what it was taken for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confusion {
    counts: [[usize; CLASSES]; CLASSES],
}

impl Confusion {
    /// Adds predictions, given as scores (a row of one number a class for each image), and the labels of those images.
    pub fn count(&mut self, scores: &[f32], labels: &[u32]) {
        for (scores, &label) in scores.chunks_exact(CLASSES).zip(labels) {
            self.counts[label as usize][argmax(scores)] += 1;
        }
    }

    /// The share of predictions that are right, between 0 and 1.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        let right: usize = (0..CLASSES).map(|class| self.counts[class][class]).sum();
        right as f64 / self.counts.iter().flatten().sum::<usize>().max(1) as f64
    }
}

/// The class of the highest score.
#[must_use]
pub fn argmax(scores: &[f32]) -> usize {
    (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0)
}

/// A table; nothing where the count is zero.
impl fmt::Display for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: String = (0..CLASSES).map(|class| format!("{class:5}")).collect();
        write!(f, "         taken for\n        {columns}")?;
        for (class, row) in self.counts.iter().enumerate() {
            let row = row.map(|count| if count == 0 { "    ·".to_owned() } else { format!("{count:5}") });
            write!(f, "\n{}{class} {}", if class == 0 { "digit " } else { "      " }, row.concat())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(predicted: &[usize]) -> Vec<f32> {
        predicted.iter().flat_map(|&p| (0..CLASSES).map(move |class| if class == p { 1.0 } else { -1.0 })).collect()
    }

    fn confusion(predicted: &[usize], labels: &[u32]) -> Confusion {
        let mut confusion = Confusion::default();
        confusion.count(&scores(predicted), labels);
        confusion
    }

    #[test]
    fn predictions_are_counted() {
        let confusion = confusion(&[3, 3, 8, 0], &[3, 3, 3, 0]);
        assert_eq!((confusion.counts[3][3], confusion.counts[3][8], confusion.counts[0][0]), (2, 1, 1));
        assert_eq!(confusion.accuracy(), 0.75);
        assert_eq!(Confusion::default().accuracy(), 0.0);
    }

    #[test]
    fn every_digit_has_a_row() {
        let table = confusion(&[9], &[1]).to_string();
        assert_eq!(table.lines().count(), 2 + CLASSES);
        assert!(table.lines().nth(3).unwrap().ends_with("·    1"), "{table}");
        let widths: Vec<_> = table.lines().skip(1).map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
    }
}
