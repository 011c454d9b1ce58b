//! Traces of timed runs in the Trace Event Format, for `chrome://tracing` and Perfetto.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use web_time::Instant;

use super::{Device, LaunchTime, Profile, lock};
#[cfg(feature = "gpu")]
use crate::executor::HostTimes;

/// A span of the host's work for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostSpan {
    /// The kind of work: `record` (everything since the previous run, recording included), `look up` (finding the
    /// plan), `plan`, `bind`, `encode`, `submit`, `run`, or `compute` on the CPU.
    pub name: &'static str,
    /// Its start, since profiling was turned on.
    pub begin: Duration,
    /// Its duration.
    pub duration: Duration,
}

/// The host's work while runs are timed.
pub(super) struct Timeline {
    /// The time when profiling was turned on.
    origin: Instant,
    /// The end of the last run.
    ended: Instant,
    /// The work since then.
    spans: Vec<HostSpan>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { origin: now, ended: now, spans: Vec::new() }
    }

    fn note(&mut self, name: &'static str, begin: Instant, duration: Duration) {
        if self.spans.is_empty() {
            let gap = begin.saturating_duration_since(self.ended);
            self.spans.push(HostSpan { name: "record", begin: self.ended - self.origin, duration: gap });
        }
        self.spans.push(HostSpan { name, begin: begin.saturating_duration_since(self.origin), duration });
    }

    /// Takes the work up to the end of a run.
    fn end(&mut self) -> Vec<HostSpan> {
        self.ended = Instant::now();
        std::mem::take(&mut self.spans)
    }
}

impl Device {
    /// Notes some of the host's work, if runs are timed.
    pub(super) fn note(&self, name: &'static str, begin: Instant, duration: Duration) {
        if !self.0.is_timed.load(Ordering::Relaxed) {
            return;
        }
        if let Some(timeline) = &mut *lock(&self.0.timeline) {
            timeline.note(name, begin, duration);
        }
    }

    /// Notes a run of a GPU and the host's work in it, one after the other.
    #[cfg(feature = "gpu")]
    pub(super) fn note_run(&self, begin: Instant, host: &HostTimes) {
        self.note("run", begin, begin.elapsed());
        let mut at = begin;
        for (name, duration) in [("bind", host.bind), ("encode", host.encode), ("submit", host.submit)] {
            self.note(name, at, duration);
            at += duration;
        }
    }

    /// The time from the start of profiling to `then`.
    pub(super) fn since_profiling(&self, then: Instant) -> Duration {
        let timeline = lock(&self.0.timeline);
        timeline.as_ref().map_or(Duration::ZERO, |timeline| then.saturating_duration_since(timeline.origin))
    }

    /// The host's work for the run that ends now.
    pub(super) fn noted(&self) -> Vec<HostSpan> {
        lock(&self.0.timeline).as_mut().map_or_else(Vec::new, Timeline::end)
    }
}

/// The tracks of a trace.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

impl Profile {
    /// The run as JSON in the [Trace Event
    /// Format](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
    ///
    /// A file with this text opens in `chrome://tracing`, or in <https://ui.perfetto.dev>. See
    /// [`Profile::chrome_trace`].
    #[must_use]
    pub fn to_chrome_trace(&self) -> String {
        Self::chrome_trace(std::slice::from_ref(self))
    }

    /// Several runs of a device in one trace, with a track for the host and one for the launches.
    ///
    /// An event of a launch has its kernel, variant, operation, result, bytes and parameters.
    ///
    /// The clocks of host and GPU are unrelated. So a run's first launch is placed at the time when the host submitted
    /// it, or after the previous run. Durations and order are measured. A run timed with
    /// [`Profiling::Runs`](crate::Profiling::Runs) has a single event with its total instead of launches.
    ///
    /// Threads that use the same device share its timeline, so the host's work for one may appear with the run of
    /// another. To trace a single thread, let the others wait, or give them a device of their own.
    ///
    /// ```
    /// use meganeura::{Profile, Profiling, prelude::*};
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// device.set_profiling(Profiling::Launches)?;
    /// let mut runs = Vec::new();
    /// for _ in 0..3 {
    ///     let x = Tape::new(&device).input(&Tensor::full(&device, [64, 64], 0.5)?);
    ///     x.matmul(&x).tanh().to_vec()?;
    ///     runs.push(device.last_profile()?);
    /// }
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let file = folder.path().join("trace.json");
    /// # #[cfg(any())]
    /// std::fs::write("trace.json", Profile::chrome_trace(&runs)).unwrap();
    /// # std::fs::write(file, Profile::chrome_trace(&runs)).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn chrome_trace(runs: &[Self]) -> String {
        let name = |track: u32, name: &str| json!({ "ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": { "name": name } });
        let device = runs.first().map_or("", |run| &*run.device);
        let mut events = vec![name(HOST, "host"), name(DEVICE, &format!("launches on {device}"))];
        let mut free = Duration::ZERO;
        for run in runs {
            let span = |span: &HostSpan| event(HOST, span.name, (span.begin, span.duration), &json!({}));
            events.extend(run.host.iter().map(span));
            let mut begin = run.begin.max(free);
            if run.launches.is_empty() && !run.total.is_zero() {
                events.push(event(DEVICE, "run", (begin, run.total), &json!({})));
                begin += run.total;
            }
            for launch in &run.launches {
                events.push(event(DEVICE, launch.name, (begin, launch.duration), &arguments(launch)));
                begin += launch.duration;
            }
            free = begin;
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ns" }).to_string()
    }
}

/// An event with its start and duration, in microseconds.
fn event(track: u32, name: &str, (begin, duration): (Duration, Duration), arguments: &Value) -> Value {
    let micro = |time: Duration| time.as_secs_f64() * 1e6;
    json!({
        "ph": "X", "pid": 1, "tid": track, "name": name, "ts": micro(begin), "dur": micro(duration), "args": arguments,
    })
}

fn arguments(launch: &LaunchTime) -> Value {
    let parameters: Vec<&str> = launch.parameters.iter().map(|path| &**path).collect();
    json!({
        "step": launch.step, "op": launch.op, "kernel": launch.name, "variant": launch.variant,
        "result": launch.result.to_string(), "bytes": launch.bytes, "parameters": parameters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profiling, Tape, Tensor};

    #[test]
    fn tracks_follow_each_other_and_add_up() {
        let device = Device::cpu();
        device.set_profiling(Profiling::Launches).unwrap();
        let runs: Vec<_> = (0..3)
            .map(|_| {
                let x = Tape::new(&device).input(&Tensor::full(&device, [9, 9], 0.5).unwrap());
                x.matmul(&x).tanh().to_vec().unwrap();
                device.last_profile().unwrap()
            })
            .collect();
        let names = |run: &Profile| run.host.iter().map(|span| span.name).collect::<Vec<_>>();
        assert_eq!(names(&runs[0]), ["record", "look up", "bind", "look up", "plan", "compute"]);
        assert_eq!(names(&runs[1]), ["record", "look up", "bind", "look up", "compute"]);
        let trace: Value = serde_json::from_str(&Profile::chrome_trace(&runs)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let track = |track: u32| -> Vec<&Value> {
            events.iter().filter(|event| event["ph"] == "X" && event["tid"] == track).collect()
        };
        assert_eq!((track(HOST).len(), track(DEVICE).len()), (16, 6));
        for track in [track(HOST), track(DEVICE)] {
            for pair in track.windows(2) {
                let end = pair[0]["ts"].as_f64().unwrap() + pair[0]["dur"].as_f64().unwrap();
                // A nanosecond of tolerance: times are floating-point microseconds.
                assert!(pair[1]["ts"].as_f64().unwrap() >= end - 1e-3, "{pair:?}");
            }
        }
        let product = track(DEVICE)[0];
        assert_eq!((&product["name"], &product["args"]["result"]), (&json!("matmul"), &json!("f32[9, 9]")));
        assert!((product["dur"].as_f64().unwrap() - runs[0].launches[0].duration.as_secs_f64() * 1e6).abs() < 1e-6);
        // A run without launches is one event.
        device.set_profiling(Profiling::Runs).unwrap();
        Tape::new(&device).input(&Tensor::full(&device, [9, 9], 0.5).unwrap()).tanh().to_vec().unwrap();
        let run = device.last_profile().unwrap();
        let trace: Value = serde_json::from_str(&run.to_chrome_trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let drawn: Vec<_> = events.filter(|event| event["ph"] == "X" && event["tid"] == DEVICE).collect();
        assert_eq!((drawn.len(), &drawn[0]["name"]), (1, &json!("run")));
        assert!((drawn[0]["dur"].as_f64().unwrap() - run.total.as_secs_f64() * 1e6).abs() < 1e-6);
        // When profiling is turned off and on again, the clock restarts, and the time in between does not count.
        device.set_profiling(Profiling::Off).unwrap();
        assert!(device.noted().is_empty());
    }
}
