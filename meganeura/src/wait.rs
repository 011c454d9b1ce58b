//! Waiting for a device.
//!
//! Every function that waits for a device has one body, which is async. Natively a blocking form runs it by
//! [`block_on`]. In a browser there is none: a page's thread must return before anything that it waits for can come.

#[cfg(any(feature = "gpu", target_family = "wasm"))]
use std::pin::pin;
#[cfg(any(feature = "gpu", target_family = "wasm"))]
use std::task::{Context, Poll, Waker};

#[cfg(not(target_family = "wasm"))]
pub(crate) use native::block_on;
#[cfg(all(feature = "gpu", not(target_family = "wasm")))]
pub(crate) use native::blocks;

#[cfg(not(target_family = "wasm"))]
mod native {
    use std::cell::Cell;

    thread_local! {
        static BLOCKS: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a future to its end on this thread.
    pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
        /// Sets back what it was, also after a panic.
        struct Before(bool);
        impl Drop for Before {
            fn drop(&mut self) {
                BLOCKS.set(self.0);
            }
        }
        let _before = Before(BLOCKS.replace(true));
        pollster::block_on(future)
    }

    /// Whether this thread is in [`block_on`]: a future of a device then waits in its first poll, as only the device
    /// knows how.
    #[cfg(feature = "gpu")]
    pub(crate) fn blocks() -> bool {
        BLOCKS.get()
    }
}

/// Runs the body of a function that may wait but mostly does not: [`block_on`], or in a browser an error if the result
/// is not there already. `instead` says what to do, or why there is no way.
#[cfg_attr(not(target_family = "wasm"), expect(unused_variables, reason = "natively it waits"))]
pub(crate) fn block_or_refuse<T>(body: impl Future<Output = crate::Result<T>>, instead: &str) -> crate::Result<T> {
    #[cfg(not(target_family = "wasm"))]
    {
        block_on(body)
    }
    #[cfg(target_family = "wasm")]
    match now(body) {
        Some(result) => result,
        None => crate::error::bail!(Device, "this would wait for the GPU, which a page's thread cannot; {instead}"),
    }
}

/// The result of a future that has it already.
#[cfg(any(feature = "gpu", target_family = "wasm"))]
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
