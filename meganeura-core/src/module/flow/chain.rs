//! A chain of layers: folds their flows into one, and compares neighbours.

use std::panic::Location;

use super::{Flow, Given};
use crate::{Error, ErrorKind};

/// The flow of the layers so far.
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
        let Flow { channels, features, misfit } = &mut self.0;
        *misfit = misfit.take().or_else(|| next.misfit_within(name, location));
        // The channels of the output, once the loop reaches the features.
        let mut before = Given::Unknown;
        for (own, (what, other)) in [channels, features].into_iter().zip(next.axes()) {
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
            own.gives = match (&other.gives, takes) {
                (Given::Known(known), _) => Given::Known(known.within(name)),
                (Given::Unknown, _) => Given::Unknown,
                (Given::Kept, Some(taken)) => Given::Known(taken),
                (Given::Kept, None) => own.gives.clone(),
                (Given::Channels, _) => match before {
                    Given::Kept => Given::Channels,
                    ref channels => channels.clone(),
                },
            };
            before = own.gives.clone();
        }
        self
    }

    /// Adds a function, whose flow is unknown.
    #[doc(hidden)]
    #[must_use]
    pub fn unknown(mut self) -> Self {
        (self.0.channels.gives, self.0.features.gives) = (Given::Unknown, Given::Unknown);
        self
    }

    /// Adds the sum with the input, or with the output of the shortcut of this name.
    #[doc(hidden)]
    #[track_caller]
    #[must_use]
    pub fn beside(mut self, shortcut: Option<(&str, &Flow)>) -> Self {
        let location = Location::caller();
        let kept = Flow::kept();
        let (name, beside) = shortcut.unwrap_or(("the input", &kept));
        let Flow { channels, features, misfit } = &mut self.0;
        *misfit = misfit.take().or_else(|| beside.misfit_within(name, location));
        for (own, (what, other)) in [channels, features].into_iter().zip(beside.axes()) {
            let taken = other.takes.as_ref().map(|known| known.within(name));
            let is_kept = matches!(other.gives, Given::Kept) && taken.is_none();
            let given = match &other.gives {
                Given::Known(known) => Some(known.within(name)),
                // The input, whose extent is the one that a layer takes.
                Given::Kept => taken.clone().or_else(|| own.takes.clone()),
                Given::Channels | Given::Unknown => None,
            };
            if let (Some(fields), Some(side)) = (&own.takes, &taken)
                && fields.extent != side.extent
            {
                misfit.get_or_insert_with(|| {
                    let message = format!(
                        "`{}` takes {} {what}, `{}` beside it {}",
                        fields.path, fields.extent, side.path, side.extent
                    );
                    Error::new(ErrorKind::Shape, message).at(location)
                });
            }
            if let (Given::Known(fields), Some(side)) = (&own.gives, &given)
                && fields.extent != side.extent
            {
                misfit.get_or_insert_with(|| {
                    let (path, extent) = (&fields.path, fields.extent);
                    let message = match shortcut {
                        None => format!(
                            "`{path}` gives {extent} {what}, and the input that is added to it has {}, as `{}` takes; to \
                             bring the input to as many, put a layer beside the fields: `#[module(sequential, residual = \
                             shortcut)]`",
                            side.extent, side.path
                        ),
                        Some(_) if is_kept => format!(
                            "`{path}` gives {extent} {what}, `{name}` beside it passes on the input's {}, as `{}` takes; to \
                             bring the input to as many, put a layer into `{name}`",
                            side.extent, side.path
                        ),
                        Some(_) => {
                            format!("`{path}` gives {extent} {what}, `{}` beside it {}", side.path, side.extent)
                        }
                    };
                    Error::new(ErrorKind::Shape, message).at(location)
                });
            }
            own.takes = own.takes.take().or(taken);
            if let (Given::Unknown | Given::Kept | Given::Channels, Some(given)) = (&own.gives, given) {
                own.gives = Given::Known(given);
            }
        }
        self
    }

    #[doc(hidden)]
    pub fn finish(self) -> Flow {
        self.0
    }
}
