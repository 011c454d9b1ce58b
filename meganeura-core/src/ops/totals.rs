//! Totals over segments of a workgroup, as in `shared/totals`.

use crate::kernel::launch::{Define, Workgroups, define};

/// The fewest invocations of a workgroup, where small segments share one.
const SMALL: usize = 64;

/// The number of segments of `lanes` invocations that share a workgroup.
pub(super) fn segments(lanes: usize) -> usize {
    (SMALL / lanes).max(1)
}

/// The parameters of `shared/totals`: the invocations of a workgroup, and of each of its segments.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    pub(super) group: usize,
    pub(super) lanes: usize,
}

impl Totals {
    /// An upper bound on the iterations of a total, and of the sum over a block's channels.
    pub(super) const LOOPS: usize = 64;

    /// As many segments as make a workgroup.
    pub(super) fn of(lanes: usize) -> Self {
        Self { group: segments(lanes) * lanes, lanes }
    }

    /// The segments of a workgroup.
    pub(super) fn count(self) -> usize {
        self.group / self.lanes
    }

    /// Partial sums of a segment after its values were added in eights, and after those were.
    fn after(self) -> [usize; 2] {
        [8, 64].map(|added| (self.lanes / added).max(1))
    }

    pub(super) fn defines(self) -> Vec<Define> {
        let [once, twice] = self.after();
        define![LANES: self.lanes, AFTER_ONE: once, AFTER_TWO: twice]
    }

    pub(super) fn workgroups(self, count: usize, loops: usize) -> Workgroups {
        let [once, twice] = self.after().map(|after| 8 * self.count() * after);
        Workgroups::new(count, self.group).with_memory(&[8 * self.group, once, twice]).looping(loops)
    }
}
