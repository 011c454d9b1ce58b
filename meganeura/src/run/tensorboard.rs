//! The metrics of a run as an event file of TensorBoard, a copy of `metrics.jsonl`.
//!
//! When a run is resumed, the event file is written anew from the remaining lines, so it needs to be neither durable
//! nor cut. Its first events tell TensorBoard to discard the files before it.
//!
//! A file is a sequence of records: the length, its checksum, an `Event` in the format of Protocol Buffers, its
//! checksum.

mod media;

use std::path::{Path, PathBuf};

use prost::Message;

use super::{Line, journal};
use crate::Result;
use crate::io::{disk, io_error};
use media::{Histogram, Image};

/// The folder of event files inside the folder of a run.
const FOLDER: &str = "tensorboard";

/// The prefix of event files, which TensorBoard looks for.
const PREFIX: &str = "events.out.tfevents.";

/// The suffix of our files. Other programs may keep event files in the same folder.
const SUFFIX: &str = ".meganeura";

/// `tensorflow.Event`, as far as scalars need it.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "5")]
    histo: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    /// 1 is `START`: events of later steps that were read before are void.
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The event file of a run, for writing.
#[derive(Debug)]
pub(super) struct Board {
    path: PathBuf,
    file: disk::File,
    /// The length of the whole records in the file, in bytes.
    length: u64,
    /// Records that are not in the file yet.
    pending: Vec<u8>,
}

impl Board {
    /// Starts a new file with the metrics so far, and deletes those of earlier processes.
    pub(super) fn open(run: &Path, lines: &[Line]) -> Result<Self> {
        let folder = run.join(FOLDER);
        // The files of another run may be where a link leads, and this run deletes its older ones.
        disk::expect_no_link(&folder).map_err(|error| io_error("used for curves", &folder, error))?;
        disk::create_folders(&folder).map_err(|error| io_error("created", &folder, error))?;
        let old = disk::list(&folder).map_err(|error| io_error("read", &folder, error))?;
        let is_ours = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(PREFIX) && name.ends_with(SUFFIX)
        };
        let old: Vec<_> = old.into_iter().filter(is_ours).collect();
        let mut board = Self::create(&folder, 0)?;
        lines.iter().for_each(|line| board.note(line));
        board.flush()?;
        for path in old {
            // A file that cannot be deleted is void: the new file says so.
            drop(disk::remove_file(&path));
        }
        Ok(board)
    }

    /// Starts a new file in a folder, which voids events of earlier files from a step on.
    fn create(folder: &Path, step: u64) -> Result<Self> {
        disk::create_folders(folder).map_err(|error| io_error("created", folder, error))?;
        let time = journal::now();
        // TensorBoard reads files in the order of their names, which start with the time.
        let mut names = (0u32..).map(|number| format!("{PREFIX}{time:017.6}.{}.{number}{SUFFIX}", std::process::id()));
        let path =
            names.by_ref().map(|name| folder.join(name)).find(|path| !path.exists()).expect("numbers do not end");
        let file = disk::File::create(&path).map_err(|error| io_error("created", &path, error))?;
        let mut board = Self { path, file, length: 0, pending: Vec::new() };
        let version = Event { file_version: Some("brain.Event:2".to_owned()), ..Event::default() };
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let start = Event { step, session_log: Some(SessionLog { status: 1 }), ..Event::default() };
        for event in [version, start] {
            board.push(&Event { wall_time: time, ..event });
        }
        Ok(board)
    }

    /// Queues the metrics of a line, for the next [`flush`](Self::flush).
    pub(super) fn note(&mut self, line: &Line) {
        #[expect(clippy::cast_possible_truncation, reason = "TensorBoard keeps single precision")]
        let value = |(tag, value): (&String, &f64)| Value {
            tag: tag.clone(),
            simple_value: Some(*value as f32),
            ..Value::default()
        };
        let summary = Some(Summary { value: line.values.iter().map(value).collect() });
        let step = i64::try_from(line.step).unwrap_or(i64::MAX);
        self.push(&Event { wall_time: line.time, step, summary, ..Event::default() });
    }

    /// Writes everything queued. After a failure, the next call writes it again, in the same place.
    pub(super) fn flush(&mut self) -> Result<()> {
        let written = self.file.write(self.length, &self.pending);
        written.map_err(|error| io_error("written", &self.path, error))?;
        self.length += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn push(&mut self, event: &Event) {
        let data = event.encode_to_vec();
        let length = (data.len() as u64).to_le_bytes();
        for part in [&length[..], &data] {
            self.pending.extend(part);
            self.pending.extend(masked(crc32c::crc32c(part)).to_le_bytes());
        }
    }
}

/// A checksum in the form used in records: rotated and shifted, so that a checksum of data with checksums is not one of
/// them.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::nn::Linear;
    use crate::optim::Sgd;
    use crate::run::{Overview, Run, Status, read_metrics};
    use crate::{Device, Init};

    /// The events of a file, decoded from the format's description alone: the step, the scalars, and the status of the
    /// session log.
    fn events(path: &Path) -> Vec<(u64, BTreeMap<String, f32>, Option<u64>)> {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(rest[8..12].try_into().unwrap()), checksum(&rest[..8]));
            let (data, behind) = rest[12..].split_at(length);
            assert_eq!(u32::from_le_bytes(behind[..4].try_into().unwrap()), checksum(data));
            rest = &behind[4..];
            let mut event = (0, BTreeMap::new(), None);
            for (field, value) in fields(data) {
                match (field, value) {
                    (2, Field::Number(step)) => event.0 = step,
                    (5, Field::Bytes(summary)) => event.1.extend(fields(summary).into_iter().map(|(_, value)| {
                        let Field::Bytes(value) = value else { panic!("a message") };
                        let [(1, Field::Bytes(tag)), (2, Field::Single(number))] = fields(value)[..] else {
                            panic!("a tag and a number")
                        };
                        (String::from_utf8(tag.to_vec()).unwrap(), number)
                    })),
                    (7, Field::Bytes(log)) => {
                        let [(1, Field::Number(status))] = fields(log)[..] else { panic!("a status") };
                        event.2 = Some(status);
                    }
                    _ => {}
                }
            }
            events.push(event);
        }
        events
    }

    #[derive(Clone, Copy)]
    enum Field<'a> {
        Number(u64),
        Double,
        Single(f32),
        Bytes(&'a [u8]),
    }

    /// The fields of a Protocol Buffers message.
    fn fields(mut rest: &[u8]) -> Vec<(u64, Field<'_>)> {
        fn number(rest: &mut &[u8]) -> u64 {
            let end = rest.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
            let (bytes, behind) = rest.split_at(end);
            *rest = behind;
            bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
        }
        fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
            let (bytes, behind) = rest.split_at(count);
            *rest = behind;
            bytes
        }
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let key = number(&mut rest);
            let value = match key & 7 {
                0 => Field::Number(number(&mut rest)),
                1 => {
                    take(&mut rest, 8);
                    Field::Double
                }
                2 => {
                    let count = number(&mut rest) as usize;
                    Field::Bytes(take(&mut rest, count))
                }
                5 => Field::Single(f32::from_le_bytes(take(&mut rest, 4).try_into().unwrap())),
                kind => panic!("a field of kind {kind}"),
            };
            fields.push((key >> 3, value));
        }
        fields
    }

    /// The masked checksum, bit by bit.
    fn checksum(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        let crc = !crc;
        crc.rotate_right(15).wrapping_add(0xa282_ead8)
    }

    fn line(step: u64, loss: f64) -> Line {
        let values = [("loss".to_owned(), loss), ("accuracy".to_owned(), 0.5)].into();
        Line { step, epoch: 0, batch: 0, time: 1.5e9 + step as f64, values }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder.join(FOLDER)).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn noted_metrics_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = Board::open(folder.path(), &[line(1, 4.0)]).unwrap();
        let path = board.path.clone();
        board.note(&line(2, 3.0));
        board.flush().unwrap();
        board.note(&line(300, f64::NAN));
        board.flush().unwrap();
        let found = events(&path);
        assert_eq!(found.iter().map(|event| event.0).collect::<Vec<_>>(), [0, 0, 1, 2, 300]);
        assert_eq!(found.iter().map(|event| event.2).collect::<Vec<_>>(), [None, Some(1), None, None, None]);
        assert_eq!(found[3].1, [("accuracy".to_owned(), 0.5), ("loss".to_owned(), 3.0)].into());
        assert!(found[4].1["loss"].is_nan());
    }

    #[test]
    fn curves_equal_the_metrics_of_a_resumed_run() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::cpu();
        let mut net = Linear::new(1, 1).init(&device, 1).unwrap();
        let mut optimizer = Sgd::new(0.1);
        let curve = || -> Vec<(u64, f32)> {
            let files = files(folder.path());
            assert_eq!(files.len(), 1, "{files:?}");
            let events = events(&files[0]).into_iter().filter(|(_, values, _)| !values.is_empty());
            events.map(|(step, values, _)| (step, values["loss"])).collect()
        };
        let logged = || -> Vec<(u64, f32)> {
            let lines = read_metrics(folder.path()).unwrap();
            lines.iter().map(|line| (line.step, line.values["loss"] as f32)).collect()
        };
        // The run starts without TensorBoard. A checkpoint holds three steps; two more are lost.
        let mut run = Run::at(folder.path(), &device).create().unwrap();
        for step in 1..6u64 {
            run.advance();
            run.log(&[("loss", &(1.0 / step as f64))]).unwrap();
            if step == 3 {
                run.checkpoint(&net, &optimizer).unwrap();
            }
        }
        run.finish().unwrap();
        for _ in 0..2 {
            let mut run = Run::at(folder.path(), &device).tensorboard(true).resume().unwrap();
            run.restore(&mut net, &mut optimizer).unwrap();
            assert_eq!(curve(), [(1, 1.0), (2, 0.5), (3, 1.0 / 3.0)]);
            run.advance();
            run.log(&[("loss", &7), ("of 2", &1)]).unwrap();
            run.finish().unwrap();
            assert_eq!(curve(), logged());
            assert_eq!(curve().last(), Some(&(4, 7.0)));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_unwritable_file_does_not_end_the_training() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::cpu();
        let mut run = Run::at(folder.path(), &device).tensorboard(true).create().unwrap();
        let board = run.files.as_mut().unwrap().metrics.board.as_mut().unwrap();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        board.file = disk::File::of(Path::new("events.out.tfevents.full"), full);
        for step in 1..3u32 {
            run.advance();
            run.log(&[("loss", &step)]).unwrap();
            run.metrics().unwrap();
        }
        run.finish().unwrap();
        assert_eq!(read_metrics(folder.path()).unwrap().len(), 2);
        let (events, _) = journal::read(folder.path()).unwrap();
        let warnings: Vec<_> = events.iter().filter(|event| event.what == journal::What::Warned).collect();
        assert_eq!((warnings.len(), warnings[0].position.step), (1, 1), "{warnings:?}");
        assert!(warnings[0].note.contains("events.out.tfevents."), "{warnings:?}");
        assert_eq!(Overview::of(folder.path()).unwrap().status, Status::Finished);
    }

    /// A link in place of the folder leads to another run's curves, which stay.
    #[cfg(unix)]
    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        [&own, &other].into_iter().for_each(|run| fs::create_dir(run).unwrap());
        drop(Board::open(&other, &[line(1, 4.0)]).unwrap());
        let before = files(&other);
        std::os::unix::fs::symlink(other.join(FOLDER), own.join(FOLDER)).unwrap();
        let error = Board::open(&own, &[line(1, 3.0)]).unwrap_err().to_string();
        assert!(error.contains("own/") && error.contains("it is a symbolic link"), "{error}");
        assert_eq!(files(&other), before);
        // A link in place of a file is deleted itself.
        fs::remove_file(own.join(FOLDER)).unwrap();
        fs::create_dir(own.join(FOLDER)).unwrap();
        let link = own.join(FOLDER).join(format!("{PREFIX}1{SUFFIX}"));
        let target = fs::read_dir(other.join(FOLDER)).unwrap().next().unwrap().unwrap().path();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        drop(Board::open(&own, &[]).unwrap());
        assert!(!disk::is_taken(&link) && target.exists());
    }

    #[test]
    fn a_resumed_run_leaves_one_file() {
        let folder = tempfile::tempdir().unwrap();
        drop(Board::open(folder.path(), &[line(1, 4.0), line(2, 3.0)]).unwrap());
        // The user's own files are left alone.
        for name in ["notes.txt", "events.out.tfevents.1500000000.host.1.0"] {
            fs::write(folder.path().join(FOLDER).join(name), "mine").unwrap();
        }
        // A folder in place of an earlier file cannot be deleted like a file.
        fs::create_dir(folder.path().join(FOLDER).join(format!("{PREFIX}1{SUFFIX}"))).unwrap();
        let board = Board::open(folder.path(), &[line(1, 4.0)]).unwrap();
        assert_eq!(files(folder.path()).len(), 4);
        assert_eq!(events(&board.path).iter().map(|event| event.0).collect::<Vec<_>>(), [0, 0, 1]);
    }
}
