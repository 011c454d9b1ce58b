//! The secret of a world, and the greeting in which both ends of a new connection prove that they know it.
//!
//! Neither end sends the secret. The hub opens with a number that it never uses again; the rank replies with one of its
//! own, and with a keyed hash of both numbers and of its hello; the hub closes with a keyed hash for the rank. So a
//! recorded greeting is useless, and neither end's hash can be played back to it.

use std::fmt;
use std::io;

#[cfg(any(test, feature = "mpi", all(feature = "gpu", target_os = "linux")))]
use crate::Result;
#[cfg(any(test, all(feature = "gpu", target_os = "linux")))]
use crate::error::bail;

/// The environment variable with the secret of ranks that MPI does not connect.
pub(super) const NAMED: &str = "MEGANEURA_SECRET";

/// The fewest characters of a secret in the environment. Whoever imitates rank 0 can try secrets at leisure.
#[cfg(any(test, all(feature = "gpu", target_os = "linux")))]
const FEWEST: usize = 16;

/// The first bytes of a hub, so that a rank that reached another program can tell.
const HUB: [u8; 16] = *b"meganeura hub 1\n";

/// The size of a random number, and of a proof.
pub(super) const LEN: usize = 32;

/// The size of the hub's opening.
pub(super) const OPENING: usize = HUB.len() + LEN;

/// A random number for one greeting.
pub(super) type Nonce = [u8; LEN];

/// A key that only the ranks of one world have.
#[derive(Clone)]
pub(in crate::world) struct Secret([u8; LEN]);

/// The end of a connection that makes a proof.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Rank,
    Hub,
}

/// Unpredictable bytes, from the operating system.
#[cfg(any(unix, windows))]
pub(super) fn random() -> io::Result<Nonce> {
    let mut bytes = [0; LEN];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Unpredictable bytes: there are none without an operating system.
#[cfg(not(any(unix, windows)))]
pub(super) fn random() -> io::Result<Nonce> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The hub's opening.
pub(super) fn opening(nonce: &Nonce) -> [u8; OPENING] {
    let mut bytes = [0; OPENING];
    bytes[..HUB.len()].copy_from_slice(&HUB);
    bytes[HUB.len()..].copy_from_slice(nonce);
    bytes
}

/// The hub's number, from its opening.
pub(super) fn opened(bytes: &[u8; OPENING]) -> io::Result<Nonce> {
    match bytes.split_first_chunk() {
        Some((&HUB, nonce)) => Ok(nonce.try_into().expect("the rest of an opening")),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the listener is another program than rank 0")),
    }
}

impl Secret {
    /// The environment variable that holds it, if MPI does not connect the ranks.
    #[cfg(all(feature = "gpu", target_os = "linux"))]
    pub(in crate::world) const NAMED: &str = NAMED;

    /// The size of [`bytes`](Self::bytes).
    #[cfg(feature = "mpi")]
    pub(in crate::world) const LEN: usize = LEN;

    /// A secret that nobody can guess.
    #[cfg(any(test, feature = "mpi"))]
    pub(in crate::world) fn random() -> Result<Self> {
        let failed =
            |error| crate::Error::new(crate::ErrorKind::Io, "the system gives no random bytes").caused_by(error);
        random().map(Self).map_err(failed)
    }

    /// The secret that rank 0 sent.
    #[cfg(feature = "mpi")]
    pub(in crate::world) fn of_bytes(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    #[cfg(feature = "mpi")]
    pub(in crate::world) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    /// The secret in the environment.
    #[cfg(any(test, all(feature = "gpu", target_os = "linux")))]
    pub(in crate::world) fn of_environment(text: Option<&str>) -> Result<Self> {
        let advice =
            format!("set it to the same random text for every rank, for example {NAMED}=$(openssl rand -hex 32)");
        let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
            bail!(Argument, "{NAMED} is not set, and rank 0 tells its ranks from other programs by it: {advice}");
        };
        if text.chars().count() < FEWEST {
            bail!(Argument, "{NAMED} has fewer than {FEWEST} characters, and could be guessed: {advice}");
        }
        Ok(Self(blake3::derive_key("meganeura: the secret of a world's ranks", text.as_bytes())))
    }

    /// The proof of one end, for the numbers of both and the rank's hello. Comparing two takes the same time whether or
    /// not they are equal.
    pub(super) fn proof(&self, end: End, hub: &Nonce, rank: &Nonce, hello: &[u8]) -> blake3::Hash {
        let label: &[u8; 4] = match end {
            End::Rank => b"rank",
            End::Hub => b"hub.",
        };
        // All parts but the last have a fixed size, so different parts are different texts.
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(label).update(hub).update(rank).update(hello);
        hasher.finalize()
    }
}

/// Never the secret itself.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let (a, b) = (random().unwrap(), random().unwrap());
        assert_ne!(a, b);
        let proof = secret.proof(End::Rank, &a, &b, b"hello");
        assert_eq!(proof, secret.proof(End::Rank, &a, &b, b"hello"));
        for wrong in [
            other.proof(End::Rank, &a, &b, b"hello"),
            secret.proof(End::Hub, &a, &b, b"hello"),
            secret.proof(End::Rank, &b, &b, b"hello"),
            secret.proof(End::Rank, &a, &a, b"hello"),
            secret.proof(End::Rank, &b, &a, b"hello"),
            secret.proof(End::Rank, &a, &b, b"hell"),
        ] {
            assert_ne!(proof, wrong);
        }
        assert_eq!(opened(&opening(&a)).unwrap(), a);
        assert_eq!(opened(&[b'x'; OPENING]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_secret_of_the_environment_is_long_and_not_printed() {
        for (text, why) in [
            (None, "is not set"),
            (Some(""), "is not set"),
            (Some(" \n"), "is not set"),
            (Some("short"), "fewer than 16"),
        ] {
            let error = Secret::of_environment(text).unwrap_err().to_string();
            assert!(error.contains(NAMED) && error.contains(why) && error.contains("openssl rand"), "{error}");
        }
        let of = |text: &str| Secret::of_environment(Some(text)).unwrap();
        let (long, same) = (of("0123456789abcdef"), of("0123456789abcdef\n"));
        assert_eq!(long.0, same.0, "white space around it does not count");
        assert_ne!(long.0, of("0123456789abcdeg").0);
        assert_eq!(format!("{long:?}"), "Secret");
    }
}
