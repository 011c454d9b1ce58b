//! Examples that are read from files during training, like those of a large dataset.

use std::fs;
use std::path::Path;

use meganeura::data::{Batch, Batches, BatchesOn, HorizontalFlip, ImageFolder, Normalize, RandomCrop};
use meganeura::prelude::*;
use meganeura::{Error, ErrorKind};
use meganeura_examples::pictures;
use tempfile::TempDir;

/// The number of steps per pass over the images; after that, they come again in another order.
const STEPS: usize = 16;

/// A folder of PNG images with one folder per class, and an endless iterator of its batches.
pub struct Pictures {
    batches: Batches,
    device: Device,
    epoch: u64,
    rest: BatchesOn,
    /// Deleted with the workload.
    _folder: TempDir,
}

impl Pictures {
    /// Images for batches of this shape, `[N, C, H, W]`, decoded and augmented by a number of threads.
    pub fn new(device: &Device, batch: Shape, classes: u32, workers: usize) -> Result<Self> {
        let &[size, channels, height, width] = batch.dims() else {
            return Err(Error::new(ErrorKind::Shape, format!("batches of images have four axes, not {batch}")));
        };
        let folder = TempDir::new().map_err(|error| failed("a folder for images", error))?;
        write(folder.path(), size * STEPS, classes, [height, width])?;
        let images = ImageFolder::open(folder.path())?;
        let images = if channels == 1 { images.gray() } else { images.rgb() };
        let batches = Dataset::of(images)?
            .batches(size)
            .shuffle(42)
            .transform(RandomCrop::new(height, width).padding(4))
            .transform(HorizontalFlip::new(0.5))
            .transform(Normalize::new(vec![0.5; channels], vec![0.25; channels]))
            .workers(workers);
        let rest = batches.clone().epoch(0).on(device);
        Ok(Self { batches, device: device.clone(), epoch: 0, rest, _folder: folder })
    }

    /// The next batch; after the last of an epoch, the first of the next.
    pub fn next(&mut self) -> Result<Batch> {
        if let Some(batch) = self.rest.next() {
            return batch;
        }
        self.epoch += 1;
        self.rest = self.batches.clone().epoch(self.epoch).on(&self.device);
        self.rest.next().expect("an epoch has batches")
    }
}

/// A number of images, in classes that differ by colour: a disc on a gradient, which compresses roughly like a
/// photograph.
fn write(folder: &Path, count: usize, classes: u32, [height, width]: [usize; 2]) -> Result<()> {
    for index in 0..count {
        let class = index as u32 % classes;
        let draw = Seed::new(1).index(index).get();
        let (x0, y0) = (draw as u32 as usize % width, (draw >> 32) as usize % height);
        let radius = height.max(width) / 4 + 1;
        let pixel = |x: usize, y: usize, channel: usize| {
            let (dx, dy) = (x.abs_diff(x0), y.abs_diff(y0));
            // The lowest bits of photographs are noise.
            let noise = (Seed::new(draw).index(y * width + x).get() % 8) as usize;
            let class = class as usize * 255 / classes as usize;
            let colour = match dx * dx + dy * dy <= radius * radius {
                true => [class, 255 - class, 128 + noise],
                false => [x * 240 / width + noise, y * 240 / height + noise, 64 + noise],
            };
            colour[channel] as u8
        };
        let class = folder.join(format!("class {class}"));
        let path = class.join(format!("{index:06}.png"));
        fs::create_dir_all(&class).map_err(|error| failed("a folder for images", error))?;
        pictures::save(&path, [3, height, width], pixel).map_err(|error| failed(&path.display().to_string(), error))?;
    }
    Ok(())
}

fn failed(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("{what} could not be written: {error}"))
}
