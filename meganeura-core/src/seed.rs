//! Seeds that follow the path of a parameter.

use std::convert::Infallible;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng, TryRng};

/// The source of a model's initial values: a number for every place in it.
///
/// A child's seed depends only on the root's seed and the path. So a parameter keeps its initial values when a field is
/// added before it, and models built on several threads or devices agree.
///
/// The rule is part of the interface and will not change. With `mix` as the finalizer of SplitMix64, and `fnv1a` as the
/// 64-bit FNV-1a hash of the name's bytes:
///
/// ```text
/// seed.field(name) = mix(mix(seed + 0x9e3779b97f4a7c15) ^ fnv1a(name))
/// seed.index(i)    = seed.field(i in decimal)
/// ```
///
/// ```
/// use meganeura::module::Seed;
///
/// let seed = Seed::new(42);
/// assert_ne!(seed.field("stem"), seed.field("head"));
/// assert_eq!(seed.field("blocks").index(0), seed.field("blocks").field("0"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a whole model.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of the field, or the entry of a map, named `name`.
    #[must_use]
    pub const fn field(self, name: &str) -> Self {
        Self(mix(mix(self.0.wrapping_add(GOLDEN_GAMMA)) ^ fnv1a(name.as_bytes())))
    }

    /// The seed of the element at `index`.
    #[must_use]
    pub fn index(self, index: usize) -> Self {
        self.field(&index.to_string())
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// A generator that starts from this seed.
    ///
    /// ```
    /// use meganeura::module::Seed;
    ///
    /// let mut rng = Seed::new(42).rng();
    /// assert_ne!(rng.next_u32(), rng.next_u32());
    /// let (u, z) = (rng.uniform(), rng.normal());
    /// assert!((0.0..1.0).contains(&u) && z.is_finite());
    /// ```
    #[must_use]
    pub fn rng(self) -> Generator {
        Generator(Pcg64::seed_from_u64(self.0))
    }
}

/// A generator of random numbers, from [`Seed::rng`]. The same seed always gives the same numbers, on every platform.
///
/// It implements `Rng` of the crate `rand_core` 0.10, so the distributions of `rand_distr` draw from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generator(Pcg64);

impl Generator {
    /// The next number of 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// The next number of 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform random number from 0 to below 1, a multiple of 2⁻⁵³.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A Gaussian random number with mean 0 and variance 1.
    pub fn normal(&mut self) -> f64 {
        let [first, _] = self.normal_pair();
        first
    }

    /// Two independent standard Gaussian numbers ([Box and Muller, 1958](https://doi.org/10.1214/aoms/1177706645)).
    /// Through `libm`, because `f64::ln` and `f64::sin_cos` differ between platforms.
    pub(crate) fn normal_pair(&mut self) -> [f64; 2] {
        // 1 − u lies in (0, 1], where the logarithm is finite.
        let radius = (-2.0 * libm::log(1.0 - self.uniform())).sqrt();
        let (sin, cos) = libm::sincos(std::f64::consts::TAU * self.uniform());
        [radius * cos, radius * sin]
    }
}

impl TryRng for Generator {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.0.try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0.try_next_u64()
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.try_fill_bytes(bytes)
    }
}

impl From<u64> for Seed {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

/// 2⁶⁴ / φ, the increment of SplitMix64. Without it, seed 0 would stay 0 under `mix`.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). A bijection.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a with 64 bits (draft-eastlake-fnv).
const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_are_the_published_ones() {
        // Test vectors of draft-eastlake-fnv, and the first outputs of SplitMix64 seeded with 0 and 1234567.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(mix(GOLDEN_GAMMA), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(1_234_567 + GOLDEN_GAMMA), 6_457_827_717_110_365_317);
    }
    #[test]
    fn children_never_change() {
        // Expected values from an independent implementation. If this fails, every seeded model of every user starts
        // from other values.
        let seed = Seed::new(42);
        assert_eq!(seed.field("stem").get(), 0x5c40_3d0d_2f57_ce39);
        assert_eq!(seed.field("head").get(), 0x158f_86a7_db07_7688);
        assert_eq!(seed.field("blocks").index(0).field("weight").get(), 0xf13c_b79e_3b41_44b2);
        assert_eq!(Seed::new(0).field("").get(), 0xaebe_53f8_5cdc_3c4c);
    }

    #[test]
    fn generators_never_change() {
        let mut rng = Seed::new(42).rng();
        let first: [u64; 2] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(first, [4_178_418_447_715_145_737, 4_410_739_922_618_931_473]);
        // Drawn through the trait, as distributions of other crates do.
        let mut bytes = [0; 16];
        Seed::new(42).rng().fill_bytes(&mut bytes);
        assert_eq!(bytes.as_chunks::<8>().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect::<Vec<_>>(), first);
        let mut rng = Seed::new(42).rng();
        assert_eq!((rng.next_u32(), Rng::next_u32(&mut Seed::new(42).rng())), (first[0] as u32, first[0] as u32));
    }

    #[test]
    fn a_childs_seed_depends_on_its_whole_path() {
        let seed = Seed::from(42);
        let mut seen = std::collections::HashSet::new();
        for path in [&["a", "b"][..], &["b", "a"], &["ab"], &["a"], &["b"], &["a", "", "b"], &["a", "a"], &[]] {
            let child = path.iter().fold(seed, |seed, name| seed.field(name));
            assert!(seen.insert(child), "{path:?} has the seed of another path");
        }
    }

    #[test]
    fn an_index_is_a_field_with_a_decimal_name() {
        assert_eq!(Seed::new(7).index(12), Seed::new(7).field("12"));
    }
}
