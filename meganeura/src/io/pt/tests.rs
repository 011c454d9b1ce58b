use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::to_safetensors;
use crate::io::tensors_from_safetensors;
use crate::{Device, ErrorKind, Result};

/// An archive with this pickle and these storages.
fn archive(pickle: &[u8], storages: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let data = storages.iter().map(|(key, bytes)| (format!("net/data/{key}"), &bytes[..]));
    for (name, bytes) in
        [("net/data.pkl".to_owned(), pickle), ("net/byteorder".to_owned(), &b"little"[..])].into_iter().chain(data)
    {
        writer.start_file(name, stored).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn tuple(items: &[&[u8]]) -> Vec<u8> {
    [b"(", &items.concat()[..], b"t"].concat()
}

fn ints(numbers: &[u8]) -> Vec<u8> {
    tuple(
        &numbers
            .iter()
            .map(|number| vec![b'K', *number])
            .collect::<Vec<_>>()
            .iter()
            .map(|item| &item[..])
            .collect::<Vec<_>>(),
    )
}

fn tensor(class: &str, key: &str, offset: u8, shape: &[u8], strides: &[u8]) -> Vec<u8> {
    let class = format!("ctorch\n{class}\n").into_bytes();
    let storage = [tuple(&[&text("storage"), &class, &text(key), &text("cpu"), b"K\x08"]), b"Q".to_vec()].concat();
    let offset = [b'K', offset];
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        &tuple(&[&storage, &offset, &ints(shape), &ints(strides), b"\x89", b"N"])[..],
        b"R",
    ]
    .concat()
}

fn dict(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let items: Vec<u8> = pairs.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [b"}(", &items[..], b"u"].concat()
}

fn pickle(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02", value, b"."].concat()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn error(bytes: &[u8]) -> String {
    let error = to_safetensors(bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
    error.to_string()
}

#[test]
fn views_are_gathered_row_by_row() -> Result<()> {
    let storage = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let of = |offset, shape: &[u8], strides: &[u8]| tensor("FloatStorage", "0", offset, shape, strides);
    let value = dict(&[
        ("plain", of(0, &[2, 4], &[4, 1])),
        ("turned", of(1, &[3, 2], &[1, 3])),
        ("repeated", of(5, &[2, 1, 2], &[0, 9, 1])),
        ("scalar", of(7, &[], &[])),
        ("epoch", b"K\x03".to_vec()),
        ("inner", dict(&[("tied", of(0, &[2, 4], &[4, 1])), ("labels", tensor("LongStorage", "1", 0, &[2], &[1]))])),
    ]);
    let longs = [5i64, 7].iter().flat_map(|number| number.to_le_bytes()).collect();
    let file = to_safetensors(&archive(&pickle(&value), &[("0", storage), ("1", longs)]))?;
    let tensors = tensors_from_safetensors(&file, &Device::cpu())?;
    let names = ["inner.labels", "inner.tied", "plain", "repeated", "scalar", "turned"];
    assert_eq!(tensors.keys().collect::<Vec<_>>(), names);
    assert_eq!(safetensors::SafeTensors::deserialize(&file).unwrap().len(), 5, "both names have one tensor");
    assert_eq!(tensors["inner.tied"].to_vec()?, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(tensors["turned"].to_vec()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(tensors["repeated"].to_vec()?, [5.0, 6.0, 5.0, 6.0]);
    assert_eq!(tensors["scalar"].item()?, 7.0);
    assert_eq!(tensors["inner.labels"].to_u32_vec()?, [5, 7]);
    Ok(())
}

#[test]
fn pickles_that_call_code_are_refused_by_name() {
    let call = |global: &str, arguments: &[&[u8]]| {
        let global = format!("c{global}\n").into_bytes();
        archive(&pickle(&[&global[..], &tuple(arguments), b"R"].concat()), &[])
    };
    let message = error(&call("os\nsystem", &[&text("rm -rf /")]));
    assert!(message.contains("would call `os.system`") && message.contains("nothing of the file was run"), "{message}");
    // A whole saved module, and known names with unexpected arguments.
    assert!(error(&call("torchvision.models.resnet\nResNet", &[])).contains("`torchvision.models.resnet.ResNet`"));
    assert!(error(&call("collections\nOrderedDict", &[b"N"])).contains("`collections.OrderedDict`"));
    assert!(error(&call("torch._utils\n_rebuild_tensor_v2", &[b"N", b"N"])).contains("_rebuild_tensor_v2"));
    // A name without a call has no effect.
    assert!(error(&archive(&pickle(b"cos\nsystem\n"), &[])).contains("the file has no tensors"));
}

#[test]
fn tensors_that_do_not_fit_their_storage_are_errors() {
    let of = |class: &str, offset, shape: &[u8], strides: &[u8]| {
        archive(&pickle(&dict(&[("w", tensor(class, "0", offset, shape, strides))])), &[("0", floats(&[0.0; 4]))])
    };
    assert!(to_safetensors(&of("FloatStorage", 0, &[4], &[1])).is_ok());
    assert!(error(&of("FloatStorage", 1, &[4], &[1])).contains("w: it reaches beyond its storage `0` of 16 bytes"));
    assert!(error(&of("FloatStorage", 0, &[2], &[4])).contains("beyond"));
    assert!(error(&of("DoubleStorage", 0, &[4], &[1])).contains("beyond"));
    assert!(error(&of("FloatStorage", 0, &[255; 9], &[0; 9])).contains("64 times the file"));
    assert!(error(&of("ComplexFloatStorage", 0, &[1], &[1])).contains("`ComplexFloatStorage`"));
    assert!(error(&of("FloatStorage", 0, &[4], &[])).contains("invalid extents"));
    let missing = archive(&pickle(&dict(&[("w", tensor("FloatStorage", "7", 0, &[1], &[1]))])), &[]);
    assert!(error(&missing).contains("`net/data/7`"));
    assert!(error(b"PK\x03\x04 and no more").contains("not a complete file of `torch.save`"));
}

#[test]
fn every_truncated_or_changed_pickle_is_an_error_or_read() {
    let whole = pickle(&dict(&[("w", tensor("FloatStorage", "0", 0, &[2, 2], &[2, 1]))]));
    let read = |pickle: &[u8]| to_safetensors(&archive(pickle, &[("0", floats(&[0.0; 4]))]));
    assert!(read(&whole).is_ok());
    for end in 0..whole.len() {
        assert!(read(&whole[..end]).is_err(), "{end}");
    }
    for at in 0..whole.len() {
        for byte in [0, 1, b'(', b')', b'.', b'0', b'R', b'Q', b'h', b'u', 0x85, 0xff] {
            let mut changed = whole.clone();
            changed[at] = byte;
            drop(read(&changed));
        }
    }
}

#[test]
fn cyclic_and_deep_pickles_are_refused() {
    // A list that contains itself.
    assert!(error(&archive(&pickle(b"]q\x00h\x00a"), &[])).contains("in a cycle"));
    let deep = [&b")"[..], &[0x85; 100_000]].concat();
    assert!(error(&archive(&pickle(&deep), &[])).contains("deep"));
    // Each list contains the previous one twice.
    let doubled = (0..50u8).flat_map(|level| [b'q', level, b']', b'(', b'h', level, b'h', level, b'e']);
    let doubled = [&b"]"[..], &doubled.collect::<Vec<_>>()].concat();
    assert!(error(&archive(&pickle(&doubled), &[])).contains("more than 4194304 values"));
}
