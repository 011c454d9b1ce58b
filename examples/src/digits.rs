//! Handwritten digits, small enough to embed in the program: see `examples/data/README.md`.

use meganeura::Result;
use meganeura::data::{Csv, Dataset};

/// The number of classes.
pub const CLASSES: usize = 10;

/// The darkest ink.
const MAX: f32 = 16.0;

/// 1,797 images of shape `[1, 8, 8]`, 0 for paper to 1 for ink, each with the digit that it shows.
///
/// # Errors
///
/// If the embedded file is damaged.
pub fn load() -> Result<Dataset> {
    let file = &include_bytes!("../data/digits.csv.gz")[..];
    Csv::new([1, 8, 8]).divided_by(MAX).classes(CLASSES as u32).read_from("digits.csv.gz", file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_digits_are_there() {
        let digits = load().unwrap();
        assert_eq!(digits.len(), 1797);
        let mut counts = [0; CLASSES];
        for index in 0..digits.len() {
            let (image, label) = digits.get(index).unwrap();
            assert!(image.values().iter().all(|ink| (0.0..=1.0).contains(ink)));
            counts[label as usize] += 1;
        }
        // The counts in the dataset's documentation.
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }
}
