//! The adapter that GPU tests run on.

use std::cell::OnceCell;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::thread;

use libtest_mimic::{Failed, Trial};
use meganeura::Device;

/// The adapter, or the reason why there is none. Mesa's software driver compiles and computes on one thread per open
/// device, so there each test thread gets its own device.
pub(crate) fn adapter() -> Result<&'static Device, &'static str> {
    static ADAPTER: OnceLock<Result<Device, String>> = OnceLock::new();
    thread_local! {
        static OWN: OnceCell<&'static Device> = const { OnceCell::new() };
    }
    let adapter = ADAPTER.get_or_init(find).as_ref().map_err(String::as_str)?;
    if !is_software(adapter) {
        return Ok(adapter);
    }
    let own = || open().map_or(adapter, |own| Box::leak(Box::new(own)));
    Ok(OWN.with(|device| *device.get_or_init(own)))
}

/// `true` for Mesa's driver that computes on the CPU.
pub(crate) fn is_software(device: &Device) -> bool {
    device.to_string().contains("llvmpipe")
}

/// `true` if wgpu encodes the GPU's launches: then the driver may contract multiplications and additions.
pub(crate) fn is_encoded_by_wgpu(device: &Device) -> bool {
    !device.to_string().contains("Vulkan") || std::env::var("MEGANEURA_ENCODER").is_ok_and(|name| name == "wgpu")
}

fn find() -> Result<Device, String> {
    let device = open().map_err(|error| error.to_string())?;
    eprintln!("GPU tests run on {device}");
    Ok(device)
}

fn open() -> meganeura::Result<Device> {
    let named = std::env::var("MEGANEURA_DEVICE").ok().filter(|name| !matches!(name.as_str(), "" | "cpu" | "gpu"));
    match named {
        Some(name) => Device::named(&name),
        // Every adapter's description names its API.
        None => Device::named("gpu").or_else(|_| Device::named("(")),
    }
}

fn is_required() -> bool {
    std::env::var_os("MEGANEURA_REQUIRE_GPU").is_some_and(|value| value == "1")
}

/// A test on the adapter. Without an adapter, it is ignored, or fails if one is required.
pub(crate) fn gpu_trial(
    name: impl Into<String>,
    test: impl FnOnce(&'static Device) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let missing = adapter().is_err();
    let run = move || match adapter() {
        Ok(device) => test(device),
        Err(why) => Err(Failed::from(format!("no adapter to test on: {why}"))),
    };
    Trial::test(name, run).with_ignored_flag(missing && !is_required())
}

/// One test in so many of those that a software driver leaves out.
const SAMPLE: usize = 3;

/// A test on the adapter of what other tests show in parts, number `number` of its kind. A software driver compiles its
/// kernels for longer than it runs them, so there it shows as ignored unless it is in the sample; `--include-ignored`
/// runs all.
pub(crate) fn gpu_trial_again(
    number: usize,
    name: impl Into<String>,
    test: impl FnOnce(&'static Device) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let trial = gpu_trial(name, test);
    let is_left_out = !number.is_multiple_of(SAMPLE) && adapter().is_ok_and(is_software);
    if is_left_out { trial.with_ignored_flag(true) } else { trial }
}

/// The simplest possible executor: polls a future until it is ready.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (mut future, mut context) = (pin!(future), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        thread::yield_now();
    }
}
