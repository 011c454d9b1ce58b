mod objects;

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::work::Work;
use super::{convert, to_safetensors};
use crate::io::{Checkpoint, Names, tensors_from_safetensors};
use crate::nn::Linear;
use crate::{Device, ErrorKind, Init, Result, Seed};

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

/// A tensor with metadata.
fn flagged(class: &str, flags: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = tensor(class, "0", 0, &[3], &[1]);
    // Behind the six arguments, before the tuple's end and the call.
    let flags = dict(&flags.iter().map(|(name, value)| (*name, value.to_vec())).collect::<Vec<_>>());
    let end = bytes.len() - 2;
    bytes.splice(end..end, flags);
    bytes
}

#[test]
fn negated_numbers_have_the_other_sign() -> Result<()> {
    let read = |class: &str, flags: &[(&str, &[u8])], storage: Vec<u8>| {
        let value = dict(&[("w", flagged(class, flags)), ("x", tensor("FloatStorage", "1", 0, &[1], &[1]))]);
        let file = to_safetensors(&archive(&pickle(&value), &[("0", storage), ("1", floats(&[1.0]))]))?;
        tensors_from_safetensors(&file, &Device::cpu())
    };
    let numbers = || floats(&[0.0, 1.5, -2.0]);
    let w = read("FloatStorage", &[("neg", b"\x88")], numbers())?["w"].to_vec()?;
    assert_eq!(w.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [-0.0f32, -1.5, 2.0].map(f32::to_bits));
    assert_eq!(
        read("FloatStorage", &[("neg", b"\x89"), ("conj", b"\x89")], numbers())?["w"].to_vec()?,
        [0.0, 1.5, -2.0]
    );
    let longs = [-256i64, 0, -1].iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(read("LongStorage", &[("neg", b"\x88")], longs)?["w"].to_u32_vec()?, [256, 0, 1]);
    // What is not understood is never ignored.
    for (class, flags, why) in [
        ("FloatStorage", [("conj", &b"\x88"[..])], "its flag `conj` is not supported"),
        ("FloatStorage", [("later", b"K\x01")], "its flag `later` is not supported"),
        ("BoolStorage", [("neg", b"\x88")], "BOOL has no negative ones"),
    ] {
        let tensors = read(class, &flags, numbers())?;
        assert!(tensors.contains_key("x") && tensors.tensor("w").unwrap_err().message().contains(why), "{tensors:?}");
    }
    Ok(())
}

#[test]
fn tensors_that_are_not_supported_are_refused_by_name() -> Result<()> {
    let rebuilt = |function: &str| [format!("ctorch._utils\n{function}\n").as_bytes(), &tuple(&[b"N"]), b"R"].concat();
    let value = dict(&[
        ("weight", tensor("FloatStorage", "0", 0, &[1, 1], &[1, 1])),
        ("bias", tensor("FloatStorage", "0", 1, &[1], &[1])),
        ("z", tensor("ComplexFloatStorage", "0", 0, &[1], &[1])),
        ("q", rebuilt("_rebuild_qtensor")),
        ("s", rebuilt("_rebuild_sparse_tensor")),
        ("empty", tensor("FloatStorage", "0", 0, &[0], &[1])),
        ("huge", tensor("FloatStorage", "0", 0, &[255; 4], &[0; 4])),
    ]);
    let file = to_safetensors(&archive(&pickle(&value), &[("0", floats(&[2.0, 3.0]))]))?;
    let tensors = tensors_from_safetensors(&file, &Device::cpu())?;
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["bias", "weight"]);
    assert_eq!(tensors.refused().keys().collect::<Vec<_>>(), ["empty", "huge", "q", "s", "z"]);
    for (name, why) in [
        ("z", "`ComplexFloatStorage`"),
        ("q", "quantised"),
        ("s", "`_rebuild_sparse_tensor`"),
        ("empty", "no elements"),
        ("huge", "`clone()`"),
    ] {
        assert!(tensors.tensor(name).unwrap_err().message().contains(why), "{name}");
    }
    // A model that needs none of them loads; one that does names it.
    let mut net = Linear::new(1, 1).init(&Device::cpu(), Seed::new(1))?;
    let report = net.load_safetensors(&file)?;
    assert_eq!((report.loaded.len(), report.unexpected.len()), (2, 5), "{report:?}");
    assert_eq!(net.weight.value().item()?, 2.0);
    let error = net.load_safetensors_with(&file, &Names::new().rename("bias", "b").rename("z", "bias")).unwrap_err();
    assert!(error.to_string().contains("`z`: elements of a `ComplexFloatStorage`"), "{error}");
    assert_eq!(net.bias.as_ref().expect("it has one").value().item()?, 3.0, "nothing changed");
    Ok(())
}

#[test]
fn types_without_storages_of_their_own_are_read() -> Result<()> {
    let of = |dtype: &str| {
        let storage = [
            tuple(&[&text("storage"), b"ctorch.storage\nUntypedStorage\n", &text("0"), &text("cpu"), b"K\x08"]),
            b"Q".to_vec(),
        ];
        let dtype = format!("ctorch\n{dtype}\n").into_bytes();
        let arguments = tuple(&[&storage.concat(), b"K\x01", &ints(&[2]), &ints(&[1]), b"\x89", b"N", &dtype]);
        [b"ctorch._utils\n_rebuild_tensor_v3\n", &arguments[..], b"R"].concat()
    };
    let value = dict(&[("mask", of("uint16")), ("z", of("complex32"))]);
    let file = to_safetensors(&archive(&pickle(&value), &[("0", vec![9, 9, 1, 0, 2, 1])]))?;
    let tensors = tensors_from_safetensors(&file, &Device::cpu())?;
    assert_eq!(tensors["mask"].to_u32_vec()?, [1, 258]);
    assert!(tensors.refused()["z"].contains("`torch.complex32`"));
    Ok(())
}

#[test]
fn keys_that_are_no_texts_are_shown() -> Result<()> {
    let w = || tensor("FloatStorage", "0", 0, &[1], &[1]);
    let with = |key: &[u8]| [b"}(", key, &w(), b"u"].concat();
    let float = [b"G", &0.999f64.to_be_bytes()[..]].concat();
    let long = text(&"k".repeat(10_000));
    let read = |value: &[u8]| to_safetensors(&archive(&pickle(value), &[("0", floats(&[1.0]))]));
    for (key, name) in [
        (&float[..], "ema.0.999"),
        (b"K\x07", "ema.7"),
        (b"\x88", "ema.True"),
        (b"N", "ema.None"),
        (b"K\x01K\x02\x86", "ema.(1, 2)"),
        (b"ctorch\nfloat32\n", "ema.torch.float32"),
        (&long, &format!("ema.{}", "k".repeat(10_000))),
    ] {
        let tensors = tensors_from_safetensors(&read(&dict(&[("ema", with(key))]))?, &Device::cpu())?;
        assert_eq!(tensors.keys().collect::<Vec<_>>(), [name]);
    }
    for (key, name) in [(&b"C\x01x"[..], "ema.b'x'"), (b"]", "ema.<object>"), (b"ca\nB\n)R", "ema.<a.B>")] {
        let tensors = tensors_from_safetensors(&read(&dict(&[("ema", with(key))]))?, &Device::cpu())?;
        assert_eq!(tensors.keys().collect::<Vec<_>>(), [name]);
    }
    // `{"ema": {0.5: …, "0": {"5": …}}}`: the same tensor twice, or two.
    let half = [b"G", &0.5f64.to_be_bytes()[..]].concat();
    let two = |other| [b"}(", &half[..], &w(), &text("0"), &dict(&[("5", other)]), b"u"].concat();
    assert!(read(&dict(&[("ema", two(w()))])).is_ok());
    let other = tensor("FloatStorage", "0", 0, &[1, 1], &[1, 1]);
    assert!(read(&dict(&[("ema", two(other))])).unwrap_err().to_string().contains("two tensors are called `ema.0.5`"));
    Ok(())
}

/// Attacks of a size: values that are described once and referred to often. Twice the size takes twice the steps.
#[test]
fn work_is_proportional_to_the_file() {
    let repeat = |count: usize, bytes: &[u8]| bytes.repeat(count);
    let w = tensor("FloatStorage", "0", 0, &[1], &[1]);
    let long = text(&"n".repeat(100_000));
    let attack = |name: &str, n: usize| -> Vec<u8> {
        match name {
            // A long tuple as the argument of every call.
            "calls" => [
                &b"ccollections\nOrderedDict\nq\x01("[..],
                &repeat(n, b"N"),
                b"tq\x020",
                &repeat(n, b"h\x01h\x02R0"),
                b"N",
            ]
            .concat(),
            "sizes" => [
                &b"ctorch\nSize\nq\x01("[..],
                &repeat(60, b"N"),
                b"tq\x02\x85q\x030(",
                &repeat(n, b"h\x01h\x03R"),
                b"l",
            ]
            .concat(),
            "storages" => {
                let id =
                    [b"(", &text("storage")[..], b"ctorch\nFloatStorage\n", &text("0"), &repeat(n, b"N"), b"tq\x01"]
                        .concat();
                [id, b"0".to_vec(), repeat(n, b"h\x01Q0"), b"N".to_vec()].concat()
            }
            "globals" => [&long[..], b"q\x010(", &repeat(n, b"h\x01h\x01\x93"), b"l"].concat(),
            "keys" => [&long[..], b"q\x010", &w, b"q\x020}(", &repeat(n, b"h\x01h\x02"), b"u"].concat(),
            "names" => {
                let nested = (0..50).fold(text("x"), |inner, _| [b"}h\x01", &inner[..], b"s"].concat());
                let list = [&b"("[..], &repeat(n, b"h\x02"), b"l"].concat();
                let nested = nested.iter().take(nested.len() - 50 - text("x").len()).copied().collect::<Vec<_>>();
                [&long[..], b"q\x010", &w, b"q\x020", &nested, &list, &repeat(50, b"s")].concat()
            }
            "lists" => [&b"]q\x01("[..], &repeat(n, &w), b"eq\x010(", &repeat(n, b"h\x01"), b"l"].concat(),
            "axes" => [
                &w[..w.len() - 1],
                b"q\x010ctorch._utils\n_rebuild_tensor_v2\nq\x020(",
                &repeat(n, b"h\x02h\x01R"),
                b"l",
            ]
            .concat(),
            // Objects that all refer to all.
            "objects" => {
                let all: Vec<u8> = (0..200u8).flat_map(|at| [&b"ca\nB\n)R"[..], &[b'q', at]].concat()).collect();
                let list: Vec<u8> = (0..200u8).flat_map(|at| [b'h', at]).collect();
                let each = (0..200u8).flat_map(|at| [b'h', at, b'(', b'h', 201, b'e', b'0']).collect::<Vec<u8>>();
                [&b"("[..], &all, b"l0](", &list, b"eq\xc90", &each, &repeat(n, b"h\xc90"), b"h\xc9"].concat()
            }
            "modules" => {
                let keys = ["_parameters", "_buffers"].map(|key| (key, b"}".to_vec()));
                let empty = [&b"ca\nB\n)R"[..], &dict(&[&keys[..], &[("_modules", b"}".to_vec())]].concat()), b"b"];
                (0..60).fold(empty.concat(), |inner, at| {
                    let twice = [&b"}("[..], &text("a"), &inner, &[b'q', at], &text("b"), &[b'h', at], b"u"].concat();
                    [&b"ca\nB\n)R"[..], &dict(&[&keys[..], &[("_modules", twice)]].concat()), b"b"].concat()
                })
            }
            "memo" => [&b"N"[..], &repeat(n, b"\x94")].concat(),
            "marks" => repeat(n, b"("),
            _ => [&repeat(n, b"2")[..], b"N"].concat(),
        }
    };
    for name in [
        "calls", "sizes", "storages", "globals", "keys", "names", "lists", "axes", "memo", "marks", "dup", "objects",
        "modules",
    ] {
        for n in [1 << 10, 1 << 14, 1 << 16] {
            let file = archive(&pickle(&attack(name, n)), &[("0", floats(&[0.0]))]);
            let mut work = Work::of(file.len());
            let result = convert(&file, &mut work);
            assert!(
                work.done() <= (1 << 20) + 8 * file.len(),
                "{name} {n}: {} steps, {} bytes",
                work.done(),
                file.len()
            );
            if let Ok(converted) = result {
                assert!(converted.len() <= (4 << 20) + 16 * file.len(), "{name} {n}: {} bytes", converted.len());
            }
        }
    }
}

/// PyTorch writes the records of Zip64 without need. For each length of the first entry's name, the directory is found.
#[test]
fn directories_before_records_of_zip64_are_found() -> Result<()> {
    let value = pickle(&dict(&[("w", tensor("FloatStorage", "0", 0, &[1], &[1]))]));
    for length in 1..40 {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        for (name, bytes) in [("data.pkl", &value), ("data/0", &floats(&[2.5]))] {
            writer.start_file(format!("{}/{name}", "m".repeat(length)), stored).unwrap();
            writer.write_all(bytes).unwrap();
        }
        let mut file = writer.finish().unwrap().into_inner();
        let end = file.len() - 22;
        let [size, start] = [12, 16].map(|at| u32::from_le_bytes(file[end + at..][..4].try_into().unwrap()));
        let words = [2, 2, size, start].map(|word| u64::from(word).to_le_bytes()).concat();
        let record = [&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8], &words].concat();
        let place = [&b"PK\x06\x07"[..], &[0; 4], &(end as u64).to_le_bytes(), &1u32.to_le_bytes()].concat();
        file.splice(end..end, [record, place].concat());
        let tensors = tensors_from_safetensors(&to_safetensors(&file)?, &Device::cpu())?;
        assert_eq!(tensors["w"].item()?, 2.5, "{length}");
    }
    Ok(())
}

/// A file before PyTorch 1.6 with this pickle and these storages: their keys, numbers of elements, and bytes.
fn sequence(value: &[u8], storages: &[(&str, u64, Vec<u8>)]) -> Vec<u8> {
    let magic = pickle(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
    let system = pickle(&dict(&[("little_endian", b"\x88".to_vec())]));
    let keys: Vec<u8> = storages.iter().flat_map(|(key, ..)| text(key)).collect();
    let keys = pickle(&[b"](", &keys[..], b"e"].concat());
    let contents = storages.iter().flat_map(|(_, count, bytes)| [&count.to_le_bytes()[..], bytes].concat());
    [magic, pickle(b"M\xe9\x03"), system, pickle(value), keys, contents.collect()].concat()
}

#[test]
fn files_before_archives_are_read() -> Result<()> {
    let w = |class: &str, key: &str| tensor(class, key, 1, &[2], &[1]);
    // A part of a storage, as in files before PyTorch 0.4.
    let part = tuple(&[&text("view"), b"K\x02", b"K\x02"]);
    let mut viewed = tensor("FloatStorage", "a", 0, &[2], &[1]);
    let end = viewed.windows(3).position(|bytes| bytes == b"tQK").expect("the reference ends");
    viewed.splice(end..end, part);
    let value = dict(&[("x", w("FloatStorage", "a")), ("l", w("LongStorage", "b")), ("viewed", viewed)]);
    let longs: Vec<u8> = [7i64, 8, 9].iter().flat_map(|number| number.to_le_bytes()).collect();
    let storages = [("a", 4, floats(&[1.0, 2.0, 3.0, 4.0])), ("b", 3, longs)];
    let whole = sequence(&value, &storages);
    let tensors = tensors_from_safetensors(&to_safetensors(&whole)?, &Device::cpu())?;
    assert_eq!(tensors["x"].to_vec()?, [2.0, 3.0]);
    assert_eq!(tensors["viewed"].to_vec()?, [3.0, 4.0]);
    assert_eq!(tensors["l"].to_u32_vec()?, [8, 9]);
    for end in 0..whole.len() {
        assert_eq!(to_safetensors(&whole[..end]).unwrap_err().kind(), ErrorKind::Checkpoint, "{end}");
    }
    for (storages, part) in [
        ([("a", u64::MAX, floats(&[1.0])), ("b", 0, Vec::new())], "storage `a` ends behind the file"),
        ([("a", 1, floats(&[1.0])), ("c", 0, Vec::new())], "storage `c` belongs to no tensor"),
    ] {
        assert!(error(&sequence(&value, &storages)).contains(part), "{part}");
    }
    Ok(())
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
    assert!(error(&of("FloatStorage", 0, &[255; 9], &[0; 9])).contains("8 times the file"));
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
    assert!(error(&archive(&pickle(&doubled), &[])).contains("describe much more"));
}
