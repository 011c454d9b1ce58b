//! Places temporary storages in shared slots. Storages with disjoint lifetimes may share a slot.
//!
//! Slots are separate buffers, not one arena. Graphics APIs track hazards per buffer, so an arena would serialise all
//! launches, and it could not be bound for reading and writing at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

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

/// Gives the results of each exchange a range of their own, except those that are handed to the caller. Slots are
/// separate buffers, but NCCL reads and writes one contiguous range.
fn place_ranges(plan: &mut Plan) {
    for (collective, step) in plan.steps.iter().filter(|step| step.collective().is_some()).enumerate() {
        for (value, &(storage, _)) in step.outputs.iter().enumerate() {
            if plan.storages[storage].place == Place::Unplaced {
                plan.storages[storage].place = Place::Range { collective, value };
            }
        }
    }
}

/// The slot of each interval, and the bytes of each slot.
type Assignment = (Vec<usize>, Vec<usize>);

/// Assigns a slot to each interval, in the order that takes less memory. Neither is always better: in order of use, a
/// small value may take a large slot just before a large value needs one; by size, a slot never grows.
fn assign(intervals: &[Interval]) -> Assignment {
    let in_order = assign_in_order(intervals);
    if intervals.len() > MOST_BY_SIZE {
        return in_order;
    }
    let by_size = assign_by_size(intervals);
    // Wide, because the sizes are refused only later if their sum is beyond all memory.
    let total = |(_, sizes): &Assignment| sizes.iter().map(|&bytes| bytes as u128).sum::<u128>();
    if total(&by_size) < total(&in_order) { by_size } else { in_order }
}

/// The most intervals to assign by size, which takes quadratic time if all of them overlap.
const MOST_BY_SIZE: usize = 1 << 12;

/// The largest interval first, each takes the smallest slot of its element type that is free all its life, else a new
/// one. Source: [Pisarchyk and Lee, 2020](https://arxiv.org/abs/2001.03288), "greedy by size".
fn assign_by_size(intervals: &[Interval]) -> Assignment {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (Reverse(intervals[i].bytes), intervals[i].first));
    let mut slots = vec![0; intervals.len()];
    let mut sizes: Vec<usize> = Vec::new();
    // The slots of each element type, in order of decreasing size.
    let mut of_type: HashMap<DType, Vec<usize>> = HashMap::new();
    // For each slot, the ends of the lives in it, by their beginnings.
    let mut lives: Vec<BTreeMap<usize, usize>> = Vec::new();
    for i in order {
        let Interval { first, last, bytes, dtype } = intervals[i];
        let candidates = of_type.entry(dtype).or_default();
        let is_free = |slot: &&usize| lives[**slot].range(..=last).next_back().is_none_or(|(_, &end)| end < first);
        let slot = candidates.iter().rev().find(is_free).copied().unwrap_or_else(|| {
            candidates.push(sizes.len());
            sizes.push(bytes);
            lives.push(BTreeMap::new());
            sizes.len() - 1
        });
        lives[slot].insert(first, last);
        slots[i] = slot;
    }
    (slots, sizes)
}

/// In order of first use, an interval takes the tightest-fitting free slot of its element type, else it grows the
/// largest free one, else it gets a new one. Ties go to the first slot.
fn assign_in_order(intervals: &[Interval]) -> Assignment {
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

    /// Random intervals of three element types.
    fn random(below: &mut impl FnMut(u32) -> usize) -> Vec<Interval> {
        let interval = |_| {
            let first = below(20);
            let (last, bytes) = (first + below(8), 8 * below(6));
            Interval { first, last, bytes, dtype: [DType::F32, DType::F64, DType::U32][below(3)] }
        };
        (0..40).map(interval).collect()
    }

    fn below() -> impl FnMut(u32) -> usize {
        let mut rng = crate::Seed::new(7).rng();
        move |n| rng.next_u32() as usize % n as usize
    }

    #[test]
    fn a_chain_needs_two_slots() {
        let chain: Vec<_> = (0..6).map(|i| interval(i, i + 1, 100)).collect();
        for assign in [assign_in_order, assign_by_size] {
            let (slots, sizes) = assign(&chain);
            assert_eq!(sizes, [100, 100]);
            assert_eq!(slots, [0, 1, 0, 1, 0, 1]);
        }
    }

    #[test]
    fn values_alive_together_have_different_slots() {
        let mut below = below();
        for _ in 0..200 {
            let intervals = random(&mut below);
            for (slots, sizes) in [assign_in_order(&intervals), assign_by_size(&intervals)] {
                for (i, a) in intervals.iter().enumerate() {
                    assert!(sizes[slots[i]] >= a.bytes);
                    for (j, b) in intervals.iter().enumerate().skip(i + 1).filter(|&(j, _)| slots[i] == slots[j]) {
                        let overlap = a.first <= b.last && b.first <= a.last;
                        assert!(!overlap && a.dtype == b.dtype, "{a:?} and {b:?} share slot {}", slots[j]);
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_that_takes_less_memory_is_used() {
        // In order of use, the small value takes the large slot, and the second large value gets another.
        let small_between = [interval(0, 1, 100), interval(2, 5, 10), interval(3, 4, 100)];
        assert_eq!(assign_in_order(&small_between).1, [100, 100]);
        assert_eq!(assign(&small_between).1, [100, 10]);
        let mut below = below();
        let total = |(_, sizes): Assignment| sizes.iter().sum::<usize>();
        let mut wins = [0; 2];
        for _ in 0..200 {
            let intervals = random(&mut below);
            let totals = [assign_in_order(&intervals), assign_by_size(&intervals)].map(total);
            assert_eq!(total(assign(&intervals)), totals[0].min(totals[1]));
            wins[usize::from(totals[1] < totals[0])] += usize::from(totals[0] != totals[1]);
        }
        assert!(wins.iter().all(|&wins| wins > 0), "{wins:?}");
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
        let mut below = below();
        for _ in 0..500 {
            let intervals = random(&mut below);
            assert_eq!(assign_in_order(&intervals), assign_by_search(&intervals), "{intervals:?}");
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
