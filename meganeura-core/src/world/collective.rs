//! Collectives: exchanges of any number of values that every rank has, adjacent in one range of memory.

use std::ops::Range as Bounds;

use super::{Purpose, World};
use crate::{DType, Result};

/// The results of an exchange.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[doc(hidden)]
pub enum Collective {
    /// The sum of each over all ranks, on all ranks.
    AllReduce,
    /// The sum of each over all ranks, on its owner. Other ranks get unspecified numbers.
    ReduceScatter(Vec<usize>),
    /// The owner's value of each, on all ranks.
    AllGather(Vec<usize>),
}

/// The layout of the values in a range.
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub struct Range {
    /// The first byte of each value.
    pub(crate) offsets: Vec<usize>,
    pub bytes: usize,
    /// The size in bytes of one rank's part, or of everything if values have no owners.
    pub(crate) part: usize,
    /// The bytes at the beginning that hold bf16; the others hold numbers of the exchange's type.
    pub(crate) bf16_bytes: usize,
}

impl Collective {
    /// The owner of each value, if values have owners.
    fn owners(&self) -> Option<&[usize]> {
        match self {
            Self::AllReduce => None,
            Self::ReduceScatter(owners) | Self::AllGather(owners) => Some(owners),
        }
    }

    /// `true` if values of the same sizes have the same offsets.
    pub(crate) fn is_arranged_as(&self, other: &Self) -> bool {
        self.owners() == other.owners()
    }

    /// `true` if `rank` contributes this value.
    #[cfg(feature = "gpu")]
    pub(crate) fn reads(&self, value: usize, rank: usize) -> bool {
        if let Self::AllGather(owners) = self { owners[value] == rank } else { true }
    }

    /// `true` if `rank` receives this value.
    #[cfg(feature = "gpu")]
    pub(crate) fn gives(&self, value: usize, rank: usize) -> bool {
        if let Self::ReduceScatter(owners) = self { owners[value] == rank } else { true }
    }

    /// The layout of values of these sizes, each aligned to `align` bytes. The values of one owner are adjacent, in
    /// parts of equal size.
    #[doc(hidden)]
    pub fn range(&self, bytes: &[usize], ranks: usize, align: usize) -> Range {
        let mut ends = vec![0; ranks];
        let one = vec![0; bytes.len()];
        let (owners, parts) = self.owners().map_or((&one[..], 1), |owners| (owners, ranks));
        let mut offset = |(&bytes, &owner): (&usize, &usize)| {
            let begin = ends[owner];
            ends[owner] = (begin + bytes).next_multiple_of(align);
            (owner, begin)
        };
        let places: Vec<_> = bytes.iter().zip(owners).map(&mut offset).collect();
        let part = ends.iter().copied().max().unwrap_or(0);
        let offsets = places.into_iter().map(|(owner, begin)| owner * part + begin).collect();
        Range { offsets, bytes: part * parts, part, bf16_bytes: 0 }
    }

    fn purpose(&self) -> Purpose {
        match self {
            Self::AllReduce => Purpose::Sum,
            Self::ReduceScatter(_) | Self::AllGather(_) => Purpose::Owners,
        }
    }

    /// The header that ranks compare before the exchange. It is the same on all computers, whatever program was
    /// compiled for them.
    pub(super) fn header(&self, dtype: DType, range: &Range) -> [u64; 4] {
        let kind = match self {
            Self::AllReduce => 0,
            Self::ReduceScatter(_) => 1,
            Self::AllGather(_) => 2,
        };
        let owners = self.owners().unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        let numbers = [kind, range.bf16_bytes, owners.len()];
        for &number in numbers.iter().chain(owners).chain(&range.offsets) {
            hasher.update(&(number as u64).to_le_bytes());
        }
        let digest = hasher.finalize();
        let digest = u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("it has 32 bytes"));
        [self.purpose() as u64, dtype.bytes() as u64, range.bytes as u64, digest]
    }
}

impl Range {
    /// The layout of values without owners, each with its size in bytes and `true` if it is bf16. Those come first.
    #[cfg(feature = "gpu")]
    pub(crate) fn of_sums(values: &[(usize, bool)], align: usize) -> Self {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by_key(|&value| !values[value].1);
        let bytes: Vec<_> = order.iter().map(|&value| values[value].0).collect();
        let sorted = Collective::AllReduce.range(&bytes, 1, align);
        let mut offsets = vec![0; values.len()];
        order.iter().zip(&sorted.offsets).for_each(|(&value, &offset)| offsets[value] = offset);
        let first = order.iter().position(|&value| !values[value].1);
        let bf16_bytes = first.map_or(sorted.bytes, |first| sorted.offsets[first]);
        Self { offsets, bf16_bytes, ..sorted }
    }

    /// The byte range of a rank's part.
    #[doc(hidden)]
    pub fn part_of(&self, rank: usize) -> Bounds<usize> {
        if self.part == self.bytes { 0..self.bytes } else { rank * self.part..(rank + 1) * self.part }
    }
}

impl World {
    /// Exchanges a range of floats of one type through the host. `to` is as long as `from`.
    #[doc(hidden)]
    pub fn run_collective(
        &self,
        collective: &Collective,
        dtype: DType,
        range: &Range,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<()> {
        let own = range.part_of(self.rank());
        let mut engine = self.meet(collective.header(dtype, range))?;
        match collective {
            Collective::AllReduce => self.completed(engine.all_reduce(dtype, from, to)),
            Collective::ReduceScatter(_) => self.completed(engine.reduce_scatter(dtype, from, &mut to[own])),
            Collective::AllGather(_) => self.completed(engine.all_gather(&from[own], to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_side_by_side() {
        let range = Collective::AllReduce.range(&[4, 12, 8], 4, 8);
        assert_eq!(range, Range { offsets: vec![0, 8, 24], bytes: 32, part: 32, bf16_bytes: 0 });
        assert_eq!(range.part_of(3), 0..32);
    }

    #[test]
    fn values_of_one_owner_lie_side_by_side() {
        let range = Collective::AllGather(vec![1, 0, 1, 2]).range(&[4, 12, 8, 4], 4, 4);
        assert_eq!(range, Range { offsets: vec![12, 0, 16, 24], bytes: 48, part: 12, bf16_bytes: 0 });
        assert_eq!(range.part_of(3), 36..48);
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn bf16_comes_first() {
        let range = Range::of_sums(&[(4, false), (6, true), (8, false), (16, true)], 8);
        assert_eq!(range, Range { offsets: vec![24, 0, 32, 8], bytes: 40, part: 40, bf16_bytes: 24 });
        assert_eq!(Range::of_sums(&[(6, true)], 8), Range { offsets: vec![0], bytes: 8, part: 8, bf16_bytes: 8 });
        assert_eq!(Range::of_sums(&[(6, false)], 8), Collective::AllReduce.range(&[6], 4, 8));
        let header = |values| Collective::AllReduce.header(DType::F32, &Range::of_sums(values, 8));
        assert_ne!(header(&[(8, true), (8, false)]), header(&[(8, true), (8, true)]));
    }

    #[test]
    fn headers_tell_arrangements_apart() {
        let header =
            |collective: Collective, bytes: &[usize]| collective.header(DType::F32, &collective.range(bytes, 2, 4));
        let sum = header(Collective::AllReduce, &[4, 8]);
        assert_eq!(sum, header(Collective::AllReduce, &[4, 8]));
        assert_ne!(sum, header(Collective::AllReduce, &[8, 4]));
        let owned = |owners: [usize; 2]| header(Collective::ReduceScatter(owners.to_vec()), &[4, 4]);
        assert_ne!(owned([0, 1]), owned([1, 0]));
        assert_ne!(owned([0, 1]), header(Collective::AllGather(vec![0, 1]), &[4, 4]));
    }
}
