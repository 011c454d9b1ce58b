//! Tiles on matrix units: the sizes that kernels share which multiply fragments of 16×16. `shared/units`, `shared/fit`
//! and `shared/product` have the WGSL.

use super::launch::{Caps, Define, define, workgroup_memory};

/// Rows, and columns, of a fragment.
const SIDE: usize = 16;

/// The pitch of a fragment's rows of f32 in workgroup memory, in fours.
pub const PITCH_SUMS: usize = SIDE / 4 + 1;

/// The tile of a result that a workgroup computes on matrix units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragments {
    /// Subgroups down and across.
    pub subgroups: [usize; 2],
    /// Fragments of each subgroup, likewise.
    pub each: [usize; 2],
}

impl Fragments {
    /// Rows and columns of the tile.
    #[must_use]
    pub fn extent(&self) -> [usize; 2] {
        [0, 1].map(|axis| SIDE * self.subgroups[axis] * self.each[axis])
    }

    /// The number of subgroups.
    #[must_use]
    pub fn count(&self) -> usize {
        self.subgroups[0] * self.subgroups[1]
    }

    /// Invocations of a workgroup.
    #[must_use]
    pub fn invocations(&self, caps: &Caps) -> usize {
        self.count() * caps.subgroup.1
    }

    /// Bytes of workgroup memory: so many fours of 16-bit operands, and a fragment of sums of each subgroup that stores
    /// in one of so many turns. If powers of two are found by `shared/fit`, as f16 needs them, also two magnitudes of
    /// each subgroup, and a flag.
    #[must_use]
    pub fn memory(&self, [a, b]: [usize; 2], turns: usize, fits: bool) -> usize {
        let memory = workgroup_memory(&[8 * a, 8 * b, 16 * self.fours_of_sums(turns)]);
        if fits { memory + workgroup_memory(&[8 * self.count(), 16]) } else { memory }
    }

    /// The fours of f32 of those fragments of sums.
    #[must_use]
    pub fn fours_of_sums(&self, turns: usize) -> usize {
        self.count() / turns * SIDE * PITCH_SUMS
    }

    /// The fours of f32 of a row of each subgroup's fragments of sums, with a four between rows of numbers, so that
    /// neighbours lie in different banks.
    #[must_use]
    pub fn fours_of_rows(&self) -> usize {
        self.count() * SIDE * (SIDE / 4 * self.each[1] + 1)
    }

    /// The defines of `shared/fit` and of the kernel's loops over fragments.
    #[must_use]
    pub fn defines(&self, turns: usize, caps: &Caps) -> Vec<Define> {
        define![
            SN: self.subgroups[1], FM: self.each[0], FN: self.each[1], SUBGROUP: caps.subgroup.1, TURNS: turns,
            SUBGROUPS: self.count(), FOURS_OF_SUMS: self.fours_of_sums(turns), PITCH_SUMS: PITCH_SUMS,
        ]
    }
}

/// The pitch in workgroup memory, in fours, of rows of so many 16-bit numbers: 16 bytes more than they take, so that
/// neighbours lie in different banks.
#[must_use]
pub fn pitch(numbers: usize) -> usize {
    numbers / 4 + 2
}
