//! The system's requests to stop, as calls of a function.

use std::io;

/// Calls `handler`, on a thread of its own, whenever the process is asked to stop.
#[cfg(unix)]
pub(super) fn on_request(mut handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let mut caught = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP)? {
        caught.push(SIGHUP);
    }
    let mut signals = Signals::new(caught)?;
    let thread = std::thread::Builder::new().name("meganeura signals".to_owned());
    thread.spawn(move || signals.forever().for_each(|_| handler())).map(drop)
}

/// `true` if the process ignores this signal.
#[cfg(unix)]
fn is_ignored(signal: libc::c_int) -> io::Result<bool> {
    let mut action = std::mem::MaybeUninit::uninit();
    // SAFETY: without a new action nothing changes, and there is room for the old one.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0;
    if failed {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call did not fail, so it wrote the action.
    let action: libc::sigaction = unsafe { action.assume_init() };
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Calls `handler`, on a thread of its own, whenever the process is asked to stop.
#[cfg(not(unix))]
pub(super) fn on_request(handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(handler).map_err(io::Error::other)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_detected() {
        // Rust's runtime ignores SIGPIPE; no test uses SIGUSR2.
        assert!(is_ignored(libc::SIGPIPE).unwrap());
        assert!(!is_ignored(libc::SIGUSR2).unwrap());
        assert!(is_ignored(-1).is_err());
    }
}
