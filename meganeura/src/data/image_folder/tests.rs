use image::{GrayImage, RgbImage};

use super::*;
use crate::data::Dataset;

/// Writes an image of one colour, and creates its folder if necessary.
fn image(root: &Path, name: &str, [height, width]: [u32; 2], gray: u8) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(width, height, image::Rgb([gray, gray, 0])).save(path).unwrap();
}

fn expect(result: Result<impl std::fmt::Debug>, parts: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    // Messages use this system's path separator.
    let message = error.to_string().replace('\\', "/");
    assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
}

#[test]
fn classes_and_images_come_by_name() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    image(root, "dog/10.png", [2, 3], 51);
    image(root, "dog/1.bmp", [2, 3], 102);
    image(root, "cat/x.PPM", [2, 3], 255);
    fs::create_dir(root.join(".hidden")).unwrap();
    fs::write(root.join("cat/.hidden"), "").unwrap();
    let folder = ImageFolder::open(root).unwrap();
    assert_eq!((folder.classes(), folder.len()), (&["cat".to_owned(), "dog".to_owned()][..], 3));
    assert_eq!(folder.path(1), Some(root.join("dog").join("1.bmp")));
    assert_eq!(folder.path(3), None);
    folder.check().unwrap();
    let dataset = Dataset::of(folder.clone()).unwrap();
    assert_eq!(dataset.shape().unwrap(), Shape::from([3, 2, 3]));
    assert_eq!(dataset.targets().unwrap(), [0, 1, 1]);
    let examples = [0, 1, 2].map(|i| dataset.get(i).unwrap());
    assert_eq!(
        examples.each_ref().map(|(example, label)| (example.values()[0], example.values()[17], *label)),
        [(1.0, 0.0, 0), (0.4, 0.0, 1), (0.2, 0.0, 1)]
    );
    let gray = Dataset::of(folder.gray().resize(1, 1)).unwrap();
    assert_eq!(gray.shape().unwrap(), Shape::from([1, 1, 1]));
    assert!(gray.get(0).unwrap().0.values()[0] > 0.5);
}

#[test]
fn images_of_other_sizes_are_named_or_resized() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    image(root, "a/1.png", [4, 4], 0);
    image(root, "a/2.png", [4, 5], 255);
    image(root, "b/3.png", [8, 4], 255);
    let folder = ImageFolder::open(root).unwrap();
    expect(folder.check(), &["2 wrong", "a/2.png: 4 by 5 pixels", "b/3.png: 8 by 4 pixels", "has 4 by 4", "`resize`"]);
    let dataset = Dataset::of(folder.clone()).unwrap();
    expect(dataset.get(1), &["a/2.png: 4 by 5 pixels"]);
    assert!(dataset.get(0).is_ok());
    let folder = folder.resize(6, 2);
    folder.check().unwrap();
    let (resized, _) = Dataset::of(folder.clone()).unwrap().get(2).unwrap();
    assert_eq!(resized.values(), [[1.0; 24].as_slice(), &[0.0; 12]].concat());
    let nothing = Dataset::of(folder.resize(0, 3)).unwrap().get(0).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::Argument, "{nothing}");
}

#[test]
fn images_with_other_channels_are_named_or_converted() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    image(root, "a/1.png", [1, 1], 255);
    GrayImage::from_raw(1, 1, vec![51]).unwrap().save(root.join("a/2.png")).unwrap();
    let folder = ImageFolder::open(root).unwrap();
    expect(folder.check(), &["a folder of images: ", "a/2.png: 1 channels", "first image has 3", "`rgb()`"]);
    expect(Dataset::of(folder.clone()).unwrap().get(1), &["a/2.png: 1 channels"]);
    assert_eq!(Dataset::of(folder.clone().rgb()).unwrap().get(1).unwrap().0.values(), [0.2; 3]);
    assert_eq!(Dataset::of(folder.gray()).unwrap().get(1).unwrap().0.values(), [0.2]);
}

#[test]
fn misplaced_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    expect(ImageFolder::open(root), &["no folders"]);
    image(root, "a/1.png", [1, 1], 0);
    image(root, "a/nested/1.png", [1, 1], 0);
    image(root, "beside.png", [1, 1], 0);
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("a/photo.WebP"), "").unwrap();
    fs::write(root.join("empty/notes.txt"), "").unwrap();
    expect(
        ImageFolder::open(root),
        &[
            "4 wrong",
            "a/photo.WebP: an image of a format that is not read",
            "a/nested: a folder inside of a class",
            "beside.png: an image beside",
            "empty: a class without images",
        ],
    );
    (0..20).for_each(|i| fs::write(root.join(format!("a/{i}.tif")), "").unwrap());
    expect(ImageFolder::open(root), &["24 wrong", "and 14 more"]);
    assert_eq!(ImageFolder::open(root.join("nowhere")).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(ImageFolder::open(root.join("beside.png")).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn stray_files_are_skipped() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    image(root, "a/1.png", [1, 1], 0);
    image(root, "b/2.png", [1, 1], 255);
    for stray in ["a/Thumbs.db", "a/README", "b/notes.txt", "README.md", ".DS_Store"] {
        fs::write(root.join(stray), "no picture").unwrap();
    }
    let folder = ImageFolder::open(root).unwrap();
    assert_eq!((folder.len(), folder.classes().len()), (2, 2));
    folder.check().unwrap();
    assert_eq!(folder.path(1), Some(root.join("b").join("2.png")));
}

/// A PNG with an EXIF orientation: the same pixels, turned only if asked for.
#[test]
fn exif_orientation_is_applied_if_asked_for() {
    use image::ImageEncoder;
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::create_dir(root.join("a")).unwrap();
    for (orientation, turned) in
        [(1, [0.0, 0.2, 1.0]), (6, [0.0, 0.2, 1.0]), (8, [1.0, 0.2, 0.0]), (2, [1.0, 0.2, 0.0])]
    {
        // A little-endian TIFF header, and a directory of one entry: tag 0x112, a short.
        let exif = [b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", &[orientation, 0, 0, 0][..], &[0; 4]].concat();
        let mut file = Vec::new();
        let mut encoder = image::codecs::png::PngEncoder::new(&mut file);
        encoder.set_exif_metadata(exif).unwrap();
        encoder.write_image(&[0, 51, 255], 3, 1, image::ExtendedColorType::L8).unwrap();
        fs::write(root.join("a/1.png"), file).unwrap();
        let folder = ImageFolder::open(root).unwrap();
        let stored = Dataset::of(folder.clone()).unwrap();
        assert_eq!(stored.get(0).unwrap().0, Array::new(vec![0.0, 0.2, 1.0], [1, 1, 3]).unwrap());
        let upright = folder.exif_transpose().unwrap();
        upright.check().unwrap();
        let shape = if orientation > 4 { [1, 3, 1] } else { [1, 1, 3] };
        assert_eq!(Dataset::of(upright).unwrap().get(0).unwrap().0, Array::new(turned.to_vec(), shape).unwrap());
    }
}

#[test]
fn text_under_the_name_of_an_image_is_named() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    image(root, "a/2.png", [1, 1], 0);
    fs::write(root.join("a/3.png"), "a text file").unwrap();
    let folder = ImageFolder::open(root).unwrap();
    expect(folder.check(), &["a folder of images: ", "a/3.png, byte ", "not a readable image"]);
    expect(Dataset::of(folder).unwrap().get(1), &["a/3.png, byte "]);
    fs::write(root.join("a/1.png"), "").unwrap();
    expect(ImageFolder::open(root), &["a/1.png, byte 0"]);
}

/// The error comes before any pixel is allocated.
#[test]
fn a_first_image_beyond_the_limit_is_named() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::create_dir(root.join("a")).unwrap();
    for (file, part) in [
        ("P5 3000000 3000000 255\n", "3000000 by 3000000 pixels, and the limit is 67108864 pixels"),
        ("P5 4294967295 4294967295 1\n", "4294967295 by 4294967295 pixels"),
        ("P6 8000 8000 255\n", "8000 by 8000 pixels are announced by a file of 17 bytes"),
    ] {
        fs::write(root.join("a/1.ppm"), file).unwrap();
        expect(ImageFolder::open(root), &["a/1.ppm, byte ", part]);
    }
    image(root, "a/1.ppm", [4, 4], 0);
    assert_eq!(ImageFolder::open_with_limit(root, 16).unwrap().len(), 1);
    expect(ImageFolder::open_with_limit(root, 15), &["a/1.ppm, byte ", "4 by 4 pixels, and the limit is 15 pixels"]);
    // The limit also applies to a size that the caller requests.
    let wide = |width| Dataset::of(ImageFolder::open_with_limit(root, 64).unwrap().resize(16, width)).unwrap().get(0);
    assert!(wide(4).is_ok());
    expect(wide(5), &["a/1.ppm: 4 by 4 pixels resized to 16 by 5 take 80 pixels in between, and the limit is 64"]);
    let tall = Dataset::of(ImageFolder::open_with_limit(root, 64).unwrap().resize(17, 1)).unwrap();
    expect(tall.get(0), &["17 by 1 take 68 pixels in between"]);
}
