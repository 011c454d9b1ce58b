//! IDX: the format of MNIST and similar datasets (Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten
//! digits).
//!
//! A file has two zeros, a byte for the element type, a byte for the number of axes, the extents in 32 bits, and the
//! elements. All numbers are big-endian.

use std::io::{BufReader, Read};
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use super::Dataset;
use super::file::Contents;
use crate::error::{bail, here};
use crate::host::{reserve, try_collect};
use crate::{Result, Shape};

impl Dataset {
    /// The examples and labels of two files in IDX, the format of MNIST, packed with gzip or not (the feature `gzip`).
    ///
    /// Images `[N, H, W]` become examples `[1, H, W]`. With more or fewer axes, all axes but the first are the
    /// example's. Bytes are pixels, and become numbers from 0 to 1; elements of other types are not scaled.
    ///
    /// ```
    /// use meganeura::data::Array;
    /// use meganeura::prelude::*;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let [images, labels] = ["images-idx3-ubyte", "labels-idx1-ubyte"].map(|name| folder.path().join(name));
    /// # std::fs::write(&images, [[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2].as_slice(), &[0, 51, 102, 255]].concat()).unwrap();
    /// # std::fs::write(&labels, [0, 0, 8, 1, 0, 0, 0, 1, 7]).unwrap();
    /// let digits = Dataset::from_idx(images, labels)?; // "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
    /// assert_eq!(digits.get(0)?, (Array::new(vec![0.0, 0.2, 0.4, 1.0], [1, 2, 2])?, 7));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, has another format, or is shorter or longer than its header says; the error
    /// names the position in the file. Fails if labels are not whole numbers, or if there are not as many as examples.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn from_idx(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self> {
        here(|| Self::of_idx(Contents::open(images.as_ref())?, Contents::open(labels.as_ref())?))
    }

    /// Like [`from_idx`](Self::from_idx), but reads any source of bytes, such as files embedded in the program or
    /// fetched by a web page. Messages call them `the images` and `the labels`.
    ///
    /// # Errors
    ///
    /// Fails like [`from_idx`](Self::from_idx).
    #[track_caller]
    pub fn read_idx(images: impl Read, labels: impl Read) -> Result<Self> {
        here(|| {
            let images = Contents::new("the images".into(), BufReader::new(images))?;
            Self::of_idx(images, Contents::new("the labels".into(), BufReader::new(labels))?)
        })
    }

    fn of_idx(images: Contents<'_>, labels: Contents<'_>) -> Result<Self> {
        let examples = Idx::read(images)?;
        let images = &examples.name;
        let shape = match examples.extents[..] {
            [_] => bail!(Data, "{images}, byte 3: 1 axis, as a file of labels has; examples have more"),
            [_, height, width] => Shape::from([1, height, width]),
            [_, ref others @ ..] => match Shape::try_new(others) {
                Some(shape) if shape.rank() < crate::MAX_RANK => shape,
                _ => bail!(Data, "{images}, byte 3: {} axes are too many", examples.extents.len()),
            },
            [] => bail!(Data, "{images}, byte 3: no axes, so no examples"),
        };
        let numbers = Idx::read(labels)?;
        let labels = &numbers.name;
        if numbers.extents.len() != 1 {
            let axes = numbers.extents.len();
            bail!(Data, "{labels}, byte 3: {axes} axes, labels have 1; are the two files exchanged?");
        }
        if numbers.extents[0] != examples.extents[0] {
            let (here, there) = (numbers.extents[0], examples.extents[0]);
            bail!(Data, "{here} labels in {labels}, {there} examples in {images}");
        }
        let label = |(index, number): (usize, f64)| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "compared with what it came from"
            )]
            let label = number as u32;
            if f64::from(label) != number {
                let at = numbers.start + index as u64 * numbers.element.bytes() as u64;
                bail!(Data, "{labels}, byte {at}: {number} is not a label");
            }
            Ok(label)
        };
        let mut all = Vec::new();
        reserve(&mut all, numbers.extents[0]).map_err(|error| error.context(labels))?;
        for number in numbers.values().enumerate() {
            all.push(label(number)?);
        }
        let dataset = match examples.element {
            Element::U8 => Self::from_bytes(examples.bytes, shape, all),
            #[expect(clippy::cast_possible_truncation, reason = "examples are of this precision")]
            _ => try_collect(examples.values().map(|x| x as f32)).and_then(|numbers| Self::new(numbers, shape, all)),
        };
        dataset.map_err(|error| error.context(&examples.name))
    }
}

/// The contents of a file.
struct Idx {
    /// The file's name in messages.
    name: String,
    element: Element,
    extents: Vec<usize>,
    bytes: Vec<u8>,
    /// The position of the first element in the file.
    start: u64,
}

#[derive(Clone, Copy)]
enum Element {
    U8,
    I8,
    I16,
    I32,
    F32,
    F64,
}

impl Element {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x08 => Self::U8,
            0x09 => Self::I8,
            0x0b => Self::I16,
            0x0c => Self::I32,
            0x0d => Self::F32,
            0x0e => Self::F64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

impl Idx {
    fn read(mut file: Contents<'_>) -> Result<Self> {
        let magic = file.exactly(4, "the header")?;
        let element = match magic[..] {
            [0, 0, code, _] => Element::from_code(code),
            _ => return Err(file.wrong(0, "not an IDX file, which begins with two zeros")),
        };
        let Some(element) = element else {
            return Err(file.wrong(2, format!("not an IDX file: the element type {:#04x} does not exist", magic[2])));
        };
        let axes = u64::from(magic[3]);
        let header = file.exactly(4 * axes, "the header")?;
        let extents: Vec<_> = header.chunks_exact(4).map(|be| be_bytes(be, u32::from_be_bytes) as usize).collect();
        let count = extents.iter().try_fold(element.bytes(), |bytes, &extent| bytes.checked_mul(extent));
        let Some(count) = count else {
            return Err(file.wrong(4, format!("extents {extents:?} are more than any file holds")));
        };
        let start = file.offset();
        let bytes = file.exactly(count as u64, &format!("elements {extents:?} of {} bytes", element.bytes()))?;
        file.end(&format!("after the elements {extents:?} that its header announces"))?;
        Ok(Self { name: file.name().to_owned(), element, extents, bytes, start })
    }

    /// The elements as numbers.
    fn values(&self) -> impl ExactSizeIterator<Item = f64> {
        self.bytes.chunks_exact(self.element.bytes()).map(|element| match self.element {
            Element::U8 => f64::from(element[0]),
            Element::I8 => f64::from(be_bytes(element, i8::from_be_bytes)),
            Element::I16 => f64::from(be_bytes(element, i16::from_be_bytes)),
            Element::I32 => f64::from(be_bytes(element, i32::from_be_bytes)),
            Element::F32 => f64::from(be_bytes(element, f32::from_be_bytes)),
            Element::F64 => be_bytes(element, f64::from_be_bytes),
        })
    }
}

/// A number from its bytes, the highest first.
fn be_bytes<const N: usize, T>(bytes: &[u8], from: fn([u8; N]) -> T) -> T {
    from(bytes.try_into().expect("a chunk of the element's size"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::data::Array;

    /// A header followed by elements.
    fn idx(element: u8, extents: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut file = vec![0, 0, element, u8::try_from(extents.len()).unwrap()];
        extents.iter().for_each(|extent| file.extend(extent.to_be_bytes()));
        [file, elements.to_vec()].concat()
    }

    /// The dataset of two files with these bytes.
    fn read(images: &[u8], labels: &[u8]) -> Result<Dataset> {
        let folder = tempfile::tempdir().unwrap();
        let [i, l] = ["images", "labels"].map(|name| folder.path().join(name));
        std::fs::write(&i, images).unwrap();
        std::fs::write(&l, labels).unwrap();
        Dataset::from_idx(&i, &l)
    }

    #[test]
    fn every_type_is_read() {
        let labels = idx(8, &[2], &[3, 9]);
        for (code, elements, expected) in [
            (0x08, vec![255, 0], [1.0, 0.0]),
            (0x09, vec![255, 2], [-1.0, 2.0]),
            (0x0b, vec![255, 254, 1, 0], [-2.0, 256.0]),
            (0x0c, vec![255, 255, 255, 253, 0, 1, 0, 0], [-3.0, 65_536.0]),
            (0x0d, [1.5f32, -0.25].map(f32::to_be_bytes).concat(), [1.5, -0.25]),
            (0x0e, [1.5f64, -0.25].map(f64::to_be_bytes).concat(), [1.5, -0.25]),
        ] {
            let dataset = read(&idx(code, &[2, 1, 1], &elements), &labels).unwrap();
            for (index, label) in [3, 9].into_iter().enumerate() {
                assert_eq!(dataset.get(index).unwrap(), (Array::new(vec![expected[index]], [1, 1, 1]).unwrap(), label));
            }
        }
        let wide = read(&idx(8, &[2, 1], &[0, 0]), &idx(0x0c, &[2], &[0, 0, 1, 0, 0, 0, 0, 1])).unwrap();
        assert_eq!(wide.get(0).unwrap(), (Array::from(vec![0.0]), 256));
        assert_eq!(read(&idx(8, &[2, 3, 1, 2], &[0; 12]), &labels).unwrap().shape().unwrap(), Shape::from([3, 1, 2]));
        assert!(read(&idx(8, &[0, 2, 2], &[]), &idx(8, &[0], &[])).unwrap().is_empty());
    }

    #[test]
    fn bytes_need_no_file() {
        let (images, labels) = (idx(8, &[1, 1, 2], &[0, 255]), idx(8, &[1], &[7]));
        let dataset = Dataset::read_idx(&images[..], &labels[..]).unwrap();
        assert_eq!(dataset.get(0).unwrap(), (Array::new(vec![0.0, 1.0], [1, 1, 2]).unwrap(), 7));
        let error = Dataset::read_idx(&images[..], &labels[..8]).unwrap_err().to_string();
        assert!(error.contains("the labels, byte 8"), "{error}");
        let error = Dataset::read_idx(&labels[..], &images[..]).unwrap_err().to_string();
        assert!(error.contains("the images, byte 3: 1 axis"), "{error}");
    }

    #[test]
    fn errors_name_the_file_and_the_byte() {
        let (images, labels) = (idx(8, &[2, 1, 2], &[0; 4]), idx(8, &[2], &[0, 1]));
        let long = [&images[..], &[0]].concat();
        for (images, labels, parts) in [
            (&images[..19], &labels[..], ["images, byte 19: ", "the file ends here"]),
            (&images[..7], &labels, ["images, byte 7: ", "the header"]),
            (&[], &labels, ["images, byte 0: ", "the header"]),
            (&long, &labels, ["images, byte 20: ", "the file goes on"]),
            (b"a text file", &labels, ["images, byte 0: ", "not an IDX file"]),
            (&idx(0x0a, &[2], &[]), &labels, ["images, byte 2: ", "0x0a"]),
            (&idx(8, &[u32::MAX; 3], &[]), &labels, ["images, byte 4: ", "more than any file holds"]),
            (&idx(8, &[u32::MAX, 1, 1], &[0; 9]), &labels, ["images, byte 25: ", "4294967295 bytes from byte 16"]),
            (&labels, &labels, ["images, byte 3: ", "1 axis"]),
            (&idx(8, &[1; 9], &[0]), &labels, ["images, byte 3: ", "9 axes"]),
            (&idx(8, &[], &[0]), &labels, ["images, byte 3: ", "no axes"]),
            (&images, &images, ["labels, byte 3: ", "exchanged"]),
            (&images, &labels[..9], ["labels, byte 9: ", "the file ends here"]),
            (&images, &idx(8, &[3], &[0; 3]), ["3 labels in ", "2 examples in "]),
            (&images, &idx(0x0b, &[2], &[0, 0, 255, 255]), ["labels, byte 10: ", "-1 is not a label"]),
            (&images, &idx(0x0d, &[2], &[127; 8]), ["labels, byte 8: ", "is not a label"]),
        ] {
            let error = read(images, labels).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
            assert!(parts.iter().all(|part| error.to_string().contains(part)), "{parts:?}: {error}");
        }
        let error = read(&idx(8, &[2, 0, 2], &[]), &labels).unwrap_err().to_string();
        assert!(error.contains("images") && error.contains("at least one number"), "{error}");
        let error = Dataset::from_idx("there is no such file", "nor this").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().starts_with("there is no such file could not be read"), "{error}");
    }

    #[cfg(feature = "gzip")]
    fn packed(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gz.write_all(bytes).unwrap();
        gz.finish().unwrap()
    }

    #[cfg(feature = "gzip")]
    #[test]
    fn files_may_be_packed() {
        let elements: Vec<u8> = (0..40_000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let images = packed(&idx(8, &[100, 20, 20], &elements));
        let labels = idx(8, &[100], &[7; 100]);
        let dataset = read(&images, &packed(&labels)).unwrap();
        assert_eq!((dataset.len(), dataset.shape().unwrap()), (100, Shape::from([1, 20, 20])));
        let last = dataset.get(99).unwrap().0.into_values();
        assert!(last.iter().zip(&elements[99 * 400..]).all(|(x, y)| *x == f32::from(*y) / 255.0));

        let mut corrupt = images.clone();
        corrupt[images.len() / 2] ^= 0xff;
        let half = &images[..images.len() / 2];
        for wrong in [half, &images[..images.len() - 1], &corrupt, &packed(&idx(8, &[3, 1, 1], &[0; 2])), &images[..2]]
        {
            let error = read(wrong, &labels).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Data, "{error}");
            assert!(error.to_string().contains("images, byte "), "{error}");
            assert!(error.to_string().contains("of what was unpacked"), "{error}");
        }
    }

    #[cfg(not(feature = "gzip"))]
    #[test]
    fn packed_files_name_the_feature() {
        let error = read(&[0x1f, 0x8b, 8, 0], &[]).unwrap_err().to_string();
        assert!(error.contains("feature `gzip`"), "{error}");
    }
}
