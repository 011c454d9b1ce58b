//! Flows: the numbers of channels and features that a layer takes and gives, according to its settings. The derived
//! `init` of a sequential struct compares those of neighbours, before there is any data.

mod chain;

use std::panic::Location;

pub use self::chain::FlowChain;
use super::at::joined;
use super::{Layer, Shortcut};
use crate::error::here;
use crate::{Error, Result};

/// The extents of a layer's input and output along two axes: the channels `[N, C, ..]`, and the last axis, the features
/// `[.., D]`. With two axes, `[N, C]`, they are the same.
///
/// The `init` of a struct with `#[module(sequential)]` compares the extents that a field gives with those that the next
/// one takes: 32 channels into a layer for 64 are an error. A layer with an unknown flow ends the comparison, up to the
/// next layer that gives a known extent.
///
/// ```
/// use meganeura::module::Flow;
/// use meganeura::prelude::*;
///
/// /// Doubles the channels.
/// #[derive(Module, Debug)]
/// struct Doubled {
///     #[module(skip, init = 16)]
///     channels: usize,
/// }
///
/// impl Layer for Doubled {
///     fn forward(&self, x: &Var) -> Var {
///         Var::concat(&[x, x], 1)
///     }
///
///     fn flow(&self) -> Flow {
///         Flow::unknown().takes_channels(self.channels).gives_channels(2 * self.channels)
///     }
/// }
///
/// #[derive(Module, Debug)]
/// #[module(sequential)]
/// struct Net {
///     #[module(init)]
///     doubled: Doubled,
///     #[module(init = Conv2d::new(16, 4, 3))]
///     conv: Conv2d,
/// }
///
/// let error = Net::init(&Device::cpu(), 1).unwrap_err();
/// assert!(error.to_string().contains("`doubled` gives 32 channels, `conv` takes 16"));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Flow {
    channels: Axis,
    features: Axis,
    /// The first pair of neighbours inside the layer that do not fit.
    misfit: Option<Error>,
}

/// One of the two axes.
#[derive(Clone, Debug)]
struct Axis {
    takes: Option<Known>,
    gives: Given,
}

/// An extent, and the path of the layer that determines it.
#[derive(Clone, Debug)]
struct Known {
    extent: usize,
    path: String,
}

#[derive(Clone, Debug)]
enum Given {
    /// The extent of the input.
    Kept,
    /// For the features only: the number of channels of the input.
    Channels,
    Unknown,
    Known(Known),
}

impl Known {
    fn new(extent: usize) -> Self {
        Self { extent, path: String::new() }
    }

    /// The flow as a part of the module that holds the layer.
    fn within(&self, name: &str) -> Self {
        Self { extent: self.extent, path: joined(name, &self.path) }
    }
}

impl Flow {
    /// A flow of which nothing is known.
    pub const fn unknown() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Unknown },
            features: Axis { takes: None, gives: Given::Unknown },
            misfit: None,
        }
    }

    /// A flow that takes anything and gives the same extents, like an activation.
    pub const fn kept() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Kept },
            features: Axis { takes: None, gives: Given::Kept },
            misfit: None,
        }
    }

    /// A flow that takes anything and gives the same channels, like pooling. The last axis is unknown.
    pub const fn kept_channels() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Kept },
            features: Axis { takes: None, gives: Given::Unknown },
            misfit: None,
        }
    }

    /// A flow that takes anything and gives as many features as there were channels, like global pooling: `[N, C, ..]`
    /// → `[N, C]`
    #[doc(hidden)]
    pub const fn channels_as_features() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Kept },
            features: Axis { takes: None, gives: Given::Channels },
            misfit: None,
        }
    }

    /// Takes this many channels `[N, C, ..]`.
    pub fn takes_channels(mut self, channels: usize) -> Self {
        self.channels.takes = Some(Known::new(channels));
        self
    }

    /// Gives this many channels `[N, C, ..]`. [Kept](Self::kept) features become unknown: with two axes they are the
    /// channels.
    pub fn gives_channels(mut self, channels: usize) -> Self {
        self.features.forget_kept();
        self.channels.gives = Given::Known(Known::new(channels));
        self
    }

    /// Takes a last axis of this extent, `[.., D]`.
    pub fn takes_features(mut self, features: usize) -> Self {
        self.features.takes = Some(Known::new(features));
        self
    }

    /// Gives a last axis of this extent, `[.., D]`. [Kept](Self::kept) channels become unknown.
    pub fn gives_features(mut self, features: usize) -> Self {
        self.channels.forget_kept();
        self.features.gives = Given::Known(Known::new(features));
        self
    }

    /// For tests: the channels and features that are taken, and those given for an input with `x`, as far as they are
    /// known.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn of_input(&self, x: [usize; 2]) -> [(Option<usize>, Option<usize>); 2] {
        let axes = [(&self.channels, x[0]), (&self.features, x[1])];
        axes.map(|(axis, extent)| {
            let gives = match &axis.gives {
                Given::Kept => Some(extent),
                Given::Channels => Some(x[0]),
                Given::Known(known) => Some(known.extent),
                Given::Unknown => None,
            };
            (axis.takes.as_ref().map(|known| known.extent), gives)
        })
    }

    fn axes(&self) -> [(&'static str, &Axis); 2] {
        [("channels", &self.channels), ("features", &self.features)]
    }

    /// The misfit inside a field or element of this name. An error inside a `Vec` has no line of the user's, so it gets
    /// this one.
    fn misfit_within(&self, name: &str, location: &'static Location<'static>) -> Option<Error> {
        let inner = self.misfit.clone()?;
        Some(inner.context(format!("`{name}`")).at(location))
    }
}

impl Axis {
    fn forget_kept(&mut self) {
        if matches!(self.gives, Given::Kept) {
            self.gives = Given::Unknown;
        }
    }
}

/// Gets the [`Flow`] of a value in generated code, whether the value is a layer or not.
#[doc(hidden)]
#[derive(Debug)]
pub struct FlowOf<'a, T: ?Sized>(pub &'a T);

/// The flow of a layer.
#[doc(hidden)]
pub trait KnownFlow {
    fn flow(&self) -> Flow;
}

impl<L: Layer + ?Sized> KnownFlow for FlowOf<'_, L> {
    fn flow(&self) -> Flow {
        self.0.flow()
    }
}

/// The flow of a shortcut.
#[doc(hidden)]
pub trait KnownFlowBeside {
    fn flow_beside(&self) -> Flow;
}

impl<S: Shortcut> KnownFlowBeside for FlowOf<'_, S> {
    fn flow_beside(&self) -> Flow {
        self.0.flow_beside()
    }
}

/// The flow of anything else, which is unknown. It is implemented one reference further out, so the compiler finds it
/// last.
#[doc(hidden)]
pub trait UnknownFlow {
    fn flow(&self) -> Flow;
    fn flow_beside(&self) -> Flow;
}

impl<T: ?Sized> UnknownFlow for &FlowOf<'_, T> {
    fn flow(&self) -> Flow {
        Flow::unknown()
    }

    fn flow_beside(&self) -> Flow {
        Flow::unknown()
    }
}

/// The check in the derived `init` of a sequential struct: fails for the first neighbours that do not fit.
#[doc(hidden)]
#[track_caller]
pub fn check_flow<L: Layer + ?Sized>(layer: &L) -> Result<()> {
    here(|| layer.flow().misfit.map_or(Ok(()), Err))
}

#[cfg(test)]
mod tests;
