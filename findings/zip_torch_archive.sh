#!/usr/bin/env bash
# The crate `zip` opens files of torch.save, except those whose name has a certain length.
#
# One would guess: whether an archive opens does not depend on the length of a name in it.
#
# What happens: PyTorch writes the records of Zip64 at the end of each archive, though none of its numbers needs 64 bits.
# The crate then reads the end as one without these records, and looks for the directory at the distance of its size
# before that end: 76 bytes too late. As a rule, there is no entry's header at that place, and it falls back to the
# right one. If the first header, of 46 bytes and the name, is 76 bytes long, the place is that of the second header:
# the crate skips an entry, reads on behind the last, and reports "Invalid Central Directory header". The name
# is "NAME/data.pkl", so a model that is saved under a NAME of 21 letters cannot be read, and under any other it can.
#
# Why it matters: a reader that is tested with many files fails for one in a few dozen file names. An explicit
# `ArchiveOffset::Known(0)` avoids it.
#
# Source: PKWARE's APPNOTE, 4.3.14 and 4.3.15; the crate's documentation of `ArchiveOffset`. The results below were
# observed; the archives have what torch.save 2.15 writes at their ends.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "archive"
version = "0.0.0"
edition = "2021"

[dependencies]
crc32fast = "=1.5.0"
zip = { version = "=9.8.2", default-features = false }
TOML
cat >"$folder/src/main.rs" <<'RUST'
use std::io::Cursor;

use zip::read::{ArchiveOffset, Config};
use zip::ZipArchive;

/// An archive of two entries, stored, with the records of Zip64 at its end.
fn archive(name: &str) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (entry, contents) in [("data.pkl", &b"N."[..]), ("version", &b"3\n"[..])] {
        let entry = format!("{name}/{entry}");
        let size = (contents.len() as u32).to_le_bytes();
        let length = (entry.len() as u16).to_le_bytes();
        let start = (file.len() as u32).to_le_bytes();
        let sum = crc32fast::hash(contents).to_le_bytes();
        let shared = [&[0; 8][..], &sum, &size, &size, &length, &[0; 2]].concat();
        file.extend([b"PK\x03\x04\x14\0", &shared[..], entry.as_bytes(), contents].concat());
        directory.extend([b"PK\x01\x02\x14\0\x14\0", &shared[..], &[0; 10], &start, entry.as_bytes()].concat());
    }
    let (start, size) = (file.len() as u64, directory.len() as u64);
    file.extend(directory);
    let record = file.len() as u64;
    let words = [2u64, 2, size, start].map(u64::to_le_bytes).concat();
    file.extend([&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8], &words].concat());
    file.extend([&b"PK\x06\x07"[..], &[0; 4], &record.to_le_bytes(), &1u32.to_le_bytes()].concat());
    let (start, size) = ((start as u32).to_le_bytes(), (size as u32).to_le_bytes());
    file.extend([&b"PK\x05\x06"[..], &[0; 4], &[2, 0, 2, 0], &size, &start, &[0; 2]].concat());
    file
}

fn main() {
    println!("zip 9.8.2");
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    for length in 1..64 {
        let bytes = archive(&"m".repeat(length));
        let guessed = ZipArchive::new(Cursor::new(&bytes[..])).map(|archive| archive.len());
        let known = ZipArchive::with_config(config, Cursor::new(&bytes[..])).map(|archive| archive.len());
        assert_eq!(known.unwrap(), 2, "with a known offset");
        match guessed {
            Ok(count) => assert_eq!((count, length != 21), (2, true), "a name of {length} letters"),
            Err(error) => {
                println!("a name of {length} letters: {error}");
                assert_eq!(length, 21, "this has changed");
            }
        }
    }
}
RUST
cargo run --quiet --manifest-path "$folder/Cargo.toml"
echo "as described"
