//! Files of `numpy.save` and `numpy.savez`.
//!
//! An input is a header and the numbers of an array, and a byte that decides whether they are in an archive, and
//! whether that is damaged.

use fastrand::Rng;
use meganeura::io::{safetensors_from_npz, tensors_from_safetensors};
use meganeura::{Device, ErrorKind};

use super::pt::archive;
use super::{Target, documented, join, split};
use crate::limits::Limits;
use crate::mutate;

/// A file of NumPy, converted, then read.
pub struct Npz;

/// The file of an input.
fn packed(input: &[u8]) -> Vec<u8> {
    let Some((how, rest)) = input.split_first() else { return Vec::new() };
    let (header, numbers) = split(rest);
    let length = u16::try_from(header.len()).expect("it was read with 16 bits").to_le_bytes();
    let array = [b"\x93NUMPY\x01\x00", &length[..], header, numbers].concat();
    if how % 4 == 2 {
        return array;
    }
    let mut file = archive(&[("x.npy", &array), ("more.npy", rest)]);
    if how % 4 == 3 {
        mutate::bytes(&mut file, &mut Rng::with_seed(u64::from(*how)));
    } else {
        file = archive(&[("x.npy", &array)]);
    }
    file
}

impl Target for Npz {
    fn name(&self) -> &'static str {
        "npz"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let rows = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n";
        let columns = b"{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }\n";
        [0, 2]
            .map(|how| [&[how][..], &join(rows, &[2; 24])].concat())
            .into_iter()
            .chain([[&[0][..], &join(columns, &[1; 24])].concat()])
            .collect()
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "'descr'",
            "'fortran_order'",
            "'shape'",
            "True",
            "False",
            "(3,)",
            "()",
            "'>f8'",
            "'|b1'",
            "18446744073709551615",
        ]
    }

    fn limits(&self, length: usize) -> Limits {
        Limits::linear(1 << 20, length, 64, 256)
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        let kinds = [ErrorKind::Checkpoint];
        let Some(converted) = documented(safetensors_from_npz(&packed(input)), &kinds)? else { return Ok(false) };
        let tensors = documented(tensors_from_safetensors(&converted, &Device::cpu()), &[])?;
        Ok(tensors.is_some_and(|tensors| !tensors.is_empty()))
    }
}
