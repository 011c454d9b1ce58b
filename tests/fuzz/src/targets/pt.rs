//! Files of `torch.save`.
//!
//! An input is a pickle, a storage, and a byte that decides how they are packed: the archive around them is made anew,
//! so that its checksums fit. Every fourth way damages the archive itself.

use fastrand::Rng;
use meganeura::io::{steps_of_pt, tensors_from_safetensors};
use meganeura::{Device, ErrorKind};

use super::{Target, documented, join, split};
use crate::limits::Limits;
use crate::mutate;

/// A file of `torch.save`, converted, then read.
pub struct Pt;

/// A zip archive of these entries, stored as they are.
pub(super) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    let word = |number: usize| u32::try_from(number).expect("inputs are short").to_le_bytes();
    for (name, bytes) in entries {
        let start = word(file.len());
        let size = word(bytes.len());
        let name_length = u16::try_from(name.len()).expect("names are short").to_le_bytes();
        // Flags, method, time, date, checksum, both sizes, the lengths of the name and of extra fields.
        let shared = [&[0; 8][..], &crc32fast::hash(bytes).to_le_bytes(), &size, &size, &name_length, &[0; 2]].concat();
        file.extend([b"PK\x03\x04\x14\0", &shared[..], name.as_bytes(), bytes].concat());
        directory.extend([b"PK\x01\x02\x14\0\x14\0", &shared[..], &[0; 10], &start, name.as_bytes()].concat());
    }
    let count = u16::try_from(entries.len()).expect("few entries").to_le_bytes();
    let (start, size) = (word(file.len()), word(directory.len()));
    file.extend(directory);
    file.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &size, &start, &[0; 2]].concat());
    file
}

fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &u32::try_from(text.len()).expect("it is short").to_le_bytes(), text.as_bytes()].concat()
}

/// A tensor `[2, 2]` of a storage, with these flags.
fn tensor(class: &str, key: &str, flags: &[u8]) -> Vec<u8> {
    let class = format!("ctorch\n{class}\n").into_bytes();
    let storage = [&b"("[..], &text("storage"), &class, &text(key), &text("cpu"), b"K\x04tQ"].concat();
    let rest = b"K\0K\x02K\x02\x86q\x05K\x02K\x01\x86q\x06\x89ccollections\nOrderedDict\nq\x07)R";
    [b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], rest, flags, b"tq\x08Rq\x09"].concat()
}

fn pickle(pairs: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let items: Vec<u8> = pairs.iter().flat_map(|(key, value)| [key, &value[..]].concat()).collect();
    [b"\x80\x02}q\x01(", &items[..], b"u."].concat()
}

fn pickle_of(start: &[&[u8]], rest: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x02", &start.concat()[..], &rest.concat(), b"."].concat()
}

/// The file of an input.
fn packed(input: &[u8]) -> Vec<u8> {
    let Some((how, rest)) = input.split_first() else { return Vec::new() };
    let (pickle, storage) = split(rest);
    if how % 4 == 2 {
        // Before PyTorch 1.6: the magic number, the version, the system, the values, the keys, the storages.
        let start = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.";
        let keys = [&b"\x80\x02]("[..], &text("0"), &text("1"), b"e."].concat();
        let count = [storage.len() as u64 / 4, 4].map(u64::to_le_bytes);
        return [start, pickle, &keys, &count[0], storage, &count[1], &[1; 32]].concat();
    }
    let mut file = archive(&[
        ("net/data.pkl", pickle),
        ("net/byteorder", b"little"),
        ("net/data/0", storage),
        ("net/data/1", &[1; 32]),
    ]);
    if how % 4 == 3 {
        let mut rng = Rng::with_seed(u64::from(*how));
        mutate::bytes(&mut file, &mut rng);
    }
    file
}

impl Target for Pt {
    fn name(&self) -> &'static str {
        "pt"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let flags = [&b"}"[..], &text("neg"), b"\x88s"].concat();
        let float = [b"G", &0.999f64.to_be_bytes()[..]].concat();
        let plain = pickle(&[
            (&text("weight"), tensor("FloatStorage", "0", b"")),
            (&text("tied"), b"h\x09".to_vec()),
            (&float, tensor("LongStorage", "1", &flags)),
            (&text("state"), [&b"](K\x01h\x09"[..], &tensor("ComplexFloatStorage", "0", b""), b"e"].concat()),
        ]);
        let nested = pickle(&[
            (b"K\x07", [&b"}q\x02"[..], &text("a"), &tensor("HalfStorage", "0", b"N"), b"s"].concat()),
            (b"K\x01K\x02\x86", tensor("BoolStorage", "0", b"")),
            (&text("size"), b"ctorch\nSize\nh\x05\x85R".to_vec()),
        ]);
        let weight = tensor("FloatStorage", "0", b"");
        let module = pickle_of(
            &[
                &b"cmine\nNet\n)\x81}("[..],
                &text("_parameters"),
                b"}",
                &text("w"),
                &weight,
                b"s",
                &text("_buffers"),
                b"}",
            ],
            &[&text("_modules"), b"}ub"],
        );
        let other = tensor("LongStorage", "1", b"");
        let both = pickle(&[(&text("a"), weight), (&text("b"), other)]);
        let mut seeds = [plain, nested, module].map(|pickle| [&[0][..], &join(&pickle, &[2; 64])].concat()).to_vec();
        seeds.push([&[2][..], &join(&both, &[2; 64])].concat());
        seeds
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "h\x09",
            "h\x05h\x06\u{86}",
            "h\x07)R",
            "]q\x02(",
            "}q\x03(",
            "e",
            "u",
            "t",
            "0",
            "2",
            "(",
            ")",
            "N",
            "K\x01",
            "Q",
            "R",
            "b",
            ")\u{81}",
            "ccollections\nOrderedDict\n",
            "cnumpy._core.multiarray\n_reconstruct\n",
            "c_codecs\nencode\n",
            "ctorch\nSize\n",
            "ctorch._utils\n_rebuild_parameter\n",
            "ctorch\nuint16\n",
            "ctorch\nDoubleStorage\n",
            "ctorch._utils\n_rebuild_tensor_v3\n",
            "X\x03\0\0\0neg",
            "h\x01",
            "q\x01",
            "a",
            "s",
            "l",
            "d",
            "1",
        ]
    }

    fn limits(&self, length: usize) -> Limits {
        // The archive and the tensors of small files are larger than the input.
        Limits::linear(24 << 20, length, 160, 512)
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        let Some((how, rest)) = input.split_first() else { return };
        let (pickle, storage) = split(rest);
        let (mut how, mut pickle, mut storage) = (*how, pickle.to_vec(), storage.to_vec());
        match rng.u8(..8) {
            0 => how = rng.u8(..),
            1 => mutate::bytes(&mut storage, rng),
            2 if !pickle.is_empty() => {
                // A few instructions again and again: references, calls, names.
                let start = rng.usize(..pickle.len());
                let piece = pickle[start..(start + rng.usize(1..=12)).min(pickle.len())].to_vec();
                let times = (1 << rng.u32(..14)).min(60_000 / piece.len());
                mutate::insert(&mut pickle, &piece.repeat(times), rng);
            }
            3 => mutate::insert(&mut pickle, self.words()[rng.usize(..self.words().len())].as_bytes(), rng),
            _ => mutate::bytes(&mut pickle, rng),
        }
        pickle.truncate(usize::from(u16::MAX));
        *input = [&[how][..], &join(&pickle, &storage)].concat();
    }

    fn read(&self, input: &[u8]) -> Result<bool, String> {
        let file = packed(input);
        let (converted, steps) = steps_of_pt(&file);
        if steps > (1 << 20) + 8 * file.len() {
            return Err(format!("{steps} steps for {} bytes", file.len()));
        }
        let Some(converted) = documented(converted, &[ErrorKind::Checkpoint])? else { return Ok(false) };
        // A file of tensors with their names, whether or not each can be read.
        let tensors = documented(tensors_from_safetensors(&converted, &Device::cpu()), &[])?;
        Ok(tensors.is_some_and(|tensors| !tensors.is_empty()))
    }
}
