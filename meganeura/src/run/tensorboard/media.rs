//! Histograms and pictures for TensorBoard: what `metrics.jsonl` does not hold.
//!
//! Each process adds a file to `tensorboard/media`, which TensorBoard shows as a run of its own. The first events of
//! the file tell TensorBoard to discard those of earlier files after the checkpoint, which are made again.

use prost::Message;

use super::{Board, Event, FOLDER, Summary, Value};
use crate::error::{bail, here};
use crate::io::{disk, io_error};
use crate::run::Run;
use crate::{Result, Tensor};

/// The buckets of a histogram.
const BUCKETS: usize = 40;

/// `tensorflow.HistogramProto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    /// The upper end of each bucket.
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

impl Histogram {
    /// Equal buckets between the smallest and the largest number.
    fn of(numbers: &[f64]) -> Self {
        let (min, max) = numbers.iter().fold((f64::MAX, f64::MIN), |(min, max), &x| (min.min(x), max.max(x)));
        let width = (max - min) / BUCKETS as f64;
        let mut bucket = vec![0.0; BUCKETS];
        for x in numbers {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the last bucket")]
            let at = if width > 0.0 { ((x - min) / width) as usize } else { 0 };
            bucket[at.min(BUCKETS - 1)] += 1.0;
        }
        let mut bucket_limit: Vec<_> = (1..=BUCKETS).map(|at| min + width * at as f64).collect();
        bucket_limit[BUCKETS - 1] = max;
        let (sum, sum_squares) = (numbers.iter().sum(), numbers.iter().map(|x| x * x).sum());
        Self { min, max, num: numbers.len() as f64, sum, sum_squares, bucket_limit, bucket }
    }
}

/// `tensorflow.Summary.Image`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Image {
    #[prost(int32, tag = "1")]
    height: i32,
    #[prost(int32, tag = "2")]
    width: i32,
    /// The number of channels.
    #[prost(int32, tag = "3")]
    colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    encoded_image_string: Vec<u8>,
}

#[cfg(feature = "images")]
impl Image {
    /// An image `[C, H, W]` of one channel or three, with numbers from 0 to 1; others are clamped.
    fn of(tensor: &Tensor) -> Result<Self> {
        let png = crate::io::png(tensor)?;
        let [channels, height, width] = [0, 1, 2].map(|axis| tensor.shape()[axis] as i32);
        Ok(Self { height, width, colorspace: channels, encoded_image_string: png })
    }
}

impl Run {
    /// Shows the distribution of a tensor's numbers in TensorBoard, at the current step. Waits for the device.
    ///
    /// Histograms and pictures are in the run's folder `tensorboard/media`, which TensorBoard shows as a run of its
    /// own. Without [`tensorboard(true)`](super::super::RunOptions::tensorboard), and on ranks other than the first,
    /// the call does nothing.
    ///
    /// # Errors
    ///
    /// Fails with [`NotFinite`](crate::ErrorKind::NotFinite) if a number is NaN or infinite, and if the file cannot be
    /// written.
    #[track_caller]
    pub fn log_histogram(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        here(|| {
            if !self.has_board() {
                return Ok(());
            }
            let numbers = tensor.to_f64_vec()?;
            if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
                bail!(NotFinite, "the histogram `{name}`: element {at} of {} is {}", tensor.ty(), numbers[at]);
            }
            self.show(Value { tag: name.to_owned(), histo: Some(Histogram::of(&numbers)), ..Value::default() })
        })
    }

    /// Shows an image in TensorBoard, at the current step: `[1, height, width]` or `[3, height, width]`, with numbers
    /// from 0 to 1; others are clamped. See [`log_histogram`](Self::log_histogram). Needs the feature `images`.
    ///
    /// # Errors
    ///
    /// Fails if the tensor is not such an image, and if the file cannot be written.
    #[cfg(feature = "images")]
    #[track_caller]
    pub fn log_image(&mut self, name: &str, image: &Tensor) -> Result<()> {
        here(|| {
            if !self.has_board() {
                return Ok(());
            }
            self.show(Value { tag: name.to_owned(), image: Some(Image::of(image)?), ..Value::default() })
        })
    }

    /// `true` if this process writes for TensorBoard.
    fn has_board(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.metrics.board.is_some())
    }

    fn show(&mut self, value: Value) -> Result<()> {
        let step = i64::try_from(self.position.step).unwrap_or(i64::MAX);
        let Some(files) = &mut self.files else { return Ok(()) };
        files.lock.expect_held()?;
        if files.metrics.media.is_none() {
            let parent = self.folder.join(FOLDER);
            let folder = parent.join("media");
            for folder in [&parent, &folder] {
                disk::expect_no_link(folder).map_err(|error| io_error("used for pictures", folder, error))?;
            }
            // What was shown up to the checkpoint stays.
            files.metrics.media = Some(Board::create(&folder, files.metrics.resumed_at.saturating_add(1))?);
        }
        let board = files.metrics.media.as_mut().expect("it was made");
        let summary = Some(Summary { value: vec![value] });
        board.push(&Event { wall_time: super::journal::now(), step, summary, ..Event::default() });
        board.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Device, ErrorKind};

    /// The events of all files of a folder, in the order of their names, decoded by the message types.
    fn shown(run: &std::path::Path) -> Vec<Vec<Event>> {
        let mut files: Vec<_> =
            fs::read_dir(run.join(FOLDER).join("media")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let events = |path| {
            let (bytes, mut at, mut events) = (fs::read(path).unwrap(), 0, Vec::new());
            while at < bytes.len() {
                let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
                events.push(Event::decode(&bytes[at + 12..at + 12 + length]).unwrap());
                at += length + 16;
            }
            events
        };
        files.into_iter().map(events).collect()
    }

    #[test]
    fn histograms_count_every_number() {
        let histogram = Histogram::of(&[-1.0, 3.0, 0.0, 3.0, 2.9]);
        assert_eq!((histogram.min, histogram.max, histogram.num, histogram.bucket.len()), (-1.0, 3.0, 5.0, BUCKETS));
        assert_eq!((histogram.bucket[0], histogram.bucket[10], histogram.bucket[39]), (1.0, 1.0, 3.0));
        assert_eq!(histogram.bucket_limit[39], 3.0);
        assert!(histogram.bucket_limit.is_sorted() && histogram.bucket_limit[0] > -1.0);
        let single = Histogram::of(&[2.0, 2.0]);
        assert_eq!((single.bucket[0], single.sum, single.sum_squares), (2.0, 4.0, 8.0));
    }

    #[test]
    fn a_resumed_run_voids_what_it_shows_again() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::cpu();
        let numbers = Tensor::from_slice(&device, [2], &[0.5, 1.5]).unwrap();
        let net = crate::Param::new(numbers.clone());
        let mut optimizer = crate::optim::Sgd::new(0.1);
        let mut run = Run::at(folder.path(), &device).tensorboard(true).create().unwrap();
        for step in 1..=3 {
            run.advance();
            run.log_histogram("weights", &numbers).unwrap();
            if step == 2 {
                run.checkpoint(&net, &optimizer).unwrap();
            }
        }
        drop(run);
        let mut run = Run::at(folder.path(), &device).tensorboard(true).resume().unwrap();
        let mut net = net;
        run.restore(&mut net, &mut optimizer).unwrap();
        run.advance();
        run.log_histogram("weights", &numbers).unwrap();
        run.finish().unwrap();
        let files = shown(folder.path());
        let steps = |events: &[Event]| events.iter().map(|event| event.step).collect::<Vec<_>>();
        assert_eq!(files.iter().map(|file| steps(file)).collect::<Vec<_>>(), [vec![0, 1, 1, 2, 3], vec![0, 3, 3]]);
        assert_eq!(files[1][1].session_log.as_ref().map(|log| log.status), Some(1));
        let value = &files[1][2].summary.as_ref().unwrap().value[0];
        assert_eq!((&*value.tag, value.histo.as_ref().unwrap().sum, value.simple_value), ("weights", 2.0, None));
    }

    #[test]
    fn nothing_is_written_without_tensorboard() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::cpu();
        let nan = Tensor::full(&device, [2], f32::NAN).unwrap();
        let mut run = Run::at(folder.path(), &device).create().unwrap();
        run.log_histogram("weights", &nan).unwrap();
        assert!(!folder.path().join(FOLDER).exists());
        drop(run);
        let mut run = Run::at(folder.path(), &device).tensorboard(true).resume().unwrap();
        let error = run.log_histogram("weights", &nan).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFinite && error.to_string().contains("`weights`"), "{error}");
    }

    #[cfg(feature = "images")]
    #[test]
    fn images_are_pictures() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::cpu();
        let mut run = Run::at(folder.path(), &device).tensorboard(true).create().unwrap();
        let pixels = [1.0, 0.0, 0.2, 2.0, -1.0, f32::NAN];
        run.log_image("drawn", &Tensor::from_slice(&device, [3, 1, 2], &pixels).unwrap()).unwrap();
        let error = run.log_image("drawn", &Tensor::from_slice(&device, [6], &pixels).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        drop(run);
        let files = shown(folder.path());
        let picture = files[0][2].summary.as_ref().unwrap().value[0].image.clone().unwrap();
        assert_eq!((picture.height, picture.width, picture.colorspace), (1, 2, 3));
        let decoded = image::load_from_memory(&picture.encoded_image_string).unwrap().into_rgb8();
        assert_eq!(decoded.into_raw(), [255, 51, 0, 0, 255, 0]);
    }
}
