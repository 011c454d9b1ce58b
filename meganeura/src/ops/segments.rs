//! How the invocations of workgroups share rows: what `shared/segments.wgsl` is told, and when long rows are split.
//!
//! A row is worked on by one invocation, or by a segment of a workgroup whose members are neighbours (the row's
//! elements lie side by side) or a row of the workgroup apart (rows lie side by side). Where that leaves most of a GPU
//! idle, rows are split into parts, which a second launch joins in order. All depends on shapes and layouts, and on
//! whether the device has workgroups of 512, so that the same step gives the same bits on every device that computes
//! the same way.

use crate::kernel::launch::{Caps, define, tree};

/// Invocations of a workgroup, but for the serial form and the tall one.
const GROUP: usize = 256;

/// Workgroups that keep a large GPU busy.
const ENOUGH: usize = 1024;

/// Elements that an invocation of a split row works on at least; a quarter of what makes a split worth its second
/// launch.
const EACH: usize = 16;

/// Elements of a row that an invocation goes over at most where rows are split: a bound on its loops.
const MOST: usize = 1 << 14;

/// How the invocations of a workgroup share the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segments {
    group: usize,
    /// Invocations for a row.
    lanes: usize,
    across: bool,
}

impl Segments {
    /// One invocation a row.
    pub(super) const SERIAL: Self = Self { group: 64, lanes: 1, across: false };

    /// Many invocations for each of eight rows that lie side by side: so a few hundred rows fill a device, without a
    /// second launch.
    pub(super) const TALL: Self = Self { group: 512, lanes: 64, across: true };

    /// Neighbours for a row of `len` elements: so many that each reads up to four elements of a short one.
    pub(super) fn rows(len: usize) -> Self {
        Self { group: GROUP, lanes: len.div_ceil(4).min(GROUP).next_power_of_two(), across: false }
    }

    /// Invocations that read the same place of up to 64 of `width` rows that lie side by side, and several such places.
    pub(super) fn columns(width: usize) -> Self {
        Self { group: GROUP, lanes: GROUP / width.min(64).next_power_of_two(), across: true }
    }

    /// Whether a device has workgroups as large.
    pub(super) fn fit(self, caps: &Caps) -> bool {
        self.group <= caps.workgroup_size
    }

    /// Workgroups for so many rows.
    pub(super) fn blocks(self, rows: usize) -> usize {
        rows.div_ceil(self.group / self.lanes)
    }

    /// Into how many parts so many rows of `len` elements are split, if they are. With `forced`, at least two.
    pub(super) fn parts(self, rows: usize, len: usize, forced: bool) -> usize {
        let most = ENOUGH / self.blocks(rows).clamp(1, ENOUGH);
        let least = len.div_ceil(MOST * self.lanes).max(if forced { 2 } else { 1 });
        let parts = most.min(len / (EACH * self.lanes)).max(least).min(len.max(2));
        // No part may be empty.
        len.div_ceil(len.div_ceil(parts))
    }

    /// Whether a split is worth its second launch.
    pub(super) fn is_split(self, rows: usize, len: usize) -> bool {
        len >= 4 * EACH * self.lanes && self.parts(rows, len, false) > 1
    }

    /// A bound on the iterations of a kernel that goes over the elements of a part so many times, and joins what its
    /// members have found as often as that: see [`Launch::loops`](crate::kernel::launch::Launch::loops).
    pub(super) fn loops(self, len: usize, parts: usize, times: usize) -> usize {
        let each = len.div_ceil(parts).div_ceil(self.lanes);
        (each.saturating_add(1 + tree(self.lanes))).saturating_mul(times)
    }

    /// What fills the holes of `shared/segments`, and of the kernel's own for rows of `len` elements in `parts` parts.
    pub(super) fn defines(self, len: usize, parts: usize) -> Vec<(&'static str, String)> {
        let Self { group, lanes, across } = self;
        define![WG: group, LANES: lanes, ACROSS: u32::from(across), PARTS: parts, CHUNK: len.div_ceil(parts)]
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
    fn what_cannot_be_counted_is_no_panic() {
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
                    // The launch that splits goes over its part, the second over all parts and over its own elements.
                    let second = segments.loops(parts, 1, 3) + segments.loops(len, parts, 1);
                    let most = segments.loops(len, parts, 3).max(second);
                    assert!(most <= Caps::LOOPS_IN_SOFTWARE, "{most} for {rows} rows of {len}, {segments:?}");
                }
            }
        }
    }
}
