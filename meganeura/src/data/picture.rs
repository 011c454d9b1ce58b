//! An image file: its header, and its pixels as numbers.

use std::io::{BufRead, BufReader, Cursor, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, ImageResult, Limits};

use super::Array;
use super::file::unreadable;
use crate::error::{here, shortened};
use crate::{Error, ErrorKind, Result, Shape};

/// The largest file that is read as an image, in bytes.
const MOST: u64 = 512 << 20;

/// The default limit on the pixels of an image: 8192 by 8192.
pub(super) const MOST_PIXELS: u64 = 1 << 26;

/// The properties of an image that its header gives.
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

    /// The header of the image after this is applied.
    fn turned(self, orientation: Orientation) -> Self {
        use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
        let Self { channels, height, width } = self;
        match orientation {
            Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH => Self { channels, height: width, width: height },
            _ => self,
        }
    }

    /// Returns an error if the image has more than `most` pixels, or more than a file of this length can hold: decoders
    /// take memory for all pixels before they decode the first.
    fn expect_pixels(self, format: Option<ImageFormat>, length: u64, most: u64) -> Result<(), String> {
        let Self { height, width, .. } = self;
        let pixels = (height as u64).saturating_mul(width as u64);
        if pixels == 0 {
            return Err(format!("{height} by {width} pixels"));
        }
        if pixels > most {
            return Err(format!(
                "{height} by {width} pixels, and the limit is {most} pixels; `ImageFolder::open_with_limit` sets another"
            ));
        }
        // A pixel has at least one bit. PNM does not compress; deflate, PNG's compression, turns one byte into at most
        // 1032.
        let densest = match format {
            Some(ImageFormat::Pnm) => 8,
            Some(ImageFormat::Png) => 8 * 1032,
            _ => u64::MAX,
        };
        if pixels > length.saturating_mul(densest) {
            return Err(format!("{height} by {width} pixels are announced by a file of {length} bytes"));
        }
        Ok(())
    }
}

/// Reads the header of an image file, which has at most `most` pixels, and no pixels.
pub(super) fn header(path: &Path, most: u64, exif: bool) -> Result<Header> {
    let file = crate::file::open(path).map_err(|error| unreadable(path, error))?;
    let length = file.metadata().map_err(|error| unreadable(path, error))?.len();
    let mut file = BufReader::new(file);
    let header = guarded(|| {
        let (format, mut decoder) = decoder(&mut file, most)?;
        let orientation = if exif { decoder.orientation()? } else { Orientation::NoTransforms };
        Ok((format, Header::of(&decoder).turned(orientation)))
    });
    let header = header.and_then(|(format, header)| header.expect_pixels(format, length, most).map(|()| header));
    header.map_err(|what| wrong(path, file.stream_position().unwrap_or(0), &what))
}

/// Reads the image of a file, which has at most `most` pixels, if its header passes `check`: no memory is spent on the
/// pixels of others. Turns it as its EXIF data says, if `exif`.
pub(super) fn read(path: &Path, most: u64, exif: bool, check: impl Fn(Header) -> Result<()>) -> Result<DynamicImage> {
    let file = crate::file::open(path).map_err(|error| unreadable(path, error))?;
    let length = file.metadata().map_err(|error| unreadable(path, error))?.len();
    if length > MOST {
        return Err(wrong(path, 0, &format!("{length} bytes are too many for an image")));
    }
    let bytes = crate::file::contents(file).map_err(|error| unreadable(path, error))?;
    let mut cursor = Cursor::new(&bytes[..]);
    let read = guarded(|| {
        let (format, mut decoder) = decoder(&mut cursor, most)?;
        let orientation = if exif { decoder.orientation()? } else { Orientation::NoTransforms };
        let header = Header::of(&decoder).turned(orientation);
        if let Err(what) = header.expect_pixels(format, length, most) {
            return Ok(Err(wrong(path, 0, &what)));
        }
        Ok(match check(header) {
            Ok(()) => {
                let mut image = DynamicImage::from_decoder(decoder)?;
                image.apply_orientation(orientation);
                Ok((format, image))
            }
            Err(error) => Err(error),
        })
    });
    let (format, image) = read.map_err(|what| wrong(path, cursor.position(), &what))??;
    if format == Some(ImageFormat::Jpeg) && !jpeg_ends(&bytes) {
        return Err(wrong(path, length, "the file ends here, in the middle of a JPEG image"));
    }
    Ok(image)
}

/// Reads an image file: `[channels, height, width]` with numbers from 0 to 1, and the file's own channels: gray, gray
/// and alpha, RGB, or RGB and alpha. PNG, JPEG, BMP or PNM, whatever its name, of at most 2²⁶ pixels. Needs the feature
/// `images`.
///
/// ```
/// use meganeura::data::read_image;
/// use meganeura::prelude::*;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("cat.png");
/// # image::RgbImage::new(5, 4).save(&path).unwrap();
/// let cat = read_image(path)?; // "cat.png"
/// let batch = cat.into_tensor(&Device::cpu())?.map(|image| image.unsqueeze(0))?;
/// # assert_eq!(batch.shape(), Shape::from([1, 3, 4, 5]));
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// [`ImageFolder::read_image`](super::ImageFolder::read_image) gives an image the size and the channels of a folder's
/// images; [`io::save_image`](crate::io::save_image) writes one.
///
/// # Errors
///
/// Fails if the file cannot be read, or is no such image.
#[track_caller]
pub fn read_image(path: impl AsRef<Path>) -> Result<Array<f32>> {
    here(|| {
        let path = path.as_ref();
        let image = read(path, MOST_PIXELS, false, |_| Ok(()))?;
        let channels = usize::from(image.color().channel_count());
        let shape = Shape::from([channels, image.height() as usize, image.width() as usize]);
        let mut array = Array::zeros(shape).map_err(|error| error.context(path.display()))?;
        write(image, channels, array.values_mut());
        Ok(array)
    })
}

/// The format and the decoder of an image of at most `most` pixels, by the file's contents rather than its name.
fn decoder<'a>(
    bytes: impl BufRead + Seek + 'a,
    most: u64,
) -> ImageResult<(Option<ImageFormat>, impl ImageDecoder + 'a)> {
    let mut reader = ImageReader::new(bytes).with_guessed_format()?;
    let mut limits = Limits::default();
    // The widest pixels are four numbers of 16 bits. The metadata of a small image takes memory, too.
    limits.max_alloc = Some(most.saturating_mul(8).max(1 << 20));
    reader.limits(limits);
    Ok((reader.format(), reader.into_decoder()?))
}

/// The result of `read`, or its error message, which may quote the file. Decoders are known to panic on files crafted
/// for it.
fn guarded<T>(read: impl FnOnce() -> ImageResult<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| shortened(&error.to_string()).into_owned()),
        Err(_) => Err("the decoder panicked".to_owned()),
    }
}

fn wrong(path: &Path, offset: u64, what: &str) -> Error {
    let message = format!("{}, byte {offset}: not a readable image: {what}", path.display());
    Error::new(ErrorKind::Data, message)
}

/// `true` if a JPEG file has its end marker after the pixels. The decoder would make up missing pixels.
fn jpeg_ends(bytes: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    let mut at = 2;
    // Segments with their lengths, up to the first one with pixels. In pixel data, the second byte distinguishes a
    // marker from data.
    while let [0xff, marker, high, low, ..] = bytes[at.min(bytes.len())..] {
        if marker == SCAN {
            return bytes[at..].windows(2).any(|pair| pair == [0xff, 0xd9]);
        }
        // Fill bytes have no length.
        at += if marker == 0xff { 1 } else { 2 + usize::from(u16::from_be_bytes([high, low])) };
    }
    false
}

/// Writes the pixels as numbers from 0 to 1, channel by channel, with this number of channels: gray, gray and alpha,
/// RGB, RGB and alpha.
pub(super) fn write(image: DynamicImage, channels: usize, example: &mut [f32]) {
    let color = image.color();
    let is_wide = color.bits_per_pixel() > 8 * u16::from(color.channel_count());
    match (channels, is_wide) {
        // The decoder's own gray has the weights of Rec. 709.
        (1, false) if color.has_color() => luma(&image.into_rgb8(), example),
        (1, true) if color.has_color() => luma(&image.into_rgb16(), example),
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

/// The weights of red, green and blue in gray, of Rec. 601, in units of 2⁻¹⁶: those of PIL, and so of torchvision.
const WEIGHTS: [u64; 3] = [19_595, 38_470, 7_471];

/// Writes the gray of colour pixels, rounded to an integer as PIL does.
fn luma<T: image::Primitive + Into<f32> + Into<u64>>(pixels: &[T], example: &mut [f32]) {
    let white: f32 = T::DEFAULT_MAX_VALUE.into();
    for (gray, pixel) in example.iter_mut().zip(pixels.chunks_exact(3)) {
        let sum: u64 = pixel.iter().zip(WEIGHTS).map(|(&sample, weight)| Into::<u64>::into(sample) * weight).sum();
        #[expect(clippy::cast_precision_loss, reason = "at most 16 bits")]
        let rounded = ((sum + (1 << 15)) >> 16) as f32;
        *gray = rounded / white;
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
    use std::fs;

    use image::{GrayImage, ImageBuffer, Luma, Rgb, RgbImage, RgbaImage};

    use super::*;

    fn numbers(path: &Path, channels: usize) -> Result<Vec<f32>> {
        let image = read(path, MOST_PIXELS, false, |_| Ok(()))?;
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

    /// The values are PIL's, `Image.convert("L")`.
    #[test]
    fn gray_is_that_of_pil() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        for (pixel, gray) in [
            ([255, 0, 0], 76),
            ([0, 255, 0], 150),
            ([0, 0, 255], 29),
            ([255, 255, 255], 255),
            ([1, 0, 1], 0),
            ([0, 1, 0], 1),
            ([10, 200, 30], 124),
            ([123, 45, 67], 71),
        ] {
            RgbImage::from_raw(1, 1, pixel.to_vec()).unwrap().save(&path).unwrap();
            assert_eq!(numbers(&path, 1).unwrap(), [gray as f32 / 255.0], "{pixel:?}");
            RgbaImage::from_raw(1, 1, [&pixel[..], &[7]].concat()).unwrap().save(&path).unwrap();
            assert_eq!(numbers(&path, 1).unwrap(), [gray as f32 / 255.0], "{pixel:?}");
        }
        ImageBuffer::<Rgb<u16>, _>::from_raw(1, 1, vec![65_535, 0, 0]).unwrap().save(&path).unwrap();
        assert_eq!(numbers(&path, 1).unwrap(), [19_595.0 / 65_535.0]);
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

    /// A truncated file is an error, unless it decodes to the same pixels as the whole file.
    #[test]
    fn truncated_files_are_detected() {
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
            // Only checksums and the end marker of a PNG file may be missing.
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
            for error in [numbers(&path, 1).unwrap_err(), header(&path, MOST_PIXELS, false).unwrap_err()] {
                assert!(error.to_string().contains("x.png, byte "), "{error}");
            }
        }
    }

    #[test]
    fn messages_are_short_for_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        fs::write(&path, ["P7\nWIDTH 2\n", &"H".repeat(70_000)].concat()).unwrap();
        for error in [numbers(&path, 1).unwrap_err(), header(&path, MOST_PIXELS, false).unwrap_err()] {
            assert!(error.message().len() < 600, "{error}");
        }
    }

    #[test]
    fn pixels_announced_by_a_header_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        // A run-length-encoded bitmap can announce any number of pixels in a few bytes.
        let bmp = |side: i32| {
            let mut file = b"BM\0\0\0\0\0\0\0\0\x36\x04\0\0\x28\0\0\0".to_vec();
            file.extend([side.to_le_bytes(), side.to_le_bytes(), [1, 0, 8, 0], [1, 0, 0, 0]].concat());
            file.resize(54 + 1024, 0);
            [file, vec![0, 1]].concat()
        };
        for (file, part) in [
            (&b"P5 1073741824 1073741824 255 \xff"[..], "the limit is 67108864 pixels; `ImageFolder::open_with_limit`"),
            (b"P5 4294967295 4294967295 255\n", "4294967295 by 4294967295 pixels, and the limit is"),
            (b"P5 8193 8192 255\n", "8192 by 8193 pixels, and the limit is"),
            (b"P5 8192 8192 255\n", "8192 by 8192 pixels are announced by a file of 17 bytes"),
            (b"P5 0 3 255\n", "3 by 0 pixels"),
            (b"P4 9 17 \xff", "17 by 9 pixels are announced by a file of 9 bytes"),
            (
                b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x20\0\0\0\x20\0\x08\0\0\0\0W\xc1\x95\x85\0\0\0\0IDAT",
                "8192 by 8192 pixels are announced by a file of 41 bytes",
            ),
            (&bmp(20_000), "20000 by 20000 pixels, and the limit is"),
        ] {
            fs::write(&path, file).unwrap();
            for error in [numbers(&path, 1).unwrap_err(), header(&path, MOST_PIXELS, false).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                assert!(error.to_string().contains("x.png, byte ") && error.to_string().contains(part), "{error}");
            }
        }
        fs::write(&path, bmp(5)).unwrap();
        assert_eq!(header(&path, 25, false).unwrap().width, 5);
        let error = read(&path, 24, false, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("5 by 5 pixels, and the limit is 24"), "{error}");
    }
}
