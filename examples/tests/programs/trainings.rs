//! Programs that train: they learn, resume, and report errors.

use std::process::Command;

use meganeura_examples::pictures;
#[cfg(feature = "images")]
use meganeura_examples::pictures::save;

#[cfg(feature = "mpi")]
use super::lines;
use super::{folder, last_line, run, stderr};

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
    // The weights alone are enough to classify digits. A file without weights is an error.
    let read = |weights: &std::path::Path| {
        let there = out.join(weights.extension().unwrap());
        let args = ["--json", "--epochs", "0", "--run", there.to_str().unwrap(), "--weights"];
        run("digits", &[&args[..], &[weights.to_str().unwrap()]].concat())
    };
    assert_eq!(last_line(&read(&out.join("digits.safetensors")))["test_accuracy"], result["test_accuracy"]);
    let wrong = read(&out.join("loss.svg"));
    assert!(!wrong.status.success() && stderr(&wrong).contains("loss.svg"), "{wrong:?}");
    std::fs::remove_dir_all(out).unwrap();
}

/// The status and the body of the answer to a request.
fn post(address: &str, body: &str) -> (u32, serde_json::Value) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

#[test]
fn digits_are_read_over_http() {
    use std::io::{BufRead, BufReader};
    let out = folder("served");
    let output = run("digits", &["--epochs", "2", "--run", out.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let weights = out.join("digits.safetensors");
    let mut server = super::command("server")
        .args(["--address", "127.0.0.1:0", "--weights", weights.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| Some(line.strip_prefix("http://")?.to_owned())).expect("the address");
    let digits = meganeura_examples::digits::load().unwrap();
    let right = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (address, digits, right) = (&address, &digits, &right);
            scope.spawn(move || {
                for index in (part..40).step_by(4) {
                    let (image, label) = digits.get(index).unwrap();
                    let (status, answer) = post(address, &format!("{:?}", image.values()));
                    assert_eq!((status, answer["probabilities"].as_array().map(Vec::len)), (200, Some(10)));
                    right.fetch_add(usize::from(answer["digit"] == label), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let wrong = [post(&address, "[0.5, 1.0]"), post(&address, "no numbers")];
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(right.into_inner() > 30, "most digits are read");
    for (status, answer) in wrong {
        assert!(status == 400 && answer["error"].is_string(), "{answer}");
    }
    std::fs::remove_dir_all(out).unwrap();
}

/// Two processes learn like one, up to rounding, and only one of them prints.
#[test]
#[cfg(feature = "mpi")]
fn digits_are_learned_by_two_ranks() {
    let result = |ranks: &str| {
        let out = folder(&format!("digits-{ranks}-ranks"));
        let args = ["--epochs", "1", "--json", "--ranks", ranks, "--run", out.to_str().unwrap()];
        let output = run("digits", &args);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(lines(&output).len(), 1);
        let losses = meganeura::run::read_metrics(&out).unwrap();
        std::fs::remove_dir_all(out).unwrap();
        (last_line(&output), losses[0].values["loss"])
    };
    let ((one, loss), (two, loss_of_two)) = (result("1"), result("2"));
    assert_eq!((&one["ranks"], &two["ranks"]), (&1.into(), &2.into()));
    assert_eq!(one["steps"], two["steps"]);
    assert!((loss - loss_of_two).abs() < 1e-5, "{loss} {loss_of_two}");
}

#[test]
#[cfg(not(feature = "mpi"))]
fn ranks_without_mpi_are_an_error() {
    let output = run("digits", &["--ranks", "2"]);
    assert!(!output.status.success() && stderr(&output).contains("built without the feature `mpi`"), "{output:?}");
}

#[test]
fn digits_resumes() {
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
fn digits_reports_errors_before_training() {
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
        (&["--run", ok, "--device", "cpu", "--precision", "fast"], "matrix units only, not on the CPU"),
        (&["--run", ok, "--batch", "0"], "--batch 0"),
        (&["--run", ok, "--batch", "5000"], "--batch 5000: must be from 1 to 1438"),
        (&["--run", ok, "--resume"], "there is no run to resume in"),
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

/// Runs a short training to its end, then again from the second-to-last checkpoint: weights and pictures are the same.
fn resumes(program: &str, args: &[&str], weights: &str, pictures: &[&str]) {
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
        let ([width, _], pixels) = pictures::read(&there.join(picture));
        assert!(width > 48 && pixels.iter().any(|&pixel| pixel != pixels[0]));
    }

    // The state of a run that was killed before its last checkpoint.
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

/// The error message of a program that fails before its first step.
fn refusal(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    assert_eq!(output.status.code(), Some(1), "{program} {args:?}: {output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("epoch"), "{program} {args:?}");
    stderr(&output)
}

#[test]
fn resnet_resumes() {
    let args = ["--shapes", "32", "--batch", "16", "--width", "4", "--epochs", "2", "--workers", "2"];
    resumes("resnet", &args, "resnet.safetensors", &["images.png", "mistakes.png"]);
}

#[test]
fn autoencoder_resumes() {
    let args = ["--batch", "600", "--width", "4", "--epochs", "11"];
    resumes("autoencoder", &args, "autoencoder.safetensors", &["drawn-again.png", "between.png"]);
}

#[test]
fn diffusion_resumes() {
    let args = ["--batch", "700", "--channels", "8", "--epochs", "2", "--every", "1", "--times", "10"];
    for sampler in ["ddpm", "ddim"] {
        let args = [&args[..], &["--sampler", sampler, "--steps", "5"]].concat();
        resumes("diffusion", &args, "unet.safetensors", &["epoch-0002.png", "samples.png", "denoising.png"]);
    }
}

#[cfg(not(feature = "images"))]
#[test]
fn pictures_need_a_feature() {
    let out = folder("no pictures");
    std::fs::create_dir_all(out.join("class")).unwrap();
    for program in ["resnet", "autoencoder", "diffusion"] {
        let said = refusal(program, &["--data", out.to_str().unwrap()]);
        assert!(said.contains("`cargo run --features images …`"), "{program}: {said}");
    }
    let said = refusal("bench", &["--workers", "1"]);
    assert!(said.contains("`cargo run --features images …`"), "{said}");
    std::fs::remove_dir_all(out).unwrap();
}

#[cfg(feature = "images")]
#[test]
fn resnet_learns_from_pictures() {
    let out = folder("pictures");
    let pictures = out.join("pictures");
    for class in 0..3u8 {
        let class_folder = pictures.join(format!("class {class}"));
        std::fs::create_dir_all(&class_folder).unwrap();
        for picture in 0..10u8 {
            let path = class_folder.join(format!("{picture}.png"));
            let width = 16 + usize::from(picture / 9);
            let pixel = |_, _, channel| if channel == usize::from(class) { 200 + picture } else { picture };
            save(&path, [3, 16, width], pixel).unwrap();
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
    let output = run("resnet", &[&sized[..], &["--resume"]].concat());
    assert!(output.status.success(), "a file that is no image by its name is left out: {output:?}");
    std::fs::rename(&wrong, wrong.with_file_name("notes.png")).unwrap();
    // Three lines: the device, the error, and the line of code that it comes from.
    let said = refusal("resnet", &[&sized[..], &["--resume"]].concat());
    assert!(said.contains("notes.png, byte 0: not a readable image") && said.lines().count() == 3, "{said}");
    // More images than the training began with.
    std::fs::copy(pictures.join("class 0").join("0.png"), wrong.with_file_name("notes.png")).unwrap();
    std::fs::copy(pictures.join("class 0").join("0.png"), wrong.with_file_name("more.png")).unwrap();
    let said = refusal("resnet", &[&sized[..], &["--resume"]].concat());
    assert!(said.contains("`images` was 27 and is 29"), "{said}");
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn drawing_does_not_change_the_training() {
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
    assert!(std::fs::read(there.join("samples.png")).unwrap() == samples, "drawn from the same weights");
    let other = ["--run", there.to_str().unwrap(), "--channels", "8", "--times", "5", "--draw"];
    let said = refusal("diffusion", &other);
    assert!(said.contains("`times` was 4 and is 5"), "{said}");
    assert!(contents() == before, "nothing but pictures was written");

    // The folder's name has a space, so the printed command must be quoted for a shell.
    let output = run("diffusion", &[&training[..], &["--resume"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    let command = said.lines().last().and_then(|line| line.split_once("to resume: ")).expect("how to resume").1;
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
        assert!(stderr(&output).contains("(epoch 1, batch 0): the loss is not finite"), "{output:?}");
        let events = std::fs::read_to_string(there.join("events.jsonl")).unwrap();
        assert!(events.lines().last().unwrap().contains("the loss is not finite"), "{events}");
        assert!(!there.join("checkpoints").exists(), "nothing of it is kept");
    }
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn programs_report_errors_before_training() {
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
            (&["--data", &missing][..], "error: --data "),
            (&["--data", empty], "no images that this program can read"),
            (&["--data", broken], "t10k-images-idx3-ubyte, byte 8"),
            (&["--data", half], "t10k-labels-idx1-ubyte is missing beside t10k-images-idx3-ubyte"),
            (&["--data", cifar], "data_batch_2.bin is missing beside data_batch_1.bin"),
            (&["--batch", "1000000"], "--batch 1000000: must be from 1 to"),
            (&["--resume"], "there is no run to resume in"),
        ] {
            let said = refusal(program, &[&run_there[..], args].concat());
            assert!(said.contains(expected), "{program} {args:?}: {said}");
        }
    }
    for (program, args, expected) in [
        ("resnet", ["--width", "3"], "--width 3: must be a multiple of 2"),
        ("resnet", ["--shapes", "3"], "--shapes 3: must be at least 4"),
        ("autoencoder", ["--numbers", "0"], "--numbers 0: must be at least 1"),
        ("autoencoder", ["--width", "0"], "--width 0: must be at least 1"),
        ("diffusion", ["--channels", "12"], "--channels 12: must be a multiple of 8"),
        ("diffusion", ["--channels", "0"], "--channels 0: must be a multiple of 8"),
        ("diffusion", ["--every", "0"], "--every 0: must be at least 1"),
        ("diffusion", ["--steps", "0"], "--steps 0: must be from 1 to 1000"),
        ("diffusion", ["--steps", "1001"], "--steps 1001: must be from 1 to 1000"),
    ] {
        let said = refusal(program, &[&run_there[..], &args].concat());
        assert!(said.contains(expected), "{program} {args:?}: {said}");
    }
    #[cfg(feature = "images")]
    {
        let pictures = out.join("pictures");
        let class = pictures.join("class");
        std::fs::create_dir_all(&class).unwrap();
        for picture in 0..10 {
            save(&class.join(format!("{picture}.png")), [3, 10, 12], |_, _, _| 0).unwrap();
        }
        for program in ["autoencoder", "diffusion"] {
            let said = refusal(program, &[&run_there[..], &["--data", pictures.to_str().unwrap()]].concat());
            assert!(said.contains("10×12 pixels: both must be multiples of 4; --size"), "{program}: {said}");
        }
    }
    assert!(!there.exists(), "nothing is begun");
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn text_is_learned_and_written() {
    let out = folder("text");
    let verse = "Tell me where is fancy bred, or in the heart or in the head?\n".repeat(40);
    let (text, run_there) = (out.join("verse.txt"), out.join("run"));
    std::fs::write(&text, verse).unwrap();
    let args =
        ["--text", text.to_str().unwrap(), "--run", run_there.to_str().unwrap(), "--width", "32", "--layers", "1"];
    let small =
        ["--context", "16", "--epochs", "6", "--length", "40", "--prompt", "Tell", "--json", "--temperature", "0.1"];
    let output = run("text", &[&args[..], &small].concat());
    assert!(output.status.success(), "{output:?}");
    let result = last_line(&output);
    assert!(result["test_loss"].as_f64().unwrap() < 1.0, "{result}");
    let written = std::fs::read_to_string(run_there.join("written.txt")).unwrap();
    assert_eq!(written.chars().count(), 4 + 40);
    assert!(written.starts_with("Tell") && result["written"] == written, "{result}");
    std::fs::remove_dir_all(out).unwrap();
}

/// By byte pairs, of which the text needs few: the prompt has characters that the text lacks.
#[test]
#[cfg(feature = "tokenizers")]
fn text_is_written_in_tokens() {
    let out = folder("tokens");
    let verse = "Tell me where is fancy bred, or in the heart or in the head?\n".repeat(40);
    let (text, run_there) = (out.join("verse.txt"), out.join("run"));
    std::fs::write(&text, verse).unwrap();
    let args = ["--text", text.to_str().unwrap(), "--run", run_there.to_str().unwrap(), "--tokens", "280"];
    let small = ["--context", "8", "--epochs", "10", "--length", "9", "--width", "32", "--layers", "1", "--json"];
    let output = run("text", &[&args[..], &small, &["--prompt", "Où? Tell", "--temperature", "0.1"]].concat());
    assert!(output.status.success(), "{output:?}");
    let result = last_line(&output);
    assert!(result["test_loss"].as_f64().unwrap() < 1.0, "{result}");
    let written = std::fs::read_to_string(run_there.join("written.txt")).unwrap();
    assert!(written.starts_with("Où? Tell") && result["written"] == written, "{result}");
    assert!(written.chars().count() > 8 + 9, "tokens of several characters: {written}");
    let vocabulary = std::fs::read(run_there.join("tokenizer.json")).unwrap();
    let vocabulary: serde_json::Value = serde_json::from_slice(&vocabulary).unwrap();
    assert_eq!(vocabulary["model"]["vocab"].as_object().unwrap().len(), 280);
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
#[cfg(not(feature = "tokenizers"))]
fn tokens_need_a_feature() {
    let said = refusal("text", &["--tokens", "300"]);
    assert!(said.contains("`cargo run --features tokenizers …`"), "{said}");
}

#[test]
fn text_reports_errors_before_training() {
    let out = folder("wrong-text");
    let short = out.join("short.txt");
    std::fs::write(&short, "too short").unwrap();
    for (args, wanted) in [
        (&["--prompt", "ä"][..], "--prompt: 'ä' is not in the text"),
        (&["--prompt", ""], "--prompt: must have a character"),
        (&["--text", "missing.txt"], "missing.txt: No such file"),
        (&["--text", short.to_str().unwrap()], "the text has 9 characters; --context 64 takes 660"),
        (&["--width", "10"], "--width 10: must be a multiple of 4"),
        (&["--temperature", "0"], "--temperature 0: must be above 0"),
        (&["--tokens", "255"], "--tokens 255: must be at least 256"),
    ] {
        let output = run("text", args);
        assert!(!output.status.success() && stderr(&output).contains(wanted), "{wanted}: {output:?}");
    }
    std::fs::remove_dir_all(out).unwrap();
}
