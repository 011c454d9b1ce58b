//! Folds of long sequences in steps, so that rounding errors grow with a small part of the length.

/// Partial results of up to `L` interleaved folds. Results of blocks are folded in sixteens, and those into the whole.
///
/// Terms of one sign that are added to a far larger sum all round in one direction. Each addition after an outlier may
/// be off by half a unit in the outlier's last place, so chains of additions are short.
pub(crate) struct Cascade<T, const L: usize> {
    few: [T; L],
    all: [T; L],
    /// The neutral element.
    neutral: T,
    blocks: usize,
}

impl<T: Copy, const L: usize> Cascade<T, L> {
    #[inline(always)]
    pub(crate) fn new(neutral: T) -> Self {
        Self { few: [neutral; L], all: [neutral; L], neutral, blocks: 0 }
    }

    /// Folds in the partial results of another block. All blocks have the same length.
    #[inline(always)]
    pub(crate) fn push(&mut self, block: &[T], join: impl Fn(T, T) -> T) {
        fold_into(&mut self.few, block, &join);
        self.blocks += 1;
        if self.blocks.is_multiple_of(16) {
            fold_into(&mut self.all, &self.few[..block.len()], &join);
            self.few[..block.len()].fill(self.neutral);
        }
    }

    /// The partial results of all blocks.
    #[inline(always)]
    pub(crate) fn finish(mut self, join: impl Fn(T, T) -> T) -> [T; L] {
        fold_into(&mut self.all, &self.few, &join);
        self.all
    }
}

/// Folds partial results into others.
#[inline(always)]
fn fold_into<T: Copy>(to: &mut [T], from: &[T], join: &impl Fn(T, T) -> T) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = join(*to, from));
}

/// Folds partial results into one, by halves; `L` is a power of two.
#[inline(always)]
pub(crate) fn by_halves<T: Copy, const L: usize>(mut lanes: [T; L], join: impl Fn(T, T) -> T) -> T {
    const { assert!(L.is_power_of_two()) };
    let mut half = L / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, &mut high)| *low = join(*low, high));
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_in_the_result_once() {
        for blocks in [0, 1, 15, 16, 17, 255, 256, 5000] {
            let mut cascade = Cascade::<u64, 2>::new(0);
            for block in 0..blocks {
                cascade.push(&[block, 1], |a, b| a + b);
            }
            assert_eq!(cascade.finish(|a, b| a + b), [blocks * blocks.saturating_sub(1) / 2, blocks]);
        }
    }

    #[test]
    fn terms_after_a_large_one_are_rounded_only_a_few_times() {
        // Floats near the large term are 2 apart: added one after the other, each 1.2 would round to 2.
        let (large, small) = (16_777_216.0f32, 1.2f32);
        let mut cascade = Cascade::<f32, 1>::new(0.0);
        cascade.push(&[large], |a, b| a + b);
        (0..2000).for_each(|_| cascade.push(&[small], |a, b| a + b));
        let [sum] = cascade.finish(|a, b| a + b);
        let right = f64::from(large) + 2000.0 * f64::from(small);
        // Rounding errors of 15 additions to the large term, and of 126 sums of sixteen.
        assert!((f64::from(sum) - right).abs() < 15.0 + 126.0, "{sum} for {right}");
    }
}
