//! Data files: IDX, CIFAR and CSV, with or without gzip.

use std::io::Write;

use fastrand::Rng;
use flate2::Compression;
use flate2::write::GzEncoder;
use meganeura::ErrorKind;
use meganeura::data::{self, Cifar100Label, Dataset};

use super::{Target, documented, file, join, scratch, split};
use crate::mutate;

const KINDS: [ErrorKind; 2] = [ErrorKind::Data, ErrorKind::Shape];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).and_then(|()| packed.finish()).expect("memory can be written")
}

/// Reads every example of a dataset.
fn examples(dataset: Result<Dataset, meganeura::Error>) -> Result<bool, String> {
    let Some(dataset) = documented(dataset, &KINDS)? else { return Ok(false) };
    for index in 0..dataset.len().min(4) {
        documented(dataset.get(index), &KINDS)?;
    }
    Ok(true)
}

/// Images and labels in MNIST's format: two files.
pub struct Idx;

impl Idx {
    fn take(input: &[u8]) -> Result<bool, String> {
        let folder = scratch();
        let (images, labels) = split(input);
        examples(Dataset::from_idx(file(&folder, "images", images), file(&folder, "labels", labels)))
    }
}

impl Target for Idx {
    fn name(&self) -> &'static str {
        "idx"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let images = [&[0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2][..], &[7; 12]].concat();
        let labels = [0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2];
        let floats = [&[0, 0, 0xd, 2, 0, 0, 0, 2, 0, 0, 0, 2][..], &1.5_f32.to_be_bytes().repeat(4)].concat();
        let wide = [0, 0, 0xb, 1, 0, 0, 0, 2, 0, 1, 0, 0];
        vec![join(&images, &labels), join(&floats, &wide), join(&gzip(&images), &gzip(&labels))]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        let (images, labels) = split(input);
        let mut parts = [images.to_vec(), labels.to_vec()];
        let part = &mut parts[rng.usize(..2)];
        match rng.u8(..4) {
            0 => *part = gzip(part),
            // A decompression bomb.
            1 => *part = gzip(&[&part[..], &vec![0; 1 << rng.u32(..24)]].concat()),
            _ => mutate::bytes(part, rng),
        }
        parts[0].truncate(usize::from(u16::MAX));
        *input = join(&parts[0], &parts[1]);
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}

/// Records of 10 or 100 classes.
pub struct Cifar;

impl Cifar {
    fn take(input: &[u8]) -> Result<bool, String> {
        let folder = scratch();
        let path = file(&folder, "batch", input);
        let ten = examples(Dataset::from_cifar10([&path]))?;
        let hundred = examples(Dataset::from_cifar100([&path], Cifar100Label::Fine))?;
        Ok(ten || hundred)
    }
}

impl Target for Cifar {
    fn name(&self) -> &'static str {
        "cifar"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let record = |labels: &[u8]| [labels, &[100; 3072]].concat();
        vec![[record(&[3]), record(&[9])].concat(), record(&[19, 99]), gzip(&record(&[0]))]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        *input = if rng.bool() { gzip(input) } else { gzip(&vec![rng.u8(..12); 3073 << rng.u32(..12)]) };
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}

/// Rows of numbers.
pub struct Csv;

impl Csv {
    fn take(input: &[u8]) -> Result<bool, String> {
        let plain = examples(data::Csv::new([2]).read_from("plain", input))?;
        let other = data::Csv::new([1, 2]).target_first().header().divided_by(16.0).classes(3);
        Ok(examples(other.read_from("other", input))? || plain)
    }
}

impl Target for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let rows = b"0.5,-1e-3,2\r\n7,8,0\n";
        vec![rows.to_vec(), b"label,a,b\n1,3,4\n2,5,6\n".to_vec(), gzip(rows)]
    }

    fn words(&self) -> &'static [&'static str] {
        &["\n", "\r\n", ",", "nan", "inf", "1e999", "-0", "\"1\"", "4294967296", "\u{feff}"]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        *input = if rng.bool() { gzip(input) } else { gzip(&mutate::repeated(input, rng)) };
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}
