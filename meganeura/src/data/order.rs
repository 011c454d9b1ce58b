//! Orders and draws: what a seed means for data. All of it is part of the interface and will not change.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

use crate::module::Seed;

/// Durstenfeld's shuffle: for `i` from the last place down to the second, exchange it with place [`below`]`(i + 1)`, by the numbers of
/// [`Seed::rng`].
pub(super) fn shuffle(rows: &mut [usize], seed: Seed) {
    let mut rng = seed.rng();
    for i in (1..rows.len()).rev() {
        rows.swap(i, below(&mut rng, i + 1));
    }
}

/// A number below `bound`, which is not 0: `⌊r·bound/2⁶⁴⌋` of the next 64-bit number `r`.
#[expect(clippy::cast_possible_truncation, reason = "below the bound")]
pub(super) fn below(rng: &mut Pcg64, bound: usize) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

/// Whether a thing of this probability happens: the upper 53 bits of the next number, as a fraction, are below it.
pub(super) fn happens(rng: &mut Pcg64, probability: f64) -> bool {
    ((rng.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_never_changes() {
        // Computed by another implementation.
        let order = |seed, n| {
            let mut rows: Vec<_> = (0..n).collect();
            shuffle(&mut rows, Seed::new(seed));
            rows
        };
        assert_eq!(order(7, 5), [3, 1, 2, 4, 0]);
        assert_eq!(order(0, 10), [8, 2, 9, 4, 6, 7, 0, 5, 3, 1]);
        assert_eq!(order(7, 10), [4, 1, 3, 9, 6, 8, 5, 7, 2, 0]);
        assert_eq!(order(7, 0), [0usize; 0]);
    }

    #[test]
    fn chances_are_kept() {
        let mut rng = Seed::new(1).rng();
        let mut count = |probability| (0..10_000).filter(|_| happens(&mut rng, probability)).count();
        assert_eq!((count(0.0), count(1.0)), (0, 10_000));
        // Five standard deviations of a binomial of 10,000 draws.
        assert!(count(0.3).abs_diff(3000) < 5 * 46);
        let mut seen = [0; 3];
        (0..3000).for_each(|_| seen[below(&mut rng, 3)] += 1);
        assert!(seen.iter().all(|n: &usize| n.abs_diff(1000) < 5 * 26), "{seen:?}");
    }
}
