//! Waiting for a device.
//!
//! Every function that waits for a device has one async body. Natively a blocking form runs it with [`block_on`]. A
//! browser has no blocking form: the thread of a page must return before any result can arrive.

#[cfg(any(feature = "gpu", target_family = "wasm"))]
use std::pin::pin;
#[cfg(any(feature = "gpu", target_family = "wasm"))]
use std::task::{Context, Poll, Waker};

#[cfg(not(target_family = "wasm"))]
pub use native::block_on;
#[cfg(all(feature = "gpu", not(target_family = "wasm")))]
pub(crate) use native::blocks;

#[cfg(not(target_family = "wasm"))]
mod native {
    use std::cell::Cell;

    thread_local! {
        static BLOCKS: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a future to completion on this thread.
    pub fn block_on<T>(future: impl Future<Output = T>) -> T {
        /// Restores the previous value on drop, even after a panic.
        struct Before(bool);
        impl Drop for Before {
            fn drop(&mut self) {
                BLOCKS.set(self.0);
            }
        }
        let _before = Before(BLOCKS.replace(true));
        pollster::block_on(future)
    }

    /// `true` if this thread is in [`block_on`]. Then a device's future blocks in its first poll, as only the device
    /// knows how.
    #[cfg(feature = "gpu")]
    pub(crate) fn blocks() -> bool {
        BLOCKS.get()
    }
}

/// Runs the body of a function that may wait but mostly does not. This is [`block_on`]; in a browser, it is an error
/// unless the result is ready. `instead` is the advice in the message, or the reason why there is none.
#[cfg_attr(not(target_family = "wasm"), expect(unused_variables, reason = "natively it waits"))]
#[doc(hidden)]
pub fn block_or_refuse<T>(body: impl Future<Output = crate::Result<T>>, instead: &str) -> crate::Result<T> {
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

/// The result of a future that is already complete.
#[cfg(any(feature = "gpu", target_family = "wasm"))]
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
