//! Headless Chromium, through chromedriver: WebDriver is JSON over HTTP.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Done;

/// WebGPU on the CPU, with Chromium's own driver.
pub const WEBGPU: [&str; 2] = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

/// A browser without WebGPU.
pub const NO_WEBGPU: [&str; 1] = ["--disable-features=WebGPU"];

/// The time limit for any action of the page.
const PATIENCE: Duration = Duration::from_secs(300);

/// A separate browser, with an empty profile and a folder for downloads. It ends when this is dropped.
pub struct Browser {
    driver: Child,
    session: String,
    downloads: TempDir,
}

impl Browser {
    pub fn open(flags: &[&str]) -> Done<Self> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run chromedriver: {error}"))?;
        let stdout = driver.stdout.take().ok_or("chromedriver has no output")?;
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let port = line.split_once("started successfully on port ")?.1;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        // A driver whose output nobody reads ends with its next line.
        std::thread::spawn(move || lines.for_each(drop));
        let downloads = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut browser = Self { driver, session: String::new(), downloads };
        let port = port.ok_or("chromedriver did not say its port")?;
        let args = [&["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,1000"], flags];
        let options = json!({
            "args": args.concat(),
            "prefs": { "download.default_directory": browser.downloads.path(), "download.prompt_for_download": false },
        });
        let wanted = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let base = format!("http://127.0.0.1:{port}/session");
        let opened = exchange(minreq::post(&base), Some(&json!({ "capabilities": { "alwaysMatch": wanted } })))?;
        let id = opened["sessionId"].as_str().ok_or("the browser has no session")?;
        browser.session = format!("{base}/{id}");
        Ok(browser)
    }

    fn post(&self, command: &str, body: &Value) -> Done<Value> {
        exchange(minreq::post(format!("{}/{command}", self.session)), Some(body))
    }

    fn get(&self, command: &str) -> Done<Value> {
        exchange(minreq::get(format!("{}/{command}", self.session)), None)
    }

    pub fn go(&self, url: &str) -> Done {
        self.post("url", &json!({ "url": url })).map(drop)
    }

    /// Runs the body of a function in the page, and returns its result.
    pub fn run(&self, script: &str) -> Done<Value> {
        self.post("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true.
    pub fn wait(&self, expression: &str) -> Done {
        let start = Instant::now();
        while self.run(&format!("return Boolean({expression});"))? != json!(true) {
            if start.elapsed() > PATIENCE {
                let page = self.run("return document.body.innerText;")?;
                let page = page.as_str().unwrap_or_default();
                return Err(format!("waited {PATIENCE:?} for {expression}; the page says:\n{page}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// The text of an element.
    pub fn text(&self, selector: &str) -> Done<String> {
        let text = self.run(&format!("return document.querySelector({}).textContent;", json!(selector)))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    fn element(&self, selector: &str) -> Done<Value> {
        self.post("element", &json!({ "using": "css selector", "value": selector }))
    }

    fn id(&self, selector: &str) -> Done<String> {
        let element = self.element(selector)?;
        let id = element.as_object().and_then(|ids| ids.values().next()?.as_str().map(str::to_owned));
        id.ok_or_else(|| format!("{selector} is not there"))
    }

    /// Clicks an element with the mouse. The click misses if the page moves the element at that moment.
    pub fn click(&self, selector: &str) -> Done {
        self.run(&format!(
            "document.wasClicked = false;
             document.querySelector({}).addEventListener('click', () => document.wasClicked = true, {{ once: true }});",
            json!(selector)
        ))?;
        self.post(&format!("element/{}/click", self.id(selector)?), &json!({}))?;
        if self.run("return document.wasClicked;")? == json!(true) {
            return Ok(());
        }
        Err(format!("a click missed {selector}: the page has moved it"))
    }

    /// Types text, or gives a file to a file input.
    pub fn keys(&self, selector: &str, text: &str) -> Done {
        self.post(&format!("element/{}/value", self.id(selector)?), &json!({ "text": text })).map(drop)
    }

    /// Draws a line with the mouse in an element, through points from its middle.
    pub fn draw(&self, selector: &str, points: &[[i32; 2]]) -> Done {
        let element = self.element(selector)?;
        let to =
            |&[x, y]: &[i32; 2]| json!({ "type": "pointerMove", "duration": 20, "x": x, "y": y, "origin": element });
        let mut actions: Vec<_> = points.iter().map(to).collect();
        actions.insert(1, json!({ "type": "pointerDown", "button": 0 }));
        actions.push(json!({ "type": "pointerUp", "button": 0 }));
        let mouse = json!({ "type": "pointer", "id": "mouse", "actions": actions });
        self.post("actions", &json!({ "actions": [mouse] })).map(drop)
    }

    /// A file that the page saved, once it is complete.
    pub fn download(&self, name: &str) -> Done<Vec<u8>> {
        let (path, start) = (self.downloads.path().join(name), Instant::now());
        while !path.exists() {
            if start.elapsed() > PATIENCE {
                return Err(format!("{name} was not saved"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let bytes = fs::read(&path).map_err(|error| error.to_string())?;
        fs::remove_file(&path).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// A folder that is deleted with the browser.
    pub fn folder(&self) -> &Path {
        self.downloads.path()
    }

    /// Opens another tab and does something there, while the page is in the background.
    pub fn in_another_tab(&self, act: impl FnOnce() -> Done) -> Done {
        let page = self.get("window")?;
        let tab = self.post("window/new", &json!({ "type": "tab" }))?;
        self.post("window", &json!({ "handle": tab["handle"] }))?;
        act()?;
        self.post("window", &json!({ "handle": page })).map(drop)
    }

    /// Sets the page's size in CSS pixels, to that of a phone or a desktop.
    pub fn resize(&self, width: u32, height: u32, is_phone: bool) -> Done {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.cdp("Emulation.setDeviceMetricsOverride", &metrics)
    }

    /// Sends a command of Chromium's own protocol.
    pub fn cdp(&self, command: &str, parameters: &Value) -> Done {
        self.post("goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).map(drop)
    }

    pub fn screenshot(&self, path: &Path) -> Done {
        let picture = self.post(
            "goog/cdp/execute",
            &json!({
                "cmd": "Page.captureScreenshot", "params": { "captureBeyondViewport": true },
            }),
        )?;
        let picture = picture["data"].as_str().unwrap_or_default();
        let bytes = BASE64_STANDARD.decode(picture).map_err(|error| format!("the screenshot: {error}"))?;
        fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The console's warnings and errors since the last call.
    pub fn complaints(&self) -> Done<Vec<String>> {
        let entries = self.post("se/log", &json!({ "type": "browser" }))?;
        let entries = entries.as_array().cloned().unwrap_or_default();
        let is_bad = |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        Ok(entries
            .iter()
            .filter(is_bad)
            .map(|entry| entry["message"].as_str().unwrap_or_default().to_owned())
            .collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ending the session ends Chromium; the driver needs a separate signal.
        drop(exchange(minreq::delete(&self.session), None));
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

/// The `value` of an answer; an error contains the driver's message.
fn exchange(request: minreq::Request, body: Option<&Value>) -> Done<Value> {
    let request = match body {
        Some(body) => request.with_header("Content-Type", "application/json").with_body(body.to_string()),
        None => request,
    };
    let response = request.with_timeout(PATIENCE.as_secs()).send().map_err(|error| format!("chromedriver: {error}"))?;
    let mut answer: Value =
        serde_json::from_slice(response.as_bytes()).map_err(|error| format!("chromedriver: {error}"))?;
    let value = answer["value"].take();
    match value["error"].as_str() {
        Some(error) if response.status_code != 200 => {
            Err(format!("{error}: {}", value["message"].as_str().unwrap_or_default()))
        }
        _ => Ok(value),
    }
}
