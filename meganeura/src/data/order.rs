//! Orders and draws of examples from a seed. They are part of the interface and will not change.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::Result;
use crate::error::bail;
use crate::host::{reserve, try_collect};
use crate::seed::{Generator, Seed};

/// The order of the examples in an epoch.
#[derive(Clone, Debug, Default)]
pub(super) enum Order {
    #[default]
    Given,
    Shuffled,
    /// The weight of each example.
    Weighted(Arc<[f64]>),
    /// The class of each example.
    Stratified(Arc<[u32]>),
}

impl Order {
    /// The number of examples in an epoch.
    pub(super) fn draws(&self, examples: usize, draws: Option<usize>) -> usize {
        match self {
            Self::Weighted(_) => draws.unwrap_or(examples),
            Self::Given | Self::Shuffled | Self::Stratified(_) => examples,
        }
    }

    /// The indices of `examples` examples, in their order in the epoch; `draws` of them, if it is given.
    pub(super) fn of(&self, examples: usize, draws: Option<usize>, seed: Seed) -> Result<Vec<usize>> {
        match self {
            Self::Given | Self::Shuffled | Self::Stratified(_) if draws.is_some() => {
                bail!(Argument, "a number of draws needs weights: give them with `weighted`")
            }
            Self::Given => numbered(examples),
            Self::Shuffled => {
                let mut order = numbered(examples)?;
                shuffle(&mut order, seed);
                Ok(order)
            }
            Self::Weighted(weights) => {
                expect_one_each("weights", weights.len(), examples)?;
                weighted(weights, draws.unwrap_or(examples), seed)
            }
            Self::Stratified(classes) => {
                expect_one_each("classes", classes.len(), examples)?;
                stratified(classes, seed)
            }
        }
    }
}

fn expect_one_each(what: &str, found: usize, examples: usize) -> Result<()> {
    if found != examples {
        bail!(Argument, "{found} {what} for {examples} examples; each example has one");
    }
    Ok(())
}

/// The indices of `examples` examples, in ascending order.
pub(super) fn numbered(examples: usize) -> Result<Vec<usize>> {
    let numbers = try_collect(0..examples);
    numbers.map_err(|error| error.context(format_args!("the order of {examples} examples")))
}

/// Durstenfeld's shuffle: for `i` from the last position down to the second, swaps it with position [`below`]`(i + 1)`,
/// by the numbers of [`Seed::rng`].
pub(super) fn shuffle(rows: &mut [usize], seed: Seed) {
    let mut rng = seed.rng();
    for i in (1..rows.len()).rev() {
        rows.swap(i, below(&mut rng, i + 1));
    }
}

/// Draws with replacement: the first example at which the cumulative weight exceeds `u·Σw`, where `u` is the
/// [`fraction`] of the next number.
fn weighted(weights: &[f64], draws: usize, seed: Seed) -> Result<Vec<usize>> {
    let (mut sums, mut sum) = (Vec::new(), 0.0);
    reserve(&mut sums, weights.len())?;
    for (index, weight) in weights.iter().enumerate() {
        if !(weight.is_finite() && *weight >= 0.0) {
            bail!(Argument, "the weight of example {index} is {weight}; weights are finite and not below 0");
        }
        sum += weight;
        sums.push(sum);
    }
    let has_chances = sum.is_finite() && sum > 0.0;
    if !weights.is_empty() && !has_chances {
        bail!(Argument, "the weights of {} examples add up to {sum}; the sum is finite and above 0", weights.len());
    }
    let mut rng = seed.rng();
    // If rounding makes the draw as large as the sum, the last example with a weight is drawn.
    let last = weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0);
    let mut draw = || {
        let draw = fraction(&mut rng) * sum;
        sums.partition_point(|&sum| sum <= draw).min(last)
    };
    let draws = if weights.is_empty() { 0 } else { draws };
    try_collect((0..draws).map(|_| draw()))
}

/// Spreads every class evenly. Of n examples, n꜀ are of class c. The j-th of them, from 0 on and in shuffled order,
/// comes at one of the positions from `⌊j·n/n꜀⌋` to `⌈(j+1)·n/n꜀⌉ − 1`. Of the candidates for a position, the one with
/// the earliest deadline comes; of several, the first in shuffled order.
///
/// So among the first p examples, the class has more than `p·n꜀/n − 1` and fewer than `p·n꜀/n + 1`. Earliest deadline
/// first meets all deadlines, since the classes' shares add up to 1 (Baruah et al., Proportionate Progress, 1996).
fn stratified(classes: &[u32], seed: Seed) -> Result<Vec<usize>> {
    let mut order = numbered(classes.len())?;
    shuffle(&mut order, seed);
    // For each class, the number of examples, and the number of those whose window has opened.
    let mut counts: BTreeMap<u32, (u128, u128)> = BTreeMap::new();
    for class in classes {
        counts.entry(*class).or_default().0 += 1;
    }
    let n = classes.len() as u128;
    let mut windows = Vec::new();
    reserve(&mut windows, classes.len())?;
    for (place, &row) in order.iter().enumerate() {
        let Some((count, seen)) = counts.get_mut(&classes[row]) else { continue };
        windows.push((*seen * n / *count, ((*seen + 1) * n).div_ceil(*count), place, row));
        *seen += 1;
    }
    windows.sort_unstable();
    let (mut waiting, mut ready) = (windows.into_iter().peekable(), BinaryHeap::new());
    order.clear();
    for place in 0..n {
        while let Some((_, end, shuffled, row)) = waiting.next_if(|window| window.0 <= place) {
            ready.push(Reverse((end, shuffled, row)));
        }
        order.extend(ready.pop().map(|Reverse((_, _, row))| row));
    }
    Ok(order)
}

/// A number below `bound`, which is not 0: `⌊r·bound/2⁶⁴⌋` of the next 64-bit number `r`.
#[expect(clippy::cast_possible_truncation, reason = "below the bound")]
pub(super) fn below(rng: &mut Generator, bound: usize) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

/// A number from 0 (included) to 1 (excluded): the upper 53 bits of the next number, as a fraction.
fn fraction(rng: &mut Generator) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// `true` with this probability: if the upper 53 bits of the next number, as a fraction, are below it.
pub(super) fn happens(rng: &mut Generator, probability: f64) -> bool {
    fraction(rng) < probability
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn the_order_never_changes() {
        // Expected values from an independent implementation.
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

    #[test]
    fn weights_are_chances() {
        // 6,000 examples; every third has weight 0.
        let weights: Vec<_> = (0..6000).map(|i| [1.0, 3.0, 0.0][i % 3]).collect();
        let drawn = weighted(&weights, weights.len(), Seed::new(3)).unwrap();
        let mut seen = [0_usize; 3];
        drawn.iter().for_each(|row| seen[row % 3] += 1);
        assert_eq!((seen[2], drawn.len()), (0, 6000));
        // Five standard deviations of a binomial of 6,000 draws at ¼.
        assert!(seen[0].abs_diff(1500) < 5 * 34, "{seen:?}");
        assert_eq!(weighted(&weights, weights.len(), Seed::new(3)).unwrap(), drawn);
        assert_ne!(weighted(&weights, weights.len(), Seed::new(4)).unwrap(), drawn);
        // A different method: subtracts weights until the draw is used up.
        let mut rng = Seed::new(3).rng();
        for row in &drawn[..100] {
            let draw = fraction(&mut rng) * 8000.0;
            let mut sum = 0.0;
            let slow = weights.iter().position(|weight| {
                sum += weight;
                sum > draw
            });
            assert_eq!(slow, Some(*row));
        }
        assert_eq!(weighted(&[0.0, 1e-300, 0.0], 3, Seed::new(1)).unwrap(), [1; 3]);
        assert_eq!(weighted(&[], 5, Seed::new(1)).unwrap(), [0; 0]);
        // Another number of draws does not change the common prefix.
        assert_eq!(weighted(&weights, 10, Seed::new(3)).unwrap(), drawn[..10]);
        assert_eq!(weighted(&weights, 9000, Seed::new(3)).unwrap()[..6000], drawn);
    }

    #[test]
    fn bad_weights_are_errors() {
        for (weights, part) in [
            (&[1.0, f64::NAN][..], "the weight of example 1 is NaN"),
            (&[-1.0, 1.0], "the weight of example 0 is -1"),
            (&[f64::INFINITY, 1.0], "example 0 is inf"),
            (&[0.0, 0.0], "add up to 0"),
            (&[f64::MAX, f64::MAX], "add up to inf"),
            (&[1.0; 3], "3 weights for 2 examples"),
        ] {
            let error = Order::Weighted(weights.into()).of(2, None, Seed::new(1)).unwrap_err();
            assert!(error.kind() == ErrorKind::Argument && error.message().contains(part), "{error}");
        }
        let error = Order::Shuffled.of(2, Some(5), Seed::new(1)).unwrap_err();
        assert!(error.message().contains("a number of draws needs weights"), "{error}");
        let error = Order::Stratified([1, 2, 1].into()).of(2, None, Seed::new(1)).unwrap_err();
        assert_eq!(error.message(), "3 classes for 2 examples; each example has one");
    }

    #[test]
    fn every_front_part_has_all_classes_in_proportion() {
        for (seed, of) in [(1, &[1, 1, 1][..]), (2, &[97, 3]), (3, &[50, 30, 15, 4, 1]), (4, &[1]), (5, &[7, 7, 7, 2])]
        {
            let classes: Vec<u32> = (0..).zip(of).flat_map(|(class, &count)| vec![class * 3; count]).collect();
            let n = classes.len();
            let order = stratified(&classes, Seed::new(seed)).unwrap();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..n), "each comes once");
            for (class, &count) in (0..).zip(of) {
                let mut seen = 0.0;
                for (place, &row) in order.iter().enumerate() {
                    seen += f64::from(u8::from(classes[row] == class * 3));
                    let share = (place + 1) as f64 * count as f64 / n as f64;
                    assert!((seen - share).abs() < 1.0, "class {class} of {of:?}: {seen} instead of {share}");
                }
            }
        }
        let classes = [0, 1].repeat(50);
        let order = |seed| stratified(&classes, Seed::new(seed)).unwrap();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        // Of two classes, either may come first.
        let first: Vec<_> = order(1).chunks(2).map(|pair| pair[0] % 2).collect();
        assert!(first.contains(&0) && first.contains(&1), "{first:?}");
        assert_eq!(stratified(&[], Seed::new(1)).unwrap(), [0; 0]);
    }
}
