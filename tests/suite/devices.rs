//! Missing devices, the choice of a device by the environment, and requests for more memory than a device has.

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use meganeura::ops::Conv3dOptions;
use meganeura::optim::{AdamW, Optimizer};
use meganeura::{
    DType, Device, ErrorKind, Param, PipelineCache, Precision, Profiling, Result, Stats, Tape, Tensor, Var,
};

use crate::Outcome;
use crate::adapter::{adapter, gpu_trial};
use crate::nets::{Tiny, bits, images, record, tensor};

/// With this argument, the program prints [`Device::best`] and exits.
const BEST: &str = "print-the-best-device";

/// With this argument, the program compiles a kernel, prints whether it was on disk, and exits.
const COMPILED: &str = "print-what-was-compiled";

/// Handles these arguments. Whatever depends on the environment is tested in a child process.
pub(crate) fn print_if_asked() -> bool {
    match std::env::args().nth(1).as_deref() {
        Some(BEST) => match Device::best() {
            Ok(device) => {
                let kind = if device.is_gpu() { "GPU" } else { "CPU" };
                println!("{kind} device {device}, because: {}", device.reason());
            }
            Err(error) => println!("{error:?}"),
        },
        Some(COMPILED) => match compile() {
            Ok(stats) => print!("{:?} {}", stats.pipeline_cache, stats.pipeline_cache_failures),
            Err(error) => print!("{error:?}"),
        },
        _ => return false,
    }
    true
}

fn compile() -> Result<Stats> {
    let device = Device::best()?;
    let x = Tape::new(&device).input(&Tensor::full(&device, [40, 40], 0.5)?);
    assert_eq!(x.matmul(&x).to_vec()?, [10.0; 1600]);
    let stats = device.stats();
    assert!(stats.pipelines == 1 && !stats.pipeline_time.is_zero() && stats.pipeline_time <= stats.plan_time);
    Ok(stats)
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("devices::an_unknown_name_is_an_error", unknown));
    trials.push(Trial::test("devices::the_environment_chooses", environment));
    trials.push(gpu_trial("devices::the_environment_chooses_an_adapter", environment_adapter));
    trials.push(Trial::test("devices::descriptions", description));
    trials.push(Trial::test("devices::too_large", || too_large(&Device::cpu())));
    trials.push(gpu_trial("devices::gpu::too_large", |device| too_large(&device.for_testing(0))));
    trials.push(Trial::test("devices::uncountable", || uncountable(&Device::cpu())));
    trials.push(gpu_trial("devices::gpu::uncountable", |device| uncountable(&device.for_testing(0))));
    trials.push(Trial::test("devices::no_room_to_work_in", no_room_to_work_in));
    trials.push(Trial::test("devices::uncountable_memory", uncountable_memory));
    trials.push(gpu_trial("devices::gpu::makes_room", makes_room));
    trials.push(gpu_trial("devices::gpu::is_shared_by_threads", threads));
    trials.push(gpu_trial("devices::gpu::keeps_compiled_kernels", kept));
    trials.push(Trial::test("devices::precisions_of_the_cpu", cpu_precisions));
    trials.push(gpu_trial("devices::gpu::fast_precision", fast));
    trials.push(Trial::test("devices::profile", || profile(&Device::cpu())));
    trials.push(gpu_trial("devices::gpu::profile", |device| profile(&device.for_testing(0))));
}

fn unknown() -> Outcome {
    let name = "an adapter that nobody makes";
    let error = Device::named(name).map(drop).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Device);
    let message = error.to_string();
    assert!(message.contains(name), "{message}");
    match adapter() {
        // The message lists the existing devices.
        Ok(device) => assert!(message.contains(&device.to_string()), "{message}"),
        Err(_) => assert!(message.contains("no adapter"), "{message}"),
    }
    // `gpu` is a GPU or an error, never another device.
    match Device::named("gpu") {
        Ok(device) => assert!(device.is_gpu()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Device, "{error}");
            // A software driver is available by name, and the message says so.
            if let Ok(device) = adapter() {
                let name = device.to_string();
                let word = name.split(' ').next().expect("a name");
                assert!(error.to_string().contains(&name), "{error}");
                assert!(error.to_string().contains(&format!("(select it with `{word}`)")), "{error}");
                assert_eq!(Device::named(word)?.to_string(), name);
            }
        }
    }
    // The empty string is part of every name.
    for blank in ["", " ", "\t \n"] {
        let error = Device::named(blank).map(drop).expect_err("names nothing");
        assert_eq!(error.kind(), ErrorKind::Device);
        let there = adapter().map_or("no adapter".to_owned(), ToString::to_string);
        assert!(error.to_string().contains(&there), "{error}");
    }
    assert!(!Device::named("CPU")?.is_gpu());
    Ok(())
}

fn best(wanted: Option<&str>) -> Result<String, Failed> {
    best_with(wanted, None)
}

/// The best device of a process with this number of rayon threads.
fn best_with(wanted: Option<&str>, threads: Option<&str>) -> Result<String, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(BEST).env_remove("MEGANEURA_DEVICE");
    if let Some(threads) = threads {
        command.env("RAYON_NUM_THREADS", threads);
    }
    if let Some(wanted) = wanted {
        command.env("MEGANEURA_DEVICE", wanted);
    }
    let output = command.output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn environment() -> Outcome {
    let chosen = best(Some("cpu"))?;
    assert!(chosen.starts_with("CPU device") && chosen.contains("because: MEGANEURA_DEVICE=cpu"), "{chosen}");
    for (threads, said) in [("1", "CPU, 1 thread,"), ("3", "CPU, 3 threads,")] {
        let chosen = best_with(Some("cpu"), Some(threads))?;
        assert!(chosen.contains(said), "{chosen}");
    }
    let refused = best(Some("nonsense"))?;
    // The variable may have been set long ago, so the message says where the name comes from and lists alternatives.
    assert!(refused.starts_with("Device: MEGANEURA_DEVICE=nonsense: no adapter "), "{refused}");
    assert!(refused.contains("use `cpu` for the CPU") || cfg!(not(feature = "gpu")), "{refused}");
    // Without a choice, it is the first GPU, or the CPU with the reason.
    let open = best(None)?;
    assert_eq!(open, best(Some(""))?);
    match Device::named("gpu") {
        Ok(_) => assert!(open.starts_with("GPU device"), "{open}"),
        Err(_) => assert!(open.starts_with("CPU device") && open.contains("because: no GPU"), "{open}"),
    }
    let blank = best(Some("  "))?;
    assert!(blank.starts_with("Device: MEGANEURA_DEVICE=  : "), "{blank}");
    let demanded = best(Some("gpu"))?;
    assert!(
        demanded.starts_with("GPU device") || demanded.starts_with("Device: MEGANEURA_DEVICE=gpu: no GPU"),
        "{demanded}"
    );
    Ok(())
}

fn environment_adapter(device: &Device) -> Outcome {
    let name = device.to_string();
    let part = name.split(' ').next().expect("a name").to_uppercase();
    let chosen = best(Some(&part))?;
    assert!(chosen.starts_with("GPU device") && chosen.contains(&name), "{chosen}");
    assert!(chosen.contains(&format!("MEGANEURA_DEVICE={part}")), "{chosen}");
    Ok(())
}

fn description() -> Outcome {
    let (single, double) = (Device::cpu(), Device::cpu_with(Precision::Double));
    assert!(single.to_string().starts_with("CPU, ") && double.to_string().ends_with("double precision"));
    assert!(single.same(&Device::cpu()) && !single.same(&double));
    assert_eq!((single.precision(), double.precision()), (Precision::Full, Precision::Double));
    assert_eq!((single.stats().pipelines, single.stats().pipeline_cache), (0, PipelineCache::Off));
    Ok(())
}

/// More numbers than any memory holds: 2⁶⁰.
const HUGE: [usize; 2] = [1 << 30, 1 << 30];

fn too_large(device: &Device) -> Outcome {
    let expect = |what: &str, result: Result<()>| {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{what}: {error}");
    };
    let x = tensor(device, "x", [1, 1])?;
    let mut net = Tiny::init(device, 1)?;
    let before = bits(&net)?;
    let mut optimizer = AdamW::new(0.01);
    let (images, labels) = images(device, "large", 3)?;
    for _ in 0..2 {
        // Too large: a tensor of the caller, a result, an intermediate value, an operand that must be copied.
        expect("full", Tensor::full(device, HUGE, 1.0).map(drop));
        expect("zeros", Tensor::zeros(device, [usize::MAX, 2]).map(drop));
        expect("a result", (Tape::new(device).input(&x).expand(HUGE) + 1.0).to_vec().map(drop));
        expect("more than can be counted", Tape::new(device).input(&x).expand([1 << 40, 1 << 40]).to_vec().map(drop));
        let wide = Tape::new(device).input(&x).expand(HUGE);
        expect("in between", wide.exp().matmul(&wide.slice(1, 0..1).exp()).slice(0, 0..1).to_vec().map(drop));
        expect("a copy", wide.softmax(1).slice(0, 0..1).to_vec().map(drop));
        // A step that runs out of memory changes nothing.
        let (loss, _) = record(&net, &images, &labels)?;
        let tape = loss.tape();
        let weight = tape.param(&net.stem.weight);
        let extra = weight.slice(0, 0..1).reshape([1, 9]).slice(1, 0..1).expand(HUGE).tanh().max();
        let grads = tape.backward(&(&loss + extra))?;
        expect("a step", optimizer.step(&mut net, &grads));
        assert_eq!(bits(&net)?, before);
    }
    // The device still works.
    let (loss, grads) = record(&net, &images, &labels)?;
    optimizer.step(&mut net, &grads)?;
    assert!(loss.item()?.is_finite());
    assert_ne!(bits(&net)?, before);
    Ok(())
}

/// Views may have more elements than fit into any memory, and more than kernels can count. The error names the
/// operation and its line.
fn uncountable(device: &Device) -> Outcome {
    let x = tensor(device, "x", [1, 1])?;
    let refused = |what: &str, result: Result<Vec<f32>>, op: &str| {
        let error = result.map(drop).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{what}: {error}");
        let (message, more) = (error.to_string(), "elements that kernels of this device can index");
        let all_of_them = "[1099511627776, 1099511627776] has more elements than can be counted";
        let expected = match op {
            "expand" => message.starts_with(&format!("expand: its result f32{all_of_them}")),
            _ => message.starts_with(&format!("{op}: an operand f32[")) && message.contains(more),
        };
        assert!(expected, "{message}");
        assert!(error.location().is_some_and(|at| at.file().ends_with("devices.rs")), "{message}");
    };
    let huge = [1 << 40, 1 << 40];
    let sum = Tape::new(device).input(&x).expand(huge).sum();
    refused("a sum", sum.to_vec(), "expand");
    // The extents of an input whose tensor comes later.
    let error = device.compile(huge, |x| x.sum()).map(drop).expect_err("beyond all memory");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains(&format!("input 0 is f32{huge:?}, which has more elements")), "{error}");
    if !device.is_gpu() {
        // On the CPU, other values would have to fit into memory first.
        return Ok(());
    }
    let size = [1 << 16, 1 << 16];
    let max = Tape::new(device).input(&x).expand(size).tanh().max();
    refused("a maximum of computed elements", max.to_vec(), "max");
    // Reads only the gradient, which is a sum of as many ones.
    let tape = Tape::new(device);
    let x = tape.input(&x);
    let sum = x.expand(size).sum();
    let gradient = tape.backward(&sum)?.of(&x).expect("the sum depends on it");
    drop(sum);
    refused("a gradient", gradient.to_vec(), "sum");
    Ok(())
}

/// Convolutions need scratch memory: in single precision for inputs with padding, in double precision for patches. Here
/// it is 2⁴⁸ bytes and more, more than processors can address.
fn no_room_to_work_in() -> Outcome {
    let (side, apart) = (2048, 1 << 24);
    let of_patches = Conv3dOptions { padding: [1, side - 1, side - 1], ..Conv3dOptions::default() };
    let of_inputs =
        Conv3dOptions { padding: [0, apart / 2, apart / 2], dilation: [1, apart, apart], ..Conv3dOptions::default() };
    for (device, options, kernel) in [
        (Device::cpu(), of_inputs, [1, 1, 1, 2, 2]),
        (Device::cpu_with(Precision::Double), of_patches, [1, 1, 2, side, side]),
    ] {
        let tape = Tape::new(&device);
        let weight = Tensor::zeros(&device, kernel)?;
        let (x, w) = (tape.input(&Tensor::zeros(&device, [1; 5])?), tape.input(&weight));
        let (y, line) = (x.conv3d(&w, options), line!());
        let grads = tape.backward(&y.sum())?;
        let gradient = |of: &Var| grads.of(of).expect("the sum depends on it");
        let (dx, dw) = (gradient(&x), gradient(&w));
        let refused = |op: &str, value: Var| {
            let error = value.to_vec().map(drop).expect_err(op);
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            let message = error.to_string();
            assert!(message.starts_with(&format!("{op}: its scratch memory: ")), "{message}");
            assert!(message.contains(": no room for "), "{message}");
            assert_eq!(error.location().map(std::panic::Location::line), Some(line), "{error}");
        };
        drop(grads);
        refused("conv3d", y);
        refused("conv3d_grad_input", dx);
        refused("conv3d_grad_weight", dw);
        // The device still works.
        assert_eq!((&x * 2.0 + 1.0).to_vec()?, [1.0]);
    }
    Ok(())
}

/// Values that together have more bytes than can be counted: as temporary values, and as results.
fn uncountable_memory() -> Outcome {
    let wide = |x: &Var| x.expand([1 << 62]).cumsum(0);
    let compiled = |f: &dyn Fn(&Var) -> [Var; 2]| Device::cpu().compile([1], f).map(|compiled| compiled.memory());
    for (what, result) in [
        ("temporary", compiled(&|x| [wide(x).cumsum(0).cumsum(0).sum(), x.exp()])),
        ("results", compiled(&|x| [wide(x), wide(x).flip(&[0])])),
        ("one of each", compiled(&|x| [wide(x).cumsum(0), x.exp()])),
    ] {
        let error = result.map(drop).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{what}: {error}");
        let message = error.to_string();
        assert!(
            message.contains(": no room for the ") && message.contains("bytes of all values together"),
            "{message}"
        );
        assert!(error.location().is_some_and(|at| at.file().ends_with("devices.rs")), "{message}");
    }
    Ok(())
}

/// Tapes stay on one thread. Devices, tensors and parameters can be shared.
fn threads(device: &Device) -> Outcome {
    let w = Param::new(tensor(device, "x", [64])?);
    let run = |factor: f64| (Tape::new(device).param(&w) * factor + 1.0).sum().item();
    let serial = [1.0, 2.0, 3.0, 4.0].map(run).into_iter().collect::<Result<Vec<f32>>>()?;
    let again = |factor| {
        for _ in 0..50 {
            run(factor)?;
        }
        run(factor)
    };
    let parallel = std::thread::scope(|scope| {
        let threads = [1.0, 2.0, 3.0, 4.0].map(|factor| scope.spawn(move || again(factor)));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<f32>>>()
    })?;
    assert_eq!(serial, parallel);
    Ok(())
}

/// Every launch has a name and a time, and their sum is the total.
fn profile(device: &Device) -> Outcome {
    let error = device.last_profile().expect_err("nothing ran");
    assert_eq!(error.kind(), ErrorKind::Device);
    let x = tensor(device, "x", [64, 64])?;
    let run = || {
        let x = Tape::new(device).input(&x);
        x.matmul(&x).softmax(1).tanh().to_vec()
    };
    if let Err(error) = device.set_profiling(Profiling::Launches) {
        assert!(device.is_gpu() && error.to_string().contains("cannot time launches"), "{error}");
        return Ok(());
    }
    let numbers = run()?;
    let profile = device.last_profile()?;
    let launches: Vec<_> = profile.launches.iter().map(|launch| (launch.step, launch.name, launch.variant)).collect();
    if device.is_gpu() {
        // The product's launches depend on the device. The softmax comes last, and stores through `tanh`.
        let (last, product) = launches.split_last().expect("something ran");
        assert!(
            !product.is_empty() && product.iter().all(|launch| launch.0 == 0 && !launch.1.is_empty()),
            "{launches:?}"
        );
        assert_eq!((last.0, last.1), (1, "softmax"));
        assert!(launches.iter().all(|launch| !launch.2.is_empty()), "{launches:?}");
    } else {
        assert_eq!(launches, [(0, "matmul", ""), (1, "softmax", ""), (2, "pointwise", "")]);
    }
    assert_eq!(profile.total, profile.launches.iter().map(|launch| launch.duration).sum());
    assert!(!profile.total.is_zero() && profile.total.as_secs() < 100, "{profile}");
    assert!(profile.to_string().contains("× softmax") && profile.to_string().ends_with("in all\n"), "{profile}");
    // The profile can be read again, and stays while later runs are not timed. Those give the same numbers.
    device.set_profiling(Profiling::Off)?;
    assert_eq!(run()?, numbers);
    assert_eq!(device.last_profile()?, profile);
    // More launches than one query set holds timestamps for.
    device.set_profiling(Profiling::Launches)?;
    let y = Tape::new(device).input(&tensor(device, "x", [3])?);
    let y = (0..4200).fold(y, |y, _| y.softmax(0));
    y.to_vec()?;
    assert_eq!(device.last_profile()?.launches.len(), 4200);
    Ok(())
}

fn cpu_precisions() -> Outcome {
    let device = Device::cpu();
    assert!(device.with_precision(Precision::Double)?.same(&Device::cpu_with(Precision::Double)));
    let error = device.with_precision(Precision::Fast).expect_err("no CPU has it");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("matrix units"), "{error}");
    assert_eq!(device.fast_if_available().precision(), Precision::Full);
    Ok(())
}

/// With matrix units, fast precision is correct and works on the tensors of full precision. Without, the error says
/// what the device lacks.
fn fast(device: &Device) -> Outcome {
    let error = device.with_precision(Precision::Double).expect_err("no GPU has it");
    assert!(error.to_string().contains("CPU only"), "{error}");
    assert!(device.with_precision(Precision::Full)?.same(device));
    let fast = match device.with_precision(Precision::Fast) {
        Ok(fast) => fast,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Device);
            let message = error.to_string();
            // Other reasons, such as wrong products or kernels that do not compile, are driver bugs, and fail this
            // test.
            assert!(message.starts_with(&format!("{device} has no fast precision: it lacks ")), "{message}");
            let what = message.split_once("it lacks ").map_or("", |(_, what)| what);
            let known = ["16-bit floats", "cooperative matrices", "products of 16×16", "a fixed subgroup size"];
            assert!(what.split(", ").all(|what| known.iter().any(|known| what.starts_with(known))), "{message}");
            let instead = device.fast_if_available();
            assert_eq!((instead.precision(), instead.to_string()), (Precision::Full, device.to_string()));
            return Ok(());
        }
    };
    assert_eq!((fast.precision(), fast.precision().dtype()), (Precision::Fast, DType::F32));
    assert!(fast.same(device) && fast.to_string().ends_with(", fast precision"), "{fast}");
    assert_eq!(device.fast_if_available().precision(), Precision::Fast);
    assert_eq!(fast.with_precision(Precision::Full)?.precision(), Precision::Full);
    // Tensors and parameters of one device work on the other.
    let (x, w) = (tensor(device, "x", [64, 96])?, Param::new(tensor(device, "w", [96, 80])?));
    let product = |device: &Device| {
        let tape = Tape::new(device);
        tape.input(&x).matmul(&tape.param(&w)).to_tensor()
    };
    let (full, quick) = (product(device)?, product(&fast)?);
    assert!(
        quick.device().precision() == Precision::Fast && x.to_device(&fast)?.device().precision() == Precision::Fast
    );
    // 96 terms, each rounded to 11 bits twice.
    for (full, quick) in full.to_vec()?.into_iter().zip(quick.to_vec()?) {
        assert!((full - quick).abs() < 96.0 * 2.0f32.powi(-11), "{quick}, in full precision {full}");
    }
    Ok(())
}

/// Compiled kernels are cached for the next process. A damaged or obstructed file only costs time.
fn kept(device: &Device) -> Outcome {
    let folder = tempfile::tempdir()?;
    let compile = |cache: &Path| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMPILED).env("MEGANEURA_DEVICE", device.to_string()).env("MEGANEURA_CACHE", cache);
        let output = command.output()?;
        assert!(output.status.success(), "{output:?}");
        Ok::<_, Failed>(String::from_utf8(output.stdout)?)
    };
    assert_eq!(compile(Path::new("off"))?, "Off 0");
    let cache = folder.path().join("caches/pipelines");
    let first = compile(&cache)?;
    if first == "Off 0" {
        // This API has no cache.
        assert!(!cache.exists());
        return Ok(());
    }
    assert_eq!(first, "Cold 0");
    assert_eq!(compile(&cache)?, "Warm 0");
    let files = std::fs::read_dir(&cache)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let [file] = &files[..] else { panic!("one file for the adapter: {files:?}") };
    let whole = std::fs::read(file)?;
    let mut wrong = whole.clone();
    wrong[whole.len() - 1] ^= 1;
    for broken in [&wrong[..], &whole[..whole.len() / 2], b""] {
        std::fs::write(file, broken)?;
        assert_eq!(compile(&cache)?, "Cold 0");
        assert_eq!(compile(&cache)?, "Warm 0");
    }
    assert_eq!(compile(&file.join("below a file"))?, "Cold 1");
    #[cfg(unix)]
    shared(&compile, &cache, file)?;
    Ok(())
}

/// A file that others could have written, or could still write, is not given to the driver.
#[cfg(unix)]
fn shared(compile: &dyn Fn(&Path) -> Result<String, Failed>, folder: &Path, file: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt;

    let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    assert_eq!(std::fs::metadata(folder)?.permissions().mode() & 0o777, 0o700);
    let whole = std::fs::read(file)?;
    for (path, mode, why) in [(folder, 0o777, "folder"), (file, 0o664, "file")] {
        let before = std::fs::metadata(path)?.permissions().mode();
        set(path, mode)?;
        assert_eq!(compile(folder)?, format!("Refused(\"others can write to its {why}\") 0"));
        assert_eq!(std::fs::read(file)?, whole);
        set(path, before)?;
    }
    assert_eq!(compile(folder)?, "Warm 0");
    Ok(())
}

/// When memory runs out, unused buffers, and the bind groups that keep them, are freed first.
fn makes_room(device: &Device) -> Outcome {
    // Opened for itself: the limit is the adapter's.
    let device = Device::named(&device.to_string())?;
    let run = |side: usize| {
        let x = Tape::new(&device).input(&tensor(&device, "x", [side, side])?);
        (x.matmul(&x.exp()).softmax(1) + 1.0).sum().item()
    };
    let before = run(200)?;
    // In use now: tensors of 160,000 bytes, and slots of the same size.
    device.limit_memory(device.stats().peak_bytes);
    let error = Tensor::zeros(&device, [1 << 20]).map(drop).expect_err("there are 4 MiB too few");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    // Each size fits only if unused buffers of the previous one are freed.
    for side in [190, 180, 170, 60, 200] {
        run(side)?;
    }
    assert_eq!(run(200)?, before);
    assert!(device.stats().peak_bytes <= 2 << 20);
    Ok(())
}
