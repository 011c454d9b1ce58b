//! PNG files, and images in rows and columns as one of them.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

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

    let pixel = |x: usize, y: usize, channel: usize| {
        let (index, column, row) = (y / down * columns + x / right, x % right / scale, y % down / scale);
        if index >= count || column >= width || row >= height {
            return u8::MAX;
        }
        let value = images[((index * channels + channel) * height + row) * width + column];
        (value.clamp(0.0, 1.0) * 255.0).round() as u8
    };
    save(path, [channels, rows_high, columns_wide], pixel)
}

/// Writes an image `[C, H, W]` of one channel or three, of the numbers `pixel(x, y, channel)`.
///
/// # Errors
///
/// If the image has two channels, or more than three; if the file cannot be written.
pub fn save(
    path: &Path,
    [channels, height, width]: [usize; 3],
    pixel: impl Fn(usize, usize, usize) -> u8,
) -> Result<(), Box<dyn Error>> {
    let color = match channels {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        _ => return Err(format!("{}: images of {channels} channels cannot be drawn", path.display()).into()),
    };
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let bytes: Vec<u8> =
        places.flat_map(|(x, y)| (0..channels).map(move |c| (x, y, c))).map(|(x, y, c)| pixel(x, y, c)).collect();
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut png = png::Encoder::new(BufWriter::new(file), u32::try_from(width)?, u32::try_from(height)?);
    png.set_color(color);
    png.set_compression(png::Compression::Fast);
    let mut png = png.write_header()?;
    png.write_image_data(&bytes)?;
    Ok(png.finish()?)
}

/// The width, height and bytes of a PNG, for tests.
///
/// # Panics
///
/// If there is no such file.
#[doc(hidden)]
#[must_use]
pub fn read(path: &Path) -> ([u32; 2], Vec<u8>) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut png = png::Decoder::new(std::io::BufReader::new(file)).read_info().expect("a PNG");
    let mut bytes = vec![0; png.output_buffer_size().expect("a small PNG")];
    let frame = png.next_frame(&mut bytes).expect("a whole PNG");
    bytes.truncate(frame.buffer_size());
    ([frame.width, frame.height], bytes)
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
        let (size, png) = read(&path);
        assert_eq!(size, [98, 98]);
        let at = |x: usize, y: usize| png[98 * y + x];
        assert_eq!((at(0, 0), at(47, 47), at(48, 0), at(50, 0)), (0, 0, 255, 128));
        assert_eq!((at(0, 50), at(50, 50)), (255, 255));
    }

    #[test]
    fn colours_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grid.png");
        grid(&path, &[1.0, 0.0, 0.2], [3, 1, 1], 8).unwrap();
        assert_eq!(read(&path).1[..3], [255, 0, 51]);
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
