//! Launches recorded directly in Vulkan train like launches encoded by wgpu, and Vulkan's validation layer accepts
//! both.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use libtest_mimic::{Failed, Trial};
use meganeura::optim::{AdamW, Optimizer, TrainStep};
use meganeura::{Device, Layer, ModuleExt, Profiling, Result, Tape, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, record};

/// With this argument, the program trains a few steps, prints every bit of the weights and the number of launches, and
/// exits.
const TRAINED: &str = "print-what-was-trained";

/// The validation layer's settings: it logs everything to a file, including a line on its presence. It also looks for
/// hazards between commands, as far as its version can: version 1.3.239 does not detect a missing barrier between
/// launches.
const VALIDATION: &str = "\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,info
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
khronos_validation.validate_sync = true
khronos_validation.log_filename = ";

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("encoders::train_alike", encoders));
    for encoder in ["", "wgpu"] {
        let name = format!("encoders::{}_is_valid", if encoder.is_empty() { "vulkan" } else { encoder });
        let trial = gpu_trial(name, |device| validated(device, encoder));
        let missing = !has_validation();
        trials.push(if missing { trial.with_ignored_flag(true) } else { trial });
    }
}

/// `true` if the validation layer is installed, at its packages' usual path or at the environment's.
fn has_validation() -> bool {
    let named = env::var_os("VK_LAYER_PATH").unwrap_or_default();
    let usual = ["/usr/share", "/usr/local/share", "/etc"].map(|root| Path::new(root).join("vulkan/explicit_layer.d"));
    let folders: Vec<PathBuf> = env::split_paths(&named).chain(usual).collect();
    let files = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().contains("khronos_validation"))
}

/// Handles this argument. The encoder is chosen by an environment variable, hence the child process.
pub(crate) fn train_if_asked() -> bool {
    let asked = env::args().nth(1).as_deref() == Some(TRAINED);
    if asked {
        print!("{}", train().unwrap_or_else(|error| format!("{error:?}")));
    }
    asked
}

fn train() -> Result<String> {
    let device = Device::best()?;
    let mut net = Tiny::init(&device, 1)?;
    let (pixels, labels) = images(&device, "trained", 4)?;
    let mut optimizer = AdamW::new(0.01);
    let timed = device.set_profiling(Profiling::Launches).is_ok();
    for _ in 0..6 {
        let (_, grads) = record(&net, &pixels, &labels)?;
        optimizer.step(&mut net, &grads)?;
    }
    let launches = if timed { device.last_profile()?.launches.len() } else { 0 };
    device.set_profiling(Profiling::Off)?;
    let mut step = TrainStep::new(&net, |net: &Tiny, (x, labels): &(Var, Var)| net.forward(x).cross_entropy(labels));
    let held = net.leaves().first().map(meganeura::module::Leaf::value);
    for number in 0..6 {
        let loss = step.call(&mut optimizer, (&pixels, &labels))?;
        if number % 2 == 1 {
            loss.item()?;
            net.forward(&Tape::inference(&device).input(&pixels)).to_vec()?;
        }
    }
    drop(held);
    Ok(format!("{:?} {launches} launches", bits(&net)?))
}

/// A child process of this program with an encoder.
fn child(device: &Device, encoder: &str) -> std::io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(TRAINED).env("MEGANEURA_DEVICE", device.to_string()).env("MEGANEURA_CACHE", "off");
    command.env("MEGANEURA_ENCODER", encoder);
    Ok(command)
}

fn encoders(device: &Device) -> Outcome {
    let train = |encoder: &str| {
        let output = child(device, encoder)?.output()?;
        assert!(output.status.success(), "{output:?}");
        Ok::<_, Failed>(String::from_utf8(output.stdout)?)
    };
    let (vulkan, wgpu) = (train("")?, train("wgpu")?);
    assert!(vulkan.starts_with("[(\"") && vulkan.ends_with(" launches"), "{vulkan}");
    let launches = |trained: &str| trained.rsplit_once("] ").map(|(_, launches)| launches.to_owned());
    assert_eq!(launches(&wgpu), launches(&vulkan));
    // In kernels that wgpu encodes, drivers contract multiplications and additions. AdamW's first steps have the size
    // of the rate, 0.01, however small a gradient is. So a few weights may differ by a few steps, but not most.
    let (vulkan, wgpu) = (weights(&vulkan), weights(&wgpu));
    assert_eq!(vulkan.len(), wgpu.len());
    let largest = vulkan.iter().zip(&wgpu).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let mean = vulkan.iter().zip(&wgpu).map(|(a, b)| (a - b).abs()).sum::<f64>() / vulkan.len() as f64;
    assert!(largest < 0.03 && mean < 1e-3, "apart by {largest:.1e} at most, by {mean:.1e} in the mean");
    Ok(())
}

/// The weights in the output of [`train`]: the bits of `f64`, the only numbers of that length.
fn weights(trained: &str) -> Vec<f64> {
    let numbers = trained.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
    numbers.filter(|&bits| bits > 1 << 32).map(f64::from_bits).collect()
}

fn validated(device: &Device, encoder: &str) -> Outcome {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log.txt");
    fs::write(folder.path().join("vk_layer_settings.txt"), format!("{VALIDATION}{}\n", log.display()))?;
    let mut command = child(device, encoder)?;
    command.env("VK_LAYER_SETTINGS_PATH", folder.path()).env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation");
    let output = command.output()?;
    assert!(output.status.success(), "{output:?}");
    let log = fs::read_to_string(log).map_err(|error| format!("the layer wrote nothing: {error}"))?;
    assert!(log.contains("Khronos Validation Layer Active"), "{log}");
    let found = log.lines().find(|line| ["VUID-", "SYNC-HAZARD"].iter().any(|fault| line.contains(fault)));
    assert_eq!(found, None);
    Ok(())
}
