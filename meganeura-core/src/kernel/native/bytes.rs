//! Products of bytes with sums of 32 bits. An element of an operand is a word of four bytes, the terms of four products
//! that are added to one sum: signed in `a`, unsigned in `b`. Sums wrap around, so their order does not matter.

use pulp::{Simd, WithSimd};

use super::Places;
use super::block::{Block, Lanes};

/// Bytes of a word.
pub(crate) const BYTES: usize = 4;

/// A word whose bytes are all 1.
pub(crate) const ONES: u32 = 0x0101_0101;

/// The words of four bytes each that `x` holds; the last one is filled up with zeros.
pub(crate) fn words(x: impl ExactSizeIterator<Item = u8>) -> impl Iterator<Item = u32> {
    let (count, mut x) = (x.len().div_ceil(BYTES), x);
    (0..count).map(move |_| u32::from_le_bytes([(); BYTES].map(|()| x.next().unwrap_or(0))))
}

/// The sum of a word's bytes, as signed or as unsigned numbers.
pub(crate) fn sum_of(word: u32, is_signed: bool) -> i32 {
    let of_byte = |byte: u8| if is_signed { i32::from(byte.cast_signed()) } else { i32::from(byte) };
    word.to_le_bytes().map(of_byte).iter().sum()
}

impl<R: Places, A: Places, B: Places> Block<'_, R, A, B, u32, i32> {
    /// Computes the product with the widest vectors of this processor.
    ///
    /// # Panics
    ///
    /// As [`Block::multiply`] of floats.
    pub(crate) fn multiply_bytes(self, arch: pulp::Arch) {
        if !self.has_elements() {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(words) = x86::Words::new() {
                return words.multiply(self);
            }
            if let Some(pairs) = x86::Pairs::new() {
                return pairs.multiply(self);
            }
        }
        arch.dispatch(self);
    }
}

/// On processors without instructions for this.
impl<R: Places, A: Places, B: Places> WithSimd for Block<'_, R, A, B, u32, i32> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.multiply_in(Each, ());
    }
}

/// Four sums, each byte by byte.
#[derive(Clone, Copy)]
struct Each;

impl Lanes for Each {
    type X = u32;
    type Y = i32;
    type Columns = [u32; 4];
    type Sums = [i32; 4];
    const COLUMNS: usize = 4;
    const ROWS: usize = 4;

    #[inline(always)]
    fn zeros(self) -> [i32; 4] {
        [0; 4]
    }
    #[inline(always)]
    fn add_products(self, a: u32, b: [u32; 4], mut sums: [i32; 4]) -> [i32; 4] {
        let a = a.to_le_bytes().map(u8::cast_signed).map(i32::from);
        for (sum, b) in sums.iter_mut().zip(b) {
            let b = b.to_le_bytes().map(i32::from);
            let products = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
            *sum = sum.wrapping_add(products);
        }
        sums
    }
    #[inline(always)]
    fn add(self, mut a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        a.iter_mut().zip(b).for_each(|(a, b)| *a = a.wrapping_add(b));
        a
    }
    #[inline(always)]
    unsafe fn columns(self, b: *const u32) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { b.cast::<[u32; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn load(self, c: *const i32) -> [i32; 4] {
        // SAFETY: as above.
        unsafe { c.cast::<[i32; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, sums: [i32; 4], c: *mut i32) {
        // SAFETY: as above.
        unsafe { c.cast::<[i32; 4]>().write(sums) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_add_epi32, _mm256_and_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_srli_epi16, _mm256_storeu_si256, _mm512_add_epi32, _mm512_dpbusd_epi32,
        _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
    };

    use super::{Block, Lanes, Places};

    /// `name "features" |block|`: arithmetic that a processor with these features has.
    macro_rules! arithmetic {
        ($(#[$doc:meta])* $name:ident $features:tt, $($feature:tt)+) => {
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub(super) struct $name(());

            impl $name {
                /// `None` if the processor lacks it.
                pub(super) fn new() -> Option<Self> {
                    let has_all = $(std::arch::is_x86_feature_detected!($feature))&&+;
                    has_all.then_some(Self(()))
                }

                pub(super) fn multiply<R: Places, A: Places, B: Places>(self, block: Block<'_, R, A, B, u32, i32>) {
                    #[target_feature(enable = $features)]
                    fn multiply<R: Places, A: Places, B: Places>(block: Block<'_, R, A, B, u32, i32>, lanes: $name) {
                        block.multiply_in(lanes, ());
                    }
                    // SAFETY: `new` found these features.
                    unsafe { multiply(block, self) }
                }
            }
        };
    }

    arithmetic! {
        /// Sixteen sums, four products each in one instruction (VNNI).
        Words "avx512f,avx512vnni", "avx512f" "avx512vnni"
    }

    arithmetic! {
        /// Eight sums, two products each in one instruction, of bytes widened to 16 bits (AVX2).
        Pairs "avx2", "avx2"
    }

    // SAFETY of all that follows: `new` found the features that the intrinsics need; places are the callers' promise.
    impl Lanes for Words {
        type X = u32;
        type Y = i32;
        type Columns = __m512i;
        type Sums = __m512i;
        const COLUMNS: usize = 16;
        const ROWS: usize = 12;

        #[inline(always)]
        fn zeros(self) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_setzero_si512() }
        }
        #[inline(always)]
        fn add_products(self, a: u32, b: __m512i, sums: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_dpbusd_epi32(sums, b, _mm512_set1_epi32(a.cast_signed())) }
        }
        #[inline(always)]
        fn add(self, a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_add_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn columns(self, b: *const u32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_loadu_si512(b.cast()) }
        }
        #[inline(always)]
        unsafe fn load(self, c: *const i32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_loadu_si512(c.cast()) }
        }
        #[inline(always)]
        unsafe fn store(self, sums: __m512i, c: *mut i32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_si512(c.cast(), sums) }
        }
    }

    /// Bytes of words as numbers of 16 bits: those with even and with odd numbers.
    type Halves = [__m256i; 2];

    impl Lanes for Pairs {
        type X = u32;
        type Y = i32;
        type Columns = Halves;
        type Sums = __m256i;
        const COLUMNS: usize = 8;
        const ROWS: usize = 4;

        #[inline(always)]
        fn zeros(self) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_setzero_si256() }
        }
        #[inline(always)]
        fn add_products(self, a: u32, [even, odd]: Halves, sums: __m256i) -> __m256i {
            let [a, b, c, d] = a.to_le_bytes().map(|byte| i16::from(byte.cast_signed()).cast_unsigned()).map(u32::from);
            let [of_even, of_odd] = [a | c << 16, b | d << 16].map(u32::cast_signed);
            // SAFETY: see above.
            unsafe {
                let even = _mm256_madd_epi16(even, _mm256_set1_epi32(of_even));
                let odd = _mm256_madd_epi16(odd, _mm256_set1_epi32(of_odd));
                _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
            }
        }
        #[inline(always)]
        fn add(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_add_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn columns(self, b: *const u32) -> Halves {
            // SAFETY: see above.
            unsafe {
                let words = _mm256_loadu_si256(b.cast());
                [_mm256_and_si256(words, _mm256_set1_epi32(0x00ff_00ff)), _mm256_srli_epi16::<8>(words)]
            }
        }
        #[inline(always)]
        unsafe fn load(self, c: *const i32) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_loadu_si256(c.cast()) }
        }
        #[inline(always)]
        unsafe fn store(self, sums: __m256i, c: *mut i32) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_si256(c.cast(), sums) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accumulate, Apart};
    use super::*;

    type Multiply = fn(Block<'_, Apart, Apart, Apart, u32, i32>);

    /// Every arithmetic that this processor has.
    fn ways() -> Vec<(&'static str, Multiply)> {
        let mut ways: Vec<(&'static str, Multiply)> = vec![("each", |block| block.multiply_in(Each, ()))];
        #[cfg(target_arch = "x86_64")]
        {
            ways.extend(x86::Words::new().map(|_| {
                let multiply: Multiply = |block| x86::Words::new().expect("asked before").multiply(block);
                ("words", multiply)
            }));
            ways.extend(x86::Pairs::new().map(|_| {
                let multiply: Multiply = |block| x86::Pairs::new().expect("asked before").multiply(block);
                ("pairs", multiply)
            }));
        }
        ways
    }

    /// Words of all bytes, the extremes often.
    fn bytes(len: usize) -> Vec<u32> {
        let byte = |i: usize| match i * 7 % 5 {
            0 => 255,
            1 => 128,
            2 => 127,
            _ => (i * 11 % 256) as u8,
        };
        words((0..BYTES * len).map(byte)).collect()
    }

    #[test]
    fn every_arithmetic_gives_the_sums() {
        for [m, n, k] in [[1, 16, 1], [5, 48, 3], [12, 32, 9], [13, 64, 4], [3, 32, 0], [14, 48, 300]] {
            let (a, b) = (bytes(m * k + 1), bytes((n + 5) * k + 1));
            let before: Vec<i32> = (0..(n + 3) * m).map(|i| i as i32 * 1_000_003).collect();
            for (name, multiply) in ways() {
                for accumulate in [Accumulate::Yes, Accumulate::No] {
                    let mut c = before.clone();
                    let block = Block {
                        extents: [m, n, k],
                        a: &a,
                        a_rows: Apart(k),
                        a_terms: Apart(1),
                        b: &b,
                        b_terms: Apart(n + 5),
                        c: &mut c,
                        c_stride: n + 3,
                        accumulate,
                    };
                    multiply(block);
                    for (place, (&found, &before)) in c.iter().zip(&before).enumerate() {
                        let (i, j) = (place / (n + 3), place % (n + 3));
                        let products = (0..k).flat_map(|term| {
                            let [a, b] = [a[i * k + term], b[term * (n + 5) + j.min(n)]].map(u32::to_le_bytes);
                            a.into_iter().zip(b).map(|(a, b)| i32::from(a.cast_signed()) * i32::from(b))
                        });
                        let sum: i32 = products.sum();
                        let wanted = match accumulate {
                            _ if j >= n => before,
                            Accumulate::Yes => before.wrapping_add(sum),
                            Accumulate::No => sum,
                        };
                        assert_eq!(found, wanted, "{name}: {m}×{n}×{k} at {i}, {j}");
                    }
                }
            }
        }
    }
}
