//! Replaces [`link`](super::link) on systems without NCCL: there is never a link.

use super::{Gpu, Inner};
use crate::Result;
use crate::world::World;

impl Gpu {
    pub(crate) fn connect(&self, _: &World) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn without_link(_: &World) -> Result<()> {
    Ok(())
}

impl Inner {
    pub(super) fn is_linked(&self) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "as with a link")]
    pub(super) fn wait_linked(&self, _: u64) {}

    #[expect(clippy::unused_self, reason = "as with a link")]
    pub(super) fn abandon_link(&self) {}

    pub(super) fn expect_linked(&self) -> Result<()> {
        Ok(())
    }
}
