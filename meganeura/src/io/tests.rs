mod shared;

use std::fs;
use std::path::PathBuf;

use meganeura_derive::Module;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::module::{At, Slot, SlotMut};
use crate::{Buffer, Device, Param, Precision, Shape, Tensor};

#[derive(Module)]
struct Net {
    weight: Param,
    #[module(rename = "blocks")]
    parts: Vec<(Param, Buffer)>,
}

const NAMES: [&str; 3] = ["blocks.0.0", "blocks.0.1", "weight"];

fn net_on(device: &Device, first: f32) -> Net {
    let tensor = |shape: &[usize], first: f32| {
        let shape = Shape::new(shape);
        let data: Vec<_> = (0..shape.elements()).map(|i| first + i as f32).collect();
        Tensor::from_slice(device, shape, &data).unwrap()
    };
    let part = (Param::new(tensor(&[3], first + 10.0)), Buffer::new(tensor(&[], first + 20.0)));
    Net { weight: Param::new(tensor(&[2, 2], first)), parts: vec![part] }
}

fn net(first: f32) -> Net {
    net_on(&Device::cpu(), first)
}

fn values(net: &Net) -> [Vec<f32>; 3] {
    let (param, buffer) = &net.parts[0];
    [param.value(), buffer.value(), net.weight.value()].map(|tensor| tensor.to_vec().unwrap())
}

/// A file with these tensors, their bytes exactly as given.
fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// A file with this header, followed by this many zero bytes.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// The error of loading these bytes, which must leave the model unchanged.
#[track_caller]
fn refused(bytes: &[u8]) -> String {
    let mut net = net(1.0);
    let before = values(&net);
    let error = net.load_safetensors(bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
    assert_eq!(values(&net), before);
    error.message().to_owned()
}

fn files(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn saved_models_are_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("net.safetensors");
    net(1.0).save(&path).unwrap();
    net(3.0).save(&path).unwrap();
    assert_eq!(files(directory.path()), ["net.safetensors"]);
    let mut other = net(0.0);
    let report = other.load(&path).unwrap();
    report.strict().unwrap();
    assert_eq!(values(&other), values(&net(3.0)));
    assert_eq!(report.loaded, ["weight", "blocks.0.0", "blocks.0.1"]);
}

#[test]
fn the_format_is_the_published_one() {
    let bytes = net(1.0).to_safetensors().unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(names, NAMES);
    let weight = file.tensor("weight").unwrap();
    assert_eq!((weight.dtype(), weight.shape()), (Dtype::F32, &[2, 2][..]));
    assert_eq!(weight.data(), [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
    assert_eq!(file.tensor("blocks.0.1").unwrap().shape(), [0usize; 0]);
}

#[test]
fn the_devices_precision_is_kept_and_converted() {
    let device = Device::cpu_with(Precision::Double);
    let third = Tensor::from_f64(&device, [1], &[1.0 / 3.0]).unwrap();
    let bytes = Param::new(third.clone()).to_safetensors().unwrap();
    let load = |device: &Device| {
        let mut param = Param::new(Tensor::zeros(device, [1]).unwrap());
        param.load_safetensors(&bytes).unwrap().strict().unwrap();
        param.value().to_f64_vec().unwrap()[0]
    };
    assert_eq!(load(&device), 1.0 / 3.0);
    assert_eq!(load(&Device::cpu()), f64::from(1.0f32 / 3.0));
}

#[test]
fn half_precision_is_read() {
    let mut param = Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
    for (dtype, one, minus_two) in [(Dtype::F16, 0x3c00u16, 0xc000u16), (Dtype::BF16, 0x3f80, 0xc000)] {
        let bytes = [one.to_le_bytes(), minus_two.to_le_bytes()].concat();
        param.load_safetensors(&file(&[("", dtype, &[2], &bytes)])).unwrap().strict().unwrap();
        assert_eq!(param.value().to_vec().unwrap(), [1.0, -2.0]);
    }
}

#[test]
fn names_of_one_side_are_reported() {
    let bytes = file(&[("weight", Dtype::F32, &[2, 2], &[0; 16]), ("extra", Dtype::I64, &[1], &[0; 8])]);
    let mut net = net(1.0);
    let report = net.load_safetensors(&bytes).unwrap();
    assert_eq!(report.loaded, ["weight"]);
    assert_eq!(report.missing, ["blocks.0.0", "blocks.0.1"]);
    assert_eq!(report.unexpected, ["extra"]);
    assert_eq!(values(&net)[2], [0.0; 4]);
    let error = report.strict().unwrap_err();
    assert_eq!(
        error.message(),
        "missing from the file:\n  `blocks.0.0` [3]\n  `blocks.0.1` []\nonly in the file:\n  `extra` [1]"
    );
}

#[test]
fn names_are_those_of_the_rules_both_ways() {
    let names = Names::new().rename("model.*", "weight").rename("net.*.**", "blocks.*.**");
    let error = net(1.0).to_safetensors_with(&names).unwrap_err();
    assert!(error.to_string().contains("from `model.*` to `weight`"), "{error}");
    let names = Names::new().rename("model.w", "weight").rename("net.*.**", "blocks.*.**").ignore("optimizer.**");
    let saved = net(1.0).to_safetensors_with(&names).unwrap();
    let theirs = SafeTensors::deserialize(&saved).unwrap();
    let mut found = theirs.names();
    found.sort_unstable();
    assert_eq!(found, ["model.w", "net.0.0", "net.0.1"]);
    let tensors = |name: &'static str| (name, theirs.tensor(name).unwrap());
    let more = ["optimizer.step", "norm.num_batches_tracked"]
        .map(|name| (name, TensorView::new(Dtype::I64, vec![], &[0; 8]).unwrap()));
    let all = [tensors("model.w"), tensors("net.0.0"), tensors("net.0.1")].into_iter().chain(more);
    let bytes = safetensors::serialize(all, None).unwrap();
    let mut other = net(5.0);
    let report = other.load_safetensors_with(&bytes, &names).unwrap();
    report.strict().unwrap();
    assert_eq!(report.loaded, ["weight", "blocks.0.0", "blocks.0.1"]);
    assert_eq!(report.ignored, ["optimizer.step", "norm.num_batches_tracked"]);
    assert_eq!(values(&other), values(&net(1.0)));
}

#[test]
fn one_tensor_is_split_and_put_together_again() {
    let names = Names::new().split("qkv.*", ["0.*", "1.*", "2.*"]);
    let tensor = |first: f32| Tensor::from_slice(&Device::cpu(), [1, 2], &[first, first + 1.0]).unwrap();
    let model = |first: f32| [0.0, 2.0, 4.0].map(|step| [Param::new(tensor(first + step))]);
    let bytes = model(1.0).to_safetensors_with(&names).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let qkv = file.tensor("qkv.0").unwrap();
    assert_eq!((file.len(), qkv.shape()), (1, &[3, 2][..]));
    assert_eq!(qkv.data(), [1f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_le_bytes).concat());
    let mut other = model(9.0);
    let report = other.load_safetensors_with(&bytes, &names).unwrap();
    report.strict().unwrap();
    assert_eq!(other.each_ref().map(|[part]| part.value().to_vec().unwrap()), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);

    let uneven = self::file(&[("qkv.0", Dtype::F32, &[4, 2], &[0; 32])]);
    let error = other.load_safetensors_with(&uneven, &names).unwrap_err();
    assert_eq!(error.message(), "`qkv.0`: [4, 2] in the file does not fall into 3 equal parts");
    let error = model(1.0)[..2].to_vec().to_safetensors_with(&names).unwrap_err();
    assert!(error.to_string().contains("needs 3 parts, but the model has only 2"), "{error}");
    let longer = Param::new(Tensor::zeros(&Device::cpu(), [2, 2]).unwrap());
    let [a, b, _] = model(1.0);
    let error = [a, b, [longer]].to_safetensors_with(&names).unwrap_err();
    assert!(error.to_string().contains("`0.0` and `2.0` cannot be joined as `qkv.0`"), "{error}");
}

/// The length of a header may begin like a pickle, and the last number may end like one.
#[test]
fn a_pickle_is_told_from_a_header() {
    let entry = r#"{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let mut file = with_header(&format!("{entry:<0$}", 0x280), 1);
    *file.last_mut().unwrap() = b'.';
    assert_eq!(file[..2], [0x80, 2]);
    assert_eq!(as_safetensors(file.clone()).unwrap(), file);
    assert!(!SafeTensors::deserialize(&file).unwrap().is_empty());
    for pickle in [&b"\x80\x02}q\x00U\x01aK\x01s."[..], b"\x80\x04\x95\x0a\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s."] {
        let error = as_safetensors(pickle.to_vec()).unwrap_err().to_string();
        assert!(error.contains("a pickle, which `torch.save` did not write"), "{error}");
    }
}

#[test]
fn axes_of_extent_1_follow_a_rule() {
    let device = Device::cpu();
    let weight = Tensor::from_slice(&device, [2, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    for (rank, shape) in [(2, &[2, 3][..]), (3, &[2, 3, 1]), (5, &[2, 3, 1, 1, 1])] {
        let names = Names::new().rank("conv.*", rank).rename("conv.*", "*");
        let mut net = Single { weight: Param::new(weight.clone()) };
        let bytes = net.to_safetensors_with(&names).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("conv.weight").unwrap().shape(), shape);
        net.weight.set(Tensor::zeros(&device, [2, 3, 1]).unwrap()).unwrap();
        net.load_safetensors_with(&bytes, &names).unwrap().strict().unwrap();
        net.weight.value().expect_close(&weight, 0.0, 0.0).unwrap();
        // Without the rule, and with another number of axes, the shape is wrong.
        let plain = Names::new().rename("conv.*", "*");
        assert_eq!(net.load_safetensors_with(&bytes, &plain).is_ok(), rank == 3);
        assert!(net.load_safetensors_with(&bytes, &plain.clone().rank("conv.*", 4)).is_err() || rank == 3);
    }
    let few = Names::new().rank("weight", 1);
    let error = Single { weight: Param::new(weight) }.to_safetensors_with(&few).unwrap_err().to_string();
    assert!(error.contains("the rules give `weight` 1 axes, and it is [2, 3, 1] in the model"), "{error}");
}

#[derive(Module)]
struct Single {
    weight: Param,
}

#[test]
fn rules_that_make_two_names_one_are_refused() {
    let bytes = file(&[("a", Dtype::F32, &[2], &[0; 8]), ("b", Dtype::F32, &[2], &[0; 8])]);
    let mut param = Param::new(Tensor::zeros(&Device::cpu(), [2]).unwrap());
    let names = Names::new().rename("*", "");
    let error = param.load_safetensors_with(&bytes, &names).unwrap_err();
    assert!(error.to_string().contains("from `*` to ``"), "{error}");
    let names = Names::new().rename("a", "").rename("b", "");
    let error = param.load_safetensors_with(&bytes, &names).unwrap_err();
    assert_eq!(error.message(), "the rules make both `a` and `b` of the file ``");
    let pair = [param.clone(), param];
    let error = pair.to_safetensors_with(&Names::new().rename("x", "0").rename("x", "1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.to_string().contains("`1` would be saved as `x`"), "{error}");
}

#[test]
fn a_file_of_another_model_is_refused() {
    let message = refused(&file(&[
        ("weight", Dtype::F32, &[4], &[0; 16]),
        ("blocks.0.0", Dtype::I32, &[3], &[0; 12]),
        ("blocks.0.1", Dtype::F32, &[], &[0; 4]),
    ]));
    assert!(message.contains("`weight`: [4] in the file, [2, 2] in the model"), "{message}");
    assert!(message.contains("`blocks.0.0`: I32 in the file"), "{message}");
    // Everything is listed, with suggestions.
    let message = refused(&file(&[
        ("weight", Dtype::F32, &[4], &[0; 16]),
        ("wieght", Dtype::F32, &[2, 2], &[0; 16]),
        ("blocks.0.0", Dtype::F32, &[3], &[0; 12]),
        ("blocks.1.0", Dtype::F32, &[], &[0; 4]),
    ]));
    assert_eq!(
        message,
        "the file is of another model; nothing was loaded:\n  \
         `weight`: [4] in the file, [2, 2] in the model; did you mean `wieght`?\n\
         missing from the file:\n  `blocks.0.1` []; did you mean `blocks.1.0` []?\n\
         only in the file:\n  `blocks.1.0` []; did you mean `blocks.0.1` []?\n  `wieght` [2, 2]"
    );
    let message = refused(&file(&[("head.weight", Dtype::F32, &[1], &[0; 4])]));
    assert!(message.contains("no name in common"), "{message}");
    assert!(message.contains("blocks.0.0") && message.contains("head.weight"), "{message}");
}

#[test]
fn truncated_files_are_refused_wherever_they_end() {
    let bytes = net(3.0).to_safetensors().unwrap();
    for length in 0..bytes.len() {
        refused(&bytes[..length]);
    }
    refused(&[&bytes[..], &[0]].concat());
}

#[test]
fn hostile_files_are_refused() {
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let weight = |shape: &str, from, to| format!("{{{}}}", entry("weight", shape, from, to));
    let overlapping = format!("{{{},{}}}", entry("weight", "[2,2]", 0, 16), entry("blocks.0.0", "[3]", 8, 20));
    let gap = format!("{{{},{}}}", entry("weight", "[2,2]", 0, 16), entry("blocks.0.0", "[3]", 20, 32));
    for (what, bytes) in [
        ("a header longer than the file", [&u64::MAX.to_le_bytes()[..], &[b'{'; 64]].concat()),
        ("a header of a gigabyte", [&(1u64 << 30).to_le_bytes()[..], &[b'{'; 64]].concat()),
        ("a header that is no JSON", with_header("{\"weight\":", 16)),
        ("a header that nests deeply", with_header(&"[".repeat(100_000), 0)),
        ("a header that is no UTF-8", [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat()),
        ("tensors that overlap", with_header(&overlapping, 20)),
        ("tensors with a gap between", with_header(&gap, 32)),
        ("a shape larger than its data", with_header(&weight("[2,3]", 0, 16), 16)),
        ("a shape that overflows", with_header(&weight("[4294967296,4294967296,2]", 0, 16), 16)),
        ("a shape of many axes", with_header(&weight(&format!("[4{}]", ",1".repeat(1000)), 0, 16), 16)),
        ("offsets past the end", with_header(&weight("[2,2]", 0, 16), 8)),
        ("offsets in the wrong order", with_header(&weight("[2,2]", 16, 0), 16)),
        ("negative extents", with_header(&weight("[-2,-2]", 0, 16), 16)),
        ("an unknown type", with_header(&weight("[2,2]", 0, 16).replace("F32", "F31"), 16)),
    ] {
        assert!(!refused(&bytes).is_empty(), "{what}");
    }
}

#[test]
fn a_save_that_fails_leaves_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    // A file cannot replace a directory that is not empty.
    let taken = directory.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("file"), "x").unwrap();
    let error = net(1.0).save(&taken).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("taken could not be written"), "{error}");
    assert_eq!(files(directory.path()), ["taken"]);
    for path in [directory.path().join("absent").join("net"), PathBuf::from("..")] {
        assert_eq!(net(1.0).save(path).unwrap_err().kind(), ErrorKind::Io);
    }
    assert_eq!(net(1.0).load(directory.path().join("absent")).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn an_error_of_the_contents_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bad.safetensors");
    fs::write(&path, "not a checkpoint").unwrap();
    let error = net(1.0).load(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    assert!(error.to_string().contains("bad.safetensors"), "{error}");
}

/// Two leaves with one path.
struct Clash(Param, Param);

impl Module for Clash {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        f(at.field("same"), Slot::Param(&self.0));
        f(at.field("same"), Slot::Param(&self.1));
    }

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}

#[test]
fn two_leaves_under_one_path_are_not_saved_over_each_other() {
    let param = || Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
    let error = Clash(param(), param()).to_safetensors().unwrap_err();
    assert!(error.to_string().contains("`same`"), "{error}");
}

#[test]
fn constants_are_not_saved() {
    let tensor = || Tensor::full(&Device::cpu(), [2], 1.0).unwrap();
    let mut net = (Param::new(tensor()), Buffer::constant(tensor()), Buffer::new(tensor()));
    let bytes = net.to_safetensors().unwrap();
    let report = net.load_safetensors(&bytes).unwrap();
    report.strict().unwrap();
    assert_eq!(report.loaded, ["0", "2"]);
}

#[test]
fn a_header_beyond_the_formats_limit_is_reported() {
    let param = || Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
    let long = "a".repeat(60_000_000);
    let two = |a: &str, b: &str| std::collections::BTreeMap::from([a, b].map(|key| (key.to_owned(), param())));
    let limit = "tensors (2 of them) take more than 100 MB";
    let error = two(&format!("{long}b"), &long).to_safetensors().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    assert!(error.to_string().contains(limit), "{error}");
    // The header also holds the aliases of tied tensors.
    let first = param();
    let names = [long.clone(), format!("{long}b"), "0".to_owned()];
    let tied = std::collections::BTreeMap::from(names.map(|name| (name, first.tied())));
    let error = tied.to_safetensors().unwrap_err();
    assert!(error.to_string().contains("tensors (1 of them) take more than 100 MB"), "{error}");
}

#[test]
fn names_with_a_wrappers_prefix_are_recognised() {
    let bytes = net(3.0).to_safetensors_with(&Names::new().rename("module.**", "**")).unwrap();
    let mut other = net(0.0);
    let error = other.load_safetensors(&bytes).unwrap_err();
    assert_eq!(
        error.message(),
        "the file has no name in common with the model\n\
         missing from the file:\n  `weight` [2, 2]\n  `blocks.0.0` [3]\n  `blocks.0.1` []\n\
         only in the file:\n  `module.blocks.0.0` [3]\n  `module.blocks.0.1` []\n  `module.weight` [2, 2]\n\
         without `module.` before them, which PyTorch's `DataParallel` puts there, 3 names of the file are the model's; load \
         with `Names::new().rename(\"module.**\", \"**\")`"
    );
    other.load_safetensors_with(&bytes, &Names::new().rename("module.**", "**")).unwrap().strict().unwrap();
    assert_eq!(values(&other), values(&net(3.0)));
}

#[test]
fn a_foreign_file_makes_a_short_message() {
    let param = || Param::new(Tensor::zeros(&Device::cpu(), [3]).unwrap());
    let model = |name: &str| {
        let layers = (0..200).map(|i| (format!("{name}{i}"), param()));
        layers.collect::<std::collections::BTreeMap<_, _>>()
    };
    let bytes = model("transformer.h.").to_safetensors().unwrap();
    let error = model("stages.").load_safetensors(&bytes).unwrap_err().to_string();
    assert_eq!(error.matches("and 192 more").count(), 2, "{error}");
    assert!(!error.contains("did you mean"), "{error}");
    assert!(error.lines().count() < 25, "{error}");
}

/// A hostile header: names of a few hundred kilobytes against rules with wildcards.
#[test]
fn names_of_many_segments_take_no_longer_than_others() {
    let names: Vec<_> = ["", "a", "**"].iter().map(|end| format!("{}{end}", ".".repeat(300_000))).collect();
    let tensors: Vec<_> = names.iter().map(|name| (&**name, Dtype::F32, &[1][..], &[0; 4][..])).collect();
    let rules =
        Names::new().rename("**.x.**.y.**", "**.y.**.x.**").ignore("**.counter").rename("**.a.**.b", "**.b.**.a");
    let error = net(1.0).load_safetensors_with(&file(&tensors), &rules).unwrap_err().to_string();
    assert!(error.contains("no name in common") && error.len() < 5_000, "{error}");
}
