//! The distribution of rows over the invocations of workgroups: the defines of `shared/segments.wgsl`, and the choice
//! of when to split long rows.
//!
//! A row is processed by one invocation, or by a segment of a workgroup. The members of a segment are adjacent if the
//! row's elements are, or one row of the workgroup apart if the rows are adjacent. If that leaves most of a GPU idle,
//! rows are split into parts, which a second launch combines in order. All of this depends on shapes and layouts, and
//! on whether the device has workgroups of 512. So the same step gives the same bits on every device that computes the
//! same way.

use crate::kernel::launch::{Caps, Define, Multiprocessors, Workgroups, define, tree};

/// The invocations of a workgroup, except for the serial and the tall form.
const GROUP: usize = 256;

/// The number of workgroups that keeps a large GPU busy, whatever the device.
const ENOUGH: usize = Multiprocessors::LARGE.enough(8);

/// The fewest elements of a split row for each invocation; a quarter of what makes a split worth its second launch.
const EACH: usize = 16;

/// The most elements of a split row for each invocation: a bound on its loops.
const MOST: usize = 1 << 14;

/// Elements of an invocation in a run. All additions after an outlier may be off by half a unit in the outlier's last
/// place. So chains of additions are short: long sums add up runs first.
pub(super) const RUN: usize = 64;

/// The distribution of work over the invocations of a workgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segments {
    group: usize,
    /// The invocations for a row.
    lanes: usize,
    across: bool,
}

impl Segments {
    /// One invocation per row.
    pub(super) const SERIAL: Self = Self { group: 64, lanes: 1, across: false };

    /// Many invocations for each of eight adjacent rows, so that a few hundred rows fill a device without a second
    /// launch.
    pub(super) const TALL: Self = Self { group: 512, lanes: 64, across: true };

    /// A workgroup of so many invocations for each row.
    pub(super) fn whole(group: usize) -> Self {
        Self { group, lanes: group, across: false }
    }

    /// Adjacent invocations for a row of `len` elements; each reads up to four elements of a short row.
    pub(super) fn rows(len: usize) -> Self {
        Self { group: GROUP, lanes: len.div_ceil(4).min(GROUP).next_power_of_two(), across: false }
    }

    /// Adjacent invocations read the same element of up to 64 of the `width` adjacent rows; the workgroup reads several
    /// such elements at once.
    pub(super) fn columns(width: usize) -> Self {
        Self { group: GROUP, lanes: GROUP / width.min(64).next_power_of_two(), across: true }
    }

    /// `true` if the device supports workgroups of this size.
    pub(super) fn fits(self, caps: &Caps) -> bool {
        self.group <= caps.workgroup_size
    }

    /// The number of workgroups for `rows` rows.
    pub(super) fn blocks(self, rows: usize) -> usize {
        rows.div_ceil(self.group / self.lanes)
    }

    /// The number of parts of rows of `len` elements; 1 if they are not split. With `forced`, at least two.
    pub(super) fn parts(self, rows: usize, len: usize, forced: bool) -> usize {
        let most = ENOUGH / self.blocks(rows).clamp(1, ENOUGH);
        let least = len.div_ceil(MOST * self.lanes).max(if forced { 2 } else { 1 });
        let parts = most.min(len / (EACH * self.lanes)).max(least).min(len.max(2));
        // No part may be empty.
        len.div_ceil(len.div_ceil(parts))
    }

    /// `true` if a split is worth its second launch.
    pub(super) fn is_split(self, rows: usize, len: usize) -> bool {
        len >= 4 * EACH * self.lanes && self.parts(rows, len, false) > 1
    }

    /// The workgroups of a kernel that includes `shared/segments`, for `parts` parts of each of `rows` rows. Each
    /// invocation has so many `words` of workgroup memory; the reductions of `shared/segment_folds` take one.
    pub(super) fn workgroups(self, rows: usize, parts: usize, loops: usize, words: usize) -> Workgroups {
        Workgroups::new(parts.saturating_mul(self.blocks(rows)), self.group)
            .with_memory(&[4 * words * self.group])
            .looping(loops)
    }

    /// An upper bound on the iterations of a kernel that goes over the elements of a part `times` times, each with a
    /// reduction over the segment: see [`Workgroups::loops`].
    pub(super) fn loops(self, len: usize, parts: usize, times: usize) -> usize {
        (self.each(len, parts).saturating_add(1 + tree(self.lanes))).saturating_mul(times)
    }

    /// The most elements of a part for an invocation.
    pub(super) fn each(self, len: usize, parts: usize) -> usize {
        len.div_ceil(parts).div_ceil(self.lanes)
    }

    /// The defines of `shared/segments`.
    pub(super) fn shape(self) -> Vec<Define> {
        define![
            LANES: self.lanes, SEGMENTS: self.group / self.lanes, RUN: RUN * self.lanes, ACROSS: u32::from(self.across),
        ]
    }

    /// Those, and the defines of kernels that go over rows of `len` elements in `parts` parts.
    pub(super) fn defines(self, len: usize, parts: usize) -> Vec<Define> {
        [self.shape(), define![PARTS: parts, CHUNK: len.div_ceil(parts)]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_is_empty_and_few_are_small() {
        for len in [1, 2, 5, 8193, 16_384, 100_003, 10_000_000] {
            for forced in [false, true] {
                let segments = Segments::rows(len);
                let parts = segments.parts(3, len, forced);
                let chunk = len.div_ceil(parts);
                assert!((parts - 1) * chunk < len && len <= parts * chunk, "{parts} parts of {chunk} of {len}");
                assert!(forced || parts == 1 || chunk >= EACH * GROUP);
                assert!(parts * segments.blocks(3) <= ENOUGH);
                assert!(!forced || len == 1 || parts > 1);
            }
        }
    }

    #[test]
    fn uncountable_extents_do_not_panic() {
        for segments in [Segments::SERIAL, Segments::rows(usize::MAX), Segments::columns(usize::MAX)] {
            let parts = segments.parts(usize::MAX, usize::MAX, false);
            assert!(segments.loops(usize::MAX, parts, 2) < Caps::LOOPS_IN_SOFTWARE);
            assert!(segments.loops(usize::MAX, 1, 3) > Caps::LOOPS_IN_SOFTWARE);
            assert!(segments.blocks(usize::MAX) > ENOUGH);
        }
    }

    #[test]
    fn no_invocation_of_a_split_row_loops_for_long() {
        for len in [1, 1000, 70_000, 1 << 25, 1 << 30] {
            for (rows, width) in [(1, 1), (3, 3), (70_000, 64), (1 << 24, 1 << 24)] {
                for segments in [Segments::rows(len), Segments::columns(width)] {
                    let parts = segments.parts(rows, len, true);
                    // The first launch loops over its part. The second loops over all parts, then over its own
                    // elements.
                    let second = segments.loops(parts, 1, 3) + segments.loops(len, parts, 1);
                    // The sums of the first go over runs, and enter a loop for each.
                    let runs = 2 * segments.each(len, parts).div_ceil(RUN) + 1;
                    let most = (segments.loops(len, parts, 3) + runs).max(second);
                    assert!(most <= Caps::LOOPS_IN_SOFTWARE, "{most} for {rows} rows of {len}, {segments:?}");
                }
            }
        }
    }
}
