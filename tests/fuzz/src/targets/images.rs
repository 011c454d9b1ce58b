//! Folders of images: PNG, JPEG, BMP and PNM.

use std::io::Cursor;

use fastrand::Rng;
use image::{DynamicImage, ImageFormat};
use meganeura::ErrorKind;
use meganeura::data::{Dataset, ImageFolder};

use super::{Target, documented, file, scratch};
use crate::mutate;

const KINDS: [ErrorKind; 1] = [ErrorKind::Data];

/// The limit on pixels: what fits into the memory limit, both decoded and as floats.
const PIXELS: u64 = 1 << 21;

/// Folders whose first or second image is the input.
pub struct Folder;

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).expect("the format takes such images");
    bytes.into_inner()
}

/// PNG's checksum of a chunk.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

impl Folder {
    fn take(input: &[u8]) -> Result<bool, String> {
        let folder = scratch();
        let class = folder.path().join("class");
        std::fs::create_dir(&class).expect("temporary folders can be made");
        file(&folder, "class/1.png", input);
        // The first image decides the shape of all.
        let first = documented(ImageFolder::open_with_limit(folder.path(), PIXELS).and_then(Dataset::of), &KINDS)?;
        let is_read = match first {
            Some(first) => documented(first.get(0), &KINDS)?.is_some(),
            None => false,
        };
        file(&folder, "class/0.png", &encoded(&DynamicImage::new_rgb8(2, 3), ImageFormat::Png));
        let alike = ImageFolder::open_with_limit(folder.path(), PIXELS)
            .map(|folder| folder.resize(4, 4).gray())
            .and_then(Dataset::of);
        if let Some(alike) = documented(alike, &KINDS)? {
            documented(alike.get(1), &KINDS)?;
        }
        Ok(is_read)
    }
}

impl Target for Folder {
    fn name(&self) -> &'static str {
        "images"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let (color, gray) = (DynamicImage::new_rgb8(5, 4), DynamicImage::new_luma16(3, 3));
        vec![
            encoded(&color, ImageFormat::Png),
            encoded(&gray, ImageFormat::Png),
            encoded(&DynamicImage::new_rgba8(2, 2), ImageFormat::Png),
            encoded(&color, ImageFormat::Jpeg),
            encoded(&color, ImageFormat::Bmp),
            encoded(&color, ImageFormat::Pnm),
            b"P2 3 1 255\n0 128 255\n".to_vec(),
            b"P4 9 1 \x00\x80".to_vec(),
            b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 2\nMAXVAL 255\nTUPLTYPE GRAYSCALE_ALPHA\nENDHDR\n\0\x01\x02\x03".to_vec(),
        ]
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "P1 ",
            "P3 ",
            "P5 4294967295 4294967295 255\n",
            "P6 65536 65536 65535\n",
            "P7\nWIDTH ",
            "ENDHDR\n",
            "IHDR",
            "#\n",
        ]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        // A PNG whose header claims other extents, with a valid checksum.
        if input.starts_with(b"\x89PNG") && input.len() >= 33 {
            let mut head = input[16..29].to_vec();
            mutate::bytes(&mut head, rng);
            head.resize(13, 0);
            input[16..29].copy_from_slice(&head);
            let sum = crc(&input[12..29]);
            input[29..33].copy_from_slice(&sum.to_be_bytes());
        } else {
            mutate::bytes(input, rng);
        }
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        Self::take(input)
    }
}
