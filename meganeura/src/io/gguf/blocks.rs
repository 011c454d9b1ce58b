//! Blocks of quantised numbers, decoded: integers of a few bits, with a scale, and in some forms a minimum, for all of
//! them or for each group.

use crate::io::narrow::from_f16;

/// A quantised form.
pub(super) struct Blocks {
    code: u32,
    name: &'static str,
    /// The numbers of a block.
    pub(super) elements: usize,
    /// The bytes of a block in the file.
    pub(super) bytes: usize,
    /// Decodes a block of so many bytes to so many numbers.
    pub(super) decode: fn(&[u8], &mut [f32]),
}

/// The most numbers of a block.
pub(super) const MOST_ELEMENTS: usize = 256;

/// Every form that is read.
static ALL: [Blocks; 10] = [
    Blocks::new(2, "Q4_0", 32, 18, |block, out| small(block, out, false, false)),
    Blocks::new(3, "Q4_1", 32, 20, |block, out| small(block, out, true, false)),
    Blocks::new(6, "Q5_0", 32, 22, |block, out| small(block, out, false, true)),
    Blocks::new(7, "Q5_1", 32, 24, |block, out| small(block, out, true, true)),
    Blocks::new(8, "Q8_0", 32, 34, q8_0),
    Blocks::new(10, "Q2_K", 256, 84, q2_k),
    Blocks::new(11, "Q3_K", 256, 110, q3_k),
    Blocks::new(12, "Q4_K", 256, 144, |block, out| q45_k(block, out, false)),
    Blocks::new(13, "Q5_K", 256, 176, |block, out| q45_k(block, out, true)),
    Blocks::new(14, "Q6_K", 256, 210, q6_k),
];

impl Blocks {
    const fn new(code: u32, name: &'static str, elements: usize, bytes: usize, decode: fn(&[u8], &mut [f32])) -> Self {
        assert!(elements <= MOST_ELEMENTS);
        Self { code, name, elements, bytes, decode }
    }

    /// The form with this number in a file.
    pub(super) fn of(code: u32) -> Option<&'static Self> {
        ALL.iter().find(|blocks| blocks.code == code)
    }

    /// A sentence with the names of all forms.
    pub(super) fn names() -> String {
        let names: Vec<_> = ALL.iter().map(|blocks| blocks.name).collect();
        format!("{} and unquantised tensors are read", names.join(", "))
    }
}

/// The half at this byte.
fn half(block: &[u8], at: usize) -> f32 {
    from_f16([block[at], block[at + 1]])
}

/// The lowest bits of `byte` behind `shift`.
fn bits(byte: u8, shift: usize, count: usize) -> i32 {
    i32::from(byte >> shift) & ((1 << count) - 1)
}

/// `d · q`, or `d · q + m`: `d`, `m`, the fifth bits of all 32 numbers, and their lower four, those of the first 16 in
/// the lower halves of the bytes.
fn small(block: &[u8], out: &mut [f32], has_minimum: bool, has_fifth: bool) {
    let d = half(block, 0);
    let fifth = &block[if has_minimum { 4 } else { 2 }..];
    let fourth = if has_fifth { &fifth[4..] } else { fifth };
    for (i, out) in out.iter_mut().enumerate() {
        let mut q = bits(fourth[i % 16], i / 16 * 4, 4);
        if has_fifth {
            q |= bits(fifth[i / 8], i % 8, 1) << 4;
        }
        let middle = if has_fifth { 16 } else { 8 };
        *out = if has_minimum { d * q as f32 + half(block, 2) } else { d * (q - middle) as f32 };
    }
}

/// `d · q`, 8 bits with a sign each.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q.cast_signed());
    }
}

/// `d · scale · q − dmin · minimum`, with a scale and a minimum of 4 bits for each group of 16: the scales, the
/// integers, `d` and `dmin`.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (i, out) in out.iter_mut().enumerate() {
        let scales = block[i / 16];
        let scale = d * bits(scales, 0, 4) as f32;
        *out = scale * quarter(&block[16..], i) as f32 - dmin * bits(scales, 4, 4) as f32;
    }
}

/// The two bits of a number: each byte has one of each quarter of 128 numbers.
fn quarter(block: &[u8], i: usize) -> i32 {
    bits(block[i / 128 * 32 + i % 32], i % 128 / 32 * 2, 2)
}

/// `d · scale · q`, with a scale of 6 bits for each group of 16: the third bits of all numbers, each byte with one of
/// each group of 32, the lower two, the scales and `d`.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = half(block, 108);
    let scales = &block[96..108];
    for (i, out) in out.iter_mut().enumerate() {
        let group = i / 16;
        let scale = bits(scales[group % 8], group / 8 * 4, 4) | bits(scales[8 + group % 4], group / 4 * 2, 2) << 4;
        let third = bits(block[i % 32], i / 32, 1);
        *out = d * (scale - 32) as f32 * (quarter(&block[32..], i) + 4 * third - 4) as f32;
    }
}

/// `d · scale · q − dmin · minimum`, with a scale and a minimum of 6 bits for each group of 32: `d`, `dmin`, the
/// scales, the fifth bits of all numbers, each byte with one of each group, and the lower four.
fn q45_k(block: &[u8], out: &mut [f32], has_fifth: bool) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let scales = &block[4..16];
    let fifth = &block[16..];
    let fourth = if has_fifth { &fifth[32..] } else { fifth };
    for (i, out) in out.iter_mut().enumerate() {
        let (group, at) = (i / 32, i % 32);
        let (scale, minimum) = match group {
            0..4 => (bits(scales[group], 0, 6), bits(scales[group + 4], 0, 6)),
            _ => {
                let (low, high) = (scales[group + 4], |at: usize| bits(scales[at], 6, 2) << 4);
                (bits(low, 0, 4) | high(group - 4), bits(low, 4, 4) | high(group))
            }
        };
        let mut q = bits(fourth[group / 2 * 32 + at], group % 2 * 4, 4);
        if has_fifth {
            q |= bits(fifth[at], group, 1) << 4;
        }
        *out = d * scale as f32 * q as f32 - dmin * minimum as f32;
    }
}

/// `d · scale · q`, with a scale of 8 bits for each group of 16: the lower four bits of the numbers, each byte with one
/// of each half of 128, the upper two, as in [`quarter`], the scales and `d`.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half(block, 208);
    for (i, out) in out.iter_mut().enumerate() {
        let low = bits(block[i / 128 * 64 + i % 64], i % 128 / 64 * 4, 4);
        let q = low | quarter(&block[128..], i) << 4;
        *out = d * f32::from(block[192 + i / 16].cast_signed()) * (q - 32) as f32;
    }
}
