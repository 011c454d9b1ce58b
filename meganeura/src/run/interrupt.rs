//! Being asked to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "ctrlc")]
use std::time::{Duration, Instant};

/// Somebody's wish that the training end soon, with its work saved: a flag that any thread may raise. Clones are the
/// same flag.
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
    /// A flag that is not raised.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for an end.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked for an end.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A flag that Ctrl-C raises, and the system's own requests to end: SIGTERM and SIGHUP, or Ctrl-Break on Windows,
    /// which leaves no time to save when the console is closed. A second one ends the process at once, with exit code
    /// 130; within a fifth of a second it counts as the first, because some programs send two.
    ///
    /// SIGHUP stays ignored where it is when this is called: `nohup` is for trainings that outlive their terminal.
    /// Ctrl-C is caught even then, and where a shell has it ignored in the background of a script: a request to end
    /// loses nothing, and who asks this process for it, as with `kill -INT`, means it. What the program itself does
    /// about signals is done as well.
    ///
    /// Needs the feature `ctrlc`.
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if it was called before: a process has one flag; or if the system
    /// refuses.
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
            // `timeout` tells its child and then the child's group.
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
