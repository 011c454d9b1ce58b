//! Transpositions in blocks of 4×4: from planes, the order of images and weights, to lanes, that of transforms, and
//! back.

use super::transform::{LANES, Lane};

/// Elements `start..` of up to sixteen planes, which begin `stride` apart, as lanes; zero for missing planes.
#[inline(always)]
pub(super) fn of_planes(x: &[f32], (planes, stride): (usize, usize), start: usize, lanes: &mut [Lane]) {
    if planes < LANES {
        lanes.fill([0.0; LANES]);
    }
    let (len, fours) = (lanes.len(), lanes.len() / 4 * 4);
    let whole = planes / 4 * 4;
    for plane in (0..whole).step_by(4) {
        let four = |k: usize| x[(plane + k) * stride + start..][..len].as_chunks::<4>().0;
        let from = four(0).iter().zip(four(1)).zip(four(2)).zip(four(3));
        for (lanes, (((a, b), c), d)) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(from) {
            for (i, lane) in lanes.iter_mut().enumerate() {
                lane[plane..plane + 4].copy_from_slice(&[a[i], b[i], c[i], d[i]]);
            }
        }
    }
    // The remaining planes and elements, which fill no block.
    for plane in 0..planes {
        let first = if plane < whole { fours } else { 0 };
        let from = &x[plane * stride + start..][..len];
        for (lane, &x) in lanes[first..].iter_mut().zip(&from[first..]) {
            lane[plane] = x;
        }
    }
}

/// From lanes to up to sixteen planes: calls `write(plane, first, numbers)` for up to four elements at a time.
#[inline(always)]
pub(super) fn to_planes(lanes: &[Lane], planes: usize, mut write: impl FnMut(usize, usize, &[f32])) {
    let (fours, rest) = lanes.as_chunks::<4>();
    for (at, [a, b, c, d]) in fours.iter().enumerate() {
        for plane in 0..planes {
            write(plane, 4 * at, &[a[plane], b[plane], c[plane], d[plane]]);
        }
    }
    for (at, lane) in rest.iter().enumerate() {
        for (plane, &x) in lane[..planes].iter().enumerate() {
            write(plane, 4 * fours.len() + at, &[x]);
        }
    }
}
