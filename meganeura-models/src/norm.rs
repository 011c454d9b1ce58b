//! The normalisation of a convolutional net, by batch or by group, under the same names.

use meganeura::prelude::*;

use crate::one_of::one_of;

/// The kind of normalisation of a net's images
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Normalization {
    /// [`BatchNorm2d`].
    #[default]
    Batch,
    /// [`GroupNorm`] with this number of groups. It does not depend on the rest of the batch.
    Group(usize),
}

impl Normalization {
    pub(crate) fn of(self, channels: usize) -> NormConfig {
        match self {
            Self::Batch => NormConfig::Batch(BatchNorm2d::new(channels)),
            Self::Group(groups) => NormConfig::Group(GroupNorm::new(groups, channels)),
        }
    }
}

one_of! {
    /// A normalisation of images `[N, C, H, W]` of either kind. Both have the parameters `weight` and `bias`; batch
    /// normalisation also has running statistics.
    pub enum Norm of NormConfig: Layer {
        /// Each channel over the batch.
        Batch(BatchNorm2d, BatchNorm2dConfig),
        /// Groups of channels of each image.
        Group(GroupNorm, GroupNormConfig),
    }
}
