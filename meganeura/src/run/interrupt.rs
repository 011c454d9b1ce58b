//! Requests to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "ctrlc")]
use std::time::{Duration, Instant};

/// A request that the training stop soon, with its work saved: a flag that any thread may set. Clones are the same
/// flag.
///
/// ```
/// use meganeura::run::Interrupt;
///
/// let interrupt = Interrupt::new();
/// let from_elsewhere = interrupt.clone();
/// std::thread::spawn(move || from_elsewhere.request()).join().unwrap();
/// assert!(interrupt.is_requested());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// `true` if a stop was requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A flag set by Ctrl-C, and by the system's own requests to stop: SIGTERM and SIGHUP, or Ctrl-Break on Windows.
    ///
    /// On Windows, closing the console leaves no time to save. A second request ends the process at once, with exit
    /// code 130. Within a fifth of a second it counts as the first, because some programs send two.
    ///
    /// If SIGHUP is already ignored, as under `nohup`, it stays ignored, so closing the terminal does not stop the run.
    /// SIGINT is always caught. Shells ignore it for background jobs of a script, but an explicit `kill -INT` should
    /// still stop the run. The program's own signal handlers still run.
    ///
    /// Needs the feature `ctrlc`.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument) if it was called before, because a process has one flag, or
    /// if the system refuses.
    #[cfg(feature = "ctrlc")]
    #[track_caller]
    pub fn on_ctrl_c() -> crate::Result<Self> {
        crate::error::here(Self::catch_ctrl_c)
    }

    #[cfg(feature = "ctrlc")]
    fn catch_ctrl_c() -> crate::Result<Self> {
        static CAUGHT: AtomicBool = AtomicBool::new(false);
        let failed =
            |why: String| crate::Error::new(crate::ErrorKind::Argument, format!("Ctrl-C cannot be caught: {why}"));
        if CAUGHT.swap(true, Ordering::Relaxed) {
            return Err(failed("another flag of this process is raised by it".to_owned()));
        }
        let interrupt = Self::new();
        let (flag, mut first) = (interrupt.clone(), None::<Instant>);
        let handler = move || {
            flag.request();
            // `timeout` signals its child and then the child's group.
            if first.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(200) {
                std::process::exit(130);
            }
        };
        match super::signals::on_request(handler) {
            Ok(()) => Ok(interrupt),
            Err(error) => Err(failed(error.to_string()).caused_by(error)),
        }
    }
}
