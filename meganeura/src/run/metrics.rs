//! Metrics by step, as lines of JSON: `{"batch":30,"epoch":2,"loss":0.25,"step":400,"time":1763666411.9}`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::json::{self, Object};
use super::lines::{self, Extent, Lines};
#[cfg(feature = "tensorboard")]
use super::tensorboard::Board;
use super::{FILES, Position, journal};
#[cfg(feature = "tensorboard")]
use crate::Error;
use crate::error::{bail, here};
use crate::{Result, Tensor};

/// The fields of a line that are not metrics.
const OWN: [&str; 4] = ["step", "epoch", "batch", "time"];

/// The time after which pending numbers are read from the device and written.
const PATIENCE: Duration = Duration::from_secs(1);

/// A number to log: a float, an integer, or a tensor of one element, which is read later, so that logging a loss does
/// not wait for the device.
pub trait Metric {
    /// The number, or the tensor that holds it.
    fn reading(&self) -> Reading;
}

/// A number that is known, or will be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reading {
    /// A known number.
    Number(f64),
    /// A tensor with one element.
    Tensor(Tensor),
}

impl Reading {
    /// The number, which may be read from a device.
    pub(crate) fn number(&self) -> Result<f64> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Tensor(tensor) => Ok(tensor.to_f64_vec()?.first().copied().unwrap_or(f64::NAN)),
        }
    }
}

impl Metric for Tensor {
    fn reading(&self) -> Reading {
        Reading::Tensor(self.clone())
    }
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl Metric for $ty {
            fn reading(&self) -> Reading {
                #[expect(clippy::allow_attributes, reason = "which casts lose something depends on the type")]
                #[allow(clippy::cast_lossless, clippy::cast_precision_loss, reason = "a number to look at")]
                Reading::Number(*self as f64)
            }
        }
    )*};
}

numbers!(f32 f64 u32 u64 usize i32 i64);

/// The metrics of one call to `log`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Line {
    /// The step after which they were logged.
    pub step: u64,
    /// The epoch of that step.
    pub epoch: u64,
    /// The number of batches taken from that epoch.
    pub batch: usize,
    /// Seconds since 1970.
    pub time: f64,
    /// The metrics by name.
    pub values: BTreeMap<String, f64>,
}

/// Reads the metrics of a run, whether it is active or not. A line that is being written, or that a crash cut, is left
/// out. Without metrics, the result is empty.
///
/// # Errors
///
/// Fails with [`Io`](crate::ErrorKind::Io) if the file cannot be read, and with
/// [`Checkpoint`](crate::ErrorKind::Checkpoint), which names the number of the line, if a whole line is not one that a
/// run writes.
#[track_caller]
pub fn read_metrics(run: impl AsRef<Path>) -> Result<Vec<Line>> {
    here(|| read(run.as_ref()))
}

fn read(run: &Path) -> Result<Vec<Line>> {
    lines::read(&run.join(FILES.metrics), |line| line.and_then(Line::of))
}

/// Fails unless the metrics start as they did when a checkpoint was saved. A missing file is fine: it was removed on
/// purpose.
pub(super) fn expect_whole(run: &Path, extent: (u64, &str)) -> Result<()> {
    let path = run.join(FILES.metrics);
    lines::read_if_there(&path)?.map_or(Ok(()), |found| lines::expect_whole(&path, &found, extent))
}

/// The last line that [`read_metrics`] reads.
pub(super) fn last_line(run: &Path) -> Result<Option<Line>> {
    lines::last(&run.join(FILES.metrics))?.map(Line::of).transpose()
}

impl Line {
    #[expect(clippy::needless_pass_by_value, reason = "one at a time, so that there are not all of them in memory")]
    fn of(object: Object) -> Result<Self> {
        let values = object.numbers_except(&OWN)?;
        let batch = usize::try_from(object.whole("batch")?).unwrap_or(usize::MAX);
        let (step, epoch, time) = (object.whole("step")?, object.whole("epoch")?, object.number("time")?);
        Ok(Self { step, epoch, batch, time, values })
    }
}

/// Numbers of one call, some of which may still be pending.
#[derive(Debug)]
struct Logged {
    position: Position,
    time: f64,
    values: Vec<(String, Reading)>,
}

/// The file, for writing.
#[derive(Debug)]
pub(super) struct Metrics {
    file: Lines,
    pending: Vec<Logged>,
    written: Instant,
    /// The last step with metrics, and these metrics.
    last: (u64, BTreeMap<String, f64>),
    /// The names of all metrics since the run was opened, and of those of the checkpoint.
    names: BTreeSet<String>,
    #[cfg(feature = "tensorboard")]
    pub(super) board: Option<Board>,
    /// The file of histograms and pictures, once there is one.
    #[cfg(feature = "tensorboard")]
    pub(super) media: Option<Board>,
    /// The step of the checkpoint that the run was resumed from.
    #[cfg(feature = "tensorboard")]
    pub(super) resumed_at: u64,
    #[cfg(feature = "tensorboard")]
    board_failure: BoardFailure,
}

/// The first failure to write the event file, which does not end the training.
#[cfg(feature = "tensorboard")]
#[derive(Debug, Default)]
enum BoardFailure {
    #[default]
    None,
    /// It has yet to be reported.
    New(Position, Error),
    Told,
}

impl Metrics {
    /// The file as it was with this length and checksum.
    pub(super) fn open_at(run: &Path, extent: (u64, &str)) -> Result<Self> {
        let file = Lines::open_at(&run.join(FILES.metrics), extent)?;
        Ok(Self {
            file,
            pending: Vec::new(),
            written: Instant::now(),
            last: Default::default(),
            names: BTreeSet::new(),
            #[cfg(feature = "tensorboard")]
            board: None,
            #[cfg(feature = "tensorboard")]
            media: None,
            #[cfg(feature = "tensorboard")]
            resumed_at: 0,
            #[cfg(feature = "tensorboard")]
            board_failure: BoardFailure::None,
        })
    }

    /// Also writes past and future metrics for TensorBoard.
    #[cfg(feature = "tensorboard")]
    pub(super) fn show(&mut self, run: &Path) -> Result<()> {
        // Removes the lines that will be written again.
        self.file.append(&[])?;
        self.board = Some(Board::open(run, &read(run)?)?);
        Ok(())
    }

    /// Takes the metrics that an earlier process logged at a step.
    pub(super) fn recall(&mut self, step: u64, values: BTreeMap<String, f64>) {
        self.names.extend(values.keys().cloned());
        self.last = (step, values);
        #[cfg(feature = "tensorboard")]
        {
            self.resumed_at = step;
        }
    }

    /// The names of the metrics that were logged.
    pub(super) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Records metrics. Returns `true` if it is time to [`flush`](Self::flush).
    pub(super) fn log(&mut self, position: Position, values: &[(&str, &dyn Metric)]) -> Result<bool> {
        let mut readings: Vec<(String, Reading)> = Vec::new();
        for (name, value) in values {
            if OWN.contains(name) || readings.iter().any(|(known, _)| known == name) {
                bail!(Argument, "`{name}` cannot be logged: a line has that already");
            }
            let reading = value.reading();
            if let Reading::Tensor(tensor) = &reading
                && tensor.shape().elements() != 1
            {
                bail!(Shape, "`{name}` cannot be logged: a tensor {} is not a number", tensor.ty());
            }
            readings.push(((*name).to_owned(), reading));
        }
        for (name, _) in values.iter().filter(|(name, _)| !self.names.contains(*name)).collect::<Vec<_>>() {
            self.names.insert((*name).to_owned());
        }
        self.pending.push(Logged { position, time: journal::now(), values: readings });
        Ok(self.written.elapsed() >= PATIENCE)
    }

    /// Reads and writes everything pending.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.written = Instant::now();
        let mut lines = Vec::new();
        #[cfg(feature = "tensorboard")]
        let mut shown = Vec::new();
        let mut last = self.last.clone();
        for Logged { position, time, values } in &self.pending {
            let mut line = Map::new();
            let Position { step, epoch, batch } = *position;
            for (name, value) in OWN.into_iter().zip([step.into(), epoch.into(), batch.into(), (*time).into()]) {
                line.insert(name.to_owned(), value);
            }
            if last.0 != position.step {
                last = (position.step, BTreeMap::new());
            }
            #[cfg(feature = "tensorboard")]
            let mut numbers = BTreeMap::new();
            for (name, reading) in values {
                let number = match reading {
                    Reading::Number(number) => *number,
                    Reading::Tensor(tensor) => tensor.to_f64_vec().map_err(|error| error.context(name))?[0],
                };
                line.insert(name.clone(), json::number(number));
                last.1.insert(name.clone(), number);
                #[cfg(feature = "tensorboard")]
                numbers.insert(name.clone(), number);
            }
            lines.push(Value::Object(line));
            #[cfg(feature = "tensorboard")]
            shown.push(Line { step, epoch, batch, time: *time, values: numbers });
        }
        self.file.append(&lines)?;
        self.last = last;
        self.pending.clear();
        #[cfg(feature = "tensorboard")]
        if let Some(board) = &mut self.board {
            shown.iter().for_each(|line| board.note(line));
            if let Err(error) = board.flush()
                && matches!(self.board_failure, BoardFailure::None)
            {
                let position = shown.last().map(|&Line { step, epoch, batch, .. }| Position { step, epoch, batch });
                self.board_failure = BoardFailure::New(position.unwrap_or_default(), error);
            }
        }
        Ok(())
    }

    /// The first failure to write the event file, with the run's position then; only once.
    #[cfg(feature = "tensorboard")]
    pub(super) fn take_board_failure(&mut self) -> Option<(Position, Error)> {
        match std::mem::replace(&mut self.board_failure, BoardFailure::Told) {
            BoardFailure::New(position, error) => Some((position, error)),
            BoardFailure::Told => None,
            BoardFailure::None => {
                self.board_failure = BoardFailure::None;
                None
            }
        }
    }

    /// Makes everything durable. Returns the extent of the file, and the metrics logged at a step.
    pub(super) fn settle(&mut self, step: u64) -> Result<(Extent, BTreeMap<String, f64>)> {
        self.flush()?;
        self.file.sync()?;
        let values = if self.last.0 == step { self.last.1.clone() } else { BTreeMap::new() };
        Ok((self.file.extent(), values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ErrorKind};

    fn position(step: u64) -> Position {
        Position { step, epoch: 1, batch: 7 }
    }

    #[test]
    fn logged_metrics_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open_at(folder.path(), (0, "")).unwrap();
        let loss = Tensor::full(&Device::cpu(), [], 0.25).unwrap();
        metrics.log(position(1), &[("loss", &loss), ("n", &7usize)]).unwrap();
        metrics.log(position(2), &[("loss", &f64::NAN)]).unwrap();
        metrics.log(position(2), &[("accuracy", &0.5f32)]).unwrap();
        let (extent, at_2) = metrics.settle(2).unwrap();
        assert_eq!(at_2.keys().collect::<Vec<_>>(), ["accuracy", "loss"]);
        assert!(metrics.settle(3).unwrap().1.is_empty());
        let lines = read_metrics(folder.path()).unwrap();
        let places: Vec<_> = lines.iter().map(|line| (line.step, line.epoch, line.batch)).collect();
        assert_eq!(places, [(1, 1, 7), (2, 1, 7), (2, 1, 7)]);
        assert_eq!(lines[0].values, [("loss".to_owned(), 0.25), ("n".to_owned(), 7.0)].into());
        assert!(lines[1].values["loss"].is_nan());
        // Later lines replace those after the checkpoint.
        metrics.log(position(3), &[("loss", &1)]).unwrap();
        metrics.flush().unwrap();
        assert_eq!(read_metrics(folder.path()).unwrap().len(), 4);
        Metrics::open_at(folder.path(), (extent.bytes, &extent.sum.digits())).unwrap().flush().unwrap();
        assert_eq!(read_metrics(folder.path()).unwrap().len(), 3);
    }

    #[test]
    fn non_scalars_and_duplicate_names_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open_at(folder.path(), (0, "")).unwrap();
        let tensor = Tensor::zeros(&Device::cpu(), [2]).unwrap();
        type Values<'a> = &'a [(&'a str, &'a dyn Metric)];
        let cases: [(Values<'_>, ErrorKind, &str); 3] = [
            (&[("batch", &1)], ErrorKind::Argument, "`batch` cannot be logged"),
            (&[("a", &1), ("a", &2)], ErrorKind::Argument, "`a` cannot be logged"),
            (&[("w", &tensor)], ErrorKind::Shape, "a tensor f32[2] is not a number"),
        ];
        for (values, kind, message) in cases {
            let error = metrics.log(position(1), values).unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(message), "{error}");
        }
        metrics.flush().unwrap();
        assert!(read_metrics(folder.path()).unwrap().is_empty(), "nothing was logged");
    }
}
