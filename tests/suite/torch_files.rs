//! Files from `torch.save`, `numpy.savez` and the package `gguf`.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use meganeura::ErrorKind;
use meganeura::io::{Names, load_tensors, safetensors_from_gguf, safetensors_from_npz, safetensors_from_pt};
use meganeura::prelude::*;

use crate::Outcome;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("torch_files::views_and_checkpoints", views));
    trials.push(Trial::test("torch_files::whole_modules", whole));
    trials.push(Trial::test("torch_files::types", types));
    trials.push(Trial::test("torch_files::npz", npz));
    trials.push(Trial::test("torch_files::gguf", gguf));
    trials.push(Trial::test("torch_files::truncated", truncated));
}

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch").join(name)
}

/// A checkpoint with views of many kinds, against the same tensors in safetensors.
fn views() -> Outcome {
    let device = Device::cpu();
    let found = load_tensors(file("pickled.pt"), &device)?;
    let expected = load_tensors(file("pickled.safetensors"), &device)?;
    assert!(expected.len() > 30 && found.keys().eq(expected.keys()), "{:?}", found.keys());
    for (name, expected) in &expected {
        assert_eq!(found[name].ty(), expected.ty(), "{name}");
        found[name].expect_close(expected, 0.0, 0.0).map_err(|error| format!("{name}: {error}"))?;
    }
    let mut net = (Conv2d::new(2, 3, 3), BatchNorm2d::new(3), Linear::new(4, 4)).init(&device, Seed::new(1))?;
    let report = net.load_with(file("pickled.pt"), &Names::new().rename("model.**", "**"))?;
    assert!(report.missing.is_empty(), "{report:?}");
    for (name, param) in [("model.0.weight", &net.0.weight), ("model.2.weight", &net.2.weight)] {
        param.value().expect_close(&expected[name], 0.0, 0.0)?;
    }
    Ok(())
}

/// A module that is pickled as a whole, a program in TorchScript, one in a package and a file before PyTorch 1.6 have
/// the tensors of `state_dict()`.
fn whole() -> Outcome {
    let device = Device::cpu();
    let expected = load_tensors(file("pickled.safetensors"), &device)?;
    let expected: Vec<_> =
        expected.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("model.")?, tensor))).collect();
    assert!(expected.len() > 8);
    for name in ["module.pt", "module_old.pt", "module_script.pt", "module_package.pt"] {
        let found = load_tensors(file(name), &device)?;
        let names: Vec<_> = found.keys().filter(|name| !name.starts_with("tied")).collect();
        assert!(names.iter().copied().eq(expected.iter().map(|(name, _)| name)), "{name}: {names:?}");
        for (key, expected) in &expected {
            found[*key].expect_close(expected, 0.0, 0.0).map_err(|error| format!("{name}: {key}: {error}"))?;
        }
    }
    Ok(())
}

/// Tensors of every type, in both formats: right, or refused by name.
fn types() -> Outcome {
    let device = Device::cpu();
    let expected = load_tensors(file("dtypes.safetensors"), &device)?;
    let refused = ["complex", "empty", "nested", "per_channel", "quantised", "sparse"];
    for name in ["dtypes.pt", "dtypes_old.pt"] {
        let found = load_tensors(file(name), &device)?;
        assert!(found.keys().eq(expected.keys()), "{name}: {:?}", found.keys());
        assert_eq!(found.refused().keys().collect::<Vec<_>>(), refused, "{name}");
        for (key, expected) in &expected {
            let equal = match expected.ty().dtype.is_float() {
                true => found[key].to_f64_vec()?.iter().zip(expected.to_f64_vec()?).all(|(a, b)| is_same(*a, b)),
                false => found[key].ty() == expected.ty() && found[key].to_i64_vec()? == expected.to_i64_vec()?,
            };
            assert!(equal && found[key].shape() == expected.shape(), "{name}: {key}");
        }
    }
    Ok(())
}

/// Files of `numpy.savez` with some of the same tensors, and one of `numpy.save`.
fn npz() -> Outcome {
    let device = Device::cpu();
    let expected = load_tensors(file("dtypes.safetensors"), &device)?;
    for name in ["arrays.npz", "arrays_packed.npz"] {
        let found = load_tensors(file(name), &device)?;
        assert_eq!(found.len(), 7, "{:?}", found.keys());
        assert_eq!(found.refused().keys().collect::<Vec<_>>(), ["complex", "text"]);
        for (key, tensor) in &found {
            assert_eq!(tensor.ty(), expected[key.as_str()].ty(), "{key}");
            tensor
                .expect_close(&expected[key.as_str()], 0.0, 0.0)
                .map_err(|error| format!("{name}: {key}: {error}"))?;
        }
        let bytes = fs::read(file(name))?;
        for end in (0..bytes.len()).step_by(13) {
            let error = safetensors_from_npz(&bytes[..end]).expect_err("it is cut");
            assert_eq!(error.kind(), ErrorKind::Checkpoint, "{name} {end}");
        }
    }
    let alone = load_tensors(file("array.npy"), &device)?.complete()?;
    assert_eq!(alone.keys().collect::<Vec<_>>(), ["arr_0"]);
    alone["arr_0"].expect_close(&expected["array.columns"], 0.0, 0.0)?;
    Ok(())
}

/// Every type of GGUF that is read, bit by bit against the format's own package.
fn gguf() -> Outcome {
    let device = Device::cpu();
    let expected = load_tensors(file("types_gguf.safetensors"), &device)?;
    let found = load_tensors(file("types.gguf"), &device)?;
    assert!(found.len() == 18 && found.keys().eq(expected.keys()), "{:?}", found.keys());
    assert!(found.refused()["other"].starts_with("it is quantised as TQ1_0; "), "{:?}", found.refused());
    for (name, expected) in &expected {
        let found = &found[name.as_str()];
        assert_eq!(found.ty(), expected.ty(), "{name}");
        match expected.ty().dtype.is_float() {
            true => assert!(
                found.to_vec()?.iter().map(|x| x.to_bits()).eq(expected.to_vec()?.iter().map(|x| x.to_bits())),
                "{name}"
            ),
            false => assert_eq!(found.to_i64_vec()?, expected.to_i64_vec()?, "{name}"),
        }
    }
    let mut net = Linear::new(32, 3).bias(false).init(&device, Seed::new(1))?;
    let names = Names::new().rename("blk.Q4_0.*", "*").ignore("blk.**").ignore("plain.**").ignore("other");
    net.load_with(file("types.gguf"), &names)?.strict()?;
    net.weight.value().expect_close(&expected["blk.Q4_0.weight"], 0.0, 0.0)?;
    let names = Names::new().rename("other", "weight").ignore("blk.**").ignore("plain.**");
    let error = net.load_with(file("types.gguf"), &names).expect_err("the type is not read");
    assert!(error.to_string().contains("`other`: it is quantised as TQ1_0"), "{error}");
    let bytes = fs::read(file("types.gguf"))?;
    // The last tensor ends 10 bytes before the file.
    for end in (0..bytes.len() - 10).step_by(13) {
        let error = safetensors_from_gguf(&bytes[..end]).map(drop).expect_err("it is cut");
        assert_eq!(error.kind(), ErrorKind::Checkpoint, "{end}");
    }
    Ok(())
}

fn is_same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn truncated() -> Outcome {
    for name in ["pickled.pt", "module_old.pt", "module_script.pt", "module_package.pt", "dtypes_old.pt"] {
        let bytes = fs::read(file(name))?;
        for end in (0..bytes.len()).step_by(97) {
            let error = safetensors_from_pt(&bytes[..end]).expect_err("it is cut");
            assert_eq!(error.kind(), ErrorKind::Checkpoint, "{name} {end}");
        }
    }
    Ok(())
}
