//! The integration tests, as one binary.
//!
//! Tests are listed when the binary starts, so that GPU tests can show as ignored if there is no adapter.
//! `MEGANEURA_DEVICE` names the adapter to test; without it the best one is used, software drivers included. With
//! `MEGANEURA_REQUIRE_GPU=1` a missing adapter is a failure. `--table` prints the errors measured by the tests of
//! operations, `--agreement` the differences between PyTorch and every layer, loss, optimizer and model.
//!
//! The tests of operations, layers and optimizers use devices from `for_testing`, which check every access of every
//! kernel. The tests of whole training runs and of devices use ordinary devices, which do not check kernels that the
//! shaders crate trusts. With `MEGANEURA_UNCHECKED=1`, all tests do without these checks.

mod adapter;
mod attention;
mod awaiting;
mod bad_input;
mod baseline;
mod batch_norm;
mod bf16;
mod checkpoint;
mod compiled;
mod corners;
mod custom;
mod data;
mod devices;
mod encoders;
mod factored;
mod fields;
mod frozen;
mod golden;
mod gradients;
mod guide;
mod hidden_queries;
mod integers;
mod large;
mod large_scores;
mod layers;
mod lines;
mod loops;
mod lora;
mod lost;
mod merge;
mod models;
mod nets;
mod norms;
mod not_finite;
mod numbers;
mod once;
mod onnx;
mod ops;
mod optimizers;
mod outliers;
mod padded;
mod peft;
mod plan;
mod planned;
mod planted;
mod pytorch;
mod ranges;
mod reads;
mod recompute;
mod recurrent;
mod reuse;
mod rounded;
mod runs;
mod scale;
mod second;
mod slices;
mod special;
mod steps;
mod table;
mod tape;
mod threads;
mod tied;
mod torch_files;
mod train_step;
mod training;
mod variants;
mod varying;
mod vision;
mod widths;
mod world;

use libtest_mimic::Failed;

/// The result of a test.
type Outcome = Result<(), Failed>;

fn main() {
    if devices::print_if_asked() || encoders::train_if_asked() || runs::train_if_asked() {
        return;
    }
    if world::run_if_asked() {
        return;
    }
    if std::env::var_os("MEGANEURA_CACHE").is_none() {
        // SAFETY: no other thread runs yet. Tests must neither find kernels that earlier ones compiled nor leave any.
        unsafe { std::env::set_var("MEGANEURA_CACHE", "off") };
    }
    let (arguments, print) = table::arguments();
    let mut trials = Vec::new();
    numbers::collect(&mut trials);
    golden::collect(&mut trials);
    ops::collect(&mut trials);
    layers::collect(&mut trials);
    onnx::collect(&mut trials);
    norms::collect(&mut trials);
    outliers::collect(&mut trials);
    padded::collect(&mut trials);
    widths::collect(&mut trials);
    planted::collect(&mut trials);
    custom::collect(&mut trials);
    special::collect(&mut trials);
    hidden_queries::collect(&mut trials);
    integers::collect(&mut trials);
    attention::collect(&mut trials);
    corners::collect(&mut trials);
    large_scores::collect(&mut trials);
    not_finite::collect(&mut trials);
    tape::collect(&mut trials);
    reuse::collect(&mut trials);
    threads::collect(&mut trials);
    tied::collect(&mut trials);
    torch_files::collect(&mut trials);
    gradients::collect(&mut trials);
    slices::collect(&mut trials);
    second::collect(&mut trials);
    plan::collect(&mut trials);
    compiled::collect(&mut trials);
    once::collect(&mut trials);
    guide::collect(&mut trials);
    bf16::collect(&mut trials);
    ranges::collect(&mut trials);
    awaiting::collect(&mut trials);
    reads::collect(&mut trials);
    recompute::collect(&mut trials);
    recurrent::collect(&mut trials);
    merge::collect(&mut trials);
    frozen::collect(&mut trials);
    lora::collect(&mut trials);
    peft::collect(&mut trials);
    factored::collect(&mut trials);
    optimizers::collect(&mut trials);
    steps::collect(&mut trials);
    train_step::collect(&mut trials);
    training::collect(&mut trials);
    bad_input::collect(&mut trials);
    lines::collect(&mut trials);
    devices::collect(&mut trials);
    encoders::collect(&mut trials);
    lost::collect(&mut trials);
    planned::collect(&mut trials);
    baseline::collect(&mut trials);
    batch_norm::collect(&mut trials);
    variants::collect(&mut trials);
    varying::collect(&mut trials);
    vision::collect(&mut trials);
    checkpoint::collect(&mut trials);
    data::collect(&mut trials);
    fields::collect(&mut trials);
    models::collect(&mut trials);
    pytorch::collect(&mut trials);
    runs::collect(&mut trials);
    large::collect(&mut trials);
    scale::collect(&mut trials);
    loops::collect(&mut trials);
    world::collect(&mut trials);
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(print) = print {
        print(&conclusion);
    }
    conclusion.exit();
}
