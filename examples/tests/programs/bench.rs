//! `bench`: its measurements, and the options that it refuses.

use serde_json::Value;

use super::{last_line, lines, run, stderr};

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
    for (size, params) in
        [(&VIT[..], 226_856), (&GPT2, 6_534_016), (&RESNET50, 631_152), (&MOBILENET, 3_504_872), (&LSTM, 1_356_560)]
    {
        let args = ["--steps", "2", "--warmup", "0", "--json"];
        let report = last_line(&run("bench", &[size, &args[..]].concat()));
        assert_eq!(report["params"], params, "{report}");
        assert!(report["loss_last"].as_f64() < report["loss_first"].as_f64(), "{report}");
        assert!(report["peak_device_mib"].as_f64().unwrap() > 0.0, "{report}");
    }
    for (workload, option) in [
        ("mlp", ["--channels", "32"]),
        ("vit", ["--channels", "96"]),
        ("unet", ["--layers", "1"]),
        ("vit", ["--length", "8"]),
        ("resnet50", ["--layers", "2"]),
        ("mobilenet", ["--channels", "32"]),
        ("lstm", ["--channels", "100"]),
    ] {
        let output = run("bench", &[&["--workload", workload], &option[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

const VIT: [&str; 8] = ["--workload", "vit", "--channels", "64", "--layers", "2", "--batch", "2"];
const GPT2: [&str; 10] = ["--workload", "gpt2", "--channels", "64", "--layers", "2", "--length", "16", "--batch", "2"];

const RESNET50: [&str; 6] = ["--workload", "resnet50", "--channels", "8", "--batch", "2"];
const MOBILENET: [&str; 4] = ["--workload", "mobilenet", "--batch", "2"];
const LSTM: [&str; 8] = ["--workload", "lstm", "--channels", "64", "--length", "6", "--batch", "2"];

/// With `--compile`, which records the step once, each model reaches the same loss, bit for bit.
#[test]
fn a_recorded_step_trains_bench_to_the_same_bits() {
    let of = |workload, channels: &[&'static str]| [&["--workload", workload, "--batch", "2"], channels].concat();
    for workload in [
        of("tiny", &[]),
        of("mlp", &[]),
        of("resnet18gn", &["--channels", "32"]),
        of("unet", &["--channels", "32"]),
        VIT.to_vec(),
        GPT2.to_vec(),
        RESNET50.to_vec(),
        LSTM.to_vec(),
    ] {
        let losses = |more: &[&str]| {
            let args = ["--steps", "2", "--warmup", "1", "--json"];
            let report = last_line(&run("bench", &[&workload[..], &args, more].concat()));
            ["loss_first", "loss_last"].map(|key| report[key].as_f64().unwrap_or_else(|| panic!("{report}")))
        };
        let taped = losses(&[]);
        assert_eq!(losses(&["--compile"]), taped, "{workload:?}");
        assert_ne!(taped[0], taped[1], "{workload:?}");
    }
}

/// Recomputed blocks need less memory and give the same loss.
#[test]
fn bench_recomputes_blocks() {
    let args = ["--device", "cpu", "--workload", "unet", "--channels", "32", "--batch", "2", "--steps", "1", "--json"];
    let report = |more: &[&str]| last_line(&run("bench", &[&args[..], &["--warmup", "1"], more].concat()));
    let (kept, recomputed) = (report(&[]), report(&["--recompute"]));
    assert_eq!(kept["loss_last"], recomputed["loss_last"]);
    assert!(recomputed["peak_device_mib"].as_f64() < kept["peak_device_mib"].as_f64(), "{recomputed}");
    let output = run("bench", &["--workload", "mlp", "--recompute"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

const KEYS: &str = "average_bf16 batch batches compile device engine first_step_ms framework host_ms \
                    launches_per_step loss_first loss_last ms_per_step_median ms_per_step_min optimizer_mib \
                    params peak_device_mib peak_rss_mib pipeline_cache plan_ms precision ranks recompute shard \
                    submissions_per_step version workers workload";

#[cfg(feature = "images")]
#[test]
fn bench_reads_pictures() {
    let args = ["--batch", "4", "--steps", "20", "--warmup", "0", "--json", "--workers"];
    let [one, two] = ["0", "3"].map(|workers| last_line(&run("bench", &[&args[..], &[workers]].concat())));
    assert_eq!((&one["workers"], &two["workers"]), (&0.into(), &3.into()));
    // The same pictures in the same order, past the end of the first epoch.
    assert_eq!((&one["loss_first"], &one["loss_last"]), (&two["loss_first"], &two["loss_last"]));
    assert!(one["loss_last"].as_f64() < one["loss_first"].as_f64(), "{one}");
    let output = run("bench", &["--workload", "mlp", "--workers", "1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn bench_measures_kernels() {
    let args = ["--steps", "2", "--warmup", "1", "--check", "--json"];
    for (kernel, passes, launches) in [
        ("matmul:40,30,20", ["forward", "grad_input", "grad_weight"], [1, 1, 1]),
        ("conv2d:2,3,8,4,3,2", ["forward", "grad_input", "grad_weight"], [1, 1, 1]),
        ("depthwise:2,8,7,9,3,2", ["forward", "grad_input", "grad_weight"], [1, 1, 1]),
        ("grouped:2,8,7,9,3,1,4", ["forward", "grad_input", "grad_weight"], [1, 1, 1]),
        ("group_norm:2,32,4,4", ["forward", "backward", "both"], [2, 2, 4]),
        ("layer_norm:40,30", ["forward", "backward", "both"], [3, 6, 9]),
        ("embedding:40,30,20", ["forward", "backward", "both"], [1, 1, 2]),
        ("cross_entropy:40,30", ["forward", "backward", "both"], [1, 1, 2]),
        ("linear_gelu:40,30,20", ["forward", "backward", "both"], [1, 4, 5]),
        ("attention:1,2,9,4", ["forward", "backward", "both"], [1, 3, 4]),
        ("causal_attention:1,2,9,4", ["forward", "backward", "both"], [1, 3, 4]),
        ("composed_attention:1,2,9,4", ["forward", "backward", "both"], [4, 7, 11]),
    ] {
        let reports = lines(&run("bench", &[&args[..], &["--kernel", kernel]].concat()));
        assert_eq!(reports.len(), 3, "{reports:?}");
        for ((report, pass), launches) in reports.iter().zip(passes).zip(launches) {
            assert_eq!((&report["kernel"], &report["pass"]), (&kernel.into(), &pass.into()));
            // A single gradient saves no residuals.
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
fn bench_calls_a_file_from_several_threads() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/pytorch/onnx/resnet_script.onnx");
    let args = ["--serve", "--onnx", file, "--device", "cpu", "--clients", "3", "--steps", "4", "--json"];
    let reports = lines(&run("bench", &args));
    let of = |name: &str| reports[0][name].as_f64().unwrap_or_else(|| panic!("{name}: {reports:?}"));
    assert!(of("ms_min") <= of("ms_median") && of("ms_median") <= of("ms_p99"), "{reports:?}");
    // Three calls at once, none of which takes longer than the longest.
    assert!(of("calls_per_second") >= 900.0 / of("ms_p99") / 1.01, "{reports:?}");
    let output = run("bench", &["--serve", "--clients", "3"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn bench_measures_the_standard_kernels() {
    let args = ["--kernel", "standard:matmul:1024", "--pass", "forward", "--steps", "1", "--warmup", "0", "--json"];
    let reports = lines(&run("bench", &args));
    assert_eq!((reports.len(), &reports[0]["kernel"]), (1, &"matmul:1024".into()));
    // A pass that a kernel of the list does not have is left out.
    let args = ["--kernel", "standard:matmul:1024", "--pass", "both", "--steps", "1", "--json"];
    assert!(lines(&run("bench", &args)).is_empty());
    let args =
        ["--kernel", "corners:topk:1000", "--pass", "both", "--steps", "1", "--device", "cpu", "--check", "--json"];
    let reports = lines(&run("bench", &args));
    assert_eq!((reports.len(), &reports[0]["kernel"]), (1, &"topk:1000,1000,5".into()));
    assert!(reports[0]["error"].as_f64().is_some_and(|error| error < 1e-6), "{reports:?}");
    let output = run("bench", &["--kernel", "standard:no such kernel"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("no kernel of the list contains no such kernel"), "{output:?}");
}

/// Both precisions need a GPU with matrix units; the comparison says so.
#[test]
fn bench_compares_precisions_only_where_there_are_two() {
    for (text, expected) in [("tiny", "matrix units only, not on the CPU"), ("no such thing", "contains no such thing")]
    {
        let output = run("bench", &["--precisions", text, "--device", "cpu", "--json"]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        assert!(stderr(&output).contains(expected), "{output:?}");
    }
}

#[test]
fn bench_refuses_invalid_kernels() {
    for kernel in [
        "matmul:3,x",
        "matmul:0",
        "conv2d:1,1,1,1,3",
        "depthwise:1,1,4,4,3",
        "grouped:1,6,4,4,3,1,4",
        "group_norm:1,33,1,1",
        "copy:6",
        "attention:1,2,3",
        "no",
        "matmul:1,2",
    ] {
        let output = run("bench", &["--kernel", kernel]);
        assert_eq!(output.status.code(), Some(2), "{kernel}: {output:?}");
    }
}

#[test]
fn bench_names_unsupported_combinations() {
    for (args, expected) in [
        (&["--precision", "fast", "--device", "cpu"][..], "matrix units only, not on the CPU"),
        (&["--precision", "double", "--device", "gpu"], "double precision needs the CPU"),
        (&["--kernel", "copy:8", "--pass", "both"], "has no such pass; there are forward"),
        (&["--kernel", "copy:8", "--check", "--precision", "double", "--device", "cpu"], "no reference for --check"),
    ] {
        let output = run("bench", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
    let double = run("bench", &["--precision", "double", "--device", "cpu", "--batch", "2", "--steps", "1", "--json"]);
    assert_eq!(last_line(&double)["precision"], "double");
}

#[test]
fn bench_reports_sizes_that_do_not_fit() {
    for kernel in ["matmul:4000000000", "conv2d:1000000,1000,1000,1000,3,1"] {
        let output = run("bench", &["--kernel", kernel, "--device", "cpu"]);
        assert!(!output.status.success() && stderr(&output).starts_with("error: no room for ["), "{}", stderr(&output));
    }
}

#[test]
fn bench_compares_recorded_and_compiled_inference() {
    for workload in [&["--workload", "tiny", "--batch", "2"][..], &["--workload", "mlp", "--batch", "2"], &VIT, &GPT2] {
        let args = ["--serve", "--steps", "3", "--warmup", "0", "--json"];
        let report = last_line(&run("bench", &[workload, &args].concat()));
        let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
        let ratio = number("ms_recorded_median") / number("ms_compiled_median");
        assert!((ratio / number("ratio") - 1.0).abs() < 0.1, "{report}");
    }
}
