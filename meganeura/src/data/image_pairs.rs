//! Pictures and their masks, in two folders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, GrayImage, Luma, Rgb};

use super::image_folder::{Kind, all_well, entries};
use super::picture::{self, MOST_PIXELS};
use super::{Array, Examples};
use crate::error::{bail, here};
use crate::{Result, Shape};

/// Pictures and their masks, in two folders: files that have the same name up to the extension belong together. Needs
/// the feature `images`.
///
/// Inputs are `[3, height, width]`, from 0 to 1, or `[1, height, width]` after [`gray`](Self::gray). Targets are masks
/// `[1, height, width]` with the grays of the files as they are, from 0 to 255: the classes of pixels, or 0 and 255.
/// They are floats, so that both can be [transformed](super::Transform) alike; [`Array::labels`] then makes labels of
/// them. Files are read each time that a batch needs them.
///
/// ```
/// use meganeura::data::{HorizontalFlip, ImagePairs};
/// use meganeura::prelude::*;
///
/// # let root = tempfile::tempdir().unwrap();
/// # for folder in ["images", "masks"] {
/// #     std::fs::create_dir(root.path().join(folder)).unwrap();
/// # }
/// # image::RgbImage::new(8, 6).save(root.path().join("images/1.jpg")).unwrap();
/// # image::GrayImage::new(8, 6).save(root.path().join("masks/1.png")).unwrap();
/// # let (images, masks) = (root.path().join("images"), root.path().join("masks"));
/// let roads = Dataset::of(ImagePairs::open(images, masks)?.resize(64, 64))?; // "roads/images", "roads/masks"
/// let flip = HorizontalFlip::new(0.5);
/// let batches = roads.batches(16).shuffle(7).map(move |image, mask, seed| {
///     Ok((image.transformed(&flip, seed)?, mask.transformed(&flip, seed)?.labels()?)) // the same flip for both
/// });
/// for batch in batches.epoch(0).on(&Device::cpu()) {
///     let batch = batch?; // inputs [N, 3, 64, 64], labels [N, 64, 64], as `cross_entropy` takes them
///     # assert_eq!((batch.inputs.shape(), batch.targets.shape()), ([1, 3, 64, 64].into(), [1, 64, 64].into()));
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImagePairs {
    pairs: Vec<[PathBuf; 2]>,
    channels: usize,
    size: Option<[usize; 2]>,
}

impl ImagePairs {
    /// Lists the pictures and the masks of two folders, in the order of their names.
    ///
    /// # Errors
    ///
    /// Fails if a folder cannot be read or has no pictures, if a picture has no mask or a mask no picture, and if two
    /// files have the same name up to the extension. The error names all of these.
    #[track_caller]
    pub fn open(pictures: impl AsRef<Path>, masks: impl AsRef<Path>) -> Result<Self> {
        here(|| {
            let (pictures, masks) = (pictures.as_ref(), masks.as_ref());
            let mut wrong = Vec::new();
            let by_name = by_stem(pictures, &mut wrong)?;
            let mut of_masks = by_stem(masks, &mut wrong)?;
            let mut pairs = Vec::new();
            for (stem, picture) in by_name {
                match of_masks.remove(&stem) {
                    Some(mask) => pairs.push([picture, mask]),
                    None => wrong.push(format!("{}: no mask in {}", picture.display(), masks.display())),
                }
            }
            let left = of_masks.into_values();
            wrong.extend(left.map(|mask| format!("{}: no picture in {}", mask.display(), pictures.display())));
            all_well(pictures, wrong)?;
            if pairs.is_empty() {
                bail!(Data, "{}: no pictures", pictures.display());
            }
            Ok(Self { pairs, channels: 3, size: None })
        })
    }

    /// Scales every picture to this size, regardless of its proportions: by averaging where it shrinks, by
    /// interpolation where it grows. Masks get the nearest pixel.
    #[must_use]
    pub fn resize(self, height: usize, width: usize) -> Self {
        Self { size: Some([height, width]), ..self }
    }

    /// Converts every picture to one channel.
    #[must_use]
    pub fn gray(self) -> Self {
        Self { channels: 1, ..self }
    }

    /// The picture and the mask of example `index`; `None` past the end.
    #[must_use]
    pub fn paths(&self, index: usize) -> Option<&[PathBuf; 2]> {
        self.pairs.get(index)
    }

    fn sized(&self, image: DynamicImage, path: &Path, filter: FilterType) -> Result<DynamicImage> {
        let Some([height, width]) = self.size else { return Ok(image) };
        match (u32::try_from(height), u32::try_from(width)) {
            (Ok(high @ 1..), Ok(wide @ 1..)) if u64::from(high) * u64::from(wide.max(image.width())) <= MOST_PIXELS => {
                Ok(image.resize_exact(wide, high, filter))
            }
            _ => bail!(
                Argument,
                "{}: not scaled to {height} by {width} pixels, of which there are none or too many",
                path.display()
            ),
        }
    }

    fn mask(&self, path: &Path) -> Result<Array<f32>> {
        let mut image = picture::read(path, MOST_PIXELS, false, |_| Ok(()))?;
        if image.color().has_color() {
            // Some formats store grays as colours.
            let pixels = image.into_rgb8();
            if pixels.pixels().any(|&Rgb([red, green, blue])| red != green || green != blue) {
                bail!(
                    Data,
                    "{}: a mask has grays, the classes of its pixels, and this one has colours",
                    path.display()
                );
            }
            let (width, height) = pixels.dimensions();
            let grays = pixels.pixels().map(|&Rgb([gray, ..])| gray).collect();
            image = GrayImage::from_raw(width, height, grays).expect("a gray for each pixel").into();
        }
        let image = self.sized(image, path, FilterType::Nearest)?;
        let shape = Shape::from([1, image.height() as usize, image.width() as usize]);
        let mut mask = Array::zeros(shape).map_err(|error| error.context(path.display()))?;
        let is_wide = image.color().bits_per_pixel() > 8 * u16::from(image.color().channel_count());
        if is_wide {
            fill(&mut mask, image.into_luma16().pixels());
        } else {
            fill(&mut mask, image.into_luma8().pixels());
        }
        Ok(mask)
    }
}

fn fill<'p, T: image::Primitive + Into<f32> + 'p>(mask: &mut Array<f32>, pixels: impl Iterator<Item = &'p Luma<T>>) {
    mask.values_mut().iter_mut().zip(pixels).for_each(|(value, &Luma([gray]))| *value = gray.into());
}

/// The pictures of a folder, by their names without the extension.
fn by_stem(folder: &Path, wrong: &mut Vec<String>) -> Result<BTreeMap<OsString, PathBuf>> {
    let mut files = BTreeMap::new();
    for (_, path) in entries(folder)? {
        match Kind::of(&path) {
            Kind::Stray => {}
            Kind::Wrong(why) => wrong.push(format!("{}: {why}", path.display())),
            Kind::Image => {
                let stem = path.file_stem().unwrap_or_default().to_owned();
                if let Some(other) = files.insert(stem, path.clone()) {
                    wrong.push(format!("{} and {} have one name", other.display(), path.display()));
                }
            }
        }
    }
    Ok(files)
}

impl Examples for ImagePairs {
    type Inputs = Array<f32>;
    type Targets = Array<f32>;

    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn read(&self, index: usize) -> Result<(Array<f32>, Array<f32>)> {
        let [path, mask_path] = &self.pairs[index];
        let image = picture::read(path, MOST_PIXELS, false, |_| Ok(()))?;
        let image = self.sized(image, path, FilterType::Triangle)?;
        let shape = Shape::from([self.channels, image.height() as usize, image.width() as usize]);
        let mut input = Array::zeros(shape).map_err(|error| error.context(path.display()))?;
        picture::write(image, self.channels, input.values_mut());
        let mask = self.mask(mask_path)?;
        if mask.shape().dims()[1..] != shape.dims()[1..] {
            bail!(Data, "{}: a mask of {} for a picture of {shape}", mask_path.display(), mask.shape());
        }
        Ok((input, mask))
    }

    fn read_targets(&self, index: usize) -> Result<Array<f32>> {
        self.mask(&self.pairs[index][1])
    }
}

#[cfg(test)]
mod tests {
    use image::RgbImage;

    use super::*;
    use crate::ErrorKind;
    use crate::data::Dataset;

    fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let [pictures, masks] = ["pictures", "masks"].map(|name| root.path().join(name));
        [&pictures, &masks].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        (root, pictures, masks)
    }

    #[test]
    fn pictures_meet_their_masks() {
        let (_root, pictures, masks) = folders();
        for (name, red) in [("b", 255), ("a", 51)] {
            RgbImage::from_raw(2, 1, vec![red, 0, 0, 0, 0, red])
                .unwrap()
                .save(pictures.join(format!("{name}.png")))
                .unwrap();
            GrayImage::from_raw(2, 1, vec![red, 2]).unwrap().save(masks.join(format!("{name}.bmp"))).unwrap();
        }
        std::fs::write(masks.join("notes.txt"), "").unwrap();
        let pairs = ImagePairs::open(&pictures, &masks).unwrap();
        assert!(pairs.paths(1).unwrap()[0].ends_with("b.png") && pairs.paths(2).is_none());
        let (picture, mask) = pairs.read(0).unwrap();
        assert_eq!(picture.values(), [0.2, 0.0, 0.0, 0.0, 0.0, 0.2]);
        assert_eq!((mask.shape(), mask.values()), (Shape::from([1, 1, 2]), &[51.0, 2.0][..]));
        assert_eq!(mask.labels().unwrap(), Array::new(vec![51, 2], [1, 2]).unwrap());
        let large = Dataset::of(pairs.gray().resize(2, 4)).unwrap();
        let (picture, mask) = large.get(1).unwrap();
        assert_eq!((picture.shape(), mask.values()), (Shape::from([1, 2, 4]), &[255.0, 255.0, 2.0, 2.0].repeat(2)[..]));
        assert_eq!(large.targets().unwrap()[1], mask);
    }

    #[test]
    fn pairs_that_do_not_fit_are_named() {
        let (_root, pictures, masks) = folders();
        let error = ImagePairs::open(&pictures, &masks).unwrap_err();
        assert!(error.kind() == ErrorKind::Data && error.to_string().contains("no pictures"), "{error}");
        let gray = |width| GrayImage::from_raw(width, 1, vec![0; width as usize]).unwrap();
        for path in [pictures.join("a.png"), masks.join("b.png"), masks.join("c.png"), masks.join("c.bmp")] {
            gray(1).save(path).unwrap();
        }
        let error = ImagePairs::open(&pictures, &masks).unwrap_err().to_string();
        for part in ["a.png: no mask in", "b.png: no picture in", "have one name"] {
            assert!(error.contains(part), "{error}");
        }
        let (_root, pictures, masks) = folders();
        gray(2).save(pictures.join("a.png")).unwrap();
        gray(3).save(masks.join("a.png")).unwrap();
        let pairs = ImagePairs::open(&pictures, &masks).unwrap();
        let error = pairs.read(0).unwrap_err();
        assert!(error.to_string().contains("a mask of [1, 1, 3] for a picture of [3, 1, 2]"), "{error}");
        assert_eq!(pairs.clone().resize(0, 4).read(0).unwrap_err().kind(), ErrorKind::Argument);
        assert!(pairs.resize(1, 2).read(0).is_ok());
        RgbImage::from_raw(2, 1, vec![1, 1, 1, 1, 2, 1]).unwrap().save(masks.join("a.png")).unwrap();
        let error = ImagePairs::open(&pictures, &masks).unwrap().read(0).unwrap_err();
        assert!(error.to_string().contains("this one has colours"), "{error}");
        let half = Array::new(vec![0.5], [1, 1]).unwrap();
        assert_eq!(half.labels().unwrap_err().kind(), ErrorKind::Argument);
    }
}
