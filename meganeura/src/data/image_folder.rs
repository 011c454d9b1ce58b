//! Images in folders, one folder for each class.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;

use super::file::unreadable;
use super::picture::{self, Header, MOST_PIXELS};
use super::{Array, Examples};
use crate::error::{bail, here};
use crate::{Error, ErrorKind, Result, Shape};

/// The extensions of image files, in lower case.
const EXTENSIONS: [&str; 8] = ["png", "jpg", "jpeg", "bmp", "pnm", "pgm", "ppm", "pbm"];

/// The extensions of images in formats that are not read. Such files are not skipped: they may be the data.
const OTHERS: [&str; 8] = ["webp", "tif", "tiff", "gif", "avif", "heic", "jxl", "jp2"];

/// The maximum number of wrong files that one error names.
const NAMED: usize = 10;

/// Images in folders, one folder for each class. Needs the feature `images`.
///
/// ```text
/// pets/cat/1.png  pets/cat/2.jpg  pets/dog/1.png
/// ```
///
/// Classes are numbered from 0 in the order of their folders' names; images are in the order of their files' names. An
/// image is read and decoded (PNG, JPEG, BMP, PNM) each time that a batch needs it, and never kept, so the folder may
/// be larger than memory.
///
/// Examples are `[channels, height, width]`, from 0 to 1 (255, or 65,535 in images of 16 bits). All must have the size
/// and the channels of the first image, unless [`resize`](Self::resize), [`rgb`](Self::rgb) or [`gray`](Self::gray)
/// unify them. An image that differs is an error when it is read; [`check`](Self::check) finds them all in advance.
///
/// ```
/// use meganeura::data::ImageFolder;
/// use meganeura::prelude::*;
///
/// # let root = tempfile::tempdir().unwrap();
/// # for (class, width) in [("cat", 3), ("dog", 4)] {
/// #     std::fs::create_dir(root.path().join(class)).unwrap();
/// #     image::RgbImage::new(width, 5).save(root.path().join(class).join("1.png")).unwrap();
/// # }
/// # let folder = root.path();
/// let pets = ImageFolder::open(folder)?.resize(64, 64).rgb(); // "pets"
/// assert_eq!(pets.classes(), ["cat", "dog"]);
///
/// let pets = Dataset::of(pets)?;
/// assert_eq!(pets.shape()?, Shape::from([3, 64, 64]));
/// for batch in pets.batches(32).shuffle(1).epoch(0).workers(4).on(&Device::cpu()) {
///     let batch = batch?;
///     // …
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    folders: Vec<PathBuf>,
    /// The class of each image, and its file in the folder of that class.
    files: Vec<(u32, OsString)>,
    /// The header of the first image.
    first: Header,
    channels: Option<usize>,
    size: Option<[usize; 2]>,
    most_pixels: u64,
    /// `true` if images are turned as their EXIF data says.
    exif: bool,
}

impl ImageFolder {
    /// Lists the images of a folder, and reads the header of the first. Files without the extension of an image, such
    /// as `Thumbs.db` or a README, are skipped, and so are files and folders whose names start with a dot.
    ///
    /// Images of more than 2²⁶ pixels, 8192 by 8192, are errors: a file of a few bytes can announce any number of
    /// pixels.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be read or has no classes, or if anything in it is out of place: images next to the
    /// class folders, folders inside them, images of formats that are not read, classes without images. The error names
    /// all of these.
    #[track_caller]
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        here(|| Self::list(root.as_ref(), MOST_PIXELS))
    }

    /// Opens a folder with another limit on the pixels of an image. Reading takes up to 8 bytes per pixel, in addition
    /// to the numbers of the example.
    ///
    /// # Errors
    ///
    /// Fails like [`open`](Self::open).
    #[track_caller]
    pub fn open_with_limit(root: impl AsRef<Path>, most_pixels: u64) -> Result<Self> {
        here(|| Self::list(root.as_ref(), most_pixels))
    }

    fn list(root: &Path, most_pixels: u64) -> Result<Self> {
        let (mut classes, mut folders, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let mut wrong = Vec::new();
        for (name, path) in entries(root)? {
            if !path.is_dir() {
                if !matches!(Kind::of(&path), Kind::Stray) {
                    wrong.push(format!("{}: an image beside the classes' folders", path.display()));
                }
                continue;
            }
            let class = u32::try_from(folders.len()).expect("fewer folders than 2³²");
            let before = files.len();
            for (name, path) in entries(&path)? {
                match Kind::of(&path) {
                    Kind::Image => files.push((class, name)),
                    Kind::Stray => {}
                    Kind::Wrong(why) => wrong.push(format!("{}: {why}", path.display())),
                }
            }
            if files.len() == before {
                wrong.push(format!("{}: a class without images", path.display()));
            }
            classes.push(name.to_string_lossy().into_owned());
            folders.push(path);
        }
        if folders.is_empty() && wrong.is_empty() {
            bail!(Data, "{}: no folders; there must be one of images for each class", root.display());
        }
        all_well(root, wrong)?;
        let (class, name) = &files[0];
        let first = picture::header(&folders[*class as usize].join(name), most_pixels, false)?;
        let (root, channels, size) = (root.to_owned(), None, None);
        Ok(Self { root, classes, folders, files, first, channels, size, most_pixels, exif: false })
    }

    /// Scales every image to this size, regardless of its proportions: by averaging where it shrinks, by interpolation
    /// where it grows.
    #[must_use]
    pub fn resize(self, height: usize, width: usize) -> Self {
        Self { size: Some([height, width]), ..self }
    }

    /// Converts every image to three channels, red, green and blue. Gray images get three equal ones. Transparency is
    /// dropped.
    #[must_use]
    pub fn rgb(self) -> Self {
        Self { channels: Some(3), ..self }
    }

    /// Turns and mirrors every image as its EXIF data says, like `PIL.ImageOps.exif_transpose`: cameras save the pixels
    /// of an upright picture as the sensor had them. Without this, pixels stay as they are stored, as in torchvision's
    /// `ImageFolder`.
    ///
    /// # Errors
    ///
    /// Fails if the first image cannot be read any more.
    #[track_caller]
    pub fn exif_transpose(self) -> Result<Self> {
        here(|| {
            let (class, name) = &self.files[0];
            let first = picture::header(&self.folders[*class as usize].join(name), self.most_pixels, true)?;
            Ok(Self { first, exif: true, ..self })
        })
    }

    /// Converts every image to one channel, the brightness `0.299·R + 0.587·G + 0.114·B`, as PIL and torchvision do.
    /// Transparency is dropped.
    #[must_use]
    pub fn gray(self) -> Self {
        Self { channels: Some(1), ..self }
    }

    /// The names of the classes; a label is an index into them.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The file of example `index`; `None` past the end.
    #[must_use]
    pub fn path(&self, index: usize) -> Option<PathBuf> {
        self.files.get(index).map(|(class, name)| self.folders[*class as usize].join(name))
    }

    /// Reads the header of every image, to find in advance the images that would stop the training.
    ///
    /// # Errors
    ///
    /// Fails if images differ and are not unified, or cannot be read; the first ten are named. Damage after the header
    /// is only found when an image is decoded.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        here(|| {
            let paths = (0..self.files.len()).filter_map(|index| self.path(index));
            let wrong = paths.filter_map(|path| {
                let header =
                    picture::header(&path, self.most_pixels, self.exif).and_then(|header| self.fits(&path, header));
                header.err().map(|error| error.to_string())
            });
            all_well(&self.root, wrong.collect())
        })
    }

    /// Checks that an image is like the first, or will be unified with it.
    fn fits(&self, path: &Path, header: Header) -> Result<()> {
        let Header { channels, height, width } = self.first;
        if self.channels.is_none() && header.channels != channels {
            let found = header.channels;
            bail!(
                Data,
                "{}: {found} channels, where the first image has {channels}; `rgb()` or `gray()` makes them alike",
                path.display()
            );
        }
        if self.size.is_none() && (header.height, header.width) != (height, width) {
            bail!(
                Data,
                "{}: {} by {} pixels, where the first image has {height} by {width}; `resize` makes them alike",
                path.display(),
                header.height,
                header.width
            );
        }
        Ok(())
    }
}

impl ImageFolder {
    /// The shape of every example.
    fn shape(&self) -> Shape {
        let [height, width] = self.size.unwrap_or([self.first.height, self.first.width]);
        [self.channels.unwrap_or(self.first.channels), height, width].into()
    }
}

impl Examples for ImageFolder {
    type Inputs = Array<f32>;
    type Targets = u32;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn read(&self, index: usize) -> Result<(Array<f32>, u32)> {
        let (class, name) = &self.files[index];
        Ok((self.decoded(&self.folders[*class as usize].join(name))?, *class))
    }

    fn read_targets(&self, index: usize) -> Result<u32> {
        Ok(self.files[index].0)
    }
}

impl ImageFolder {
    /// Any image file, read like those of the folder: with the size and the channels of the examples. For a prediction.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, and if it differs from the folder's images and is not unified with them.
    #[track_caller]
    pub fn read_image(&self, path: impl AsRef<Path>) -> Result<Array<f32>> {
        here(|| self.decoded(path.as_ref()))
    }

    fn decoded(&self, path: &Path) -> Result<Array<f32>> {
        let mut image = picture::read(path, self.most_pixels, self.exif, |header| self.fits(path, header))?;
        let shape = self.shape();
        let (height, width) = (shape[1], shape[2]);
        if (image.height() as usize, image.width() as usize) != (height, width) {
            if shape.elements() == 0 {
                bail!(Argument, "{}: resized to {height} by {width} pixels, it would be empty", path.display());
            }
            // The intermediate image has its original width and its final height.
            let most = (image.width() as usize).max(width).saturating_mul(height);
            let (Ok(high), Ok(wide), true) = (height.try_into(), width.try_into(), most as u64 <= self.most_pixels)
            else {
                bail!(
                    Data,
                    "{}: {} by {} pixels resized to {height} by {width} take {most} pixels in between, and the limit is {}; \
                     `ImageFolder::open_with_limit` sets another",
                    path.display(),
                    image.height(),
                    image.width(),
                    self.most_pixels
                );
            };
            image = image.resize_exact(wide, high, FilterType::Triangle);
        }
        let mut input = Array::zeros(shape).map_err(|error| error.context(path.display()))?;
        picture::write(image, shape[0], input.values_mut());
        Ok(input)
    }
}

/// The names and paths in a folder, sorted by name.
pub(super) fn entries(folder: &Path) -> Result<Vec<(OsString, PathBuf)>> {
    let list = || fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>();
    let list = list().map_err(|error| unreadable(folder, error))?;
    let mut entries: Vec<_> = list.into_iter().map(|entry| (entry.file_name(), entry.path())).collect();
    entries.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"."));
    entries.sort_unstable();
    Ok(entries)
}

/// A file or folder in the folder of a class.
pub(super) enum Kind {
    Image,
    /// Not an image by its name.
    Stray,
    Wrong(&'static str),
}

impl Kind {
    pub(super) fn of(path: &Path) -> Self {
        if path.is_dir() {
            return Self::Wrong("a folder inside of a class; put all images of a class directly into its folder");
        }
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        let is_of = |known: &[&str]| extension.as_deref().is_some_and(|extension| known.contains(&extension));
        match (is_of(&EXTENSIONS), is_of(&OTHERS)) {
            (true, _) if !path.is_file() => Self::Wrong("no file"),
            (true, _) => Self::Image,
            (_, true) => {
                Self::Wrong("an image of a format that is not read (png, jpg, jpeg, bmp, pnm, pgm, ppm, pbm are)")
            }
            _ => Self::Stray,
        }
    }
}

/// Fails with the list of everything that is wrong in a folder, if anything is.
pub(super) fn all_well(root: &Path, mut wrong: Vec<String>) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    let folder = format!("{}, a folder of images", root.display());
    if let [wrong] = &wrong[..] {
        bail!(Data, "{folder}: {wrong}");
    }
    let (count, more) = (wrong.len(), wrong.len().saturating_sub(NAMED));
    wrong.truncate(NAMED);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    let message = format!("{folder}: {count} wrong\n  {}", wrong.join("\n  "));
    Err(Error::new(ErrorKind::Data, message))
}

#[cfg(test)]
mod tests;
