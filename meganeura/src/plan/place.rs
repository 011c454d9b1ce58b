//! Last pass: puts temporary storages into shared slots. Two share one if they never live at the same time.
//!
//! Slots are separate buffers, not one arena: graphics APIs track hazards per buffer, and one arena would serialise
//! everything and may not be bound for reading and writing at once.

use super::{Place, Plan};
use crate::DType;

/// First and last step that touch a storage, its bytes and element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interval {
    first: usize,
    last: usize,
    bytes: usize,
    dtype: DType,
}

pub(super) fn place(plan: &mut Plan) {
    let mut intervals: Vec<Option<Interval>> = vec![None; plan.storages.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        for storage in step.reads().chain(step.writes()) {
            let (bytes, dtype) = (plan.storages[storage].bytes(), plan.storages[storage].dtype);
            intervals[storage].get_or_insert(Interval { first: at, last: at, bytes, dtype }).last = at;
        }
    }
    let wanted: Vec<usize> = (0..plan.storages.len())
        .filter(|&s| matches!(plan.storages[s].place, Place::Slot(_)) && intervals[s].is_some())
        .collect();
    let live: Vec<_> = wanted.iter().map(|&s| intervals[s].expect("filtered")).collect();
    let (slots, sizes) = assign(&live);

    // Largest first, so that plans of one device share big buffers with big buffers.
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&slot| std::cmp::Reverse(sizes[slot]));
    plan.slots = order.iter().map(|&slot| sizes[slot]).collect();
    for (&storage, slot) in wanted.iter().zip(slots) {
        let rank = order.iter().position(|&o| o == slot).expect("every slot is in the order");
        plan.storages[storage].place = Place::Slot(rank);
    }
}

/// A slot for each interval, and the bytes of each slot. In order of first use: the free slot of the same element type that
/// fits closest, else the largest free one grown, else a new one.
fn assign(intervals: &[Interval]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (intervals[i].first, std::cmp::Reverse(intervals[i].bytes)));
    let mut slots = vec![0; intervals.len()];
    let mut sizes: Vec<usize> = Vec::new();
    let mut last_users: Vec<Interval> = Vec::new();
    for i in order {
        let Interval { first, bytes, dtype, .. } = intervals[i];
        let free = (0..sizes.len()).filter(|&s| last_users[s].last < first && last_users[s].dtype == dtype);
        let best = free.min_by_key(|&s| if sizes[s] >= bytes { (0, sizes[s]) } else { (1, usize::MAX - sizes[s]) });
        let slot = best.unwrap_or_else(|| {
            sizes.push(0);
            last_users.push(intervals[i]);
            sizes.len() - 1
        });
        sizes[slot] = sizes[slot].max(bytes);
        last_users[slot] = intervals[i];
        slots[i] = slot;
    }
    (slots, sizes)
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
    fn living_together_means_living_apart() {
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
}
