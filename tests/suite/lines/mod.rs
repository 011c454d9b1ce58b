//! Errors name the user's line: a case for every public function that can fail, and a check that no function lacks one.

mod sources;
mod stage;

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use meganeura::check::{Gradcheck, gradcheck, gradgradcheck};
use meganeura::data::{
    Array, Cifar100Label, Csv, HorizontalFlip, ImageFolder, ImagePairs, Normalize, Windows, read_image,
};
use meganeura::init::Initializer;
use meganeura::io::{self, Names};
use meganeura::metric::{
    Accuracy, AveragePrecision, Bleu, Confusion, MeanAbsoluteError, MeanOf, Perplexity, Regression, RocAuc,
};
use meganeura::onnx;
use meganeura::optim::{Accumulate, Ema, Lbfgs, OptimizerState, Plateau, Schedule, TrainStep};
use meganeura::prelude::*;
use meganeura::run::{Overview, Parts, Run, read_metrics};
use meganeura::serve::{Batched, Queue};
use meganeura::train::evaluate;
use meganeura::{Error, Result};

use self::sources::Fallible;
use self::stage::*;
use crate::Outcome;

/// A fallible function, as its file and name, and a call that fails.
struct Case {
    function: &'static str,
    call: fn(Stage) -> Result<()>,
}

/// `"file::function" |stage| the call;`, on one line: the error must name that line.
macro_rules! cases {
    ($($function:literal |$w:pat_param| $call:expr;)+) => {
        const CASES: &[Case] = &[$(Case { function: $function, call: |$w| $call.map(drop) }),+];
    };
}

cases! {
    "check.rs::gradcheck" |_| gradcheck(&(), &[], |(), _| Vec::new());
    "check.rs::run" |_| Gradcheck::default().run(&(), &[], |(), _| Vec::new());
    "check.rs::gradgradcheck" |_| gradgradcheck(&(), &[], |(), _| Vec::new());
    "check.rs::gradgrad" |_| Gradcheck::default().gradgrad(&(), &[], |(), _| Vec::new());
    "check/report.rs::ok" |w| disagreement(&w).ok();
    "grad.rs::backward" |w| w.tape.backward(&w.var);
    "grad.rs::backward_with" |w| w.tape.backward_with(&w.var, &w.var.sum());
    "grad/products.rs::hvp" |w| w.tape.hvp(&w.var, &[]);
    "grad/products.rs::module_hvp" |w| w.tape.module_hvp(&w.var.sum(), &w.net, &[("5.weight".to_owned(), w.var.clone())]);
    "grad/products.rs::jvp" |w| w.tape.jvp(&w.var, &[(&w.var, &w.var.sum())]);
    "lora.rs::attach" |mut w| Lora::new(0).attach(&mut w.net, "**", 1);
    "lora.rs::load" |mut w| Lora::load(&mut w.net, "no/such/file");
    "lora.rs::merge" |mut w| Lora::merge(&mut w.net);
    "lora.rs::detach" |mut w| Lora::detach(&mut w.net);
    "init.rs::sample" |w| Initializer::Normal { mean: 0.0, std: -1.0 }.sample(&w.device, [2], Seed::new(0));
    "param.rs::set" |mut w| w.net.1.set(w.tensor);
    "tensor/mod.rs::from_slice" |w| Tensor::from_slice(&w.device, [3], &[1.0]);
    "tensor/mod.rs::from_f64" |w| Tensor::from_f64(&w.device, [3], &[1.0]);
    "tensor/mod.rs::indices" |w| Tensor::indices(&w.device, [3], &[1]);
    "tensor/mod.rs::from_bools" |w| Tensor::from_bools(&w.device, [3], &[true]);
    "tensor/mod.rs::from_i32" |w| Tensor::from_i32(&w.device, [3], &[1]);
    "tensor/mod.rs::from_i64" |w| Tensor::from_i64(&w.device, [3], &[1]);
    "tensor/mod.rs::full" |w| Tensor::full(&w.device, [0], 1.0);
    "tensor/mod.rs::zeros" |w| Tensor::zeros(&w.device, [0]);
    "tensor/mod.rs::reshape" |w| w.tensor.reshape([3]);
    "functions/map.rs::map" |w| w.tensor.map(|x| x.reshape([3]));
    "functions/map.rs::argmax" |w| w.tensor.argmax(3);
    "tensor/nested.rs::new" |w| Tensor::new(&w.device, vec![vec![1.0], vec![]]);
    "tensor/make.rs::ones" |w| Tensor::ones(&w.device, [0]);
    "tensor/make.rs::arange" |w| Tensor::arange(&w.device, 0.0, 1.0, -1.0);
    "tensor/make.rs::linspace" |w| Tensor::linspace(&w.device, 0.0, 1.0, 0);
    "tensor/make.rs::eye" |w| Tensor::eye(&w.device, 0);
    "init.rs::rand" |w| Tensor::rand(&w.device, [0], 1);
    "init.rs::randn" |w| Tensor::randn(&w.device, [0], 1);
    "tensor/compare.rs::allclose" |w| w.tensor.allclose(&w.labels, 0.0, 0.0);
    "tensor/compare.rs::expect_close" |w| w.tensor.expect_close(&w.labels, 0.0, 0.0);
    "tensor/mod.rs::to_vec" |w| w.labels.to_vec();
    "tensor/mod.rs::to_vec_async" |w| ready(w.labels.to_vec_async());
    "tensor/mod.rs::to_f64_vec" |w| w.labels.to_f64_vec();
    "tensor/mod.rs::to_f64_vec_async" |w| ready(w.labels.to_f64_vec_async());
    "tensor/mod.rs::to_u32_vec" |w| w.tensor.to_u32_vec();
    "tensor/mod.rs::to_u32_vec_async" |w| ready(w.tensor.to_u32_vec_async());
    "tensor/mod.rs::to_i32_vec" |w| w.tensor.to_i32_vec();
    "tensor/mod.rs::to_i32_vec_async" |w| ready(w.tensor.to_i32_vec_async());
    "tensor/mod.rs::to_i64_vec" |w| w.tensor.to_i64_vec();
    "tensor/mod.rs::to_i64_vec_async" |w| ready(w.tensor.to_i64_vec_async());
    "tensor/mod.rs::item" |w| w.tensor.item();
    "tensor/mod.rs::item_async" |w| ready(w.tensor.item_async());
    "tape/var.rs::to_tensor" |w| w.stale().to_tensor();
    "tape/var.rs::to_vec" |w| w.stale().to_vec();
    "tape/var.rs::to_vec_async" |w| ready(w.stale().to_vec_async());
    "tape/var.rs::item" |w| w.var.item();
    "tape/var.rs::item_async" |w| ready(w.var.item_async());
    "tape/assign.rs::apply" |w| { let tape = w.stale().tape().clone(); tape.update_buffer(&Buffer::new(w.tensor), |old| old + 1.0); drop(tape.apply()); tape.apply() };
    "device/testing.rs::at_baseline" |w| w.device.at_baseline();
    "tape/compile.rs::compile" |w| w.device.compile([0], |x| x.exp());
    "tape/compile.rs::call" |w| w.device.compile([3], |x| x.exp()).expect("fits").call(&w.tensor);
    "onnx/export.rs::export" |w| onnx::export(&w.device, [0], |x| x.exp());
    "onnx/export.rs::record" |w| onnx::Export::new().opset(1).record(&w.device, [2], |x| x.exp());
    "onnx/file.rs::save" |w| w.onnx().save(w.folder.path().join(".."));
    "onnx/file.rs::save_with_weights_beside" |w| w.onnx().save_with_weights_beside(w.folder.path().join(".."));
    "onnx/import/mod.rs::load" |w| onnx::load(&w.device, w.folder.path().join("none"));
    "onnx/import/mod.rs::from_bytes" |w| onnx::Model::from_bytes(&w.device, b"no file");
    "onnx/import/mod.rs::compile" |w| w.model().compile();
    "onnx/import/mod.rs::compile_for" |w| w.model().compile_for(&[]);
    "onnx/import/mod.rs::record" |w| w.model().record(&w.tape, &[]);
    "onnx/import/evaluate.rs::evaluate" |w| w.model().evaluate(&[]);
    "onnx/import/run.rs::run" |w| w.model().run(&[]);
    "onnx/import/evaluate.rs::evaluate" |w| w.model().evaluate(&[]);
    "onnx/import/mod.rs::set_empty" |w| w.model().set_empty("none", &[0]);
    "device/selection.rs::device" |_| World::alone().device("no such adapter");
    "device/selection.rs::named" |_| Device::named("no such adapter");
    "device/selection.rs::named_async" |_| ready(Device::named_async("no such adapter"));
    "device/selection.rs::with_precision" |w| w.device.with_precision(Precision::Fast);
    "device/profile.rs::last_profile" |w| w.device.last_profile();
    "device/variants.rs::prefer_variants" |w| w.device.prefer_variants(&[("matmul", "tile 32")]);
    "module/init.rs::init" |w| Linear::new(0, 1).init(&w.device, 1);
    "module/init.rs::from_seed" |w| Fails::from_seed(&w.device, Seed::new(1));
    "module/init.rs::from_config" |w| Configured::from_config(ConfiguredConfig { width: 0 }, &w.device, Seed::new(1));
    "module/init.rs::init_module" |w| Fails::init(&w.device, 1);
    "module/init.rs::init_configured" |w| Configured::init(&w.device, 1, ConfiguredConfig { width: 0 });
    "grad.rs::named" |w| w.grads().named(&w.other);
    "module/ext.rs::init" |w| <[Fails; 2]>::init(&w.device, 1);
    "module/ext.rs::summary_with" |w| Linear::new(2, 1).init(&w.device, 1).expect("builds").summary_with([0, 2]);
    "module/ext.rs::summary_by" |w| w.net.summary_by([0, 2], |_, x| x.exp());
    "module/ext.rs::evaluate" |mut w| w.net.evaluate("9");
    "module/ext.rs::train" |mut w| w.net.train("9");
    "module/ext.rs::freeze" |mut w| w.net.freeze("2");
    "module/ext.rs::freeze_where" |mut w| w.net.freeze_where(|_, _| false);
    "module/ext.rs::thaw" |mut w| w.net.thaw("2");
    "module/ext.rs::thaw_where" |mut w| w.net.thaw_where(|_, _| false);
    "module/ext.rs::map" |mut w| w.net.map(|_, x| x.sum());
    "module/ext.rs::zip" |w| w.net.zip(&w.other).map(drop);
    "module/ext.rs::zip_with" |mut w| w.net.zip_with(&w.other, |_, x, _| x.clone());
    "module/ext.rs::copy_from" |mut w| w.net.copy_from(&w.other);
    "module/ext.rs::tie_like" |mut w| { let same = w.other.0.tied(); w.net.tie_like(&(w.other.0, same)) };
    "module/slot.rs::set" |mut w| set_slot(&mut w.net, |slot, value| slot.set(value.clone()), &w.labels);
    "grad/average.rs::average_to_owners" |w| w.grads().average_to_owners(&w.other, &World::alone());
    "grad/average.rs::average_bf16" |w| w.grads().average_bf16(&w.other, &World::alone());
    "grad/average.rs::average" |w| w.grads().average(&w.other, &World::alone());
    "grad/clip.rs::clip_norm" |w| w.grads().clip_norm(&w.net, 0.0);
    "grad/clip.rs::clip_value" |w| w.grads().clip_value(&w.net, f64::NAN);
    "optim/ema.rs::new" |w| Ema::new(&w.net, 2.0);
    "optim/ema.rs::resume" |w| Ema::resume(w.net, 2.0, 0);
    "optim/ema.rs::update" |w| Ema::new(&w.net, 0.5).expect("fits").update(&w.other);
    "optim/ema.rs::swap" |mut w| Ema::new(&w.net, 0.5).expect("fits").swap(&mut w.other);
    "optim/ema.rs::apply" |mut w| Ema::new(&w.net, 0.5).expect("fits").apply(&mut w.other);
    "optim/lbfgs/mod.rs::step" |mut w| Lbfgs::new(-1.0).step(&mut w.net, |_| Ok(w.var.sum()));
    "optim/mod.rs::step" |mut w| { let grads = w.grads(); Sgd::new(-1.0).step(&mut w.net, &grads) };
    "optim/mod.rs::step_async" |mut w| { let grads = w.grads(); ready(Sgd::new(-1.0).step_async(&mut w.net, &grads)) };
    "optim/mod.rs::step_with_loss" |mut w| { let grads = w.grads(); Sgd::new(-1.0).step_with_loss(&mut w.net, &grads, &w.var) };
    "optim/mod.rs::step_with_loss_async" |mut w| { let grads = w.grads(); ready(Sgd::new(-1.0).step_with_loss_async(&mut w.net, &grads, &w.var)) };
    "optim/mod.rs::accumulate" |w| Sgd::new(0.1).accumulate(&w.net, w.grads(), Accumulate::sum(0));
    "optim/mod.rs::accumulate_last" |w| Sgd::new(0.1).accumulate_last(&w.other, w.grads(), Accumulate::sum(2));
    "optim/mod.rs::load_state" |w| Sgd::new(0.1).load_state(&w.net, &OptimizerState::default());
    "optim/train_step/mod.rs::call" |w| TrainStep::new(&w.net, |_, x: &Var| x.sum()).call(&mut Sgd::new(-1.0), &w.tensor);
    "optim/train_step/mod.rs::call_async" |w| ready(TrainStep::new(&w.net, |_, x: &Var| x.sum()).call_async(&mut Sgd::new(-1.0), &w.tensor));
    "optim/schedule/plateau.rs::load_state" |_| Plateau::new(0.1).load_state("cosine");
    "optim/schedule/text.rs::from_str" |_| <Schedule as std::str::FromStr>::from_str("cosine");
    "data/batches.rs::len" |w| w.dataset.batches(0).len();
    "data/array.rs::new" |_| Array::new(vec![1.0], [2]);
    "data/array.rs::zeros" |_| Array::<f32>::zeros([1 << 40, 1 << 40]);
    "data/array.rs::padded" |_| Array::padded(&[Array::new(vec![0.0], []).expect("a number")], 0.0);
    "data/array.rs::into_tensor" |w| Array::<f32>::zeros([0]).expect("nothing").into_tensor(&w.device);
    "data/array.rs::from_tensor" |w| Array::<u32>::from_tensor(&w.tensor);
    "data/array.rs::labels" |_| Array::from(vec![0.5]).labels();
    "data/array.rs::transformed" |_| Array::from(vec![1.0]).transformed(&HorizontalFlip::new(0.5), 1);
    "data/cifar.rs::from_cifar10" |_| Dataset::from_cifar10::<&str>([]);
    "data/cifar.rs::read_cifar10" |_| Dataset::read_cifar10::<&[u8]>([]);
    "data/cifar.rs::from_cifar100" |_| Dataset::from_cifar100(["no/such/file"], Cifar100Label::Fine);
    "data/cifar.rs::read_cifar100" |_| Dataset::read_cifar100([&b"no records"[..]], Cifar100Label::Fine);
    "data/csv.rs::read" |_| Csv::new([2]).read("no/such/file");
    "data/csv.rs::read_from" |_| Csv::new([2]).read_from("text", &b"1,2\n"[..]);
    "data/dataset.rs::new" |_| Dataset::new(vec![0.0; 3], [2], vec![0, 1]);
    "data/dataset.rs::from_bytes" |_| Dataset::from_bytes(vec![0; 3], [2], vec![0, 1]);
    "data/dataset.rs::from_columns" |_| Dataset::from_columns(vec![1.0], vec![0, 1]);
    "data/dataset.rs::of" |_| Dataset::of(Damaged(usize::MAX));
    "data/dataset.rs::shape" |_| Dataset::of(Damaged(2)).expect("fits").shape();
    "data/dataset.rs::targets" |_| Dataset::of(Damaged(2)).expect("fits").targets();
    "data/dataset.rs::get" |w| w.dataset.get(2);
    "data/dataset.rs::split" |w| w.dataset.split(1.5, 0);
    "data/dataset.rs::split_at" |w| w.dataset.split_at(3);
    "data/dataset.rs::subset" |w| w.dataset.subset([2]);
    "data/dataset.rs::folds" |w| w.dataset.folds(1, 0);
    "data/windows.rs::new" |_| Windows::new(Array::from(vec![0.5]), 0, 1);
    "data/windows.rs::targets" |_| Windows::new(Array::from(vec![0.5]), 1, 1).expect("fits").targets([1]);
    "data/image_pairs.rs::open" |_| ImagePairs::open("no/such/folder", "nor/this");
    "data/idx.rs::from_idx" |_| Dataset::from_idx("no/such/file", "nor/this");
    "data/idx.rs::read_idx" |_| Dataset::read_idx(&b"nonsense"[..], &b""[..]);
    "data/transform/normalize.rs::fit" |_| Normalize::fit(&Dataset::new(vec![f32::NAN], [1], vec![0]).expect("an example"));
    "data/picture.rs::read_image" |_| read_image("no/such/file");
    "data/image_folder.rs::read_image" |w| w.images().read_image("no/such/file");
    "data/image_folder.rs::open" |_| ImageFolder::open("no/such/folder");
    "data/image_folder.rs::open_with_limit" |_| ImageFolder::open_with_limit("no/such/folder", 1);
    "data/image_folder.rs::check" |w| w.images().check();
    "data/image_folder.rs::exif_transpose" |w| w.lost_images().exif_transpose();
    "metric/accuracy.rs::update" |w| Accuracy::new().update(&w.tensor, &w.labels);
    "metric/accuracy.rs::update_async" |w| ready(Accuracy::new().update_async(&w.tensor, &w.labels));
    "metric/accuracy.rs::merge" |_| Accuracy::new().merge(&Accuracy::top(2));
    "metric/accuracy.rs::value" |_| Accuracy::new().value();
    "metric/average_precision.rs::update" |_| AveragePrecision::new().update(&[], &[([1.0, 0.0, 0.0, 0.0], 0)]);
    "metric/average_precision.rs::update_batch" |w| AveragePrecision::new().update_batch(&w.tensor, &w.tensor, &w.tensor, &w.labels);
    "metric/average_precision.rs::value" |_| AveragePrecision::new().value();
    "metric/average_precision.rs::at" |_| AveragePrecision::new().at(0.5);
    "metric/bleu.rs::of_order" |_| Bleu::of_order(5);
    "metric/bleu.rs::update" |_| Bleu::new().update(&[1], &[[0; 0]; 0]);
    "metric/bleu.rs::merge" |_| Bleu::new().merge(&Bleu::of_order(2).expect("an order"));
    "metric/bleu.rs::value" |_| Bleu::new().value();
    "metric/confusion.rs::new" |_| Confusion::new(0);
    "metric/confusion.rs::update" |w| Confusion::new(1).expect("a class").update(&w.tensor, &w.labels);
    "metric/confusion.rs::update_async" |w| ready(Confusion::new(1).expect("a class").update_async(&w.tensor, &w.labels));
    "metric/confusion.rs::merge" |_| Confusion::new(1).expect("a class").merge(&Confusion::new(2).expect("classes"));
    "metric/confusion.rs::accuracy" |_| Confusion::new(1).expect("a class").accuracy();
    "metric/confusion.rs::macro_f1" |_| Confusion::new(1).expect("a class").macro_f1();
    "metric/confusion.rs::mean_iou" |_| Confusion::new(1).expect("a class").mean_iou();
    "metric/confusion.rs::micro_f1" |_| Confusion::new(1).expect("a class").micro_f1();
    "metric/mean.rs::update_async" |w| ready(MeanAbsoluteError::new().update_async(&w.tensor, &w.labels));
    "metric/mean.rs::update" |_| Perplexity::new().update(0.0, 0);
    "metric/mean.rs::value" |_| Perplexity::new().value();
    "metric/measure.rs::update" |w| MeanOf::new(|y, t| y.cross_entropy(t)).update(&w.tensor, &w.tensor);
    "metric/measure.rs::value" |_| MeanOf::new(|y, _| y.clone()).value();
    "metric/regression.rs::update" |w| Regression::new().update(&w.labels, &w.labels);
    "metric/regression.rs::merge" |w| counted(&w, 1).merge(&counted(&w, 2));
    "metric/regression.rs::mean_absolute_errors" |_| Regression::new().mean_absolute_errors();
    "metric/regression.rs::mean_squared_errors" |_| Regression::new().mean_squared_errors();
    "metric/regression.rs::r2" |_| Regression::new().r2();
    "metric/regression.rs::value" |_| Regression::new().value();
    "metric/roc_auc.rs::update" |w| RocAuc::new().update(&w.labels, &w.labels);
    "metric/roc_auc.rs::update_async" |w| ready(RocAuc::new().update_async(&w.labels, &w.labels));
    "metric/roc_auc.rs::value" |_| RocAuc::new().value();
    "lora/peft.rs::load_peft" |mut w| Lora::load_peft(&mut w.net, "no/such/file", &Names::new());
    "lora/peft.rs::save_peft" |w| Lora::save_peft(&w.net, w.folder.path(), &Names::new());
    "io/mod.rs::safetensors_from_gguf" |_| io::safetensors_from_gguf(b"nonsense");
    "io/mod.rs::safetensors_from_npz" |_| io::safetensors_from_npz(b"nonsense");
    "io/mod.rs::save" |w| w.net.save(w.folder.path().join("no/such/folder"));
    "io/mod.rs::to_safetensors" |w| w.twice().to_safetensors();
    "io/mod.rs::to_safetensors_async" |w| ready(w.twice().to_safetensors_async());
    "io/mod.rs::save_with" |w| w.net.save_with(w.folder.path().join("no/such/folder"), &Names::new());
    "io/mod.rs::to_safetensors_with" |w| w.net.to_safetensors_with(&Names::new().rename("*", "a"));
    "io/mod.rs::to_safetensors_with_async" |w| ready(w.net.to_safetensors_with_async(&Names::new().rename("*", "a")));
    "io/mod.rs::load" |mut w| w.net.load("no/such/file");
    "io/mod.rs::load_safetensors" |mut w| w.net.load_safetensors(b"nonsense");
    "io/mod.rs::load_with" |mut w| w.net.load_with("no/such/file", &Names::new());
    "io/mod.rs::load_safetensors_with" |mut w| w.net.load_safetensors_with(b"nonsense", &Names::new());
    "io/picture.rs::save_image" |w| io::save_image("x.png", &w.labels);
    "io/picture.rs::save_images" |w| io::save_images("x.png", &w.labels, 1);
    "io/tensors.rs::load_tensors" |w| io::load_tensors("no/such/file", &w.device);
    "io/mod.rs::safetensors_from_pt" |_| io::safetensors_from_pt(b"nonsense");
    "io/tensors.rs::tensors_from_safetensors" |w| io::tensors_from_safetensors(b"nonsense", &w.device);
    "io/tensors.rs::tensor" |_| io::Tensors::default().tensor("x").cloned();
    "io/tensors.rs::complete" |w| io::tensors_from_safetensors(&empty_tensor(), &w.device).expect("others are read").complete();
    "io/tensors.rs::save_tensors" |w| io::save_tensors("no/such/folder/x", [("x", &w.labels)]);
    "io/tensors.rs::tensors_to_safetensors" |w| io::tensors_to_safetensors([("x", &w.labels), ("x", &w.labels)]);
    "io/tensors.rs::tensors_to_safetensors_async" |w| ready(io::tensors_to_safetensors_async([("x", &w.labels), ("x", &w.labels)]));
    "io/names.rs::path" |_| Names::new().ignore("a").path("a");
    "io/report.rs::strict" |mut w| partial(&mut w).strict();
    "io/state.rs::from_safetensors" |w| OptimizerState::from_safetensors(b"nonsense", &w.device);
    "nn/rotary_embedding.rs::table" |w| RotaryEmbedding::new(3).table(&w.device, 4);
    "serve/batched.rs::compile" |w| Batched::compile(&w.device, [], 0.0_f32, |x| x * 2.0);
    "serve/batched.rs::call" |w| doubled(&w).call(vec![Array::from(vec![0.5])]);
    "serve/queue.rs::call" |w| Queue::start(doubled(&w), Duration::ZERO).call(Array::from(vec![0.5]));
    "run/tensorboard/media.rs::log_histogram" |w| Run::at(w.run(), &w.device).tensorboard(true).create().expect("begins").log_histogram("x", &nan(&w));
    "run/tensorboard/media.rs::log_image" |w| Run::at(w.run(), &w.device).tensorboard(true).create().expect("begins").log_image("x", &w.tensor);
    "train/at.rs::log_histogram" |mut w| { let (run, nan) = (with_board(&w), nan(&w)); Trainer::new(&mut w.net, w.dataset.batches(1), |net, x, _| x.tape().param(&net.0).sum() + x.tape().param(&net.1).sum()).run(run).each_epoch(|at| at.log_histogram("x", &nan)).quiet().fit(&mut Sgd::new(0.1)) };
    "train/at.rs::log_image" |mut w| { let (run, flat) = (with_board(&w), w.tensor.clone()); Trainer::new(&mut w.net, w.dataset.batches(1), |net, x, _| x.tape().param(&net.0).sum() + x.tape().param(&net.1).sum()).run(run).each_epoch(|at| at.log_image("x", &flat)).quiet().fit(&mut Sgd::new(0.1)) };
    "train/validation.rs::evaluate" |w| evaluate(&(), w.dataset.batches(1), Accuracy::new(), |(), x, t| (x.clone(), t.clone()));
    "train/trainer.rs::fit" |mut w| Trainer::new(&mut w.net, w.dataset.batches(1), |_, x, _| x.sum()).accumulate(0).quiet().fit(&mut Sgd::new(0.1));
    "train/lr_curve.rs::find_lr" |mut w| Trainer::new(&mut w.net, w.dataset.batches(1), |_, x, _| x.sum()).find_lr(Sgd::new(0.1));
    "train/at.rs::log" |mut w| { let run = w.begun(); Trainer::new(&mut w.net, w.dataset.batches(1), |net, x, _| x.tape().param(&net.0).sum() + x.tape().param(&net.1).sum()).run(run).each_epoch(|at| at.log(&[("step", &1)])).quiet().fit(&mut Sgd::new(0.1)) };
    "run/metrics.rs::read_metrics" |w| read_metrics(w.damaged_metrics());
    "run/mod.rs::restore" |mut w| w.restored().restore(&mut w.net, &mut Sgd::new(0.1));
    "run/mod.rs::restore_parts" |w| w.restored().restore_parts();
    "run/mod.rs::log" |w| w.begun().log(&[("step", &1.0)]);
    "run/mod.rs::metrics" |w| { let mut run = w.begun(); w.damaged_metrics(); run.metrics() };
    "run/mod.rs::checkpoint" |w| w.resumed().checkpoint(&w.net, &Sgd::new(0.1));
    "run/mod.rs::save" |w| w.resumed().save(Parts::new());
    "run/mod.rs::finish" |w| { let run = w.begun(); w.remove_run(); run.finish() };
    "run/mod.rs::fail" |w| { let run = w.begun(); w.remove_run(); run.fail("NaN") };
    "run/options.rs::create" |w| { drop(w.begun()); Run::at(w.run(), &w.device).create() };
    "run/options.rs::resume" |w| Run::at(w.run(), &w.device).resume();
    "run/options.rs::open" |w| Run::at(w.run(), &w.device).keep_last(0).open();
    "run/overview.rs::of" |w| Overview::of(w.run());
    "run/parts.rs::put_model" |w| Parts::new().put_model("a/b", &w.net);
    "run/parts.rs::put_optimizer" |w| Parts::new().put_optimizer("a/b", &Sgd::new(0.1), &w.net);
    "run/parts.rs::put_ema" |w| Parts::new().put_ema("a/b", &Ema::new(&w.net, 0.5).expect("fits"));
    "run/parts.rs::put_lbfgs" |_| Parts::new().put_lbfgs("a/b", &Lbfgs::new(1.0));
    "run/parts.rs::put_text" |_| Parts::new().put_text("a/b", "text");
    "run/parts.rs::take_model" |mut w| Parts::new().take_model("model", &mut w.net);
    "run/parts.rs::take_optimizer" |w| Parts::new().take_optimizer("optimizer", &mut Sgd::new(0.1), &w.net);
    "run/parts.rs::take_ema" |w| Parts::new().take_ema("ema", &mut Ema::new(&w.net, 0.5).expect("fits"));
    "run/parts.rs::take_lbfgs" |_| Parts::new().take_lbfgs("lbfgs", &mut Lbfgs::new(1.0));
    "run/parts.rs::take_text" |_| Parts::new().take_text("text");
    "run/parts.rs::finish" |_| { let mut parts = Parts::new(); parts.put_text("a", 1).expect("a name"); parts.finish() };
}

/// Functions that keep the caller's line but have no case, each with the reason.
const WITHOUT_A_CASE: &[(&str, &str)] = &[
    ("device/selection.rs::best", "fails by an environment variable alone"),
    ("device/selection.rs::best_async", "fails by an environment variable alone"),
    ("device/mod.rs::wait", "fails where a GPU does"),
    ("device/mod.rs::wait_async", "fails where a GPU does"),
    ("device/profile.rs::set_profiling", "fails on GPUs without timestamps"),
    ("io/state.rs::to_safetensors", "fails where the device does"),
    ("io/state.rs::to_safetensors_async", "fails where the device does"),
    ("metric/accuracy.rs::over", "fails in a world of several ranks"),
    ("metric/confusion.rs::over", "fails in a world of several ranks"),
    ("metric/mean.rs::over", "fails in a world of several ranks"),
    ("data/joined.rs::concat", "fails beyond the memory of any machine"),
    ("metric/regression.rs::over", "fails in a world of several ranks"),
    ("metric/average_precision.rs::merge", "fails where there is no memory"),
    ("metric/average_precision.rs::over", "fails in a world of several ranks"),
    ("metric/bleu.rs::over", "fails in a world of several ranks"),
    ("metric/roc_auc.rs::merge", "fails where there is no memory"),
    ("metric/roc_auc.rs::over", "fails in a world of several ranks"),
    ("module/ext.rs::to_device", "fails where a device does"),
    ("module/check_input.rs::check_input", "a part of the derived `init`; tests/derive-ui has its line"),
    ("module/flow/mod.rs::check_flow", "a part of the derived `init`; tests/derive-ui has its line"),
    ("module/init.rs::init_by", "a part of the derived `init`"),
    ("module/init.rs::init_field", "a part of the derived `init`"),
    ("module/slot.rs::to_device", "fails where a device does"),
    ("onnx/file.rs::to_bytes", "fails for models of more than 2 GiB"),
    ("onnx/import/trainable.rs::trainable", "fails if the device has no memory"),
    ("grad/average.rs::share", "fails in a world of several ranks"),
    ("optim/mod.rs::whole_state_of", "fails in a world of several ranks"),
    ("param.rs::to_device", "fails where a device does"),
    ("run/interrupt.rs::on_ctrl_c", "would catch the Ctrl-C of the test runner"),
    ("tensor/mod.rs::to_device", "fails where a device does"),
    ("world/mod.rs::expect_same", "fails in a world of several ranks"),
    ("world/mod.rs::sum", "fails in a world of several ranks"),
    ("world/mod.rs::text_of_first", "fails in a world of several ranks"),
    ("world/start.rs::join", "fails by environment variables alone"),
];

/// Methods that users write and the framework calls. The function in between adds the line of the user's call to their
/// errors.
const CALLED_BY_THE_FRAMEWORK: &[&str] = &[
    "data/collate.rs::collate",
    "data/examples.rs::read",
    "data/examples.rs::read_targets",
    "data/fields.rs::counts",
    "data/fields.rs::into_tensors",
    "data/fields.rs::push_onto",
    "data/fields.rs::row",
    "data/fields.rs::stack",
    "data/transform/mod.rs::shape",
    "functions/custom.rs::vjp",
    "metric/measure.rs::gather",
    "module/init.rs::build",
    "optim/rule.rs::check",
];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for case in CASES {
        trials.push(Trial::test(format!("lines::{}", case.function), || names_its_line(case)));
    }
    trials.push(Trial::test("lines::every_function_that_fails_has_a_case", every_function_has_a_case));
    trials.push(Trial::test("lines::of_an_unknown_caller", of_an_unknown_caller));
    trials.push(Trial::test("lines::of_batches", of_batches));
    trials.push(Trial::test("lines::of_a_skipped_step", of_a_skipped_step));
    trials.push(Trial::test("lines::of_composed_operations", of_composed_operations));
}

fn names_its_line(case: &Case) -> Outcome {
    let error = (case.call)(Stage::new()?).err().ok_or("no error")?;
    at_line_of(&error, |line| line.trim_start().starts_with(&format!("{:?} |", case.function)))
}

/// Fails unless the error names the intended line of this file.
fn at_line_of(error: &Error, is_meant: impl Fn(&str) -> bool) -> Outcome {
    let at = error.location().ok_or_else(|| Failed::from(format!("no line: {error}")))?;
    if !at.file().ends_with("lines/mod.rs") {
        return Err(format!("a line of another file: {error}").into());
    }
    let line = include_str!("mod.rs").lines().nth(at.line() as usize - 1).unwrap_or_default();
    if is_meant(line) { Ok(()) } else { Err(format!("another line: {error}").into()) }
}

fn every_function_has_a_case() -> Outcome {
    let all = sources::fallible_functions()?;
    let mut wrong = Vec::new();
    for Fallible { name, is_tracked, is_hidden, body } in &all {
        let reason = WITHOUT_A_CASE.iter().find(|(known, _)| known == name);
        let has_case = CASES.iter().any(|case| case.function == name);
        let is_known = has_case || reason.is_some();
        if CALLED_BY_THE_FRAMEWORK.contains(&&**name) || (*is_hidden && !is_known) {
            continue;
        }
        if !is_tracked {
            wrong.push(format!("{name}: `#[track_caller]` is missing (an `async fn` cannot have it)"));
        }
        match reason {
            None if !has_case => wrong.push(format!("{name}: no case in `CASES`")),
            Some(_) if has_case => wrong.push(format!("{name}: it has a case, and is excused from one")),
            // A blocking form gets the line from its async form.
            Some((_, reason)) if *reason != "never fails" && !body.contains("here") && !body.contains("_async(") => {
                wrong.push(format!("{name}: neither a case nor a call of `here`"));
            }
            _ => {}
        }
    }
    let excused = WITHOUT_A_CASE.iter().map(|(name, _)| name).chain(CALLED_BY_THE_FRAMEWORK);
    for name in excused.chain(CASES.iter().map(|case| &case.function)) {
        if !all.iter().any(|function| function.name == **name) {
            wrong.push(format!("{name}: no such function"));
        }
    }
    // Fewer would mean that the scan misses some.
    assert!(all.len() > 100, "{} functions found", all.len());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// If the caller is unknown, as behind a function pointer, the error names no line of the framework or the standard
/// library, but that of the next call.
fn of_an_unknown_caller() -> Outcome {
    let w = Stage::new()?;
    let u = w.tape.input(&w.labels);
    let y = [&u].into_iter().map(Var::exp).next().ok_or("one")?;
    at_line_of(&y.to_vec().map(drop).expect_err("labels"), |line| line.contains("at_line_of(&y.to_vec()"))?;
    let exp: fn(&Var) -> Var = Var::exp;
    let y = exp(&u);
    at_line_of(&y.error().ok_or("labels")?, |line| line.contains("at_line_of(&y.error()"))?;
    assert_eq!([&w.labels].into_iter().map(Tensor::to_vec).next().ok_or("one")?.expect_err("labels").location(), None);
    assert_eq!("cosine".parse::<Schedule>().expect_err("no schedule").location(), None);
    // Trait objects keep the line.
    let layer: &dyn Layer = &Relu;
    let y = layer.forward(&u);
    at_line_of(&y.to_vec().map(drop).expect_err("labels"), |line| line.contains("layer.forward(&u)"))?;
    let mut net = w.net.clone();
    let optimizer: &mut dyn Optimizer = &mut Sgd::new(-1.0);
    let stepped = optimizer.step(&mut net, &w.grads());
    at_line_of(&stepped.expect_err("a rate below 0"), |line| line.contains("optimizer.step("))
}

/// A `for` loop calls `next` itself, so the line is the one that made the batches.
fn of_batches() -> Outcome {
    let w = Stage::new()?;
    for workers in [0, 2] {
        let batches = Dataset::of(Damaged(2))?.batches(1).workers(workers).on(&w.device);
        for batch in batches {
            at_line_of(&batch.map(drop).expect_err("damaged"), |line| {
                line.contains(".workers(workers).on(&w.device)")
            })?;
        }
    }
    let mut batches = w.dataset.batches(0).on(&w.device);
    let error = batches.next().ok_or("an error")?.map(drop).expect_err("batches of nothing");
    at_line_of(&error, |line| line.contains("w.dataset.batches(0).on(&w.device)"))
}

fn of_a_skipped_step() -> Outcome {
    let mut w = Stage::new()?;
    let tape = Tape::new(&w.device);
    let loss = tape.param(&w.net.0).sum() / 0.0 + tape.param(&w.net.1).sum();
    let grads = tape.backward(&loss)?;
    let mut optimizer = Sgd::new(0.1).skip_not_finite(true);
    optimizer.step(&mut w.net, &grads)?; // skipped
    at_line_of(optimizer.last_skip().ok_or("infinite")?, |line| line.ends_with("// skipped"))
}

/// Composed operations: each of their parts has the caller's line.
fn of_composed_operations() -> Outcome {
    let w = Stage::new()?;
    let image = w.tape.input(&Tensor::zeros(&w.device, [1, 1, 2, 2])?);
    let before = w.tape.lines().len();
    let first = line!();
    drop((
        image.variance(1),
        image.mean(),
        image.mean_over(&[2]),
        image.mean_keep(&[2]),
        image.variance_over(&[3], 1),
        image.softmax(1),
        image.log_softmax(1),
        image.resize_bilinear([3, 3], true),
        image.upsample_nearest([2, 2]),
        image.leaky_relu(0.1),
        image.elu(1.0),
        image.clamp(0.0, 1.0),
        image.powf(2.0),
        image.random_uniform(),
        image.t(),
        image.prod_over(&[2, 3]),
        image.cast(DType::I64).modulo(&image.cast(DType::I64)).bitwise_not() * 3.0,
        &image + w.tape.scalar(1.0),
        1.0 - &image,
    ));
    let (last, lines) = (line!(), w.tape.lines());
    assert!(lines.len() > before + 20, "{} operations", lines.len() - before);
    for at in &lines[before..] {
        assert!(at.file().ends_with("lines/mod.rs") && (first..last).contains(&at.line()), "{at}");
    }
    Ok(())
}
