//! Images in rows and columns, as one PNG.

use std::error::Error;
use std::path::Path;

use image::{GrayImage, RgbImage};

/// The gap between two images, in pixels.
const GAP: usize = 2;

/// Writes images `[C, H, W]` of one channel or three in rows, with numbers from 0 to 1 (others are clamped). Each image
/// is enlarged by a whole number, so that small ones are visible. Writes nothing if there are no images.
///
/// # Errors
///
/// If the images have two channels, or more than three; if the file cannot be written.
pub fn grid(path: &Path, images: &[f32], shape: [usize; 3], columns: usize) -> Result<(), Box<dyn Error>> {
    let [channels, height, width] = shape;
    let count = images.len() / (channels * height * width);
    if count == 0 {
        return Ok(());
    }
    let columns = columns.clamp(1, count);
    // About the size of a thumb.
    let scale = (48 / height.max(width)).max(1);
    let (down, right) = (height * scale + GAP, width * scale + GAP);
    let [rows_high, columns_wide] = [count.div_ceil(columns) * down - GAP, columns * right - GAP];

    let pixel = |x: u32, y: u32, channel: usize| {
        let (x, y) = (x as usize, y as usize);
        let (index, column, row) = (y / down * columns + x / right, x % right / scale, y % down / scale);
        if index >= count || column >= width || row >= height {
            return u8::MAX;
        }
        let value = images[((index * channels + channel) * height + row) * width + column];
        (value.clamp(0.0, 1.0) * 255.0).round() as u8
    };
    let (w, h) = (columns_wide as u32, rows_high as u32);
    match channels {
        1 => GrayImage::from_fn(w, h, |x, y| image::Luma([pixel(x, y, 0)])).save(path)?,
        3 => RgbImage::from_fn(w, h, |x, y| image::Rgb([0, 1, 2].map(|channel| pixel(x, y, channel)))).save(path)?,
        _ => return Err(format!("{}: images of {channels} channels cannot be drawn", path.display()).into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_stand_in_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grid.png");
        // Three images of 24×24 pixels, enlarged twice, in two columns.
        let images = [0.0, 0.5, 2.0].map(|value| [value; 24 * 24]).concat();
        grid(&path, &images, [1, 24, 24], 2).unwrap();
        let png = image::open(&path).unwrap().into_luma8();
        assert_eq!(png.dimensions(), (98, 98));
        let at = |x, y| png.get_pixel(x, y).0[0];
        assert_eq!((at(0, 0), at(47, 47), at(48, 0), at(50, 0)), (0, 0, 255, 128));
        assert_eq!((at(0, 50), at(50, 50)), (255, 255));
    }

    #[test]
    fn colours_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grid.png");
        grid(&path, &[1.0, 0.0, 0.2], [3, 1, 1], 8).unwrap();
        assert_eq!(image::open(&path).unwrap().into_rgb8().get_pixel(0, 0).0, [255, 0, 51]);
        assert!(grid(&path, &[0.0; 2], [2, 1, 1], 1).unwrap_err().to_string().contains("2 channels"));
        assert!(grid(&folder.path().join("no/grid.png"), &[0.0], [1, 1, 1], 1).is_err());
    }

    #[test]
    fn a_sheet_of_no_images_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        grid(&folder.path().join("none.png"), &[], [1, 8, 8], 8).unwrap();
        assert!(!folder.path().join("none.png").exists());
    }
}
