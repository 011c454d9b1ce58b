//! Several byte strings in one, each preceded by its length in 8 bytes.

use meganeura::{Error, ErrorKind, Result};

/// All parts, one after the other.
pub fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&(part.len() as u64).to_le_bytes()[..], part].concat()).collect()
}

/// The parts that were joined.
pub fn split<const N: usize>(mut bytes: &[u8]) -> Result<[&[u8]; N]> {
    let mut parts = [&[][..]; N];
    for part in &mut parts {
        let (length, rest) = bytes.split_first_chunk().ok_or_else(too_short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| too_short())?;
        (*part, bytes) = rest.split_at_checked(length).ok_or_else(too_short)?;
    }
    if bytes.is_empty() { Ok(parts) } else { Err(Error::new(ErrorKind::Checkpoint, "the snapshot is too long")) }
}

/// A part that holds numbers.
pub fn numbers<const N: usize>(part: &[u8]) -> Result<[u64; N]> {
    let (numbers, []) = part.as_chunks() else { return Err(too_short()) };
    let numbers: &[[u8; 8]; N] = numbers.try_into().map_err(|_| too_short())?;
    Ok(numbers.map(u64::from_le_bytes))
}

fn too_short() -> Error {
    Error::new(ErrorKind::Checkpoint, "the snapshot is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let joined = join(&[b"one", b"", &[7u64, u64::MAX].map(u64::to_le_bytes).concat()]);
        let [one, none, two] = split(&joined).unwrap();
        assert_eq!((one, none, numbers(two).unwrap()), (&b"one"[..], &b""[..], [7, u64::MAX]));
        for length in 0..joined.len() {
            assert!(split::<3>(&joined[..length]).is_err(), "{length}");
        }
        assert!(split::<2>(&joined).is_err());
        assert!(numbers::<1>(two).is_err() && numbers::<2>(&two[1..]).is_err());
    }
}
