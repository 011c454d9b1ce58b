//! Checkpoints: bit for bit to a file and back on every device, and invalid files.

use libtest_mimic::{Failed, Trial};
use meganeura::io::Checkpoint;
use meganeura::nn::Linear;
use meganeura::{Device, ErrorKind, FromSeed, Init, ModuleExt, Param, Precision, Result, Seed, Tape, Tensor};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Nested, Pool, Tiny, bits, randomise};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn() -> Outcome| trials.push(Trial::test(format!("checkpoint::{name}"), run));
    test("round_trip", || round_trip(&Device::cpu(), &Device::cpu()));
    test("round_trip_in_f64", || {
        round_trip(&Device::cpu_with(Precision::Double), &Device::cpu_with(Precision::Double))
    });
    test("paths_are_the_documented_ones", paths);
    test("the_report_names_every_side", report);
    test("another_model_is_refused", || refused(&Device::cpu(), other_models()?));
    test("damaged_files_are_refused", || refused(&Device::cpu(), damaged()?));
    trials.push(gpu_trial("checkpoint::gpu::round_trip", |device| round_trip(device, device)));
    trials.push(gpu_trial("checkpoint::gpu::to_the_cpu", |device| round_trip(device, &Device::cpu())));
    trials.push(gpu_trial("checkpoint::gpu::from_the_cpu", |device| round_trip(&Device::cpu(), device)));
    trials.push(gpu_trial("checkpoint::gpu::refused", |device| {
        refused(device, other_models()?)?;
        refused(device, damaged()?)
    }));
    trials.push(gpu_trial("checkpoint::gpu::running_out_of_memory_changes_nothing", no_room));
}

/// Loads with a growing memory limit: either the whole file is loaded, or nothing.
fn no_room(device: &Device) -> Outcome {
    // A separate adapter, because the limit applies to the whole adapter.
    let device = Device::named(&device.to_string())?;
    let linear = |seed| [Linear::new(64, 64), Linear::new(64, 64), Linear::new(64, 64)].init(&device, Seed::new(seed));
    let (saved, mut net) = (linear(1)?, linear(2)?);
    let (bytes, before) = (saved.to_safetensors()?, bits(&net)?);
    let held = device.stats().peak_bytes;
    let mut refused = 0;
    loop {
        device.limit_memory(held + refused * 4096);
        match net.load_safetensors(&bytes) {
            Ok(report) => break report.strict()?,
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
        }
        assert_eq!(bits(&net)?, before);
        refused += 1;
        assert!(refused < 100);
    }
    // Three weights take 16,384 bytes each.
    assert!(refused > 8, "only {refused} tries were too few bytes");
    assert_eq!(bits(&net)?, bits(&saved)?);
    Ok(())
}

/// Bit patterns that a conversion might change.
const ODD: [u32; 9] = [
    0x8000_0000, // −0
    0x0000_0001, // the smallest subnormal
    0x807f_ffff,
    0x7f7f_ffff,
    0x7f80_0000, // ∞
    0xff80_0000,
    0x3f80_0001,
    0xdead_beef,
    0x7fc0_1234, // NaN with a payload
];

fn net(device: &Device) -> Result<Nested> {
    let mut net = Nested::from_seed(device, Seed::new(1))?;
    randomise(&mut net)?;
    Ok(net)
}

fn round_trip(from: &Device, to: &Device) -> Outcome {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("net.safetensors");
    let mut saved = net(from)?;
    if from.precision() == Precision::Full {
        let odd = ODD.map(f32::from_bits).repeat(3);
        let mut bias = odd[..3].to_vec();
        bias.rotate_left(1);
        saved.blocks[1].conv.bias.as_mut().expect("there is one").set(Tensor::from_slice(from, [3], &bias)?)?;
        saved.blocks[0].conv.weight.set(Tensor::from_slice(from, [3, 2, 3, 3], &odd.repeat(2))?)?;
    }
    saved.save(&path)?;
    let mut loaded = Nested::from_seed(to, Seed::new(2))?;
    assert_ne!(bits(&saved)?, bits(&loaded)?);
    let report = loaded.load(&path)?;
    report.strict()?;
    assert_eq!(report.loaded, names(&saved));
    // A conversion to `f64` may drop a NaN's payload, so this compares files.
    assert_eq!(loaded.to_safetensors()?, saved.to_safetensors()?);
    assert_eq!(std::fs::read(&path)?, saved.to_safetensors()?);
    // The device computes with the loaded values, and earlier tapes are stale.
    let gain = Tape::inference(to).param(&loaded.gain).to_tensor()?.to_f64_vec()?;
    assert_eq!(gain, saved.gain.value().to_f64_vec()?);
    let tape = Tape::new(to);
    let before = tape.param(&loaded.gain) * 2.0;
    loaded.load(&path)?.strict()?;
    assert_eq!(before.to_vec().map(drop).expect_err("stale").kind(), ErrorKind::StaleTape);
    Ok(())
}

/// Paths in the order of a visit.
fn names(net: &Nested) -> Vec<String> {
    net.leaves().into_iter().map(|leaf| leaf.path).collect()
}

fn paths() -> Outcome {
    let device = Device::cpu();
    let mut net = net(&device)?;
    let all = |net: &Nested| -> Result<Vec<String>, Failed> {
        let bytes = net.to_safetensors()?;
        let mut names: Vec<_> = SafeTensors::deserialize(&bytes)?.names().into_iter().map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    };
    // Dots separate fields, elements have their index, and `Option` and enum variants add no segment. A field is
    // renamed. Frozen parameters and buffers appear like others; skipped and absent fields do not.
    let expected = [
        "blocks.0.conv.bias",
        "blocks.0.conv.weight",
        "blocks.0.norm.bias",
        "blocks.0.norm.weight",
        "blocks.0.shortcut.weight",
        "blocks.1.conv.bias",
        "blocks.1.conv.weight",
        "blocks.1.norm.bias",
        "blocks.1.norm.weight",
        "gain",
        "head.bias",
        "head.weight",
        "offset",
    ];
    assert_eq!(all(&net)?, expected);
    net.pool = Pool::Weighted { weight: Param::new(Tensor::zeros(&device, [1])?) };
    net.head = None;
    let kept = expected.iter().filter(|name| !name.starts_with("head"));
    let mut changed: Vec<_> = kept.copied().chain(["pool.weight"]).collect();
    changed.sort_unstable();
    assert_eq!(all(&net)?, changed);
    Ok(())
}

fn report() -> Outcome {
    let device = Device::cpu();
    let bytes = {
        let mut larger = net(&device)?;
        larger.unused = Some(Linear::new(2, 2).bias(false).init(&device, Seed::new(3))?);
        larger.blocks.pop();
        larger.to_safetensors()?
    };
    let mut loaded = Nested::from_seed(&device, Seed::new(2))?;
    let before = bits(&loaded)?;
    let report = loaded.load_safetensors(&bytes)?;
    let missing = ["conv.weight", "conv.bias", "norm.weight", "norm.bias"].map(|name| format!("blocks.1.{name}"));
    assert_eq!(report.missing, missing);
    assert_eq!(report.unexpected, ["unused.weight"]);
    assert_eq!(report.loaded.len() + report.missing.len(), names(&loaded).len());
    let error = report.strict().expect_err("two sides differ");
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    assert!(error.to_string().contains("blocks.1.norm.bias") && error.to_string().contains("unused.weight"), "{error}");
    // Parameters missing from the file kept their values; all others are from the file.
    let expected = bits(&net(&device)?)?;
    for ((path, now), ((_, old), (_, file))) in bits(&loaded)?.into_iter().zip(before.into_iter().zip(expected)) {
        assert_eq!(now, if path.starts_with("blocks.1") { old } else { file }, "{path}");
    }
    Ok(())
}

type Files = Vec<(String, Vec<u8>)>;

fn other_models() -> Result<Files, Failed> {
    let device = Device::cpu();
    let mut wider = net(&device)?;
    wider.head = Some(Linear::new(12, 3).init(&device, Seed::new(1))?);
    let bytes = net(&device)?.to_safetensors()?;
    let file = SafeTensors::deserialize(&bytes)?;
    let change = |name: &str, dtype, shape: &[usize], data: &[u8]| -> Result<Vec<u8>, Failed> {
        let other = TensorView::new(dtype, shape.to_vec(), data)?;
        let views = file.iter().map(|(at, view)| (at.to_owned(), if at == name { other.clone() } else { view }));
        Ok(safetensors::serialize(views.collect::<Vec<_>>(), None)?)
    };
    Ok(vec![
        ("another model".into(), Tiny::init(&device, 1)?.to_safetensors()?),
        ("one layer is wider".into(), wider.to_safetensors()?),
        ("a transposed weight".into(), change("head.weight", Dtype::F32, &[12, 2], &[0; 96])?),
        ("one axis more".into(), change("gain", Dtype::F32, &[1, 1], &[0; 4])?),
        ("integers".into(), change("gain", Dtype::I32, &[1], &[0; 4])?),
        ("no numbers".into(), change("head.bias", Dtype::F32, &[0], &[])?),
        ("no tensors".into(), safetensors::serialize(Vec::<(String, TensorView<'_>)>::new(), None)?),
    ])
}

/// Truncated files, and headers with wrong contents.
fn damaged() -> Result<Files, Failed> {
    let bytes = net(&Device::cpu())?.to_safetensors()?;
    let mut files: Files = (0..16).map(|k| (format!("{k}/16 of it"), bytes[..bytes.len() * k / 16].to_vec())).collect();
    files.push(("one byte short".into(), bytes[..bytes.len() - 1].to_vec()));
    files.push(("one byte too many".into(), [&bytes[..], &[0]].concat()));
    let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header = String::from_utf8(bytes[8..8 + header_len].to_vec())?;
    let mut with_header = |what: &str, length: u64, header: &[u8]| {
        files.push((what.to_owned(), [&length.to_le_bytes(), header, &bytes[8 + header_len..]].concat()));
    };
    let len = |text: &str| text.len() as u64;
    with_header("a header of 2⁶⁴ bytes", u64::MAX, header.as_bytes());
    with_header("a header longer than the file", 1 << 40, header.as_bytes());
    with_header("a header cut short", len(&header) / 2, &header.as_bytes()[..header.len() / 2]);
    with_header("no header", 0, b"");
    with_header("a header that is no text", 4, &[0xff; 4]);
    with_header("a header that nests", 100_000, &[b'['; 100_000]);
    for (what, from, to) in [
        ("another type", "\"F32\"", "\"F64\""),
        ("no type", "\"F32\"", "\"F31\""),
        ("a negative offset", "\"data_offsets\":[0,", "\"data_offsets\":[-4,"),
        ("overlapping offsets", "\"data_offsets\":[0,", "\"data_offsets\":[4,"),
        ("an offset past everything", "\"data_offsets\":[0,", "\"data_offsets\":[18446744073709551615,"),
        ("a shape that overflows", "\"shape\":[1]", "\"shape\":[18446744073709551615,18446744073709551615]"),
        ("a name twice", "\"head.bias\"", "\"head.weight\""),
    ] {
        let changed = header.replacen(from, to, 1);
        assert_ne!(changed, header, "{what}");
        with_header(what, len(&changed), changed.as_bytes());
    }
    Ok(files)
}

/// Each is an error, from bytes and from a file, and leaves the model bit for bit as it was.
fn refused(device: &Device, files: Files) -> Outcome {
    let directory = tempfile::tempdir()?;
    let mut net = net(device)?;
    let before = bits(&net)?;
    let tape = Tape::new(device);
    let held = tape.param(&net.gain) * 1.0;
    for (what, bytes) in files {
        let error = net.load_safetensors(&bytes).map(drop).expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::Checkpoint, "{what}: {error}");
        let path = directory.path().join("file");
        std::fs::write(&path, &bytes)?;
        let error = net.load(&path).map(drop).expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::Checkpoint, "{what}: {error}");
        assert!(error.to_string().contains("file"), "{error}");
        assert_eq!(bits(&net)?, before, "{what}");
    }
    let error = net.load(directory.path().join("absent")).map(drop).expect_err("absent");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("absent"), "{error}");
    // Not even an existing tape is stale.
    assert!(held.to_vec().is_ok());
    assert!(net.parameter_count() > 0);
    Ok(())
}
