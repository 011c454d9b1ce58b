//! How near generated texts are to those that people wrote.

use std::collections::HashMap;
use std::hash::Hash;

use super::counted;
use crate::Result;
use crate::error::{bail, here};
use crate::world::World;

/// The longest runs of tokens that are compared.
const LONGEST: usize = 4;

/// BLEU: the share of runs of one to four tokens that a generated text has in common with texts that people wrote, and
/// a penalty for texts that are too short.
///
/// A run counts as often as it occurs in the reference where it occurs most. The value is the geometric mean of the
/// four shares over all texts, times `exp(1 − r / c)` if the texts' `c` tokens are fewer than the `r` tokens of the
/// references that are nearest in length. Without a common run of some length, it is 0.
///
/// ```
/// use meganeura::metric::Bleu;
///
/// let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
/// let mut bleu = Bleu::new();
/// bleu.update(&words("the cat sat on the mat"), &[&words("the cat sat on a mat"), &words("a cat sat on the mat")])?;
/// // Neither reference has "the" twice; all longer runs are in one of them.
/// assert_eq!(bleu.value()?, (5.0f64 / 6.0).powf(0.25));
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// Tokens are words, or their numbers. BLEU depends on how a text is split into tokens: compare values of the same
/// tokens only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Bleu {
    order: usize,
    /// For each length, the runs in common, and all runs.
    runs: [[u64; 2]; LONGEST],
    /// The number of tokens, and of those of the nearest references.
    tokens: u64,
    expected: u64,
}

impl Default for Bleu {
    fn default() -> Self {
        Self::new()
    }
}

impl Bleu {
    /// An accumulator without texts, of runs of up to four tokens.
    pub fn new() -> Self {
        Self { order: LONGEST, runs: [[0; 2]; LONGEST], tokens: 0, expected: 0 }
    }

    /// Compares runs of up to so many tokens, at most four.
    ///
    /// # Errors
    ///
    /// Fails with 0 tokens, or more than four.
    #[track_caller]
    pub fn of_order(order: usize) -> Result<Self> {
        here(|| {
            if !(1..=LONGEST).contains(&order) {
                bail!(Argument, "runs of up to {order} tokens; there are runs of 1 to {LONGEST}");
            }
            Ok(Self { order, ..Self::new() })
        })
    }

    /// Counts a generated text and its references.
    ///
    /// # Errors
    ///
    /// Fails if there is no reference.
    #[track_caller]
    pub fn update<T: Eq + Hash>(&mut self, text: &[T], references: &[impl AsRef<[T]>]) -> Result<()> {
        here(|| {
            let lengths = references.iter().map(|reference| reference.as_ref().len());
            let Some(nearest) = lengths.min_by_key(|length| (length.abs_diff(text.len()), *length)) else {
                bail!(Argument, "a text without a reference");
            };
            self.tokens += text.len() as u64;
            self.expected += nearest as u64;
            for length in 1..=self.order {
                let mut most: HashMap<&[T], u64> = HashMap::new();
                for reference in references {
                    for (run, count) in runs(reference.as_ref(), length) {
                        let most = most.entry(run).or_default();
                        *most = count.max(*most);
                    }
                }
                let [common, all] = &mut self.runs[length - 1];
                for (run, count) in runs(text, length) {
                    *common += count.min(most.get(run).copied().unwrap_or(0));
                    *all += count;
                }
            }
            Ok(())
        })
    }

    /// Adds the texts of another accumulator.
    ///
    /// # Errors
    ///
    /// Fails if the other compares runs of other lengths.
    #[track_caller]
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        here(|| {
            if self.order != other.order {
                bail!(Argument, "runs of up to {} tokens cannot be merged into those of {}", other.order, self.order);
            }
            self.runs.iter_mut().flatten().zip(other.runs.iter().flatten()).for_each(|(sum, more)| *sum += more);
            self.tokens += other.tokens;
            self.expected += other.expected;
            Ok(())
        })
    }

    /// An accumulator with the texts of all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| {
            let own: Vec<_> = self.runs.iter().flatten().copied().chain([self.tokens, self.expected]).collect();
            let sums = counted(world, &own)?;
            let mut all = Self { tokens: sums[2 * LONGEST], expected: sums[2 * LONGEST + 1], ..self.clone() };
            all.runs.iter_mut().flatten().zip(sums).for_each(|(count, sum)| *count = sum);
            Ok(all)
        })
    }

    /// The value, from 0 to 1.
    ///
    /// # Errors
    ///
    /// Fails if there was no text.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| {
            if self.tokens == 0 {
                bail!(Argument, "BLEU of no text: `update` has counted none");
            }
            let runs = &self.runs[..self.order];
            let shares = runs.iter().map(|&[common, all]| if all > 0 { common as f64 / all as f64 } else { 0.0 });
            let mean = shares.product::<f64>().powf(1.0 / self.order as f64);
            Ok(mean * (1.0 - self.expected as f64 / self.tokens as f64).min(0.0).exp())
        })
    }
}

/// How often each run of this length occurs.
fn runs<T: Eq + Hash>(text: &[T], length: usize) -> HashMap<&[T], u64> {
    let mut runs = HashMap::new();
    text.windows(length).for_each(|run| *runs.entry(run).or_default() += 1);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn words(text: &str) -> Vec<&str> {
        text.split(' ').collect()
    }

    fn counted_texts(mut bleu: Bleu) -> Bleu {
        let references = ["there is a cat on the mat and it sleeps there", "the cat is lying on the mat and it sleeps"];
        bleu.update(&words("the cat is on the mat and it sleeps there"), &references.map(words)).unwrap();
        let other = [words("one small dog runs across the green field")];
        bleu.update(&words("a small dog runs over the green field"), &other).unwrap();
        bleu
    }

    #[test]
    fn agrees_with_nltk() {
        // What `corpus_bleu` of nltk 3.10 computes.
        for (bleu, expected) in
            [(Bleu::new(), 0.596_949_179_201_964_6), (Bleu::of_order(2).unwrap(), 0.816_496_580_927_726)]
        {
            let value = counted_texts(bleu).value().unwrap();
            assert!((value - expected).abs() < 1e-12, "{value}");
        }
    }

    #[test]
    fn short_texts_are_penalised_and_parts_add_up() {
        let (text, reference) = ([1_u32, 2, 3, 4, 5], [1_u32, 2, 3, 4, 5, 6, 7]);
        let mut short = Bleu::new();
        short.update(&text, &[reference]).unwrap();
        assert!((short.value().unwrap() - (1.0f64 - 7.0 / 5.0).exp()).abs() < 1e-12);
        let mut whole = counted_texts(Bleu::new());
        let alone = whole.clone();
        whole.update(&text, &[reference]).unwrap();
        short.merge(&alone).unwrap();
        assert_eq!(short, whole);
        assert_eq!(whole.over(&World::alone()).unwrap(), whole);
        // No run of two tokens in common.
        let mut apart = Bleu::new();
        apart.update(&[1, 2], &[[2, 1]]).unwrap();
        assert_eq!(apart.value().unwrap(), 0.0);
    }

    #[test]
    fn misuse_is_an_error() {
        let mut bleu = Bleu::new();
        let none: [&[u32]; 0] = [];
        assert_eq!(bleu.update(&[1], &none).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(bleu.value().unwrap_err().kind(), ErrorKind::Argument);
        assert!(Bleu::of_order(0).is_err() && Bleu::of_order(5).is_err());
        assert!(bleu.merge(&Bleu::of_order(2).unwrap()).is_err());
    }
}
