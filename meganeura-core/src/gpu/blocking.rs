//! Waiting for a reading by a thread that may block.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use web_time::Instant;

use super::reading::{Mapped, Reading};
use super::{Inner, Until};
use crate::Result;
use crate::kernel::launch::Kind;

/// The time for which a read polls the device before it sleeps. A wake-up takes 20 µs or more, a tenth of a small step.
/// Ranks that wait for each other wait for the slowest wake-up of all.
const SPINNING: Duration = Duration::from_millis(1);

/// The longest wait whose end is worth polling for.
const LONGEST: Duration = Duration::from_millis(50);

/// The longest time between polls until the end is near. It is shorter than half of [`SPINNING`].
const NAP: Duration = Duration::from_micros(300);

impl Reading {
    /// Waits until the buffer is mapped. A software driver needs the processor itself, so the thread does not poll. The
    /// mapping is requested first in any case, so that the wait ends it.
    pub(super) fn wait(&self, gpu: &Inner) -> Result<Mapped> {
        let begin = Instant::now();
        let polled = match gpu.caps.kind {
            Kind::Software => self.mapped(),
            _ => gpu.spend(|host| &mut host.wait, || self.poll(gpu, begin))?,
        };
        let mapped = match polled {
            Some(mapped) => mapped,
            None => self.sleep(gpu)?,
        };
        gpu.waited.store(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(mapped)
    }

    /// Polls the device until the buffer is mapped, but not long after the expected end. Most steps take equally long,
    /// so a wait is expected to take as long as the last one: the thread naps until shortly before, and then spins.
    fn poll(&self, gpu: &Inner, begin: Instant) -> Result<Option<Mapped>> {
        let expected = Duration::from_nanos(gpu.waited.load(Ordering::Relaxed));
        let near = if (SPINNING..LONGEST).contains(&expected) { begin + expected - SPINNING / 2 } else { begin };
        // An early end is noticed within a sixteenth of the expected time.
        let nap = (expected / 16).min(NAP);
        match self.poll_until(gpu, near, || thread::sleep(nap))? {
            None => self.poll_until(gpu, near + SPINNING, std::hint::spin_loop),
            mapped => Ok(mapped),
        }
    }

    /// Polls the device until the buffer is mapped, or until a point in time.
    fn poll_until(&self, gpu: &Inner, end: Instant, pause: impl Fn()) -> Result<Option<Mapped>> {
        loop {
            let mapped = self.mapped();
            if mapped.is_some() || Instant::now() >= end {
                return Ok(mapped);
            }
            gpu.poll(Until::Now)?;
            pause();
        }
    }

    /// Sleeps until the buffer is mapped.
    fn sleep(&self, gpu: &Inner) -> Result<Mapped> {
        gpu.wait_for(&self.submission)?;
        loop {
            if let Some(mapped) = self.mapped() {
                return Ok(mapped);
            }
            // Another thread's wait may have ended first and be about to call this reading's callback. Or the device is
            // lost, which polling reveals.
            thread::yield_now();
            gpu.poll(Until::Now)?;
        }
    }
}
