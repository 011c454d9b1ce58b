//! Handwritten digits, small enough to be part of the program: see `examples/data/README.md`.

use std::error::Error;
use std::io::Read;

use flate2::read::GzDecoder;
use meganeura::data::Dataset;

/// The number of classes.
pub const CLASSES: usize = 10;

/// Pixels of an image.
const PIXELS: usize = 8 * 8;

/// The darkest ink.
const MAX: f32 = 16.0;

/// 1,797 images of shape `[1, 8, 8]`, 0 for paper to 1 for ink, each with the digit that it shows.
///
/// # Errors
///
/// If the embedded file is damaged.
pub fn load() -> Result<Dataset, Box<dyn Error>> {
    let mut csv = String::new();
    GzDecoder::new(&include_bytes!("../data/digits.csv.gz")[..]).read_to_string(&mut csv)?;
    parse(&csv)
}

/// Rows of 64 pixels and the label.
fn parse(csv: &str) -> Result<Dataset, Box<dyn Error>> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for (index, line) in csv.lines().enumerate() {
        let row: Vec<u8> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let [image @ .., label] = &row[..] else { return Err("an empty line".into()) };
        if image.len() != PIXELS || usize::from(*label) >= CLASSES {
            return Err(format!("line {} is no image of {PIXELS} pixels and a digit", index + 1).into());
        }
        pixels.extend(image.iter().map(|&ink| f32::from(ink) / MAX));
        labels.push(u32::from(*label));
    }
    Ok(Dataset::new(pixels, [1, 8, 8], labels)?)
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
            assert!(image.iter().all(|ink| (0.0..=1.0).contains(ink)));
            counts[label as usize] += 1;
        }
        // As the dataset's documentation counts them.
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn damage_is_noticed() {
        let image = "0,".repeat(PIXELS);
        assert_eq!(parse(&format!("{image}7\n{image}0\n")).unwrap().len(), 2);
        for bad in [format!("{image}10"), format!("0,{image}1"), format!("{image}x"), "\n".into()] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }
}
