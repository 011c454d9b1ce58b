//! Serving a model: batches of any size by a few plans, and a queue that makes batches of the requests of many threads.
//!
//! ```
//! use std::time::Duration;
//!
//! use meganeura::data::Array;
//! use meganeura::prelude::*;
//! use meganeura::serve::{Batched, Queue};
//!
//! # fn main() -> meganeura::Result<()> {
//! let device = Device::cpu();
//! let net = Linear::new(2, 3).init(&device, Seed::new(1))?;
//! let example = Array::from(vec![0.0, 0.0]); // the shape of a request
//! let function = Batched::compile(&device, [1, 4, 16], example, |x| net.forward(x))?;
//! let queue = Queue::start(function, Duration::from_millis(2));
//!
//! // In any number of threads:
//! let scores = queue.call(Array::from(vec![0.5, -1.0]))?;
//! assert_eq!(scores.shape(), [3].into());
//! # Ok(())
//! # }
//! ```
//!
//! A function may give several results, as a tuple: `|x| (net.scores(x), net.features(x))`. A request then gets both.
//!
//! The example `server` answers HTTP requests in this way.

mod answers;
mod batched;
mod queue;

pub use answers::Answers;
pub use batched::Batched;
pub use queue::Queue;
