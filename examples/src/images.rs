//! Sources of images: the files of a well-known dataset in a folder, or the embedded data of these programs.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Args;
#[cfg(feature = "images")]
use meganeura::data::ImageFolder;
use meganeura::data::{Cifar100Label, Dataset};
use meganeura::module::Seed;

use crate::digits;
use crate::shapes::{self, Shapes};

/// The options of programs that learn from images; `#[command(flatten)]` puts them beside a program's own.
#[derive(Args, Debug)]
#[group(id = "images")]
pub struct Options {
    /// A folder with the downloaded files of MNIST or CIFAR, or with a folder of pictures for each class
    /// [default: the program's own images]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Scale pictures to this width and height as they are read
    #[arg(long, requires = "data")]
    pub size: Option<usize>,
}

/// Larger labels are not classes; the file is damaged.
const MOST_CLASSES: usize = 1 << 16;

/// Images for training and for testing.
#[derive(Debug, Clone)]
pub struct Images {
    /// The training images.
    pub train: Dataset,
    /// The test images.
    pub test: Dataset,
    /// The number of classes.
    pub classes: usize,
    /// `true` if a mirror image is of the same class.
    pub may_be_flipped: bool,
}

impl Images {
    /// The embedded digits, a fifth of them for testing.
    ///
    /// # Errors
    ///
    /// If the embedded file is damaged.
    pub fn digits(seed: u64) -> meganeura::Result<Self> {
        let (train, test) = digits::load()?.split(0.8, seed)?;
        Ok(Self { train, test, classes: digits::CLASSES, may_be_flipped: false })
    }

    /// Generated shapes: `count` for training, and a quarter of that for testing.
    ///
    /// # Errors
    ///
    /// If `count` is too large for a dataset.
    pub fn shapes(count: usize, seed: u64) -> meganeura::Result<Self> {
        let seed = Seed::new(seed).field("shapes");
        let [train, test] = [("train", count), ("test", count / 4)].map(|(part, n)| Shapes::new(n, seed.field(part)));
        let (train, test) = (Dataset::of(train)?, Dataset::of(test)?);
        Ok(Self { train, test, classes: shapes::CLASSES.len(), may_be_flipped: true })
    }

    /// The contents of a folder: CIFAR-10 or CIFAR-100 (binary), or MNIST and its relatives (IDX), with or without
    /// gzip; otherwise a folder of pictures for each class, scaled to squares of `size` pixels if given. If there is
    /// only one part, a tenth of it is for testing.
    ///
    /// # Errors
    ///
    /// If there are no such files, or one of them is damaged.
    pub fn open(folder: &Path, size: Option<usize>, seed: u64) -> Result<Self, Box<dyn Error>> {
        let wrong = |what: &str| Err(format!("{}: {what}", folder.display()).into());
        let entries = std::fs::read_dir(folder).map_err(|error| format!("--data {}: {error}", folder.display()))?;
        if size == Some(0) {
            return Err("--size 0: pictures have at least 1 pixel each way".into());
        }
        match Self::known(folder, seed)? {
            Some(_) if size.is_some() => wrong("--size is for pictures, and these are files of MNIST or CIFAR"),
            Some(images) => Ok(images),
            None if entries.flatten().any(|entry| entry.path().is_dir()) => Self::pictures(folder, size, seed),
            None => wrong(
                "no images that this program can read; there should be data_batch_1.bin to data_batch_5.bin and test_batch.bin (CIFAR-10), \
                 train.bin and test.bin (CIFAR-100), train-images-idx3-ubyte and train-labels-idx1-ubyte (MNIST), or the same with t10k, \
                 or a folder of pictures for each class",
            ),
        }
    }

    /// The images of a well-known dataset, if there is one.
    fn known(folder: &Path, seed: u64) -> Result<Option<Self>, Box<dyn Error>> {
        let find = |name: &str| {
            let names = [name.to_owned(), format!("{name}.gz")];
            names.map(|name| folder.join(name)).into_iter().find(|path| path.is_file())
        };
        if let (Some(_), Some(test)) = (find("data_batch_1.bin"), find("test_batch.bin")) {
            let part = |i: usize| {
                let name = format!("data_batch_{i}.bin");
                find(&name).ok_or_else(|| format!("{}: {name} is missing beside data_batch_1.bin", folder.display()))
            };
            let train = Dataset::from_cifar10((1..=5).map(part).collect::<Result<Vec<_>, _>>()?)?;
            return Self::of_files(folder, train, Dataset::from_cifar10([test])?, true).map(Some);
        }
        if let (Some(train), Some(test)) = (find("train.bin"), find("test.bin")) {
            let [train, test] = [train, test].map(|file| Dataset::from_cifar100([file], Cifar100Label::Fine));
            return Self::of_files(folder, train?, test?, true).map(Some);
        }
        let idx = |part: &str| {
            let [images, labels] = ["images-idx3-ubyte", "labels-idx1-ubyte"].map(|name| format!("{part}-{name}"));
            match (find(&images), find(&labels)) {
                (Some(images), Some(labels)) => Ok(Some((images, labels))),
                (None, None) => Ok(None),
                (Some(_), None) => Err(format!("{}: {labels} is missing beside {images}", folder.display())),
                (None, Some(_)) => Err(format!("{}: {images} is missing beside {labels}", folder.display())),
            }
        };
        let read = |(images, labels): (PathBuf, PathBuf)| Dataset::from_idx(images, labels);
        let (train, test) = match (idx("train")?, idx("t10k")?) {
            (Some(train), Some(test)) => (read(train)?, read(test)?),
            (Some(one), None) | (None, Some(one)) => read(one)?.split(0.9, seed)?,
            (None, None) => return Ok(None),
        };
        Self::of_files(folder, train, test, false).map(Some)
    }

    #[cfg(not(feature = "images"))]
    fn pictures(folder: &Path, _: Option<usize>, _: u64) -> Result<Self, Box<dyn Error>> {
        let how = "this program was built without the formats of pictures; `cargo run --features images …` builds it with them";
        Err(format!("{}: {how}", folder.display()).into())
    }

    /// A folder of pictures for each class.
    #[cfg(feature = "images")]
    fn pictures(folder: &Path, size: Option<usize>, seed: u64) -> Result<Self, Box<dyn Error>> {
        let pictures = ImageFolder::open(folder)?.rgb();
        let pictures = match size {
            Some(size) => pictures.resize(size, size),
            None => pictures,
        };
        // Checks every header now, rather than fail in the middle of the training, and phrases errors in terms of these
        // programs.
        pictures.check().map_err(|error| error.to_string().replace("`resize`", "`--size`"))?;
        let classes = pictures.classes().len();
        let (train, test) = Dataset::of(pictures)?.split(0.9, seed)?;
        let images = Self { train, test, classes, may_be_flipped: false };
        images.expect_tests(folder)?;
        Ok(images)
    }

    fn expect_tests(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        let count = self.train.len();
        if self.test.is_empty() {
            return Err(format!("{}: {count} images are too few to hold some out for testing", folder.display()).into());
        }
        Ok(())
    }

    /// From images that were read from a folder; the labels determine the number of classes.
    fn of_files(folder: &Path, train: Dataset, test: Dataset, may_be_flipped: bool) -> Result<Self, Box<dyn Error>> {
        let wrong = |what: String| Err(format!("{}: {what}", folder.display()).into());
        let labels = [train.targets()?, test.targets()?].concat();
        let classes = labels.into_iter().max().map_or(0, |label| label as usize + 1);
        if classes > MOST_CLASSES {
            return wrong(format!("labels up to {}, but at most {MOST_CLASSES} classes", classes - 1));
        }
        let images = Self { train, test, classes, may_be_flipped };
        images.expect_tests(folder)?;
        let [train, test] = [images.train.shape()?, images.test.shape()?];
        if train != test {
            return wrong(format!("training images are {train}, test images {test}"));
        }
        Ok(images)
    }

    /// Channels, height and width of each image.
    ///
    /// # Errors
    ///
    /// If the examples are not images, or the first cannot be read.
    pub fn shape(&self) -> Result<[usize; 3], Box<dyn Error>> {
        let shape = self.train.shape()?;
        shape.dims().try_into().map_err(|_| format!("examples of shape {shape} are not images").into())
    }
}
