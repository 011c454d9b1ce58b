//! The command line of the native program.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use meganeura_examples::{device, pictures};
use meganeura_web::{Model, Session};

/// Drawings in a row, one of each digit.
const DIGITS: usize = 10;

/// Rows of drawings.
const ROWS: usize = 4;

/// Learns to read digits, then to draw them, like the page
#[derive(Parser, Debug)]
pub struct Options {
    /// The device: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    device: String,
    /// The seed of the initial weights, the order of the images and the noise
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Steps of the reader
    #[arg(long, default_value_t = 264)]
    reader_steps: usize,
    /// Steps of the drawer
    #[arg(long, default_value_t = 6000)]
    drawer_steps: usize,
    /// Initial weights of either model, as saved by a page
    #[arg(long, value_name = "FILE")]
    load: Vec<PathBuf>,
    /// The folder for the weights and the drawings
    #[arg(long, default_value = "target/session")]
    out: PathBuf,
}

pub fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    pollster::block_on(train_async(options))
}

async fn train_async(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = device(&options.device)?;
    println!("Device: {device} — {}", device.reason());
    let mut session = Session::new(&device, options.seed)?;
    for path in &options.load {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let model = session.load(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}: weights of the {}", path.display(), format!("{model:?}").to_lowercase());
    }
    for (model, steps) in [(Model::Reader, options.reader_steps), (Model::Drawer, options.drawer_steps)] {
        let start = Instant::now();
        while (session.steps(model) as usize) < steps {
            let losses = session.train(model, (steps - session.steps(model) as usize).min(100)).await?;
            let mean = losses.iter().sum::<f32>() / losses.len() as f32;
            let rate = session.steps(model) as f64 / start.elapsed().as_secs_f64();
            println!("{model:?}: step {}, loss {mean:.4}, {rate:.1} steps/s", session.steps(model));
        }
    }
    let accuracy = session.evaluate().await?.accuracy()?;
    println!("{:.2} % of unseen digits are read correctly", 100.0 * accuracy);
    let drawings = session.draw(ROWS).await?;
    let chances = session.read(&drawings).await?;
    let recognised = chances.chunks(DIGITS).enumerate().filter(|(index, row)| best(row) == index % DIGITS).count();
    println!("{recognised} of {} drawings are recognised", ROWS * DIGITS);

    fs::create_dir_all(&options.out)?;
    pictures::grid(&options.out.join("drawings.png"), &drawings, [1, 8, 8], DIGITS)?;
    for (model, name) in [(Model::Reader, "digits.safetensors"), (Model::Drawer, "denoiser.safetensors")] {
        let path = options.out.join(name);
        fs::write(&path, session.save(model).await?)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The most likely digit.
fn best(chances: &[f32]) -> usize {
    (0..chances.len()).max_by(|&a, &b| chances[a].total_cmp(&chances[b])).expect("ten digits")
}
