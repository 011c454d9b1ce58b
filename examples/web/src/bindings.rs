//! The session's JavaScript bindings: numbers in, numbers out, errors as exceptions named after their kind.

use meganeura::prelude::*;
use meganeura::{Error, Result};
use wasm_bindgen::prelude::*;

use crate::{Model, Session, strokes};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn log_error(message: &str);
}

/// Logs the message of a panic, which otherwise would be a bare "unreachable".
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|panic| log_error(&panic.to_string())));
}

/// A session. While the promise of one method is pending, no other method may be called.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Trainer(Session);

#[wasm_bindgen]
impl Trainer {
    /// Untrained models. `device` is `auto`, or a name: `webgpu` or `cpu`.
    pub async fn open(seed: u32, device: &str) -> Result<Trainer, JsValue> {
        async { Ok(Self(Session::new(&open_device(device).await?, seed.into())?)) }.await.map_err(exception)
    }

    /// The models of a snapshot.
    pub async fn restore(snapshot: &[u8], device: &str) -> Result<Trainer, JsValue> {
        async { Ok(Self(Session::restore(&open_device(device).await?, snapshot)?)) }.await.map_err(exception)
    }

    /// The device.
    pub fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// The reason why this device was chosen.
    pub fn reason(&self) -> String {
        self.0.device().reason().to_owned()
    }

    pub fn is_gpu(&self) -> bool {
        self.0.device().is_gpu()
    }

    pub fn steps(&self, model: Model) -> u32 {
        self.0.steps(model) as u32
    }

    pub fn lr(&self, model: Model) -> f64 {
        self.0.lr(model)
    }

    pub fn set_lr(&mut self, model: Model, lr: f64) -> Result<(), JsValue> {
        self.0.set_lr(model, lr).map_err(exception)
    }

    pub async fn train(&mut self, model: Model, steps: usize) -> Result<Vec<f32>, JsValue> {
        self.0.train(model, steps).await.map_err(exception)
    }

    /// Rows of counts: a row for each digit, a column for each answer.
    pub async fn evaluate(&self) -> Result<Vec<u32>, JsValue> {
        let confusion = self.0.evaluate().await.map_err(exception)?;
        Ok(confusion.rows().flatten().map(|&count| count as u32).collect())
    }

    pub async fn draw(&self, rows: usize) -> Result<Vec<f32>, JsValue> {
        self.0.draw(rows).await.map_err(exception)
    }

    pub async fn read(&self, images: &[f32]) -> Result<Vec<f32>, JsValue> {
        self.0.read(images).await.map_err(exception)
    }

    pub async fn save(&self, model: Model) -> Result<Vec<u8>, JsValue> {
        self.0.save(model).await.map_err(exception)
    }

    pub fn load(&mut self, bytes: &[u8]) -> Result<Model, JsValue> {
        self.0.load(bytes).map_err(exception)
    }

    pub async fn snapshot(&self) -> Result<Vec<u8>, JsValue> {
        self.0.snapshot().await.map_err(exception)
    }
}

/// An image of strokes: `points` are the coordinates one after the other, to the right and down, from 0 to 1; `lengths`
/// are the numbers of points in each stroke.
#[wasm_bindgen]
pub fn image_of(points: &[f32], lengths: &[u32]) -> Option<Vec<f32>> {
    let (mut points, _) = points.as_chunks::<2>();
    let mut parts = Vec::new();
    for &length in lengths {
        let (stroke, rest) = points.split_at_checked(length as usize)?;
        parts.push(stroke);
        points = rest;
    }
    strokes::image_of(&parts)
}

async fn open_device(name: &str) -> Result<Device> {
    match name {
        "auto" => Device::best_async().await,
        name => Device::named_async(name).await,
    }
}

fn exception(error: Error) -> JsValue {
    let exception = js_sys::Error::new(&error.to_string());
    exception.set_name(&format!("{:?}", error.kind()));
    exception.into()
}
