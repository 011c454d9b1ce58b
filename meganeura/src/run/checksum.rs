//! The checksum of a run's files: BLAKE3, in hexadecimal digits.

/// A running checksum.
#[derive(Clone, Debug)]
pub(super) struct Checksum(blake3::Hasher);

impl Checksum {
    pub(super) fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    /// The checksum of these bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut sum = Self::new();
        sum.add(bytes);
        sum
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The form used in files.
    pub(super) fn digits(&self) -> String {
        self.0.finalize().to_string()
    }
}

/// `true` if these are the digits of the bytes' checksum, in this format or in format 2.
pub(super) fn is_of(bytes: &[u8], digits: &str) -> bool {
    if digits.len() == 16 { in_format_2(bytes) == digits } else { Checksum::of(bytes).digits() == digits }
}

/// The checksum of files of format 2, in sixteen digits: FNV-1a over words of eight bytes, with a rotation.
pub(super) fn in_format_2(bytes: &[u8]) -> String {
    let mixed = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| mixed(sum, u64::from_le_bytes(*word)));
    format!("{:016x}", rest.iter().fold(sum, |sum, &byte| mixed(sum, byte.into())))
}

/// The checksum that a checkpoint's state has for a file with these bytes.
#[cfg(feature = "testing")]
pub fn checksum_of(bytes: &[u8]) -> String {
    Checksum::of(bytes).digits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_fixed() {
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Checksum::new().digits(), empty);
        let mut sum = Checksum::of(b"the first");
        sum.add(b" eighteen");
        let digits = sum.digits();
        assert!(is_of(b"the first eighteen", &digits) && !is_of(b"the first eighteem", &digits), "{digits}");
        // Written by earlier versions.
        let written = [(&b""[..], "cbf29ce484222325"), (b"the first eighteen", "9c5d1aa23538725e")];
        for (bytes, digits) in written {
            assert!(is_of(bytes, digits) && !is_of(b"other bytes", digits), "{digits}");
        }
    }
}
