//! Files from `torch.save`.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use meganeura::ErrorKind;
use meganeura::io::{Names, load_tensors, safetensors_from_pt};
use meganeura::prelude::*;

use crate::Outcome;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("torch_files::views_and_checkpoints", views));
    trials.push(Trial::test("torch_files::a_whole_module_is_refused", module));
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

fn module() -> Outcome {
    let error = load_tensors(file("module.pt"), &Device::cpu()).expect_err("a module is a program");
    let message = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Checkpoint);
    assert!(message.contains("would call `torch.nn.modules") && message.contains("state_dict"), "{message}");
    Ok(())
}

fn truncated() -> Outcome {
    let bytes = fs::read(file("pickled.pt"))?;
    for end in (0..bytes.len()).step_by(97) {
        assert_eq!(safetensors_from_pt(&bytes[..end]).expect_err("it is cut").kind(), ErrorKind::Checkpoint, "{end}");
    }
    Ok(())
}
