//! The events of a run: when it began, when it was resumed, and why it ended. Each is a line of JSON in `events.jsonl`.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::json::{Object, VERSION};
use super::lines::{self, Lines};
use super::{FILES, Position};
use crate::{Error, Result};

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) position: Position,
    pub(super) what: What,
    /// A remark on the event.
    pub(super) note: String,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Began,
    Resumed,
    Finished,
    Interrupted,
    Failed,
    /// A problem that does not end the run.
    Warned,
}

const NAMES: [(What, &str); 6] = [
    (What::Began, "began"),
    (What::Resumed, "resumed"),
    (What::Finished, "finished"),
    (What::Interrupted, "interrupted"),
    (What::Failed, "failed"),
    (What::Warned, "warned"),
];

impl What {
    pub(super) fn name(self) -> &'static str {
        NAMES.iter().find(|(what, _)| *what == self).expect("every one is listed").1
    }
}

/// The file, for writing.
#[derive(Debug)]
pub(super) struct Journal(Lines);

impl Journal {
    pub(super) fn open(run: &Path) -> Result<Self> {
        Lines::open(&run.join(FILES.events)).map(Self)
    }

    pub(super) fn write(&mut self, position: Position, what: What, note: &str) -> Result<()> {
        let Position { step, epoch, batch } = position;
        let (time, event) = (now(), what.name());
        let line = json!({
            "time": time, "event": event, "step": step, "epoch": epoch, "batch": batch, "note": note, "meganeura": VERSION,
        });
        self.0.append(&[line])?;
        self.0.sync()
    }
}

/// All events, and the errors for invalid lines.
pub(super) fn read(run: &Path) -> Result<(Vec<Event>, Vec<Error>)> {
    let event = |object: Object| {
        let name = object.text("event")?;
        // A later version may know other events.
        let Some((what, _)) = NAMES.iter().find(|(_, known)| *known == name) else { return Ok(None) };
        let batch = usize::try_from(object.whole("batch")?).unwrap_or(usize::MAX);
        let position = Position { step: object.whole("step")?, epoch: object.whole("epoch")?, batch };
        Ok(Some(Event { time: object.number("time")?, position, what: *what, note: object.text("note")?.to_owned() }))
    };
    let (mut events, mut damage) = (Vec::new(), Vec::new());
    for line in lines::read(&run.join(FILES.events), |line| Ok(line.and_then(event)))? {
        match line {
            Ok(event) => events.extend(event),
            Err(error) => damage.push(error),
        }
    }
    Ok((events, damage))
}

/// Seconds since 1970, to a millisecond.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs_f64() * 1000.0).round() / 1000.0
}

/// `2026-11-20 19:20:11 UTC`
pub(super) fn date(time: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, as no time of a run does")]
    let seconds = time.floor() as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Hinnant's civil_from_days (https://howardhinnant.github.io/date_algorithms.html): years begin in March.
    let shifted = days.saturating_add(719_468);
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (time, expected) in [
            (0.0, "1970-01-01 00:00:00 UTC"),
            (951_782_400.0, "2000-02-29 00:00:00 UTC"),
            (1_763_666_411.9, "2025-11-20 19:20:11 UTC"),
            (1_735_689_599.0, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400.0, "2100-03-01 00:00:00 UTC"),
            (-1.0, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(date(time), expected);
        }
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap().0.is_empty());
        let position = Position { step: 400, epoch: 2, batch: 30 };
        for (what, name) in NAMES {
            Journal::open(folder.path()).unwrap().write(position, what, name).unwrap();
        }
        let path = folder.path().join(FILES.events);
        let text = std::fs::read_to_string(&path).unwrap();
        // An invalid line does not affect the others.
        std::fs::write(&path, format!("nothing\n{text}")).unwrap();
        let (events, damage) = read(folder.path()).unwrap();
        assert_eq!((events.len(), damage.len()), (NAMES.len(), 1));
        assert!(damage[0].to_string().contains("events.jsonl, line 1, is damaged"), "{}", damage[0]);
        for (event, (what, name)) in events.iter().zip(NAMES) {
            assert_eq!((event.what, &*event.note, event.position), (what, name, position));
            assert!((event.time - now()).abs() < 100.0);
        }
    }
}
