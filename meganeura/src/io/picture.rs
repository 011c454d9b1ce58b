//! Pictures that a program shows: a tensor as an image file, or many as one.

use std::path::Path;

use image::{ExtendedColorType, ImageFormat};

use super::{disk, io_error};
use crate::error::{bail, here};
use crate::host::{reserve, try_filled};
use crate::{Error, ErrorKind, Result, Tensor};

/// The gap between two images of a grid, in pixels.
const GAP: usize = 2;

/// The largest side of an image file, in pixels.
const LONGEST: usize = 1 << 16;

/// Writes an image `[1, height, width]` or `[3, height, width]` with numbers from 0 to 1; others are clamped, and NaN
/// is 0. The extension says the format: PNG, JPEG, BMP or PNM. Needs the feature `images`.
///
/// ```
/// use meganeura::io::{save_image, save_images};
/// use meganeura::prelude::*;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let [one, many] = ["one.png", "many.png"].map(|name| folder.path().join(name));
/// let images = Tensor::rand(&Device::cpu(), [6, 3, 8, 8], 1)?;
/// save_image(&one, &images.map(|images| images.at(0))?)?; // "one.png"
/// save_images(&many, &images, 3)?; // three in a row
/// # let numbers = meganeura::data::read_image(&many)?;
/// # assert_eq!(numbers.shape(), Shape::from([3, 18, 28]));
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// # Errors
///
/// Fails if the tensor has other axes, or an extension of another format; if the file cannot be written, or if the
/// device was lost.
#[track_caller]
pub fn save_image(path: impl AsRef<Path>, image: &Tensor) -> Result<()> {
    here(|| match *image.shape().dims() {
        [channels @ (1 | 3), height, width] => {
            let numbers = image.to_f64_vec()?;
            let plane = height * width;
            let pixel = |y: usize, x: usize, channel: usize| byte(numbers[channel * plane + y * width + x]);
            write(path.as_ref(), [channels, height, width], pixel)
        }
        _ => bail!(Shape, "an image is [1, height, width] or [3, height, width], not {}", image.ty()),
    })
}

/// Writes images `[N, C, height, width]` as one, `columns` of them in a row, with white lines between them. See
/// [`save_image`].
///
/// # Errors
///
/// Fails like [`save_image`], and if there are no columns.
#[track_caller]
pub fn save_images(path: impl AsRef<Path>, images: &Tensor, columns: usize) -> Result<()> {
    here(|| {
        let [count, channels @ (1 | 3), height, width] = *images.shape().dims() else {
            bail!(Shape, "images are [N, 1, height, width] or [N, 3, height, width], not {}", images.ty());
        };
        if columns == 0 {
            bail!(Argument, "0 images in a row");
        }
        let columns = columns.min(count);
        let (down, right) = (height + GAP, width + GAP);
        let size = [count.div_ceil(columns).saturating_mul(down) - GAP, columns.saturating_mul(right) - GAP];
        let numbers = images.to_f64_vec()?;
        let pixel = |y: usize, x: usize, channel: usize| {
            let (index, row, column) = (y / down * columns + x / right, y % down, x % right);
            if index >= count || row >= height || column >= width {
                return u8::MAX;
            }
            byte(numbers[((index * channels + channel) * height + row) * width + column])
        };
        write(path.as_ref(), [channels, size[0], size[1]], pixel)
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped, and NaN is 0")]
fn byte(number: f64) -> u8 {
    (number.clamp(0.0, 1.0) * 255.0).round() as u8
}

fn write(path: &Path, shape: [usize; 3], pixel: impl Fn(usize, usize, usize) -> u8) -> Result<()> {
    let format = ImageFormat::from_path(path).ok();
    let Some(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::Bmp | ImageFormat::Pnm)) = format else {
        bail!(Argument, "{}: an image file ends in .png, .jpg, .bmp, .ppm or .pgm", path.display());
    };
    let bytes = encoded(format, shape, pixel).map_err(|error| error.context(path.display()))?;
    disk::replace_file(path, &bytes).map_err(|error| io_error("written", path, error))
}

/// An image file of one channel or three, of the bytes `pixel(y, x, channel)`.
pub(crate) fn encoded(
    format: ImageFormat,
    [channels, height, width]: [usize; 3],
    pixel: impl Fn(usize, usize, usize) -> u8,
) -> Result<Vec<u8>> {
    if height > LONGEST || width > LONGEST {
        bail!(Argument, "an image of {height} by {width} pixels, which may have at most {LONGEST} in a row");
    }
    let color = if channels == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    let mut pixels = try_filled(channels * height * width, 0)?;
    let places = (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..channels).map(move |c| (y, x, c))));
    pixels.iter_mut().zip(places).for_each(|(byte, (y, x, c))| *byte = pixel(y, x, c));
    let mut file = Vec::new();
    reserve(&mut file, pixels.len())?;
    let cursor = &mut std::io::Cursor::new(&mut file);
    image::write_buffer_with_format(cursor, &pixels, width as u32, height as u32, color, format)
        .map_err(|error| Error::new(ErrorKind::Argument, format!("an image of {height} by {width} pixels: {error}")))?;
    Ok(file)
}

/// A PNG of an image `[C, height, width]` with one channel or three.
#[cfg(feature = "tensorboard")]
pub(crate) fn png(image: &Tensor) -> Result<Vec<u8>> {
    let [channels @ (1 | 3), height, width] = *image.shape().dims() else {
        bail!(Shape, "a picture is [1, height, width] or [3, height, width], not {}", image.ty());
    };
    let numbers = image.to_f64_vec()?;
    let pixel = |y: usize, x: usize, channel: usize| byte(numbers[(channel * height + y) * width + x]);
    encoded(ImageFormat::Png, [channels, height, width], pixel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn tensor(shape: &[usize], numbers: &[f32]) -> Tensor {
        Tensor::from_slice(&Device::cpu(), shape, numbers).unwrap()
    }

    #[test]
    fn pixels_are_clamped_and_rounded() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_exact) in [("x.png", true), ("x.bmp", true), ("x.ppm", true), ("x.JPG", false)] {
            let path = folder.path().join(name);
            save_image(&path, &tensor(&[3, 1, 2], &[1.0, 0.0, -3.0, 0.4, 0.2, f32::NAN])).unwrap();
            let image = image::open(&path).unwrap().into_rgb8();
            assert_eq!(image.dimensions(), (2, 1));
            if is_exact {
                assert_eq!(image.into_raw(), [255, 0, 51, 0, 102, 0], "{name}");
            }
        }
        let path = folder.path().join("gray.png");
        save_image(&path, &tensor(&[1, 2, 1], &[0.5, 2.0])).unwrap();
        assert_eq!(image::open(&path).unwrap().into_luma8().into_raw(), [128, 255]);
    }

    #[test]
    fn images_stand_in_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grid.png");
        let images = [0.0, 0.2, 0.4].map(|value| [value; 2 * 3]).concat();
        save_images(&path, &tensor(&[3, 1, 2, 3], &images), 2).unwrap();
        let image = image::open(&path).unwrap().into_luma8();
        assert_eq!(image.dimensions(), (8, 6));
        let at = |x: u32, y: u32| image.get_pixel(x, y).0[0];
        assert_eq!(
            (at(0, 0), at(2, 1), at(3, 0), at(5, 0), at(0, 2), at(0, 4), at(5, 4)),
            (0, 0, 255, 51, 255, 102, 255)
        );
        // More columns than images.
        save_images(&path, &tensor(&[1, 1, 2, 3], &images[..6]), 9).unwrap();
        assert_eq!(image::open(&path).unwrap().width(), 3);
    }

    #[test]
    fn misuse_is_an_error_and_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        let (one, two) = (tensor(&[1, 1, 1], &[0.0]), tensor(&[2, 1, 1], &[0.0; 2]));
        for (error, kind, part) in [
            (save_image(&path, &two).unwrap_err(), ErrorKind::Shape, "not f32[2, 1, 1]"),
            (save_images(&path, &one, 1).unwrap_err(), ErrorKind::Shape, "not f32[1, 1, 1]"),
            (save_images(&path, &tensor(&[1, 1, 1, 1], &[0.0]), 0).unwrap_err(), ErrorKind::Argument, "0 images"),
            (save_image(path.with_extension("webp"), &one).unwrap_err(), ErrorKind::Argument, "ends in .png"),
            (save_image(path.with_extension(""), &one).unwrap_err(), ErrorKind::Argument, "ends in .png"),
            (save_image(folder.path().join("no/x.png"), &one).unwrap_err(), ErrorKind::Io, "could not be written"),
        ] {
            assert!(error.kind() == kind && error.to_string().contains(part), "{error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
