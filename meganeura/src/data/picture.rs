//! One image of a file: what its header says, and its pixels as numbers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Cursor, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, ImageResult, Limits};

use super::file::unreadable;
use crate::{Error, ErrorKind, Result};

/// A file of more bytes than this is no image to train on. Of the pixels of one, as many are read as [`Limits`] allows: the same.
const MOST: u64 = 512 << 20;

/// What is known of an image without its pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub channels: usize,
    pub height: usize,
    pub width: usize,
}

impl Header {
    fn of(decoder: &impl ImageDecoder) -> Self {
        let (width, height) = decoder.dimensions();
        let channels = usize::from(decoder.color_type().channel_count());
        Self { channels, height: height as usize, width: width as usize }
    }
}

/// Reads what a file says of its image, and no pixels.
pub(super) fn header(path: &Path) -> Result<Header> {
    let mut file = BufReader::new(File::open(path).map_err(|error| unreadable(path, error))?);
    let header = guarded(|| decoder(&mut file).map(|(_, decoder)| Header::of(&decoder)));
    header.map_err(|what| wrong(path, file.stream_position().unwrap_or(0), &what))
}

/// Reads the image of a file, if its header passes `check`: no memory is spent on the pixels of others.
pub(super) fn read(path: &Path, check: impl Fn(Header) -> Result<()>) -> Result<DynamicImage> {
    let length = fs::metadata(path).map_err(|error| unreadable(path, error))?.len();
    if length > MOST {
        return Err(wrong(path, 0, &format!("{length} bytes are too many for an image")));
    }
    let bytes = fs::read(path).map_err(|error| unreadable(path, error))?;
    let mut cursor = Cursor::new(&bytes[..]);
    let read = guarded(|| {
        let (format, decoder) = decoder(&mut cursor)?;
        Limits::default().reserve(decoder.total_bytes())?;
        Ok(match check(Header::of(&decoder)) {
            Ok(()) => Ok((format, DynamicImage::from_decoder(decoder)?)),
            Err(error) => Err(error),
        })
    });
    let (format, image) = read.map_err(|what| wrong(path, cursor.position(), &what))??;
    if format == Some(ImageFormat::Jpeg) && !jpeg_ends(&bytes) {
        return Err(wrong(path, length, "the file ends here, in the middle of a JPEG image"));
    }
    Ok(image)
}

/// The format and the decoder of an image, by its contents rather than its name.
fn decoder<'a>(bytes: impl BufRead + Seek + 'a) -> ImageResult<(Option<ImageFormat>, impl ImageDecoder + 'a)> {
    let reader = ImageReader::new(bytes).with_guessed_format()?;
    Ok((reader.format(), reader.into_decoder()?))
}

/// What `read` gives, or what it says is wrong. Decoders are known to panic on files that were made to that end.
fn guarded<T>(read: impl FnOnce() -> ImageResult<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("the decoder panicked".to_owned()),
    }
}

fn wrong(path: &Path, offset: u64, what: &str) -> Error {
    let message = format!("{}, byte {offset}: no image that can be read: {what}", path.display());
    Error::new(ErrorKind::Data, message)
}

/// Whether a JPEG file has the marker of its end behind the pixels. The decoder makes up what is missing.
fn jpeg_ends(bytes: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    let mut at = 2;
    // Segments with their lengths, up to the first one with pixels; there, a marker is told from data by its second byte.
    while let [0xff, marker, high, low, ..] = bytes[at.min(bytes.len())..] {
        if marker == SCAN {
            return bytes[at..].windows(2).any(|pair| pair == [0xff, 0xd9]);
        }
        // Fill bytes have no length.
        at += if marker == 0xff { 1 } else { 2 + usize::from(u16::from_be_bytes([high, low])) };
    }
    false
}

/// Writes the pixels as numbers from 0 to 1, channel by channel, with so many channels: gray, gray and alpha, RGB, RGB and alpha.
pub(super) fn write(image: DynamicImage, channels: usize, example: &mut [f32]) {
    let color = image.color();
    let is_wide = color.bits_per_pixel() > 8 * u16::from(color.channel_count());
    match (channels, is_wide) {
        (1, false) => planes::<u8>(&image.into_luma8(), channels, example),
        (2, false) => planes::<u8>(&image.into_luma_alpha8(), channels, example),
        (3, false) => planes::<u8>(&image.into_rgb8(), channels, example),
        (_, false) => planes::<u8>(&image.into_rgba8(), channels, example),
        (1, true) => planes::<u16>(&image.into_luma16(), channels, example),
        (2, true) => planes::<u16>(&image.into_luma_alpha16(), channels, example),
        (3, true) => planes::<u16>(&image.into_rgb16(), channels, example),
        (_, true) => planes::<u16>(&image.into_rgba16(), channels, example),
    }
}

fn planes<T: image::Primitive + Into<f32>>(pixels: &[T], channels: usize, example: &mut [f32]) {
    let white: f32 = T::DEFAULT_MAX_VALUE.into();
    let plane = example.len() / channels;
    for (place, pixel) in pixels.chunks_exact(channels).enumerate() {
        for (channel, &sample) in pixel.iter().enumerate() {
            example[channel * plane + place] = sample.into() / white;
        }
    }
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, ImageBuffer, Luma, Rgb, RgbImage, RgbaImage};

    use super::*;

    fn numbers(path: &Path, channels: usize) -> Result<Vec<f32>> {
        let image = read(path, |_| Ok(()))?;
        let mut example = vec![0.0; channels * image.width() as usize * image.height() as usize];
        write(image, channels, &mut example);
        Ok(example)
    }

    #[test]
    fn channels_come_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        RgbImage::from_raw(2, 1, vec![255, 0, 51, 0, 102, 255]).unwrap().save(&path).unwrap();
        assert_eq!(numbers(&path, 3).unwrap(), [1.0, 0.0, 0.0, 0.4, 0.2, 1.0]);
        RgbaImage::from_raw(1, 1, vec![255, 0, 51, 102]).unwrap().save(&path).unwrap();
        assert_eq!(numbers(&path, 4).unwrap(), [1.0, 0.0, 0.2, 0.4]);
        assert_eq!(numbers(&path, 3).unwrap(), [1.0, 0.0, 0.2]);
        GrayImage::from_raw(1, 2, vec![51, 255]).unwrap().save(&path).unwrap();
        assert_eq!(numbers(&path, 1).unwrap(), [0.2, 1.0]);
        assert_eq!(numbers(&path, 3).unwrap(), [0.2, 1.0, 0.2, 1.0, 0.2, 1.0]);
        ImageBuffer::<Luma<u16>, _>::from_raw(2, 1, vec![65_535, 13_107]).unwrap().save(&path).unwrap();
        assert_eq!(numbers(&path, 1).unwrap(), [1.0, 0.2]);
        ImageBuffer::<Rgb<u16>, _>::from_raw(1, 1, vec![0, 65_535, 1]).unwrap().save(&path).unwrap();
        assert_eq!(numbers(&path, 3).unwrap(), [0.0, 1.0, 1.0 / 65_535.0]);
    }

    #[test]
    fn maps_of_other_ranges_are_scaled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pgm");
        for (file, expected) in [
            (&b"P5 2 1 255 \x33\xff"[..], [0.2, 1.0]),
            (b"P5 2 1 15 \x03\x0f", [0.2, 1.0]),
            (b"P4 2 1 \x40", [1.0, 0.0]),
            (b"P2 2 1 255 51 255\n", [0.2, 1.0]),
        ] {
            fs::write(&path, file).unwrap();
            assert_eq!(numbers(&path, 1).unwrap(), expected, "{}", String::from_utf8_lossy(file));
        }
    }

    /// No prefix of a file may pass for another picture than the whole.
    #[test]
    fn truncated_files_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let image = RgbImage::from_fn(19, 23, |x, y| Rgb([(x * 13) as u8, (y * 11) as u8, (x * y) as u8]));
        for extension in ["png", "jpg", "bmp", "ppm"] {
            let path = folder.path().join("x").with_extension(extension);
            image.save(&path).unwrap();
            let (bytes, whole) = (fs::read(&path).unwrap(), numbers(&path, 3).unwrap());
            let mut complete = 0;
            for length in 0..bytes.len() {
                fs::write(&path, &bytes[..length]).unwrap();
                match numbers(&path, 3) {
                    Ok(numbers) => {
                        assert!(numbers == whole, "{length} of the {} bytes of a {extension} file pass", bytes.len());
                        complete += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                        assert!(error.to_string().contains(&format!("x.{extension}, byte ")), "{error}");
                    }
                }
            }
            // The checksums and the end of a PNG file.
            assert!(complete <= 20, "{extension}: {complete} files of {} passed", bytes.len());
        }
    }

    #[test]
    fn the_contents_count_and_not_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        fs::write(&path, b"P5 1 1 255 \xff").unwrap();
        assert_eq!(numbers(&path, 1).unwrap(), [1.0]);
        for text in ["", "a text file", "GIF89a"] {
            fs::write(&path, text).unwrap();
            for error in [numbers(&path, 1).unwrap_err(), header(&path).unwrap_err()] {
                assert!(error.to_string().contains("x.png, byte "), "{error}");
            }
        }
        // A header that announces 2⁶⁰ pixels.
        fs::write(&path, b"P5 1073741824 1073741824 255 \xff").unwrap();
        let error = numbers(&path, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    }
}
