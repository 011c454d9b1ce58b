//! The choice of the next token from its scores.

use meganeura::prelude::*;
use meganeura::{Error, ErrorKind, Result};

/// The choice of the next token
///
/// The scores are divided by the temperature; then `top_k` and `top_p` leave out unlikely tokens, in this order, as in
/// Hugging Face's `generate`.
///
/// ```
/// use meganeura_models::Sampling;
///
/// # fn main() -> meganeura::Result<()> {
/// let scores = [3.0, 1.0, 2.0, -4.0];
/// assert_eq!(Sampling::greedy().probabilities(&scores)?, [1.0, 0.0, 0.0, 0.0]);
/// let likely = Sampling { top_k: Some(2), ..Sampling::default() }.probabilities(&scores)?;
/// assert!(likely[0] > 0.7 && likely[1] == 0.0 && likely[2] > 0.2 && likely[3] == 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Below 1 favours likely tokens; 0 always takes the most likely one.
    pub temperature: f64,
    /// Only this number of the most likely tokens, if given.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together have at least this probability: 1 for all, at least one in any case.
    pub top_p: f64,
    /// The same seed gives the same text.
    pub seed: u64,
}

/// All tokens, by their probabilities.
impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Always the most likely token; of equal ones, the first.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// The probability of each token.
    ///
    /// # Errors
    ///
    /// Fails if a setting makes no sense, or if no score is finite, or one is NaN.
    #[track_caller]
    pub fn probabilities(&self, scores: &[f32]) -> Result<Vec<f64>> {
        let Self { temperature, top_k, top_p, .. } = *self;
        let refuse = |message: String| Err(Error::new(ErrorKind::Argument, format!("sampling: {message}")));
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return refuse(format!("the temperature {temperature} is not at least 0"));
        }
        if top_k == Some(0) || !(top_p > 0.0 && top_p <= 1.0) {
            return refuse(format!("top_k {top_k:?} and top_p {top_p} leave no token, or are no number and share"));
        }
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !largest.is_finite() || scores.iter().any(|score| score.is_nan()) {
            return Err(Error::new(ErrorKind::NotFinite, "sampling: the scores are not finite"));
        }
        // The best first. The sort is stable, so the first of equal ones comes first.
        let mut order: Vec<_> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut shares = vec![0.0; scores.len()];
        if temperature == 0.0 {
            shares[order[0]] = 1.0;
            return Ok(shares);
        }
        order.truncate(top_k.unwrap_or(usize::MAX));
        let weight = |token: usize| (f64::from(scores[token] - largest) / temperature).exp();
        let all: f64 = order.iter().map(|&token| weight(token)).sum();
        let mut kept = 0.0;
        for token in order {
            if kept >= top_p * all {
                break;
            }
            shares[token] = weight(token);
            kept += shares[token];
        }
        shares.iter_mut().for_each(|share| *share /= kept);
        Ok(shares)
    }

    /// Draws a token by its probability; `step` tells the draws of one text apart.
    #[track_caller]
    pub(crate) fn draw(&self, scores: &[f32], step: usize) -> Result<u32> {
        let shares = self.probabilities(scores)?;
        let exact = Device::cpu_with(Precision::Double);
        let drawn = Tensor::rand(&exact, [1], Seed::new(self.seed).index(step))?.to_f64_vec()?[0];
        let mut rest = drawn;
        let token = shares.iter().position(|share| {
            rest -= share;
            rest < 0.0
        });
        // Rounding may leave a rest behind the last token that can be drawn.
        let token = token.or_else(|| shares.iter().rposition(|&share| share > 0.0)).unwrap_or(0);
        Ok(u32::try_from(token).expect("tokens are indices of 32 bits"))
    }
}
