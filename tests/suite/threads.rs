//! Calls from tasks of a user's thread pool do not deadlock. Runs lock the parameters that they update, and a thread
//! that holds such locks starts no task that could want them while it waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use meganeura::check::gradcheck;
use meganeura::data::Dataset;
use meganeura::io::Checkpoint;
use meganeura::nn::{Linear, Relu};
use meganeura::ops::CustomOp;
use meganeura::optim::{Accumulate, AdamW, Ema, Optimizer, Sgd};
use meganeura::{
    Buffer, Compiled, Device, ErrorKind, Grads, Init, Layer, Module, ModuleExt, Param, Result, Seed, Tape, Tensor,
    TensorType, Var,
};
use rayon::prelude::*;

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("threads::{name}"), move || within_minutes(Device::cpu(), run)));
        let gpu = move |device: &Device| within_minutes(device.for_testing(0), run);
        trials.push(gpu_trial(format!("threads::gpu::{name}"), gpu));
    };
    both("tasks_serve_beside_training", serving);
    both("tasks_make_every_call_that_waits", calls);
    trials.push(Trial::test("threads::a_kernel_may_call_a_compiled_function", || {
        within_minutes(Device::cpu(), kernels_that_call)
    }));
}

/// Runs a test on a separate thread, and fails it if it hangs. The limit is some hundred times its usual duration.
fn within_minutes(device: Device, run: fn(&Device) -> Outcome) -> Outcome {
    let (done, finished) = mpsc::channel();
    thread::spawn(move || done.send(run(&device)));
    match finished.recv_timeout(Duration::from_secs(180)) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(Failed::from("hangs: threads wait for each other")),
        Err(RecvTimeoutError::Disconnected) => Err(Failed::from("panicked")),
    }
}

/// Tasks call a compiled function while its parameters are trained: products large enough for several threads.
fn serving(device: &Device) -> Outcome {
    let layers: Vec<_> = (0..3).map(|_| (Linear::new(160, 160), Relu)).collect();
    let mut net = layers.init(device, Seed::new(1))?;
    let x = tensor(device, "x", [160, 160])?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let trained = AtomicBool::new(false);
    let mut optimizer = AdamW::new(1e-3);
    thread::scope(|scope| -> Outcome {
        let serving = scope.spawn(|| -> Result<()> {
            while !trained.load(Ordering::Relaxed) {
                (0..16).into_par_iter().try_for_each(|_| function.call(&x)?.to_vec().map(drop))?;
            }
            Ok(())
        });
        let mut train = |net: &mut Vec<(Linear, Relu)>| -> Result<()> {
            for _ in 0..20 {
                let tape = Tape::new(device);
                let grads = tape.backward(&net.forward(&tape.input(&x)).square().mean())?;
                optimizer.step(net, &grads)?;
            }
            Ok(())
        };
        let done = train(&mut net);
        trained.store(true, Ordering::Relaxed);
        serving.join().expect("serving does not panic")?;
        Ok(done?)
    })
}

/// A model whose parameters several tasks share.
#[derive(Module, Debug)]
struct Shared {
    first: Param,
    second: Param,
    seen: Buffer,
}

impl Shared {
    fn tied(&self) -> Self {
        Self { first: self.first.tied(), second: self.second.tied(), seen: self.seen.tied() }
    }
}

impl Layer for Shared {
    fn forward(&self, x: &Var) -> Var {
        let y = x.matmul(&x.param(&self.first)).tanh();
        if x.tape().is_training() {
            let mean = y.mean_over(&[0]);
            x.tape().update_buffer(&self.seen, |old| old * 0.9 + mean.detach() * 0.1);
        }
        y.matmul(&x.param(&self.second))
    }
}

struct Scene<'a> {
    device: &'a Device,
    net: Shared,
    x: Tensor,
    function: Compiled,
    dataset: Dataset,
    folder: std::path::PathBuf,
}

impl Scene<'_> {
    fn record(&self, net: &Shared) -> Result<(Var, Grads)> {
        let tape = Tape::new(self.device);
        let loss = net.forward(&tape.input(&self.x)).square().mean();
        let grads = tape.backward(&loss)?;
        Ok((loss, grads))
    }
}

type Call = fn(&Scene<'_>, usize) -> Result<()>;

/// Every public call that runs a plan, waits for a device or waits for a thread.
const CALLS: [(&str, Call); 12] = [
    ("step", |scene, _| {
        let mut net = scene.net.tied();
        let (_, grads) = scene.record(&net)?;
        Sgd::new(1e-3).check_finite(true).step(&mut net, &grads)
    }),
    ("accumulate", |scene, _| {
        let (_, grads) = scene.record(&scene.net)?;
        Sgd::new(1e-3).accumulate(&scene.net, grads, Accumulate::mean(4)).map(drop)
    }),
    ("apply", |scene, _| scene.record(&scene.net)?.0.tape().apply()),
    ("item", |scene, _| scene.record(&scene.net)?.0.item().map(drop)),
    ("to_vec", |scene, _| {
        let tape = Tape::inference(scene.device);
        scene.net.forward(&tape.input(&scene.x)).to_vec().map(drop)
    }),
    ("call", |scene, _| scene.function.call(&scene.x)?.to_vec().map(drop)),
    ("compile", |scene, k| {
        let function = scene.device.compile([160 + k % 3, 160], |x| scene.net.forward(x))?;
        function.call(&Tensor::zeros(scene.device, [160 + k % 3, 160])?).map(drop)
    }),
    ("save", |scene, k| scene.net.save(scene.folder.join(format!("{k}.safetensors")))),
    ("ema", |scene, _| {
        let own = scene.net.tied();
        let copy = Shared { first: own.first.clone(), second: own.second.clone(), seen: own.seen.clone() };
        Ema::resume(copy, 0.9, 0)?.update(&own)
    }),
    ("gradcheck", |scene, _| {
        let w = Param::new(Tensor::full(scene.device, [3, 2], 0.5)?);
        let x = Tensor::full(scene.device, [2, 3], 0.25)?;
        gradcheck(&w, &[x], |w, x| vec![x[0].matmul(&x[0].param(w)).tanh()])?.ok()
    }),
    ("next", |scene, k| {
        let batches = scene.dataset.batches(8).shuffle(k as u64).epoch(0).workers(2).on(scene.device);
        batches.into_iter().try_for_each(|batch| batch.map(drop))
    }),
    ("wait", |scene, _| scene.device.wait()),
];

/// More tasks than threads. Some tasks wait for others, and their threads start further tasks meanwhile.
fn calls(device: &Device) -> Outcome {
    let folder = tempfile::tempdir()?;
    let param = |name: &str| Ok::<_, meganeura::Error>(Param::new(tensor(device, name, [160, 160])?));
    let seen = Buffer::new(Tensor::zeros(device, [1, 160])?);
    let net = Shared { first: param("first")?, second: param("second")?, seen };
    net.name_parameters();
    let x = tensor(device, "x", [160, 160])?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let dataset = Dataset::new(vec![0.5; 4 * 40], [4], vec![0; 40])?;
    let scene = Scene { device, net, x, function, dataset, folder: folder.path().to_owned() };
    let call = |k: usize| -> Result<()> {
        let (name, call) = CALLS[k % CALLS.len()];
        match call(&scene, k) {
            // Another task stepped between this task's recording and run.
            Err(error) if error.kind() == ErrorKind::StaleTape => Ok(()),
            other => other.map_err(|error| error.context(name)),
        }
    };
    let tasks = 5 * CALLS.len();
    (0..tasks).into_par_iter().try_for_each(|k| {
        let (one, other) = rayon::join(|| call(k), || call(7 * k + 3));
        one.and(other)
    })?;
    // The same from a pool other than the global one.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("three threads start");
    let failed = std::sync::Mutex::new(None);
    pool.scope(|scope| {
        for k in 0..tasks {
            let (call, failed) = (&call, &failed);
            scope.spawn(move |_| {
                if let Err(error) = call(k) {
                    failed.lock().expect("nobody panics").get_or_insert(error);
                }
            });
        }
    });
    failed.into_inner().expect("nobody panics").map_or(Ok(()), |error| Err(error.into()))
}

/// A custom operation whose native kernel runs another plan.
#[derive(Debug)]
struct Calls {
    function: Compiled,
}

impl CustomOp for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    fn key(&self) -> String {
        String::new()
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![x[0]])
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None])
    }

    fn cpu(&self, types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        let run = || -> Result<Vec<f64>> {
            let x = Tensor::from_f64(&Device::cpu(), types[0].shape, x[0])?;
            self.function.call(&x)?.to_f64_vec()
        };
        y[0].copy_from_slice(&run().expect("the function runs"));
    }

    fn wgsl(&self, _types: &[TensorType]) -> (String, usize) {
        unreachable!("runs on the CPU")
    }
}

fn kernels_that_call(device: &Device) -> Outcome {
    let net = (Linear::new(160, 160), Relu, Linear::new(160, 160)).init(device, Seed::new(1))?;
    let x = tensor(device, "x", [160, 160])?;
    let inner = device.compile(&x, |x| net.forward(x))?;
    let expected = inner.call(&x)?.to_vec()?;
    let outer = device.compile(&x, |x| x.custom(Calls { function: inner.clone() }, &[]) * 2.0)?;
    (0..16).into_par_iter().try_for_each(|_| -> Result<()> {
        let found = outer.call(&x)?.to_vec()?;
        assert!(found.iter().zip(&expected).all(|(found, expected)| *found == 2.0 * expected));
        Ok(())
    })?;
    Ok(())
}
