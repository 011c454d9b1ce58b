//! The checksum of a run's files.

/// A running checksum. It detects every change within one aligned word of eight bytes, and all other changes but one in
/// 2⁶⁴.
///
/// It is FNV-1a over words of eight bytes, with a rotation, without which the upper bytes would hardly matter. Each
/// step is a bijection, so two different sums stay different while the same bytes follow.
#[derive(Clone, Debug)]
pub(super) struct Checksum {
    sum: u64,
    /// The bytes after the last whole word.
    rest: Vec<u8>,
}

impl Checksum {
    pub(super) fn new() -> Self {
        Self { sum: 0xcbf2_9ce4_8422_2325, rest: Vec::with_capacity(8) }
    }

    /// The checksum of these bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::new();
        sum.add(bytes);
        sum
    }

    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        if !self.rest.is_empty() {
            let (head, tail) = bytes.split_at(bytes.len().min(8 - self.rest.len()));
            self.rest.extend_from_slice(head);
            bytes = tail;
            if let Ok(word) = self.rest[..].try_into() {
                self.sum = mixed(self.sum, u64::from_le_bytes(word));
                self.rest.clear();
            }
        }
        let (words, rest) = bytes.as_chunks();
        self.sum = words.iter().fold(self.sum, |sum, word| mixed(sum, u64::from_le_bytes(*word)));
        self.rest.extend_from_slice(rest);
    }

    /// The checksum in sixteen hexadecimal digits, the form used in files.
    pub(super) fn digits(&self) -> String {
        let sum = self.rest.iter().fold(self.sum, |sum, &byte| mixed(sum, byte.into()));
        format!("{sum:016x}")
    }
}

/// The checksum that a checkpoint's state has for a file with these bytes.
#[cfg(feature = "testing")]
pub fn checksum_of(bytes: &[u8]) -> String {
    Checksum::of(bytes).digits()
}

fn mixed(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..100).map(|i| (i * 37) as u8).collect();
        let whole = Checksum::of(&bytes).digits();
        for at in 0..bytes.len() {
            for next in at..bytes.len() {
                let mut sum = Checksum::of(&bytes[..at]);
                sum.add(&bytes[at..next]);
                sum.add(&bytes[next..]);
                assert_eq!(sum.digits(), whole, "{at} {next}");
            }
        }
    }

    #[test]
    fn burst_errors_are_detected() {
        let bytes: Vec<u8> = (0..50).map(|i| (i * 37) as u8).collect();
        let whole = Checksum::of(&bytes).digits();
        for first in 0..bytes.len() * 8 {
            for length in 1..=64 {
                let mut other = bytes.clone();
                // The burst flips its first and last bit, and every third bit in between.
                for bit in
                    (first..first + length).filter(|bit| (bit - first).is_multiple_of(3) || bit - first + 1 == length)
                {
                    if let Some(byte) = other.get_mut(bit / 8) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
                assert_ne!(Checksum::of(&other).digits(), whole, "{length} bits from {first} on");
            }
        }
    }
}
