//! Waiting for a reading by a thread that may block.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use web_time::Instant;

use super::Inner;
use super::reading::{Mapped, Reading};
use crate::Result;
use crate::kernel::launch::Kind;

/// The time for which a read polls the device before it sleeps. A wake-up takes 20 µs or more, a tenth of a small step.
/// Ranks that wait for each other wait for the slowest wake-up of all.
const SPINNING: Duration = Duration::from_millis(1);

/// The longest wait whose end is worth polling for.
const LONGEST: Duration = Duration::from_millis(50);

/// The time between polls until the end is near.
const NAP: Duration = Duration::from_micros(100);

impl Reading {
    /// Waits until the buffer is mapped. Most steps take equally long, so the wait is expected to take as long as the
    /// last one: the thread naps until shortly before the end, then spins, and sleeps if that was too early. A software
    /// driver needs the processor itself.
    pub(super) fn wait(&self, gpu: &Inner) -> Result<Mapped> {
        let begin = Instant::now();
        let expected = Duration::from_nanos(gpu.waited.load(Ordering::Relaxed));
        let naps = if (SPINNING..LONGEST).contains(&expected) { expected - SPINNING / 2 } else { Duration::ZERO };
        let mut mapped = None;
        if gpu.caps.kind != Kind::Software {
            mapped = gpu.spend(
                |host| &mut host.wait,
                || {
                    let near = begin + naps;
                    match self.poll_until(gpu, near, || thread::sleep(NAP))? {
                        None => self.poll_until(gpu, near + SPINNING, std::hint::spin_loop),
                        mapped => Ok(mapped),
                    }
                },
            )?;
        }
        let mapped = match mapped {
            Some(mapped) => mapped,
            None => self.sleep(gpu)?,
        };
        gpu.waited.store(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(mapped)
    }

    /// Polls the device until the buffer is mapped, or until a point in time.
    fn poll_until(&self, gpu: &Inner, end: Instant, between: fn()) -> Result<Option<Mapped>> {
        loop {
            let mapped = self.mapped();
            if mapped.is_some() || Instant::now() >= end {
                return Ok(mapped);
            }
            gpu.poll(wgpu::PollType::Poll)?;
            between();
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
            gpu.poll(wgpu::PollType::Poll)?;
        }
    }
}
