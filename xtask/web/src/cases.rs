//! The tests of the page, in a browser.

use std::fs;
use std::time::Duration;

use meganeura_web::{Model, Session};
use pollster::block_on;
use serde_json::{Value, json};

use crate::Done;
use crate::browser::{NO_WEBGPU, WEBGPU};
use crate::native::{self, LAVAPIPE};
use crate::suite::{Case, Page};

/// The number of steps before weights are compared: an epoch of the reader. Rounding differs between devices, and the
/// differences grow from step to step.
const FEW: usize = 22;

/// The largest difference that rounding causes in that number of steps, as a share of a tensor's norm.
const ROUNDING: f64 = 2e-3;

/// Strokes of a seven, in pixels from the middle of the pad.
const SEVEN: [[i32; 2]; 3] = [[-70, -90], [60, -90], [-10, 100]];

/// Lets a test destroy the device: `new BroadcastChannel("lose").postMessage(0)`.
const LOSABLE: &str = r#"
const request = GPUAdapter.prototype.requestDevice;
const devices = [];
GPUAdapter.prototype.requestDevice = async function (...args) {
  devices.push(await request.apply(this, args));
  return devices.at(-1);
};
new BroadcastChannel("lose").onmessage = () => devices.at(-1).destroy();
"#;

/// Lets a test crash the worker: `new BroadcastChannel("crash").postMessage(0)`.
const CRASHABLE: &str = r#"
new BroadcastChannel("crash").onmessage = () => {
  Trainer.prototype.train = () => { throw new WebAssembly.RuntimeError("a crash of this test"); };
};
"#;

const fn case(name: &'static str, flags: &'static [&'static str], run: fn(&Page) -> Done) -> Case {
    Case { name, flags, worker_prefix: "", complaint: None, run }
}

pub const CASES: [Case; 11] = [
    case("webgpu_trains_as_lavapipe_does", &WEBGPU, trains_on_webgpu),
    case("first_it_reads_then_it_draws", &NO_WEBGPU, draws),
    Case {
        // Chromium logs to the console when a page requests an adapter.
        complaint: Some("No available adapters"),
        ..case("without_webgpu_the_cpu_computes", &NO_WEBGPU, without_webgpu)
    },
    case("controls_control", &NO_WEBGPU, controls),
    case("a_digit_of_the_mouse_is_read", &NO_WEBGPU, reads_the_mouse),
    case("files_move_between_page_and_native", &NO_WEBGPU, files),
    case("a_wrong_file_changes_nothing", &NO_WEBGPU, wrong_files),
    Case { worker_prefix: LOSABLE, ..case("a_lost_device_is_replaced", &WEBGPU, lost_device) },
    Case {
        worker_prefix: CRASHABLE,
        complaint: Some("a crash of this test"),
        ..case("a_crashed_worker_is_replaced", &NO_WEBGPU, crashed_worker)
    },
    case("in_the_background_training_goes_on", &NO_WEBGPU, background),
    case("a_phone_shows_everything", &NO_WEBGPU, phone),
];

fn expect(holds: bool, message: impl FnOnce() -> String) -> Done {
    if holds { Ok(()) } else { Err(message()) }
}

impl Page {
    /// Opens the page, and trains until it pauses.
    fn train(&self, query: &str) -> Done {
        self.open(query)?;
        self.click("#start")?;
        self.paused()
    }

    fn paused(&self) -> Done {
        self.browser.wait("document.querySelector('[data-topic=paused]')")
    }

    fn click(&self, selector: &str) -> Done {
        self.browser.click(selector)
    }

    fn steps(&self) -> Done<u64> {
        self.browser.text("#steps")?.parse().map_err(|_| "no number of steps".to_owned())
    }

    fn accuracy(&self) -> Done<f64> {
        let text = self.browser.text("#accuracy")?;
        text.trim_end_matches(" %").parse().map_err(|_| format!("no accuracy: {text}"))
    }

    fn save(&self, model: Model) -> Done<Vec<u8>> {
        let (button, name) = match model {
            Model::Reader => ("#save-reader", "digits.safetensors"),
            Model::Drawer => ("#save-drawer", "denoiser.safetensors"),
        };
        self.click(button)?;
        self.browser.download(name)
    }

    /// Gives the page a file, through its file input.
    fn give(&self, name: &str, bytes: &[u8]) -> Done {
        let path = self.browser.folder().join(name);
        fs::write(&path, bytes).map_err(|error| error.to_string())?;
        self.browser.keys("#file", &path.to_string_lossy())
    }

    /// Waits for the notice on a topic, and returns its text.
    fn notice(&self, topic: &str) -> Done<String> {
        let selector = format!("[data-topic={topic}]");
        self.browser.wait(&format!("document.querySelector('{selector}')"))?;
        self.browser.text(&format!("{selector} p"))
    }

    /// The position of an element from the top of the page, in CSS pixels.
    fn place(&self, selector: &str) -> Done<Value> {
        self.browser.run(&format!("return document.querySelector('{selector}').getBoundingClientRect().top + scrollY;"))
    }

    fn choose(&self, model: &str) -> Done {
        self.browser.run(&format!("document.querySelector('input[value={model}]').click();")).map(drop)
    }
}

/// Chromium's driver on the CPU takes a second or two for a step of the reader. So training is short, and shown to be
/// what it is natively, where tests train to the end.
fn trains_on_webgpu(page: &Page) -> Done {
    page.open(&format!("device=webgpu&pause={FEW}"))?;
    expect(page.browser.text("#device-kind")? == "WebGPU", || "the page does not use WebGPU".to_owned())?;
    let native = native::session(LAVAPIPE, FEW, FEW)?;
    page.click("#start")?;
    page.paused()?;
    println!("reader: {} steps/s", page.browser.text("#speed")?);
    let accuracy = block_on(native.evaluate()).and_then(|confusion| confusion.accuracy()).map_err(|e| e.to_string())?;
    let on_page = page.accuracy()?;
    expect((on_page - 100.0 * accuracy).abs() < 2.0, || format!("{on_page} % are read, and natively {accuracy}"))?;
    same(page, Model::Reader, &native, LAVAPIPE)?;
    page.choose("drawer")?;
    page.click("#start")?;
    page.paused()?;
    println!("drawer: {} steps/s", page.browser.text("#speed")?);
    let recognised = page.browser.text("#recognised")?;
    expect(recognised.contains("The reader recognises"), || recognised)?;
    same(page, Model::Drawer, &native, LAVAPIPE)
}

/// On the CPU, from reading to drawing; this takes the README's picture.
fn draws(page: &Page) -> Done {
    page.browser.resize(1200, 1000, false)?;
    page.open("device=cpu")?;
    page.click("#start")?;
    page.browser.wait("document.querySelector('input[value=drawer]').checked")?;
    page.browser.wait("Number(document.getElementById('steps').textContent) > 1500")?;
    println!("drawer on the CPU: {} steps/s", page.browser.text("#speed")?);
    page.click("#start")?;
    std::thread::sleep(Duration::from_secs(1));
    let recognised = page.browser.text("#recognised")?;
    let hits = recognised.split("recognises ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    expect(hits.is_some_and(|hits| hits >= 24), || recognised)?;
    page.browser.draw("#pad", &SEVEN)?;
    page.browser.wait("document.getElementById('answer').textContent.startsWith('This is a 7')")?;
    page.picture("page.png")
}

/// Compares a model's weights with a native session's.
fn same(page: &Page, model: Model, native: &Session, device: &str) -> Done {
    let difference = native::difference(&page.save(model)?, &native::weights(native, model)?)?;
    println!("{model:?}: weights differ from those of {device} by {difference:.1e} after {FEW} steps");
    expect(difference < ROUNDING, || format!("the weights of the {model:?} differ by {difference}"))
}

fn without_webgpu(page: &Page) -> Done {
    page.train("pause=132")?;
    let said = page.notice("device")?;
    expect(said.starts_with("There is no WebGPU here"), || said)?;
    expect(page.browser.text("#device-kind")? == "CPU", || "the page does not use the CPU".to_owned())?;
    let accuracy = page.accuracy()?;
    println!("reader on the CPU: {accuracy} %, {} steps/s", page.browser.text("#speed")?);
    expect(accuracy >= 95.0, || format!("{accuracy} % are read correctly"))?;
    let native = native::session("cpu", FEW, FEW)?;
    for (model, name) in [(Model::Reader, "reader"), (Model::Drawer, "drawer")] {
        page.open(&format!("device=cpu&pause={FEW}"))?;
        page.choose(name)?;
        page.click("#start")?;
        page.paused()?;
        same(page, model, &native, "the CPU")?;
    }
    Ok(())
}

fn controls(page: &Page) -> Done {
    page.open("device=cpu")?;
    page.click("#start")?;
    page.browser.wait("Number(document.getElementById('steps').textContent) >= 3")?;
    page.click("#start")?;
    std::thread::sleep(Duration::from_secs(1));
    let paused = page.steps()?;
    std::thread::sleep(Duration::from_secs(1));
    expect(page.steps()? == paused, || "it trains while it is paused".to_owned())?;
    page.click("#reset")?;
    page.browser.wait("document.getElementById('steps').textContent == '0'")?;

    // The training uses the slider's rate.
    page.open(&format!("device=cpu&pause={FEW}"))?;
    page.browser.run(
        "const rate = document.getElementById('rate'); rate.value = -3; rate.dispatchEvent(new Event('input'));",
    )?;
    expect(page.browser.text("#rate-value")? == "0.001", || "the rate is not shown".to_owned())?;
    page.click("#start")?;
    page.paused()?;
    let mut slow = native::session("cpu", 0, 0)?;
    slow.set_lr(Model::Reader, 1e-3).map_err(|error| error.to_string())?;
    block_on(slow.train(Model::Reader, FEW)).map_err(|error| error.to_string())?;
    let weights = page.save(Model::Reader)?;
    let difference = native::difference(&weights, &native::weights(&slow, Model::Reader)?)?;
    expect(difference < ROUNDING, || format!("the weights differ by {difference} from those of this rate"))?;
    let fast = native::difference(&weights, &native::weights(&native::session("cpu", FEW, 0)?, Model::Reader)?)?;
    expect(fast > ROUNDING, || "the rate changes nothing".to_owned())
}

fn reads_the_mouse(page: &Page) -> Done {
    page.train("device=cpu&pause=132")?;
    let digits: [(&str, &[[i32; 2]]); 3] = [
        ("7", &SEVEN),
        ("1", &[[-30, -60], [5, -100], [5, 100]]),
        ("0", &[[0, -100], [55, -60], [65, 0], [55, 60], [0, 100], [-55, 60], [-65, 0], [-55, -60], [0, -100]]),
    ];
    for (digit, points) in digits {
        page.browser.draw("#pad", points)?;
        page.browser.wait("document.getElementById('answer').textContent.startsWith('This is a')")?;
        // The last points are read a moment later.
        std::thread::sleep(Duration::from_millis(300));
        let answer = page.browser.text("#answer")?;
        expect(answer.starts_with(&format!("This is a {digit}")), || format!("a {digit} is read as: {answer}"))?;
        page.click("#clear")?;
        page.browser.wait("document.getElementById('answer').textContent.startsWith('Draw')")?;
    }
    Ok(())
}

fn files(page: &Page) -> Done {
    // From the page to a native session, which reads equally well with the file.
    page.train("device=cpu&pause=132")?;
    let mut native = native::session("cpu", 0, 0)?;
    let loaded = native.load(&page.save(Model::Reader)?).map_err(|error| error.to_string())?;
    expect(loaded == Model::Reader, || "the file is of another model".to_owned())?;
    let accuracy =
        100.0 * block_on(native.evaluate()).and_then(|confusion| confusion.accuracy()).map_err(|e| e.to_string())?;
    let on_page = page.accuracy()?;
    expect((accuracy - on_page).abs() < 0.06, || format!("{on_page} % in the page, {accuracy} % natively"))?;

    // And back, into an untrained page.
    page.open("device=cpu")?;
    let place = page.place("#save-reader")?;
    for model in [Model::Reader, Model::Drawer] {
        let bytes = native::weights(&native, model)?;
        page.give("native.safetensors", &bytes)?;
        let said = page.notice("file")?;
        expect(
            said == format!("native.safetensors: the {} has these weights now.", format!("{model:?}").to_lowercase()),
            || said,
        )?;
        expect(page.save(model)? == bytes, || "the weights are others".to_owned())?;
        page.browser.run("document.querySelector('[data-topic=file] button').click();")?;
    }
    page.browser.wait(&format!("document.getElementById('accuracy').textContent == '{on_page:.1} %'"))?;
    expect(page.place("#save-reader")? == place, || "the first evaluation moves a button".to_owned())
}

fn wrong_files(page: &Page) -> Done {
    page.train("device=cpu&pause=5")?;
    let before = page.save(Model::Reader)?;
    page.give("notes.txt", b"these are no weights")?;
    let said = page.notice("load")?;
    expect(said.starts_with("notes.txt was not loaded, and nothing has changed."), || said)?;
    // Half a file, dropped.
    let half: Vec<_> = before[..before.len() / 2].to_vec();
    page.browser.run(&format!(
        "const transfer = new DataTransfer(); transfer.items.add(new File([new Uint8Array({})], 'half.safetensors'));
         document.body.dispatchEvent(new DragEvent('drop', {{ dataTransfer: transfer, bubbles: true, cancelable: true }}));",
        json!(half)
    ))?;
    page.browser.wait("document.querySelector('[data-topic=load]')?.textContent.includes('half.safetensors')")?;
    expect(page.steps()? == 5, || "steps were lost".to_owned())?;
    expect(page.save(Model::Reader)? == before, || "the weights have changed".to_owned())?;
    page.click("#start")?;
    page.paused()
}

fn lost_device(page: &Page) -> Done {
    page.open("device=webgpu")?;
    page.click("#start")?;
    page.browser.wait("Number(document.getElementById('steps').textContent) > 4")?;
    let before = page.steps()?;
    page.browser.run("new BroadcastChannel('lose').postMessage(0);")?;
    let said = page.notice("lost")?;
    expect(said.starts_with("The device was lost. Training goes on from step"), || said.clone())?;
    let step = said.split("from step ").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    let step = step.ok_or("it does not say where it goes on")?;
    println!("lost at step {before} or later, and gone on from {step}");
    expect(step > 0, || "everything was lost".to_owned())?;
    page.browser.wait(&format!("Number(document.getElementById('steps').textContent) > {}", before + 2))?;
    expect(page.browser.text("#device-kind")? == "WebGPU", || "it does not go on with WebGPU".to_owned())
}

fn crashed_worker(page: &Page) -> Done {
    page.open("device=cpu")?;
    page.click("#start")?;
    page.browser.wait("Number(document.getElementById('steps').textContent) > 30")?;
    page.click("#start")?;
    std::thread::sleep(Duration::from_secs(1));
    let (before, weights) = (page.steps()?, page.save(Model::Reader)?);
    page.browser.run("new BroadcastChannel('crash').postMessage(0);")?;
    page.click("#start")?;
    let said = page.notice("crash")?;
    expect(said.starts_with("Something failed, and training goes on"), || said)?;
    page.browser.wait(&format!("Number(document.getElementById('steps').textContent) > {before}"))?;
    expect(weights != page.save(Model::Reader)?, || "it does not learn any more".to_owned())
}

fn background(page: &Page) -> Done {
    page.open("device=cpu")?;
    page.click("#start")?;
    page.browser.wait("Number(document.getElementById('steps').textContent) > 5")?;
    page.browser.in_another_tab(|| {
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    })?;
    let said = page.notice("background")?;
    let steps = said.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).next();
    expect(steps.is_some_and(|steps| steps > 0), || said)
}

fn phone(page: &Page) -> Done {
    page.browser.resize(360, 780, true)?;
    page.train("device=cpu&pause=132")?;
    page.browser.draw("#pad", &SEVEN)?;
    let wide = page.browser.run("return document.documentElement.scrollWidth;")?;
    expect(wide == json!(360), || format!("the page is {wide} pixels wide"))?;
    let small = page.browser.run(
        "return [...document.querySelectorAll('button, .button, fieldset label')].filter((e) => e.offsetParent)
           .filter((e) => e.getBoundingClientRect().height < 44 || e.getBoundingClientRect().width < 44)
           .map((e) => e.outerHTML);",
    )?;
    expect(small == json!([]), || format!("too small for a finger: {small}"))?;
    page.picture("phone.png")
}
