use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::Device;
use crate::io::tensors_from_safetensors;

fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
}

fn header(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   \n")
}

fn archive(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in entries {
        writer.start_file(format!("{name}.npy"), stored).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// An archive with one compressed entry, which claims these sizes.
fn packed(contents: &[u8], size: u32) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(contents).unwrap();
    let data = encoder.finish().unwrap();
    let mut checksum = Crc::new();
    checksum.update(contents);
    let length = u32::try_from(data.len()).unwrap();
    let fields = |start: &[u8]| {
        let sizes = [checksum.sum(), length, size].map(u32::to_le_bytes).concat();
        [start, &[20, 0, 0, 0, 8, 0, 0, 0, 0, 0], &sizes, &[5, 0, 0, 0]].concat()
    };
    let local = [fields(b"PK\x03\x04"), b"x.npy".to_vec(), data].concat();
    let central = [fields(b"PK\x01\x02\x14\x00"), vec![0; 14], b"x.npy".to_vec()].concat();
    let [count, at] = [central.len(), local.len()].map(|length| u32::try_from(length).unwrap().to_le_bytes());
    [&local[..], &central, b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &count, &at, &[0, 0]].concat()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn arrays_are_read_or_refused_by_name() -> Result<()> {
    let six = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let file = archive(&[
        ("rows", npy(&header("<f4", "False", "(2, 3)"), &six)),
        ("columns", npy(&header("<f4", "True", "(2, 3)"), &six)),
        ("scalar", npy(&header("<f4", "False", "()"), &floats(&[7.0]))),
        ("old", npy("{\"descr\":\"|u1\",\"fortran_order\":False,\"shape\":(2L,)}", &[3, 4])),
        ("wide", npy(&header(">f4", "False", "(1,)"), &[0; 4])),
        ("text", npy(&header("<U2", "False", "(1,)"), &[0; 8])),
        ("record", npy("{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,), }", &[0; 8])),
    ]);
    let tensors = tensors_from_safetensors(&to_safetensors(&file)?, &Device::cpu())?;
    assert_eq!(tensors["rows"].to_vec()?, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(tensors["columns"].to_vec()?, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    assert_eq!((tensors["scalar"].item()?, tensors["old"].to_u32_vec()?), (7.0, vec![3, 4]));
    assert_eq!(tensors.refused().keys().collect::<Vec<_>>(), ["record", "text", "wide"]);
    for end in 0..file.len() {
        let error = to_safetensors(&file[..end]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Checkpoint, "{end}");
    }
    Ok(())
}

#[test]
fn an_array_by_itself_has_the_name_that_numpy_gives() -> Result<()> {
    let file = npy(&header("<f4", "True", "(2, 3)"), &floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    let tensors = tensors_from_safetensors(&to_safetensors(&file)?, &Device::cpu())?.complete()?;
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["arr_0"]);
    assert_eq!(tensors["arr_0"].to_vec()?, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    for end in 0..file.len() {
        assert_eq!(to_safetensors(&file[..end]).unwrap_err().kind(), ErrorKind::Checkpoint, "{end}");
    }
    let wide = to_safetensors(&npy(&header(">f4", "False", "(1,)"), &[0; 4]))?;
    let error = tensors_from_safetensors(&wide, &Device::cpu())?.complete().unwrap_err();
    assert_eq!(error.message(), "`arr_0`: a NumPy array with the highest byte of its numbers first");
    Ok(())
}

#[test]
fn compressed_arrays_are_no_larger_than_they_claim() {
    let zeros = npy(&header("<f4", "False", "(5000,)"), &[0; 20_000]);
    let size = u32::try_from(zeros.len()).unwrap();
    let file = to_safetensors(&packed(&zeros, size)).unwrap();
    assert_eq!(tensors_from_safetensors(&file, &Device::cpu()).unwrap()["x"].shape(), [5000].into());
    for (claimed, part) in [(size - 1, "damaged"), (size + 1, "damaged"), (u32::MAX - 1, "larger than its compressed")]
    {
        let error = to_safetensors(&packed(&zeros, claimed)).unwrap_err();
        assert!(error.message().contains(part), "{error}");
    }
}

#[test]
fn headers_that_describe_no_array_are_errors() {
    for (header, data) in [
        (header("<f4", "False", "(2,)"), 4),
        (header("<f4", "False", "(18446744073709551615, 9)"), 4),
        (header("<f4", "False", "(1, 1"), 4),
        (header("<f4", "Maybe", "(1,)"), 4),
        ("{'descr': '<f4', 'shape': (1,)}".to_owned(), 4),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}".to_owned(), 4),
        (header("<f4", "False", &format!("({})", "1, ".repeat(65))), 4),
        (String::new(), 4),
    ] {
        let error = to_safetensors(&archive(&[("x", npy(&header, &vec![0; data]))])).unwrap_err();
        assert!(error.kind() == ErrorKind::Checkpoint && error.message().starts_with("x: "), "{header}: {error}");
    }
    let one = || npy(&header("<f4", "False", "(1,)"), &[0; 4]);
    assert!(to_safetensors(&archive(&[("x", one()[..9].to_vec())])).is_err());
    assert!(!is_npz(b"PK\x03\x04") && is_npz(&archive(&[("x", one())])));
}
