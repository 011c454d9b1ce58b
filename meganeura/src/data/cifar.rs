//! CIFAR-10 and CIFAR-100, the binary version (A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images,
//! 2009).
//!
//! A record is a label (two in CIFAR-100, the coarse one first) and 3·32·32 pixels: red, green, blue, each row by row.

use std::io::{BufReader, Read};
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use super::Dataset;
use super::file::Contents;
use crate::Result;
use crate::error::{bail, here};
use crate::host::reserve;

const SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;

/// The number of classes of each label.
const CIFAR_10: [u8; 1] = [10];
const CIFAR_100: [u8; 2] = [20, 100];

/// The label of CIFAR-100 to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cifar100Label {
    /// The coarse label, one of 20 groups.
    Coarse,
    /// The fine label, one of 100 classes.
    Fine,
}

impl Dataset {
    /// The images of CIFAR-10 files, one file after the other: `data_batch_1.bin` to `data_batch_5.bin`, or
    /// `test_batch.bin`.
    ///
    /// Examples are `[3, 32, 32]`, from 0 to 1.
    ///
    /// ```no_run
    /// use meganeura::prelude::*;
    ///
    /// let train = Dataset::from_cifar10((1..=5).map(|i| format!("cifar-10-batches-bin/data_batch_{i}.bin")))?;
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if there is no file, or if a file cannot be read, has no images, ends in the middle of one, or has a label
    /// of 10 or above. The error names the position in the file.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn from_cifar10<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Result<Self> {
        here(|| read(files.into_iter().map(|path| Contents::open(path.as_ref())), &CIFAR_10, 0))
    }

    /// Like [`from_cifar10`](Self::from_cifar10), but reads any source of bytes, such as files embedded in the program
    /// or fetched by a web page. Messages call them `file 0` and so on.
    ///
    /// # Errors
    ///
    /// Fails like [`from_cifar10`](Self::from_cifar10).
    #[track_caller]
    pub fn read_cifar10<R: Read>(files: impl IntoIterator<Item = R>) -> Result<Self> {
        here(|| read(numbered(files), &CIFAR_10, 0))
    }

    /// The images of CIFAR-100 files, one file after the other: `train.bin` or `test.bin`, with one of their two
    /// labels.
    ///
    /// Examples are `[3, 32, 32]`, from 0 to 1.
    ///
    /// # Errors
    ///
    /// Fails like [`from_cifar10`](Self::from_cifar10); there are 20 coarse and 100 fine labels.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn from_cifar100<P: AsRef<Path>>(files: impl IntoIterator<Item = P>, label: Cifar100Label) -> Result<Self> {
        here(|| read(files.into_iter().map(|path| Contents::open(path.as_ref())), &CIFAR_100, label as usize))
    }

    /// Like [`from_cifar100`](Self::from_cifar100), but reads any source of bytes; see
    /// [`read_cifar10`](Self::read_cifar10).
    ///
    /// # Errors
    ///
    /// Fails like [`from_cifar100`](Self::from_cifar100).
    #[track_caller]
    pub fn read_cifar100<R: Read>(files: impl IntoIterator<Item = R>, label: Cifar100Label) -> Result<Self> {
        here(|| read(numbered(files), &CIFAR_100, label as usize))
    }
}

fn numbered<'a, R: Read + 'a>(files: impl IntoIterator<Item = R>) -> impl Iterator<Item = Result<Contents<'a>>> {
    let contents = |(number, bytes)| Contents::new(format!("file {number}"), BufReader::new(bytes));
    files.into_iter().enumerate().map(contents)
}

/// Reads records with one label for each of these numbers of classes, of which one is wanted.
fn read<'a>(files: impl Iterator<Item = Result<Contents<'a>>>, classes: &[u8], wanted: usize) -> Result<Dataset> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for file in files {
        let mut file = file?;
        let record = classes.len() + PIXELS;
        loop {
            let start = file.offset();
            let bytes = file.up_to(record as u64)?;
            if bytes.is_empty() && start > 0 {
                break;
            }
            // Checked before the length: a file with other records shows in its labels, long before its end.
            for (index, (label, classes)) in bytes.iter().zip(classes).enumerate() {
                if label >= classes {
                    let message = format!("label {label} where there are {classes} classes; no file of this format?");
                    return Err(file.wrong(start + index as u64, message));
                }
            }
            if bytes.len() < record {
                let image = start / record as u64;
                let message = format!("the file ends here, in image {image}; each has {record} bytes");
                return Err(file.wrong(file.offset(), message));
            }
            let room = reserve(&mut labels, 1).and_then(|()| reserve(&mut pixels, PIXELS));
            room.map_err(|error| error.context(file.name()))?;
            labels.push(u32::from(bytes[wanted]));
            pixels.extend_from_slice(&bytes[classes.len()..]);
        }
    }
    if labels.is_empty() {
        bail!(Argument, "no files of CIFAR were named");
    }
    Dataset::from_bytes(pixels, SHAPE, labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// Records with these labels; pixel `i` of the first is `i`, of the second `i + 1`.
    fn records(labels: &[&[u8]]) -> Vec<u8> {
        let records = labels.iter().enumerate().map(|(record, labels)| {
            let pixels = (0..PIXELS).map(|i| (i + record) as u8);
            labels.iter().copied().chain(pixels).collect::<Vec<_>>()
        });
        records.collect::<Vec<_>>().concat()
    }

    fn files<const N: usize>(
        contents: [&[u8]; N],
        read: impl Fn(&[std::path::PathBuf]) -> Result<Dataset>,
    ) -> Result<Dataset> {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..N).map(|i| folder.path().join(format!("batch_{i}.bin"))).collect();
        paths.iter().zip(contents).for_each(|(path, contents)| std::fs::write(path, contents).unwrap());
        read(&paths)
    }

    #[test]
    fn files_are_concatenated() {
        let (two, one) = (records(&[&[3], &[9]]), records(&[&[0]]));
        let dataset = files([&two, &one], |paths| Dataset::from_cifar10(paths)).unwrap();
        assert_eq!((dataset.len(), dataset.shape().unwrap()), (3, SHAPE.into()));
        assert_eq!(dataset.targets().unwrap(), [3, 9, 0]);
        let image = dataset.get(1).unwrap().0.into_values();
        assert_eq!([image[0], image[254], image[255], image[1024]], [1.0 / 255.0, 1.0, 0.0, 1.0 / 255.0]);

        let hundred = records(&[&[19, 99], &[0, 7]]);
        for (label, expected) in [(Cifar100Label::Coarse, [19, 0]), (Cifar100Label::Fine, [99, 7])] {
            let dataset = files([&hundred], |paths| Dataset::from_cifar100(paths, label)).unwrap();
            assert_eq!(dataset.targets().unwrap(), expected);
            assert_eq!(dataset.get(0).unwrap().0.values()[..2], [0.0, 1.0 / 255.0]);
        }
    }

    #[test]
    fn bytes_need_no_file() {
        let (two, one) = (records(&[&[3], &[9]]), records(&[&[0]]));
        let dataset = Dataset::read_cifar10([&two[..], &one[..]]).unwrap();
        assert_eq!(dataset.targets().unwrap(), [3, 9, 0]);
        let hundred = records(&[&[19, 99]]);
        let dataset = Dataset::read_cifar100([&hundred[..]], Cifar100Label::Fine).unwrap();
        assert_eq!(dataset.targets().unwrap(), [99]);
        let error = Dataset::read_cifar10([&two[..], &one[..9]]).unwrap_err().to_string();
        assert!(error.contains("file 1, byte 9: "), "{error}");
    }

    #[test]
    fn errors_name_the_file_and_the_byte() {
        let (good, hundred) = (records(&[&[3], &[9]]), records(&[&[19, 99], &[19, 99]]));
        for (second, parts) in [
            (&good[..good.len() - 1], ["batch_1.bin, byte 6145: ", "in image 1"]),
            (&good[..1], ["batch_1.bin, byte 1: ", "in image 0"]),
            (&[], ["batch_1.bin, byte 0: ", "in image 0"]),
            (&[&good[..], &[10]].concat(), ["batch_1.bin, byte 6146: ", "label 10"]),
            (&[&good[..], &[1]].concat(), ["batch_1.bin, byte 6147: ", "in image 2"]),
            (&hundred, ["batch_1.bin, byte 0: ", "label 19"]),
            (b"a text file", ["batch_1.bin, byte 0: ", "label 97"]),
        ] {
            let error = files([&good, second], |paths| Dataset::from_cifar10(paths)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
            assert!(parts.iter().all(|part| error.to_string().contains(part)), "{parts:?}: {error}");
        }
        let error = files([&good], |paths| Dataset::from_cifar100(paths, Cifar100Label::Fine)).unwrap_err();
        assert!(error.to_string().contains("batch_0.bin, byte "), "{error}");
        assert_eq!(Dataset::from_cifar10([""; 0]).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(Dataset::from_cifar10(["no such file"]).unwrap_err().kind(), ErrorKind::Io);
    }
}
