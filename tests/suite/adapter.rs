//! The adapter that GPU tests run on.

use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use meganeura::Device;

/// The adapter, or why there is none.
pub(crate) fn adapter() -> Result<&'static Device, &'static str> {
    static ADAPTER: OnceLock<Result<Device, String>> = OnceLock::new();
    ADAPTER.get_or_init(find).as_ref().map_err(String::as_str)
}

fn find() -> Result<Device, String> {
    let named = std::env::var("MEGANEURA_DEVICE").ok().filter(|name| !matches!(name.as_str(), "" | "cpu" | "gpu"));
    let device = match named {
        Some(name) => Device::named(&name),
        // Every adapter's description names its API.
        None => Device::named("gpu").or_else(|_| Device::named("(")),
    };
    let device = device.map_err(|error| error.to_string())?;
    eprintln!("GPU tests run on {device}");
    Ok(device)
}

fn is_required() -> bool {
    std::env::var_os("MEGANEURA_REQUIRE_GPU").is_some_and(|value| value == "1")
}

/// A test on the adapter: ignored where there is none, failed where one is required.
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
