//! Files in GGUF.
//!
//! An input is a file without its first four bytes, which are always the same.

use meganeura::io::{safetensors_from_gguf, tensors_from_safetensors};
use meganeura::{Device, ErrorKind};

use super::{Target, documented};
use crate::limits::Limits;

/// A file in GGUF, converted, then read.
pub struct Gguf;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The entry of a tensor with 64 elements.
fn tensor(name: &str, kind: u32, offset: u64) -> Vec<u8> {
    let extents = [32_u64, 2].map(u64::to_le_bytes).concat();
    [&text(name)[..], &2_u32.to_le_bytes(), &extents, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

impl Target for Gguf {
    fn name(&self) -> &'static str {
        "gguf"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let settings = [
            [text("general.alignment"), [4_u32, 8].map(u32::to_le_bytes).concat()].concat(),
            [text("name"), 8_u32.to_le_bytes().to_vec(), text("seed")].concat(),
            [text("list"), [9_u32, 8].map(u32::to_le_bytes).concat(), 1_u64.to_le_bytes().to_vec(), text("a")].concat(),
        ];
        let tensors = [tensor("blk.0.attn_q.weight", 8, 0), tensor("output.weight", 2, 72), tensor("other", 20, 112)];
        let counts = [tensors.len() as u64, settings.len() as u64].map(u64::to_le_bytes).concat();
        let header = [&3_u32.to_le_bytes(), &counts[..], &settings.concat(), &tensors.concat()].concat();
        // Room for any alignment.
        vec![[header, vec![1; 160]].concat()]
    }

    fn words(&self) -> &'static [&'static str] {
        &["general.alignment", "GGUF", "\0\0\0\0", "\0\0\0\0\0\0\0\0", "\u{9}\0\0\0", "\u{1}\0\0\0\0\0\0\0"]
    }

    fn limits(&self, length: usize) -> Limits {
        Limits::linear(1 << 20, length, 64, 256)
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        let file = [b"GGUF", input].concat();
        let Some(converted) = documented(safetensors_from_gguf(&file), &[ErrorKind::Checkpoint])? else {
            return Ok(false);
        };
        let tensors = documented(tensors_from_safetensors(&converted, &Device::cpu()), &[])?;
        Ok(tensors.is_some_and(|tensors| !tensors.is_empty()))
    }
}
