//! Places temporary storages in shared slots. Storages with disjoint lifetimes may share a slot.
//!
//! Slots are separate buffers, not one arena. Graphics APIs track hazards per buffer, so an arena would serialise all
//! launches, and it could not be bound for reading and writing at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use crate::DType;
use crate::plan::{Place, Plan, Target};

/// The first and the last step that touch a storage, its bytes and its element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interval {
    first: usize,
    last: usize,
    bytes: usize,
    dtype: DType,
}

pub(super) fn place(plan: &mut Plan, target: Target<'_>) {
    if let Target::Gpu { .. } = target {
        place_ranges(plan);
    }
    let mut intervals: Vec<Option<Interval>> = vec![None; plan.storages.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        for storage in step.reads().chain(step.writes()) {
            let (bytes, dtype) = (plan.storages[storage].bytes(), plan.storages[storage].dtype);
            intervals[storage].get_or_insert(Interval { first: at, last: at, bytes, dtype }).last = at;
        }
    }
    let wanted: Vec<usize> = (0..plan.storages.len())
        .filter(|&s| plan.storages[s].place == Place::Unplaced && intervals[s].is_some())
        .collect();
    let live: Vec<_> = wanted.iter().map(|&s| intervals[s].expect("filtered")).collect();
    let (slots, sizes) = assign(&live);

    // Largest first, so that the large buffers of all plans of a device coincide.
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&slot| Reverse(sizes[slot]));
    plan.slots = order.iter().map(|&slot| sizes[slot]).collect();
    let mut ranks = vec![0; sizes.len()];
    order.iter().enumerate().for_each(|(rank, &slot)| ranks[slot] = rank);
    for (&storage, slot) in wanted.iter().zip(slots) {
        plan.storages[storage].place = Place::Slot(ranks[slot]);
    }
}

/// Gives the results of each meeting that are not handed out a range of their own. Slots are separate buffers, but NCCL
/// reads and writes one contiguous range.
fn place_ranges(plan: &mut Plan) {
    for (meeting, step) in plan.steps.iter().filter(|step| step.meets().is_some()).enumerate() {
        for (value, &(storage, _)) in step.outputs.iter().enumerate() {
            if plan.storages[storage].place == Place::Unplaced {
                plan.storages[storage].place = Place::Range { meeting, value };
            }
        }
    }
}

/// Assigns a slot to each interval; also returns the bytes of each slot. In order of first use, an interval takes the
/// tightest-fitting free slot of its element type, else it grows the largest free one, else it gets a new one. Ties go
/// to the first slot.
fn assign(intervals: &[Interval]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (intervals[i].first, Reverse(intervals[i].bytes)));
    let mut slots = vec![0; intervals.len()];
    let mut sizes: Vec<usize> = Vec::new();
    let mut free = Free::default();
    // A heap with the next slot to become free on top.
    let mut taken: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    for i in order {
        let Interval { first, last, bytes, dtype } = intervals[i];
        while let Some(&Reverse((_, user))) = taken.peek().filter(|Reverse((last, _))| *last < first) {
            taken.pop();
            free.give(intervals[user].dtype, sizes[slots[user]], slots[user]);
        }
        let slot = free.take(dtype, bytes).unwrap_or_else(|| {
            sizes.push(0);
            sizes.len() - 1
        });
        sizes[slot] = sizes[slot].max(bytes);
        slots[i] = slot;
        taken.push(Reverse((last, i)));
    }
    (slots, sizes)
}

/// Slots that are currently free: size and number, by element type.
#[derive(Default)]
struct Free(HashMap<DType, BTreeSet<(usize, usize)>>);

impl Free {
    fn give(&mut self, dtype: DType, size: usize, slot: usize) {
        self.0.entry(dtype).or_default().insert((size, slot));
    }

    /// Takes the smallest slot with room, else the largest.
    fn take(&mut self, dtype: DType, bytes: usize) -> Option<usize> {
        let slots = self.0.get_mut(&dtype)?;
        let &(largest, _) = slots.last()?;
        let found = *slots.range((bytes.min(largest), 0)..).next()?;
        slots.remove(&found);
        Some(found.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(first: usize, last: usize, bytes: usize) -> Interval {
        Interval { first, last, bytes, dtype: DType::F32 }
    }

    #[test]
    fn a_chain_needs_two_slots() {
        let chain: Vec<_> = (0..6).map(|i| interval(i, i + 1, 100)).collect();
        let (slots, sizes) = assign(&chain);
        assert_eq!(sizes, [100, 100]);
        assert_eq!(slots, [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn values_alive_together_have_different_slots() {
        let intervals =
            [interval(0, 9, 10), interval(1, 3, 50), interval(2, 4, 20), interval(5, 6, 40), interval(4, 5, 5)];
        let (slots, sizes) = assign(&intervals);
        for (i, a) in intervals.iter().enumerate() {
            assert!(sizes[slots[i]] >= a.bytes);
            for (j, b) in intervals.iter().enumerate().skip(i + 1) {
                let overlap = a.first <= b.last && b.first <= a.last;
                assert!(!overlap || slots[i] != slots[j], "{a:?} and {b:?} share slot {}", slots[i]);
            }
        }
    }

    /// The same assignment by brute force: for every interval, a search over all slots.
    fn assign_by_search(intervals: &[Interval]) -> (Vec<usize>, Vec<usize>) {
        let mut order: Vec<usize> = (0..intervals.len()).collect();
        order.sort_by_key(|&i| (intervals[i].first, Reverse(intervals[i].bytes)));
        let mut slots = vec![0; intervals.len()];
        let (mut sizes, mut users): (Vec<usize>, Vec<Interval>) = (Vec::new(), Vec::new());
        for i in order {
            let Interval { first, bytes, dtype, .. } = intervals[i];
            let free = (0..sizes.len()).filter(|&s| users[s].last < first && users[s].dtype == dtype);
            let best = free.min_by_key(|&s| if sizes[s] >= bytes { (0, sizes[s]) } else { (1, usize::MAX - sizes[s]) });
            let slot = best.unwrap_or_else(|| {
                sizes.push(0);
                users.push(intervals[i]);
                sizes.len() - 1
            });
            sizes[slot] = sizes[slot].max(bytes);
            users[slot] = intervals[i];
            slots[i] = slot;
        }
        (slots, sizes)
    }

    #[test]
    fn the_slot_is_the_one_that_a_search_finds() {
        let mut rng = crate::Seed::new(7).rng();
        let mut below = |n: u32| rng.next_u32() as usize % n as usize;
        for _ in 0..500 {
            let interval = |_| {
                let first = below(20);
                let (last, bytes) = (first + below(8), 8 * below(6));
                Interval { first, last, bytes, dtype: [DType::F32, DType::F64, DType::U32][below(3)] }
            };
            let intervals: Vec<_> = (0..40).map(interval).collect();
            assert_eq!(assign(&intervals), assign_by_search(&intervals), "{intervals:?}");
        }
    }

    #[test]
    fn many_values_alive_together_are_placed_quickly() {
        // Like gradients that wait for the optimizer: each needs its own slot, which is reused later.
        const COUNT: usize = 200_000;
        let together = (0..COUNT).map(|i| interval(i, COUNT + i, 100 + i));
        let after = (0..COUNT).map(|i| interval(3 * COUNT, 4 * COUNT, 100 + i));
        let (slots, sizes) = assign(&together.chain(after).collect::<Vec<_>>());
        assert_eq!(sizes.len(), COUNT);
        assert_eq!(slots[..COUNT], slots[COUNT..]);
    }
}
