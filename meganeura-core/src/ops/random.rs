//! Random numbers from a counter. Each element depends only on the seed, the stream and its own index, so every device
//! draws the same numbers, and a repeated step draws them again.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
use crate::{DType, Precision, Result, Shape, TensorType};

/// Uniform numbers in `[0, 1)`: multiples of 2⁻²⁴ from Philox-4x32-10.
///
/// Shapes: `seed u32 [2]` → the given shape. The seed is a value, so a new seed needs no new plan; streams separate the
/// draws of one step. Has no gradient. Source: [Salmon et al., 2011](https://doi.org/10.1145/2063384.2063405).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RandomUniform {
    pub(crate) stream: u32,
    pub(crate) shape: Shape,
    pub(crate) precision: Precision,
}

/// Four random words from a key and a counter: Philox-4x32 with ten rounds.
#[must_use]
pub fn philox([mut k0, mut k1]: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let wide = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let (hi0, lo0) = wide(0xD251_1F53, c0);
        let (hi1, lo1) = wide(0xCD9E_8D57, c2);
        (c0, c1, c2, c3) = (hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

impl Primitive for RandomUniform {
    fn name(&self) -> &'static str {
        "random_uniform"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let seed = TensorType::new(DType::U32, Shape::from([2]));
        if x != [seed] {
            return Err(format!("needs one operand, a seed {seed}"));
        }
        Ok(vec![TensorType::new(self.precision.dtype(), self.shape)])
    }
}

impl Kernel for RandomUniform {
    fn varies(&self) -> bool {
        true
    }

    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let seed = x[0].contiguous_indices();
        let key = [seed[0], seed[1]];
        native::parallel(y[0].floats(), 4096, &|first, y| {
            for (quad, y) in y.chunks_mut(4).enumerate() {
                let counter = u32::try_from(first / 4 + quad).expect("tensors have fewer than 2^32 elements");
                let words = philox(key, [counter, self.stream, 0, 0]);
                for (y, word) in y.iter_mut().zip(words) {
                    *y = T::from_f64(f64::from(word >> 8) / f64::from(1u32 << 24));
                }
            }
        });
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let elements = y[0].shape.elements();
        let defines = define![N: elements, STREAM: format!("{}u", self.stream), SEED_AT: x[0].layout.offset()];
        // An invocation draws four numbers, in ten rounds.
        let workgroups = Workgroups::of_elements(elements.div_ceil(4)).looping(16);
        vec![Variant::simple("philox", Launch::new(self.name(), defines, (1, 1), workgroups).stores_through_epilogue())]
    }
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known-answer vectors of the generator's authors.
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox([0, 0], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 2], [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }
}
