//! The training loop: epochs, schedules, validation, checkpoints and progress, around your loss.
//!
//! ```
//! use meganeura::metric::Accuracy;
//! use meganeura::prelude::*;
//!
//! # fn main() -> meganeura::Result<()> {
//! # let points: Vec<f32> = (0..300u16).map(|i| (f32::from(i) * 0.7).sin()).collect();
//! # let labels: Vec<u32> = points.iter().map(|x| u32::from(*x > 0.0)).collect();
//! let device = Device::cpu();
//! let (train, test) = Dataset::new(points, [1], labels)?.split(0.8, 1)?;
//! let mut net = (Linear::new(1, 8), Relu, Linear::new(8, 2)).init(&device, Seed::new(42))?;
//!
//! let report = Trainer::new(&mut net, train.batches(30).shuffle(7), |net, x, labels| net.forward(x).cross_entropy(labels))
//!     .epochs(20)
//!     .validate(test.batches(60), |net, x, labels| (net.forward(x), labels.clone()))
//!     .measure("accuracy", Accuracy::new())
//!     .fit(&mut AdamW::new(0.01))?;
//! assert!(report.metrics["accuracy"] > 0.9);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Trainer`] is the loop of the guide's page on [training](crate::guide::runs), made of parts that a loop of your
//! own can use as well:
//!
//! | part | alone |
//! |---|---|
//! | recorded steps, accumulation | [`TrainStep`](crate::optim::TrainStep), [`Accumulate`](crate::optim::Accumulate) |
//! | checkpoints, metrics, Ctrl-C, ranks | [`Run`](crate::run::Run) |
//! | learning rates | [`Schedule`](crate::optim::Schedule), [`Plateau`](crate::optim::Plateau) |
//! | an averaged model | [`Ema`](crate::optim::Ema) |
//! | validation | [`evaluate`], with any [`Measure`](crate::metric::Measure) |
//! | the end at the right time | [`EarlyStop`] |
//! | the line with rate and time left | [`Progress`] |
//!
//! Several models, several optimizers or several steps for a batch, as in a GAN, are a loop of your own.

mod at;
mod early_stop;
mod fit;
mod lr_curve;
mod means;
mod progress;
mod report;
mod source;
#[cfg(test)]
mod tests;
mod trainer;
mod validation;

pub use at::At;
pub use early_stop::EarlyStop;
pub use lr_curve::LrCurve;
pub use progress::Progress;
pub use report::Report;
pub use trainer::Trainer;
pub use validation::evaluate;
