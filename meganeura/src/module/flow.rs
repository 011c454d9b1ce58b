//! What layers take and give, as far as their settings say: by which neighbours are compared before any data flows.

use std::panic::Location;

use super::{Layer, Shortcut};
use crate::error::here;
use crate::{Error, ErrorKind, Result};

/// What a layer takes and gives along two axes: the channels `[N, C, ..]` and the last axis, the features `[.., D]`.
///
/// A struct with `#[module(sequential)]` compares what each field gives with what the next one takes when it is built,
/// so that 32 channels into a layer for 64 are an error of its `init`. Layers that say nothing of themselves end the
/// comparison, until one gives something known again.
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
///         Flow::kept().takes_channels(self.channels).gives_channels(2 * self.channels)
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
    /// The first pair of neighbours inside that do not fit.
    misfit: Option<Error>,
}

/// One of the axes.
#[derive(Clone, Debug)]
struct Axis {
    takes: Option<Known>,
    gives: Given,
}

/// An extent, and the path of the layer that says it.
#[derive(Clone, Debug)]
struct Known {
    extent: usize,
    path: String,
}

#[derive(Clone, Debug)]
enum Given {
    /// What comes in.
    Kept,
    Unknown,
    Known(Known),
}

impl Known {
    fn new(extent: usize) -> Self {
        Self { extent, path: String::new() }
    }

    /// As a part of what holds the layer.
    fn within(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{name}.{}", self.path) };
        Self { extent: self.extent, path }
    }
}

impl Flow {
    /// Nothing is known.
    pub const fn unknown() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Unknown },
            features: Axis { takes: None, gives: Given::Unknown },
            misfit: None,
        }
    }

    /// Takes anything and gives the same extents, as an activation does.
    pub const fn kept() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Kept },
            features: Axis { takes: None, gives: Given::Kept },
            misfit: None,
        }
    }

    /// Takes anything and gives as many channels, as pooling does; what becomes of the last axis is not known.
    pub const fn kept_channels() -> Self {
        Self {
            channels: Axis { takes: None, gives: Given::Kept },
            features: Axis { takes: None, gives: Given::Unknown },
            misfit: None,
        }
    }

    /// Takes this many channels `[N, C, ..]`.
    pub fn takes_channels(mut self, channels: usize) -> Self {
        self.channels.takes = Some(Known::new(channels));
        self
    }

    /// Gives this many channels `[N, C, ..]`.
    pub fn gives_channels(mut self, channels: usize) -> Self {
        self.channels.gives = Given::Known(Known::new(channels));
        self
    }

    /// Takes a last axis of this extent, `[.., D]`.
    pub fn takes_features(mut self, features: usize) -> Self {
        self.features.takes = Some(Known::new(features));
        self
    }

    /// Gives a last axis of this extent, `[.., D]`.
    pub fn gives_features(mut self, features: usize) -> Self {
        self.features.gives = Given::Known(Known::new(features));
        self
    }

    /// For tests: the channels and features that are taken, and what an input of so many gives, as far as they are
    /// known.
    #[cfg(test)]
    pub(crate) fn of_input(&self, x: [usize; 2]) -> [(Option<usize>, Option<usize>); 2] {
        let axes = [(&self.channels, x[0]), (&self.features, x[1])];
        axes.map(|(axis, extent)| {
            let gives = match &axis.gives {
                Given::Kept => Some(extent),
                Given::Known(known) => Some(known.extent),
                Given::Unknown => None,
            };
            (axis.takes.as_ref().map(|known| known.extent), gives)
        })
    }

    fn axes(&self) -> [(&'static str, &Axis); 2] {
        [("channels", &self.channels), ("features", &self.features)]
    }

    fn axes_mut(&mut self) -> [&mut Axis; 2] {
        [&mut self.channels, &mut self.features]
    }
}

/// Layers one after the other, while they are compared.
#[doc(hidden)]
#[derive(Debug)]
pub struct FlowChain(Flow);

impl FlowChain {
    #[doc(hidden)]
    #[must_use]
    pub fn new() -> Self {
        Self(Flow::kept())
    }

    /// Adds the layer of this name.
    #[doc(hidden)]
    #[track_caller]
    #[must_use]
    pub fn then(mut self, name: &str, next: &Flow) -> Self {
        let location = Location::caller();
        if let (None, Some(inner)) = (&self.0.misfit, &next.misfit) {
            self.0.misfit = Some(inner.clone().context(format!("`{name}`")));
        }
        let mut misfit = None;
        for (own, (what, other)) in self.0.axes_mut().into_iter().zip(next.axes()) {
            let takes = other.takes.as_ref().map(|known| known.within(name));
            if let (Given::Known(given), Some(taken)) = (&own.gives, &takes)
                && given.extent != taken.extent
            {
                misfit.get_or_insert_with(|| {
                    let message = format!(
                        "`{}` gives {} {what}, `{}` takes {}",
                        given.path, given.extent, taken.path, taken.extent
                    );
                    Error::new(ErrorKind::Shape, message).at(location)
                });
            }
            if matches!(own.gives, Given::Kept) && own.takes.is_none() {
                own.takes.clone_from(&takes);
            }
            match (&other.gives, takes) {
                (Given::Known(known), _) => own.gives = Given::Known(known.within(name)),
                (Given::Unknown, _) => own.gives = Given::Unknown,
                (Given::Kept, Some(taken)) => own.gives = Given::Known(taken),
                (Given::Kept, None) => {}
            }
        }
        self.0.misfit = self.0.misfit.or(misfit);
        self
    }

    /// Adds something of which nothing is known: a function.
    #[doc(hidden)]
    #[must_use]
    pub fn unknown(mut self) -> Self {
        self.0.axes_mut().into_iter().for_each(|axis| axis.gives = Given::Unknown);
        self
    }

    /// The sum with the input, or with what the shortcut of this name makes of it.
    #[doc(hidden)]
    #[track_caller]
    #[must_use]
    pub fn beside(mut self, shortcut: Option<(&str, &Flow)>) -> Self {
        let location = Location::caller();
        let mut misfit = None;
        let kept = Flow::kept();
        let (name, beside) = shortcut.unwrap_or(("the input", &kept));
        if let (None, Some(inner)) = (&self.0.misfit, &beside.misfit) {
            self.0.misfit = Some(inner.clone().context(format!("`{name}`")));
        }
        for (own, (what, other)) in self.0.axes_mut().into_iter().zip(beside.axes()) {
            let taken = other.takes.as_ref().map(|known| known.within(name));
            let known = match &other.gives {
                Given::Known(known) => Some(known.within(name)),
                // The input, whose extent is what somebody takes.
                Given::Kept => own.takes.clone().or_else(|| taken.clone()),
                Given::Unknown => None,
            };
            let pairs = [(&own.takes, &taken, "takes"), (&own.gives.known(), &known, "gives")];
            for (fields, side, verb) in pairs {
                if let (Some(fields), Some(side)) = (fields, side)
                    && fields.extent != side.extent
                {
                    let message = match (verb, &other.gives) {
                        ("gives", Given::Kept) if shortcut.is_none() => format!(
                            "`{}` gives {} {what}, and the input that is added to it has {}, as `{}` takes; to bring the input to \
                             as many, put a layer beside the fields: `#[module(sequential, residual = shortcut)]`",
                            fields.path, fields.extent, side.extent, side.path
                        ),
                        _ => format!(
                            "`{}` {verb} {} {what}, `{}` beside it {}",
                            fields.path, fields.extent, side.path, side.extent
                        ),
                    };
                    misfit.get_or_insert_with(|| Error::new(ErrorKind::Shape, message).at(location));
                }
            }
            own.takes = own.takes.take().or(taken);
            if let (Given::Unknown | Given::Kept, Some(known)) = (&own.gives, known) {
                own.gives = Given::Known(known);
            }
        }
        self.0.misfit = self.0.misfit.or(misfit);
        self
    }

    #[doc(hidden)]
    pub fn finish(self) -> Flow {
        self.0
    }
}

impl Given {
    fn known(&self) -> Option<Known> {
        match self {
            Self::Known(known) => Some(known.clone()),
            Self::Kept | Self::Unknown => None,
        }
    }
}

/// Something that generated code asks for its [`Flow`], whether it is a layer or not.
#[doc(hidden)]
#[derive(Debug)]
pub struct FlowOf<'a, T: ?Sized>(pub &'a T);

/// Of a layer.
#[doc(hidden)]
pub trait KnownFlow {
    fn flow(&self) -> Flow;
}

impl<L: Layer + ?Sized> KnownFlow for FlowOf<'_, L> {
    fn flow(&self) -> Flow {
        self.0.flow()
    }
}

/// Of a shortcut.
#[doc(hidden)]
pub trait KnownFlowBeside {
    fn flow_beside(&self) -> Flow;
}

impl<S: Shortcut> KnownFlowBeside for FlowOf<'_, S> {
    fn flow_beside(&self) -> Flow {
        self.0.flow_beside()
    }
}

/// Of anything else: implemented one reference further out, it is found last.
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

/// What the derived `init` of a sequential struct does: returns the error of neighbours that do not fit.
#[doc(hidden)]
#[track_caller]
pub fn check_flow<L: Layer + ?Sized>(layer: &L) -> Result<()> {
    here(|| layer.flow().misfit.map_or(Ok(()), Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels(takes: usize, gives: usize) -> Flow {
        Flow::unknown().takes_channels(takes).gives_channels(gives)
    }

    fn misfit(chain: FlowChain) -> Option<String> {
        chain.finish().misfit.map(|error| error.message().to_owned())
    }

    #[test]
    fn neighbours_are_compared_through_what_keeps() {
        let chain = || FlowChain::new().then("a", &channels(3, 32)).then("b", &Flow::kept());
        assert_eq!(misfit(chain().then("c", &channels(32, 8))), None);
        let message = misfit(chain().then("c", &channels(64, 8)).then("d", &channels(1, 1)));
        assert_eq!(message.as_deref(), Some("`a` gives 32 channels, `c` takes 64"), "the first one counts");
        assert_eq!(misfit(chain().unknown().then("c", &channels(64, 8))), None);
        let norm = Flow::kept().takes_channels(8);
        let message = misfit(FlowChain::new().then("norm", &norm).then("conv", &channels(4, 4)));
        assert_eq!(message.as_deref(), Some("`norm` gives 8 channels, `conv` takes 4"));
    }

    #[test]
    fn axes_are_not_mixed_up() {
        let linear = Flow::unknown().takes_features(64).gives_features(10);
        assert_eq!(misfit(FlowChain::new().then("conv", &channels(3, 32)).then("linear", &linear)), None);
        let pooled = FlowChain::new().then("linear", &linear).then("pool", &Flow::kept_channels());
        assert_eq!(misfit(pooled.then("other", &linear)), None);
        let message = misfit(FlowChain::new().then("a", &linear).then("b", &linear));
        assert_eq!(message.as_deref(), Some("`a` gives 10 features, `b` takes 64"));
    }

    #[test]
    fn chains_in_chains_name_the_whole_path() {
        let block = FlowChain::new().then("0", &channels(3, 32)).then("1", &Flow::kept()).finish();
        let message = misfit(FlowChain::new().then("stem", &block).then("head", &channels(16, 1)));
        assert_eq!(message.as_deref(), Some("`stem.0` gives 32 channels, `head` takes 16"));
        let message = misfit(FlowChain::new().then("tail", &channels(1, 5)).then("stem", &block));
        assert_eq!(message.as_deref(), Some("`tail` gives 5 channels, `stem.0` takes 3"));
        let broken = FlowChain::new().then("a", &channels(1, 2)).then("b", &channels(3, 4)).finish();
        let message = misfit(FlowChain::new().then("blocks", &broken));
        assert_eq!(message.as_deref(), Some("`blocks`: `a` gives 2 channels, `b` takes 3"));
    }

    #[test]
    fn what_is_added_must_fit() {
        let body = || FlowChain::new().then("conv", &channels(16, 32));
        let message = misfit(body().beside(None)).unwrap();
        assert!(message.starts_with("`conv` gives 32 channels, and the input that is added to it has 16"), "{message}");
        assert_eq!(misfit(body().beside(Some(("shortcut", &channels(16, 32))))), None);
        let message = misfit(body().beside(Some(("shortcut", &channels(16, 8))))).unwrap();
        assert_eq!(message, "`conv` gives 32 channels, `shortcut` beside it 8");
        let message = misfit(body().beside(Some(("shortcut", &channels(4, 32))))).unwrap();
        assert_eq!(message, "`conv` takes 16 channels, `shortcut` beside it 4");
        // The sum has what is known of one of them.
        let sum = FlowChain::new().unknown().beside(Some(("shortcut", &channels(4, 8)))).finish();
        let message = misfit(FlowChain::new().then("sum", &sum).then("next", &channels(9, 1)));
        assert_eq!(message.as_deref(), Some("`sum.shortcut` gives 8 channels, `next` takes 9"));
    }
}
