//! Serves a model over HTTP: reads handwritten digits that are posted as 64 numbers from 0 to 1.
//!
//! ```text
//! cargo run --release --example digits -- --run target/served
//! cargo run --release --example server -- --weights target/served/digits.safetensors
//! curl -d '[0.0, 0.0, 0.31, …]' http://127.0.0.1:8000
//! {"digit":7,"probabilities":[…]}
//! ```
//!
//! Requests that arrive together run as one batch, in one of a few sizes that are planned at the start.

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use meganeura::prelude::*;
use meganeura::serve::{Batched, Queue};
use meganeura_examples::models::Digits;
use serde_json::{Value, json};
use tiny_http::{Request, Response, Server};

/// Serves a model that reads digits, over HTTP
#[derive(Parser, Debug)]
struct Options {
    /// The weights that the example `digits` saved
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    /// The device: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    device: String,
    /// Where to listen; port 0 is any that is free
    #[arg(long, default_value = "127.0.0.1:8000")]
    address: String,
    /// Threads that read and answer requests
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Milliseconds that a request waits for others to share its batch
    #[arg(long, default_value_t = 2)]
    patience: u64,
}

fn main() -> ExitCode {
    meganeura_examples::run(serve)
}

fn serve(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = meganeura_examples::device(&options.device)?;
    let mut net = Digits::init(&device, 42)?;
    net.load(&options.weights)?.strict()?;
    let function = Batched::compile(&device, [1, 4, 16, 64], Array::zeros([1, 8, 8])?, |x| net.forward(x).softmax(1))?;
    let queue = Queue::start(function, Duration::from_millis(options.patience));
    let server = Server::http(&options.address).map_err(|error| format!("--address {}: {error}", options.address))?;
    println!("Device: {device}\nhttp://{}", server.server_addr());
    thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| server.incoming_requests().for_each(|request| answer(request, &queue)));
        }
    });
    Ok(())
}

/// Answers a request, with status 400 if it is not an image.
fn answer(mut request: Request, queue: &Queue<Array<f32>>) {
    let mut text = String::new();
    let read = request.as_reader().take(1 << 16).read_to_string(&mut text);
    let (status, answer) = match read.map_err(Into::into).and_then(|_| classify(&text, queue)) {
        Ok(answer) => (200, answer),
        Err(error) => (400, json!({ "error": error.to_string() })),
    };
    // A client that has gone does not wait for it.
    drop(request.respond(Response::from_string(answer.to_string()).with_status_code(status)));
}

fn classify(text: &str, queue: &Queue<Array<f32>>) -> Result<Value, Box<dyn Error>> {
    let pixels: Vec<f32> = serde_json::from_str(text)?;
    let probabilities = queue.call(Array::new(pixels, [1, 8, 8])?)?.into_values();
    let digit = (0..probabilities.len()).max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
    Ok(json!({ "digit": digit, "probabilities": probabilities }))
}
