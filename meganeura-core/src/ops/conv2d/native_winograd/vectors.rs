//! Transpositions in blocks of 4×4: from planes, the order of images and weights, to vectors, that of transforms, and
//! back.

use super::transform::{LANES, Vector};

/// Elements `start..` of up to sixteen planes, which begin `stride` apart, as vectors; zero for missing planes.
#[inline(always)]
pub(super) fn of_planes(x: &[f32], (planes, stride): (usize, usize), start: usize, vectors: &mut [Vector]) {
    if planes < LANES {
        vectors.fill([0.0; LANES]);
    }
    let (len, fours) = (vectors.len(), vectors.len() / 4 * 4);
    let whole = planes / 4 * 4;
    for plane in (0..whole).step_by(4) {
        let four = |k: usize| x[(plane + k) * stride + start..][..len].as_chunks::<4>().0;
        let from = four(0).iter().zip(four(1)).zip(four(2)).zip(four(3));
        for (vectors, (((a, b), c), d)) in vectors.as_chunks_mut::<4>().0.iter_mut().zip(from) {
            for (i, vector) in vectors.iter_mut().enumerate() {
                vector[plane..plane + 4].copy_from_slice(&[a[i], b[i], c[i], d[i]]);
            }
        }
    }
    // The remaining planes and elements, which fill no block.
    for plane in 0..planes {
        let first = if plane < whole { fours } else { 0 };
        let from = &x[plane * stride + start..][..len];
        for (vector, &x) in vectors[first..].iter_mut().zip(&from[first..]) {
            vector[plane] = x;
        }
    }
}

/// From vectors to up to sixteen planes: calls `write(plane, first, numbers)` for up to four elements at a time.
#[inline(always)]
pub(super) fn to_planes(vectors: &[Vector], planes: usize, mut write: impl FnMut(usize, usize, &[f32])) {
    let (fours, rest) = vectors.as_chunks::<4>();
    for (at, [a, b, c, d]) in fours.iter().enumerate() {
        for plane in 0..planes {
            write(plane, 4 * at, &[a[plane], b[plane], c[plane], d[plane]]);
        }
    }
    for (at, vector) in rest.iter().enumerate() {
        for (plane, &x) in vector[..planes].iter().enumerate() {
            write(plane, 4 * fours.len() + at, &[x]);
        }
    }
}
