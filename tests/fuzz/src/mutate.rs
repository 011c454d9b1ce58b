//! Mutations of inputs: bytes, numbers among them, and JSON.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Numbers that break counts and offsets.
pub const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 40,
    0x7fff_ffff_ffff_ffff,
    u64::MAX - 7,
    u64::MAX,
    1 << 63,
];

/// Changes a few bytes.
pub fn bytes(input: &mut Vec<u8>, rng: &mut Rng) {
    if input.is_empty() {
        input.push(rng.u8(..));
        return;
    }
    let at = rng.usize(..input.len());
    match rng.u8(..8) {
        0 => input[at] ^= 1 << rng.u8(..8),
        1 => input[at] = rng.u8(..),
        2 => input.truncate(at),
        3 => drop(input.drain(at..(at + rng.usize(1..=16)).min(input.len()))),
        4 => {
            // A long run of one byte: deep nesting, overlong names.
            let byte = input[at];
            let copies = 1 << rng.u32(..17);
            input.splice(at..at, std::iter::repeat_n(byte, copies));
        }
        5 => {
            let piece = input[at..(at + rng.usize(1..=64)).min(input.len())].to_vec();
            insert(input, &piece, rng);
        }
        _ => number(input, at, rng),
    }
}

/// Overwrites one to eight bytes, or a run of digits, with a number.
fn number(input: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let number = NUMBERS[rng.usize(..NUMBERS.len())].wrapping_add(u64::from(rng.u8(..3)));
    if input[at].is_ascii_digit() {
        let end = at + input[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        input.splice(at..end, number.to_string().into_bytes());
        return;
    }
    let size = 1 << rng.usize(..4);
    let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
    let value = if rng.bool() { &little[..size] } else { &big[8 - size..] };
    input.iter_mut().skip(at).zip(value).for_each(|(to, from)| *to = *from);
}

/// Inserts `piece` at a random place.
pub fn insert(input: &mut Vec<u8>, piece: &[u8], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    input.splice(at..at, piece.iter().copied());
}

/// The input repeated up to thousands of times, up to 16 MiB.
pub fn repeated(input: &[u8], rng: &mut Rng) -> Vec<u8> {
    let most = (16 << 20) / input.len().max(1);
    input.repeat((1 << rng.u32(..14)).min(most))
}

/// Replaces the end with that of another input.
pub fn splice(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    input.truncate(rng.usize(..=input.len()));
    input.extend_from_slice(&other[rng.usize(..=other.len())..]);
}

/// Changes a value of a document, or the entries around it.
pub fn json(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Object(map) if !map.is_empty() && rng.u8(..6) > 0 => entry(map, rng),
        Value::Array(list) if !list.is_empty() && rng.u8(..6) > 0 => {
            let at = rng.usize(..list.len());
            match rng.u8(..4) {
                0 => drop(list.remove(at)),
                1 => list.insert(at, list[at].clone()),
                _ => json(&mut list[at], rng),
            }
        }
        _ => *value = leaf(rng),
    }
}

fn entry(map: &mut Map<String, Value>, rng: &mut Rng) {
    let key = map.keys().nth(rng.usize(..map.len())).expect("the index is in range").clone();
    match rng.u8(..6) {
        0 => drop(map.remove(&key)),
        1 => {
            let value = map[&key].clone();
            map.insert(name(&key, rng), value);
        }
        2 => drop(map.insert(name(&key, rng), leaf(rng))),
        _ => json(&mut map[&key], rng),
    }
}

/// A name that resembles `like`, or none.
fn name(like: &str, rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => format!("{like}.{like}"),
        1 => format!("{like}x"),
        2 => ".".repeat(1 << rng.u32(..15)),
        3 => like.chars().rev().collect(),
        4 => format!("../{like}"),
        _ => String::new(),
    }
}

fn leaf(rng: &mut Rng) -> Value {
    let number = NUMBERS[rng.usize(..NUMBERS.len())];
    match rng.u8(..10) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(-1),
        3 => json!(0.5),
        4 => json!(1e300),
        5 => json!([number, number]),
        6 => json!({ "a": [number] }),
        7 => json!(number.to_string()),
        8 => json!("x".repeat(1 << rng.u32(..15))),
        _ => json!(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let make = |seed| {
            let mut rng = Rng::with_seed(seed);
            let (mut input, mut document) = (b"P5 12 34 255".to_vec(), json!({ "a": [1, 2], "b": { "c": "d" } }));
            for _ in 0..50 {
                bytes(&mut input, &mut rng);
                json(&mut document, &mut rng);
                input.truncate(1000);
            }
            (input, document)
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }
}
