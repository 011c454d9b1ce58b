//! The examples as programs: what they print, and how they end.

use std::env::{self, consts::EXE_SUFFIX};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs an example on the CPU.
fn run(name: &str, args: &[&str]) -> Output {
    // Cargo puts tests into `deps/`, and the examples, which it builds before it runs them, beside that.
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(format!("{name}{EXE_SUFFIX}"));
    assert!(program.is_file(), "{} is missing: `cargo test -p meganeura-examples` builds it", program.display());
    Command::new(program).args(args).env("MEGANEURA_DEVICE", "cpu").output().unwrap()
}

/// A folder of its own for each test; gone when the test ends well.
fn folder(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("meganeura-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn last_line(output: &Output) -> Value {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().last().unwrap_or_else(|| panic!("nothing printed: {output:?}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn digits_are_learned() {
    let out = folder("digits");
    let output = run("digits", &["--epochs", "3", "--json", "--run", out.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let result = last_line(&output);
    assert!(result["test_accuracy"].as_f64().unwrap() > 0.9, "{result}");
    assert_eq!(result["steps"], 3 * (1438 / 64));
    assert!(result["seconds"].as_f64().unwrap() > 0.0);
    assert!(result["device"].as_str().unwrap().starts_with("CPU"), "{result}");
    assert!(stderr(&output).starts_with("Device: CPU"), "{}", stderr(&output));
    for file in ["loss.svg", "digits.safetensors"] {
        assert!(out.join(file).metadata().unwrap().len() > 1000, "{file}");
    }
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn digits_goes_on_where_it_was() {
    let folder = folder("resume");
    let train = |name: &str, args: &[&str]| {
        let output = run("digits", &[&["--run", folder.join(name).to_str().unwrap()], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    train("whole", &["--epochs", "2"]);
    let said = train("parts", &["--epochs", "1"]);
    assert!(said.contains("finished, step 22 (epoch 1, batch 0)"), "{said}");
    assert!(said.contains("  best  step 22") && said.trim_end().ends_with("--epochs 1 --resume"), "{said}");
    let said = train("parts", &["--epochs", "2", "--resume"]);
    assert!(said.contains("from step 22 (epoch 1, batch 0) on"), "{said}");
    let weights = |name: &str| std::fs::read(folder.join(name).join("digits.safetensors")).unwrap();
    assert!(weights("whole") == weights("parts"), "the weights, bit for bit");
    let metrics = meganeura::run::read_metrics(folder.join("parts")).unwrap();
    assert_eq!(metrics.iter().filter(|line| line.values.contains_key("loss")).count(), 44);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn digits_says_what_is_wrong_before_it_trains() {
    let out = folder("wrong");
    let file = out.join("file");
    std::fs::write(&file, "").unwrap();
    let ok = out.to_str().unwrap();
    let (file, run_there) = (file.to_str().unwrap(), out.join("run"));
    let there = run_there.to_str().unwrap();
    assert!(run("digits", &["--run", there, "--epochs", "0"]).status.success());
    for (args, expected) in [
        (&["--run", file][..], "could not be created"),
        (&["--run", ok, "--device", "no such adapter"], "no such adapter"),
        (&["--run", ok, "--batch", "0"], "--batch 0"),
        (&["--run", ok, "--batch", "5000"], "1438 images"),
        (&["--run", ok, "--resume"], "there is no run in"),
        (&["--run", there], "there is a run in"),
        (&["--run", there, "--resume", "--batch", "32"], "`batch` was 64 and is 32"),
    ] {
        let output = run("digits", args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("epoch"), "{args:?}");
    }
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn bench_measures() {
    let args = ["--batch", "4", "--steps", "3", "--warmup", "1", "--json"];
    for (workload, params) in [("tiny", 9_962), ("mlp", 1_863_690)] {
        let output = run("bench", &[&args[..], &["--workload", workload]].concat());
        assert!(output.status.success(), "{output:?}");
        let report = last_line(&output);
        let mut keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys.join(" "), KEYS);
        assert_eq!((&report["workload"], &report["batch"]), (&workload.into(), &4.into()));
        assert_eq!(report["params"], params);
        let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
        assert!(number("ms_per_step_min") <= number("ms_per_step_median"), "{report}");
        assert!(number("loss_last") < number("loss_first"), "{report}");
    }
}

#[test]
fn bench_measures_models() {
    for (workload, whole, small) in [("resnet18gn", 11_173_962, 2_797_610), ("unet", 22_944_003, 1_441_347)] {
        let args = ["--workload", workload, "--steps", "1", "--warmup", "0", "--json", "--batch"];
        let report = last_line(&run("bench", &[&args[..], &["2", "--channels", "32", "--profile"]].concat()));
        assert_eq!(report["params"], small, "{report}");
        assert!(report["loss_last"].as_f64().unwrap().is_finite(), "{report}");
        assert_eq!(last_line(&run("bench", &[&args[..], &["1"]].concat()))["params"], whole);
    }
    let output = run("bench", &["--workload", "mlp", "--channels", "32"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

const KEYS: &str = "batch device first_step_ms framework launches_per_step loss_first loss_last ms_per_step_median \
                    ms_per_step_min params peak_device_mib peak_rss_mib pipeline_cache plan_ms precision \
                    submissions_per_step version workers workload";

#[test]
fn bench_reads_pictures() {
    let args = ["--batch", "4", "--steps", "20", "--warmup", "0", "--json", "--workers"];
    let [one, two] = ["0", "3"].map(|workers| last_line(&run("bench", &[&args[..], &[workers]].concat())));
    assert_eq!((&one["workers"], &two["workers"]), (&0.into(), &3.into()));
    // The same pictures in the same order, over the end of the first epoch.
    assert_eq!((&one["loss_first"], &one["loss_last"]), (&two["loss_first"], &two["loss_last"]));
    assert!(one["loss_last"].as_f64() < one["loss_first"].as_f64(), "{one}");
    let output = run("bench", &["--workload", "mlp", "--workers", "1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// The lines of a program that prints JSON.
fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn bench_measures_kernels() {
    let args = ["--steps", "2", "--warmup", "1", "--check", "--json"];
    for (kernel, passes, launches) in [
        ("matmul:40,30,20", ["forward", "grad_input", "grad_weight"], [1, 1, 1]),
        ("conv2d:2,3,8,4,3,2", ["forward", "grad_input", "grad_weight"], [1, 1, 1]),
        ("group_norm:2,32,4,4", ["forward", "backward", "both"], [2, 2, 4]),
        ("linear_gelu:40,30,20", ["forward", "backward", "both"], [2, 3, 5]),
    ] {
        let reports = lines(&run("bench", &[&args[..], &["--kernel", kernel]].concat()));
        assert_eq!(reports.len(), 3, "{reports:?}");
        for ((report, pass), launches) in reports.iter().zip(passes).zip(launches) {
            assert_eq!((&report["kernel"], &report["pass"]), (&kernel.into(), &pass.into()));
            // A gradient alone holds nothing of the forward pass.
            assert_eq!(report["launches"], launches, "{report}");
            assert!(report["error"].as_f64().unwrap() < 1e-5, "{report}");
            let rate = report["tflops"].as_f64().or(report["gbps"].as_f64());
            assert!(rate.is_some() && report["ms"].is_f64() && report["ms_min"].is_f64(), "{report}");
        }
    }
    let copy = lines(&run("bench", &["--kernel", "copy:4000", "--steps", "2", "--json"]));
    assert_eq!((copy.len(), &copy[0]["launches"], &copy[0]["error"]), (1, &1.into(), &Value::Null));
    let one = lines(&run("bench", &["--kernel", "matmul:8", "--pass", "grad_weight", "--steps", "2", "--json"]));
    assert_eq!((one.len(), &one[0]["pass"]), (1, &"grad_weight".into()));
}

#[test]
fn bench_refuses_kernels_that_make_no_sense() {
    for kernel in ["matmul:3,x", "matmul:0", "conv2d:1,1,1,1,3", "group_norm:1,33,1,1", "copy:6", "no", "matmul:1,2"] {
        let output = run("bench", &["--kernel", kernel]);
        assert_eq!(output.status.code(), Some(2), "{kernel}: {output:?}");
    }
}

#[test]
fn bench_says_what_is_not_there() {
    for args in [
        &["--precision", "fast", "--device", "cpu"][..],
        &["--precision", "double", "--device", "gpu"],
        &["--kernel", "copy:8", "--pass", "both"],
        &["--kernel", "copy:8", "--check", "--precision", "double", "--device", "cpu"],
    ] {
        let output = run("bench", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains("there"), "{args:?}: {}", stderr(&output));
    }
    let double = run("bench", &["--precision", "double", "--device", "cpu", "--batch", "2", "--steps", "1", "--json"]);
    assert_eq!(last_line(&double)["precision"], "double");
}

#[test]
fn bench_compares_recorded_with_compiled() {
    for workload in ["tiny", "mlp"] {
        let args = ["--serve", "--workload", workload, "--batch", "2", "--steps", "3", "--warmup", "0", "--json"];
        let report = last_line(&run("bench", &args));
        let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
        let ratio = number("ms_recorded_median") / number("ms_compiled_median");
        assert!((ratio / number("ratio") - 1.0).abs() < 0.1, "{report}");
    }
}

#[test]
fn inspect_says_where_a_step_goes() {
    let args = ["--model", "tiny", "--batch", "4", "--steps", "2", "--json"];
    let step = last_line(&run("inspect", &[&args[..], &["--plan"]].concat()));
    let weights = 4 * 9_962;
    assert_eq!((&step["bytes"]["parameters"], &step["bytes"]["optimizer"]), (&weights.into(), &(2 * weights).into()));
    assert_eq!(step["launches"].as_u64(), step["rows"].as_array().map(|rows| rows.len() as u64), "{step}");
    assert!(step["plan"].as_str().is_some_and(|plan| plan.contains("conv2d_grad_weight")), "{step}");
    let rows = |report: &Value| report["rows"].as_array().unwrap_or_else(|| panic!("{report}")).clone();
    let times: Vec<_> = rows(&step).iter().map(|row| row["us"].as_f64().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
    let names = |report: &Value| -> Vec<String> {
        rows(report).iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    for part in ["matmul", "head.weight", "stem.weight", "cross_entropy"] {
        assert!(names(&step).iter().any(|name| name.contains(part)), "{part}: {step}");
    }
    for (by, expected) in [("operation", "conv2d_grad_input"), ("module", "norm")] {
        let table = last_line(&run("inspect", &[&args[..], &["--by", by]].concat()));
        assert!(names(&table).iter().any(|name| name == expected), "{table}");
        let share: f64 = rows(&table).iter().map(|row| row["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-6, "{share}");
    }
    let inference = last_line(&run("inspect", &[&args[..], &["--inference"]].concat()));
    assert_eq!((&inference["bytes"]["optimizer"], &inference["plan"]), (&0.into(), &Value::Null));
    assert!(inference["bytes"]["total"].as_u64() < step["bytes"]["total"].as_u64(), "{inference}");
}

#[test]
fn inspect_prints_every_model() {
    for model in ["tiny", "mlp", "resnet18gn", "unet"] {
        let args = ["--model", model, "--batch", "1", "--channels", "32", "--steps", "1", "--top", "3", "--inference"];
        let output = run("inspect", &args);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        for part in ["Device: CPU", "parameters", "shared slots", "share", "--top 0 shows them"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let output = run("inspect", &["--model", "unet", "--channels", "33"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn gradcheck_checks_every_layer() {
    let output = run("gradcheck", &["--samples", "4", "--json"]);
    let reports = lines(&output);
    for report in &reports {
        assert_eq!(report["passed"], true, "{report}");
        assert!(report["checked"].as_u64() > Some(0) && report["absolute"].as_f64() < Some(1e-5), "{report}");
    }
    // What the module hands out, but for descriptions of layers and what is no layer.
    let source = include_str!("../../meganeura/src/nn/mod.rs");
    let names = source.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';')?.rsplit_once("::"));
    let names = names.flat_map(|(_, names)| names.trim_matches(['{', '}']).split(", "));
    let layers: Vec<_> = names.filter(|name| !name.ends_with("Config") && *name != "IntoPair").collect();
    assert!(layers.len() > 25, "{layers:?}");
    for layer in layers {
        assert!(reports.iter().any(|report| report["layer"] == layer), "{layer} is not checked");
    }
}

#[test]
fn gradcheck_fails_where_a_gradient_is_further_off_than_allowed() {
    let output = run("gradcheck", &["--only", "gelu", "--atol", "1e-300", "--rtol", "0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("FAIL") && said.contains("2 layers, 2 failed") && said.contains("worst at"), "{said}");
    let output = run("gradcheck", &["--only", "gelu"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(run("gradcheck", &["--only", "no such layer"]).status.code(), Some(1));
}

#[test]
fn an_operation_of_ones_own_is_checked_and_trained_through() {
    let output = run("custom_op", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("ok   input 0").count(), 2, "{text}");
    assert!(text.trim_end().ends_with("and it rises"), "{text}");
    let losses: Vec<f64> = text.lines().filter_map(|line| line.split_once("loss ")?.1.parse().ok()).collect();
    assert!(losses.len() == 5 && losses[4] < 0.1 * losses[0], "{text}");
}

/// The page on operations of one's own shows the example's.
#[test]
fn the_guide_shows_the_operation() {
    let page = include_str!("../../meganeura/src/guide/custom_op.md");
    let source = include_str!("../custom_op/cumsum.rs");
    let code = source.split_once("\n\n").unwrap().1;
    assert!(page.contains(code.trim_end()), "guide/custom_op.md and examples/custom_op/cumsum.rs differ");
}

/// A training of few steps, whole, and once more from the last checkpoint but one: the weights and the pictures are the same.
fn goes_on(program: &str, args: &[&str], weights: &str, pictures: &[&str]) {
    let folder = folder(program);
    let there = folder.join("run");
    let train = |more: &[&str]| {
        let output = run(program, &[&["--json", "--run", there.to_str().unwrap()], args, more].concat());
        assert!(output.status.success(), "{output:?}");
        last_line(&output)
    };
    let result = |name: &str| std::fs::read(there.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let results = || pictures.iter().chain([&weights, &"loss.svg"]).map(|name| result(name)).collect::<Vec<_>>();

    let whole = train(&[]);
    assert!(whole["steps"].as_u64().unwrap() >= 2 && whole["seconds"].is_f64(), "{whole}");
    let expected = results();
    for picture in pictures {
        let picture = image::open(there.join(picture)).unwrap().into_luma8();
        assert!(picture.width() > 48 && picture.iter().any(|&pixel| pixel != picture.get_pixel(0, 0).0[0]));
    }

    // As if it had been killed before its last checkpoint was there.
    let mut checkpoints: Vec<_> =
        std::fs::read_dir(there.join("checkpoints")).unwrap().map(|e| e.unwrap().path()).collect();
    checkpoints.sort();
    assert_eq!(checkpoints.len(), 2);
    std::fs::remove_dir_all(checkpoints.pop().unwrap()).unwrap();
    pictures.iter().chain([&weights, &"loss.svg"]).for_each(|name| std::fs::remove_file(there.join(name)).unwrap());
    let resumed = train(&["--resume"]);
    assert_eq!(resumed["steps"], whole["steps"]);
    assert!(results() == expected, "bit for bit");
    std::fs::remove_dir_all(folder).unwrap();
}

/// What a program says when it is called like this, after it ended with an error and before it made a step.
fn refusal(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    assert_eq!(output.status.code(), Some(1), "{program} {args:?}: {output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("epoch"), "{program} {args:?}");
    stderr(&output)
}

#[test]
fn resnet_goes_on_where_it_was() {
    let args = ["--shapes", "32", "--batch", "16", "--width", "4", "--epochs", "2", "--workers", "2"];
    goes_on("resnet", &args, "resnet.safetensors", &["images.png", "mistakes.png"]);
}

#[test]
fn autoencoder_goes_on_where_it_was() {
    let args = ["--batch", "600", "--width", "4", "--epochs", "11"];
    goes_on("autoencoder", &args, "autoencoder.safetensors", &["drawn-again.png", "between.png"]);
}

#[test]
fn diffusion_goes_on_where_it_was() {
    let args = ["--batch", "700", "--channels", "8", "--epochs", "2", "--every", "1", "--times", "10"];
    for sampler in ["ddpm", "ddim"] {
        let args = [&args[..], &["--sampler", sampler, "--steps", "5"]].concat();
        goes_on("diffusion", &args, "unet.safetensors", &["epoch-0002.png", "samples.png", "denoising.png"]);
    }
}

#[test]
fn resnet_learns_from_pictures() {
    let out = folder("pictures");
    let pictures = out.join("pictures");
    for class in 0..3u8 {
        let class_folder = pictures.join(format!("class {class}"));
        std::fs::create_dir_all(&class_folder).unwrap();
        for picture in 0..10u8 {
            let color = image::Rgb([0, 1, 2].map(|channel| if channel == class { 200 + picture } else { picture }));
            let path = class_folder.join(format!("{picture}.png"));
            image::RgbImage::from_pixel(16 + u32::from(picture / 9), 16, color).save(path).unwrap();
        }
    }
    let there = out.join("run");
    let args = ["--run", there.to_str().unwrap(), "--data", pictures.to_str().unwrap()];
    let args = [&args[..], &["--width", "4", "--batch", "9", "--epochs", "2", "--workers", "2", "--json"]].concat();
    let said = refusal("resnet", &args);
    assert!(
        said.contains("class 0") && said.contains("16 by 17 pixels") && said.contains("`--size` makes them alike"),
        "{said}"
    );
    let sized = [&args[..], &["--size", "12"]].concat();
    let output = run("resnet", &sized);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("[3, 12, 12] to 3 classes\n27 images to train on, 3 to test with"), "{output:?}");
    let wrong = pictures.join("class 1").join("notes.txt");
    std::fs::write(&wrong, "").unwrap();
    let said = refusal("resnet", &[&sized[..], &["--resume"]].concat());
    assert!(said.contains("notes.txt: no image by its name") && said.lines().count() == 2, "{said}");
    std::fs::rename(&wrong, wrong.with_file_name("notes.png")).unwrap();
    let said = refusal("resnet", &[&sized[..], &["--resume"]].concat());
    assert!(said.contains("notes.png, byte 0: no image that can be read") && said.lines().count() == 2, "{said}");
    // One more than the training began with.
    std::fs::copy(pictures.join("class 0").join("0.png"), wrong.with_file_name("notes.png")).unwrap();
    std::fs::copy(pictures.join("class 0").join("0.png"), wrong.with_file_name("more.png")).unwrap();
    let said = refusal("resnet", &[&sized[..], &["--resume"]].concat());
    assert!(said.contains("`images` was 27 and is 29"), "{said}");
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn drawing_leaves_the_training_as_it_was() {
    let out = folder("only draws");
    let there = out.join("a run");
    let model = ["--run", there.to_str().unwrap(), "--channels", "8", "--times", "4"];
    let training = [&model[..], &["--batch", "700", "--epochs", "1", "--every", "1"]].concat();
    let said = refusal("diffusion", &[&model[..], &["--draw"]].concat());
    assert!(said.contains("run.json could not be read"), "{said}");
    assert!(run("diffusion", &training).status.success());
    let contents =
        || ["run.json", "events.jsonl", "metrics.jsonl"].map(|name| std::fs::read(there.join(name)).unwrap());
    let (before, samples) = (contents(), std::fs::read(there.join("samples.png")).unwrap());
    std::fs::remove_file(there.join("samples.png")).unwrap();
    let output = run("diffusion", &[&model[..], &["--draw"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Weights of step 2 (epoch 1, batch 0)"), "{output:?}");
    assert!(std::fs::read(there.join("samples.png")).unwrap() == samples, "of the same weights");
    let other = ["--run", there.to_str().unwrap(), "--channels", "8", "--times", "5", "--draw"];
    let said = refusal("diffusion", &other);
    assert!(said.contains("`times` was 4 and is 5"), "{said}");
    assert!(contents() == before, "nothing but pictures was written");

    // The folder's name has a space, and the command to go on with is for a shell.
    let output = run("diffusion", &[&training[..], &["--resume"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    let command = said.lines().last().and_then(|line| line.split_once("to go on: ")).expect("how to go on").1;
    if cfg!(unix) {
        let output = Command::new("sh").args(["-c", command]).env("MEGANEURA_DEVICE", "cpu").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("from step 2 (epoch 1, batch 0) on"), "{output:?}");
    }
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn a_training_that_diverges_fails() {
    let out = folder("diverges");
    for (program, args) in [
        ("resnet", &["--shapes", "32", "--batch", "16", "--width", "4"][..]),
        ("autoencoder", &["--batch", "100", "--width", "4"]),
        ("diffusion", &["--batch", "100", "--channels", "8", "--every", "1"]),
    ] {
        let there = out.join(program);
        let args = [&["--run", there.to_str().unwrap(), "--lr", "1e20", "--epochs", "3"], args].concat();
        let output = run(program, &args);
        assert_eq!(output.status.code(), Some(1), "{program}: {output:?}");
        assert!(stderr(&output).contains("(epoch 1, batch 0): the loss is no number any more"), "{output:?}");
        let events = std::fs::read_to_string(there.join("events.jsonl")).unwrap();
        assert!(events.lines().last().unwrap().contains("the loss is no number any more"), "{events}");
        assert!(!there.join("checkpoints").exists(), "nothing of it is kept");
    }
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn programs_say_what_is_wrong_before_they_train() {
    let out = folder("mistakes");
    let there = out.join("run");
    let run_there = ["--run", there.to_str().unwrap()];
    let [empty, broken, half, cifar] = ["empty", "broken", "half", "cifar"].map(|name| out.join(name));
    for folder in [&empty, &broken, &half, &cifar] {
        std::fs::create_dir(folder).unwrap();
    }
    for (file, bytes) in [("t10k-images-idx3-ubyte", &[0, 0, 8, 3, 0, 0, 0, 9][..]), ("t10k-labels-idx1-ubyte", &[])] {
        std::fs::write(broken.join(file), bytes).unwrap();
    }
    for (folder, files) in [(&half, &["t10k-images-idx3-ubyte"][..]), (&cifar, &["data_batch_1.bin", "test_batch.bin"])]
    {
        files.iter().for_each(|file| std::fs::write(folder.join(file), "").unwrap());
    }
    let [empty, broken, half, cifar] = [&empty, &broken, &half, &cifar].map(|path| path.to_str().unwrap());
    let missing = format!("{empty}/no");
    for program in ["resnet", "autoencoder", "diffusion"] {
        for (args, expected) in [
            (&["--data", &missing][..], "no: "),
            (&["--data", empty], "no images that are known here"),
            (&["--data", broken], "t10k-images-idx3-ubyte, byte 8"),
            (&["--data", half], "t10k-labels-idx1-ubyte is missing beside t10k-images-idx3-ubyte"),
            (&["--data", cifar], "data_batch_2.bin is missing beside data_batch_1.bin"),
            (&["--batch", "1000000"], "--batch 1000000: there are 1 to"),
            (&["--resume"], "there is no run in"),
        ] {
            let said = refusal(program, &[&run_there[..], args].concat());
            assert!(said.contains(expected), "{program} {args:?}: {said}");
        }
    }
    for (program, args, expected) in [
        ("resnet", ["--width", "3"], "even"),
        ("autoencoder", ["--numbers", "0"], "at least 1"),
        ("diffusion", ["--channels", "12"], "a multiple of 8"),
        ("diffusion", ["--every", "0"], "at least 1"),
    ] {
        let said = refusal(program, &[&run_there[..], &args].concat());
        assert!(said.contains(expected), "{program} {args:?}: {said}");
    }
    assert!(!there.exists(), "nothing is begun");
    std::fs::remove_dir_all(out).unwrap();
}
