//! Small square windows that slide over a plane, as depthwise convolutions and pools have them. The plane is read where
//! it lies: planes are often narrow, and a copy between zeros takes as long as the sums. Each row is read once for all
//! windows that it is in, whose results stay in registers meanwhile.

use pulp::{MemMask, Simd};

/// Elements of the widest vector.
pub(crate) const WIDEST: usize = 16;

/// What is computed of a window with `K` rows and columns.
pub(crate) trait Window<S: Simd, const K: usize> {
    /// What windows reach beside a row of the plane. Rows beside the plane are left out.
    const BESIDE: f32;

    /// The result for a window of nothing.
    fn empty(&self, simd: S) -> S::f32s;

    /// The result after one more row of the windows: the numbers that each column reaches.
    fn with_row(&self, simd: S, row: usize, x: &[S::f32s; K], before: S::f32s) -> S::f32s;
}

/// A plane, and the results of all windows. Each number of `inputs`, `outputs` and `padding` is of an axis.
pub(crate) struct Plane<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) inputs: [usize; 2],
    pub(crate) y: &'a mut [f32],
    pub(crate) outputs: [usize; 2],
    pub(crate) padding: [usize; 2],
}

impl Plane<'_> {
    /// Computes all windows, `STRIDE` apart: 1 or 2.
    ///
    /// # Panics
    ///
    /// If a slice is not as long as its extents say.
    #[inline(always)]
    pub(crate) fn slide<S: Simd, W: Window<S, K>, const K: usize, const STRIDE: usize>(&mut self, simd: S, window: &W) {
        assert_eq!(self.x.len(), self.inputs[0] * self.inputs[1], "the plane");
        assert_eq!(self.y.len(), self.outputs[0] * self.outputs[1], "a result for each window");
        // Two vectors at a time: the sums of one need not wait for each other.
        let columns = self.outputs[1];
        let mut column = 0;
        while columns - column > S::F32_LANES {
            self.columns::<S, W, K, STRIDE, 2>(simd, window, column);
            column = (column + 2 * S::F32_LANES).min(columns);
        }
        if column < columns {
            self.columns::<S, W, K, STRIDE, 1>(simd, window, column);
        }
    }

    /// Computes `N` vectors of all rows, from a column on. The last of them may be partial.
    #[inline(always)]
    fn columns<S: Simd, W: Window<S, K>, const K: usize, const STRIDE: usize, const N: usize>(
        &mut self,
        simd: S,
        window: &W,
        column: usize,
    ) {
        let Self { x, inputs: [h, w], ref mut y, outputs: [p, q], padding: [top, left] } = *self;
        let mut reach = [Reach::<S, K, STRIDE>::new(simd, column, left, w); N];
        for (n, reach) in reach.iter_mut().enumerate().skip(1) {
            *reach = Reach::new(simd, column + n * S::F32_LANES, left, w);
        }
        let last = in_line(simd, 0, q - column - (N - 1) * S::F32_LANES);
        // The rows of windows that a group of `STRIDE` rows is in: the later a row, the earlier in its windows.
        let rows = (K - 1) / STRIDE + 1;
        let mut results = [[window.empty(simd); K]; N];
        for group in 0..p + rows - 1 {
            for at in 0..STRIDE {
                let line = (group * STRIDE + at).wrapping_sub(top);
                if line >= h {
                    continue;
                }
                for (reach, results) in reach.iter().zip(&mut results) {
                    // SAFETY: the plane has this row.
                    let x = unsafe { reach.line(x.as_ptr().add(line * w), W::BESIDE) };
                    for (k, result) in results.iter_mut().enumerate() {
                        if at + STRIDE * k < K {
                            *result = window.with_row(simd, at + STRIDE * k, &x, *result);
                        }
                    }
                }
            }
            if let Some(row) = (group + 1).checked_sub(rows) {
                let y = y[row * q + column..].as_mut_ptr();
                for (n, results) in results.iter().enumerate() {
                    // SAFETY: the row goes on for `N - 1` vectors, and for the elements of the last that are stored.
                    unsafe {
                        let y = y.add(n * S::F32_LANES);
                        if n + 1 < N {
                            y.cast::<S::f32s>().write_unaligned(results[rows - 1]);
                        } else {
                            simd.mask_store_ptr_f32s(last, y, results[rows - 1]);
                        }
                    }
                }
            }
            for results in &mut results {
                for k in (1..K).rev() {
                    results[k] = results[k - 1];
                }
                results[0] = window.empty(simd);
            }
        }
    }
}

/// One vector of neighbouring windows, `STRIDE` columns apart, each of which reaches `TAPS` columns.
#[derive(Clone, Copy)]
pub(super) struct Reach<S: Simd, const TAPS: usize, const STRIDE: usize> {
    simd: S,
    /// The column that the first window begins at, before the line if it begins in the padding.
    column: isize,
    /// The numbers of each vector that lie in the line, and of the second half of each two of them at stride 2.
    inside: [MemMask<S::m32s>; TAPS],
    inside_second: [MemMask<S::m32s>; TAPS],
}

impl<S: Simd, const TAPS: usize, const STRIDE: usize> Reach<S, TAPS, STRIDE> {
    /// The windows from number `first` on, of lines with `width` columns.
    #[inline(always)]
    #[expect(clippy::cast_possible_wrap, reason = "the window's rule bounds the extents")]
    pub(super) fn new(simd: S, first: usize, padding: usize, width: usize) -> Self {
        const { assert!(STRIDE == 1 || STRIDE == 2, "strides that vectors are read for") };
        let column = (first * STRIDE) as isize - padding as isize;
        let mut inside = [in_line(simd, column, width); TAPS];
        let mut inside_second = inside;
        for tap in 0..TAPS {
            let begin = column + (tap - tap % STRIDE) as isize;
            inside[tap] = in_line(simd, begin, width);
            inside_second[tap] = in_line(simd, begin + S::F32_LANES as isize, width);
        }
        Self { simd, column, inside, inside_second }
    }

    /// The numbers of a line that each tap reaches, and those beside it.
    ///
    /// # Safety
    ///
    /// `line` points to as many numbers as the lines have columns.
    #[inline(always)]
    pub(super) unsafe fn line(&self, line: *const f32, beside: f32) -> [S::f32s; TAPS] {
        let Self { simd, ref inside, ref inside_second, .. } = *self;
        let begin = line.wrapping_offset(self.column);
        let mut reached = [simd.splat_f32s(beside); TAPS];
        for tap in (0..TAPS).step_by(STRIDE) {
            // SAFETY: the masks have the numbers that lie in the line.
            let vector = unsafe { read(simd, inside[tap], begin.wrapping_add(tap), beside) };
            if STRIDE == 1 {
                reached[tap] = vector;
                continue;
            }
            let second = begin.wrapping_add(tap + S::F32_LANES);
            // SAFETY: as above.
            let second = unsafe { read(simd, inside_second[tap], second, beside) };
            let [even, odd] = unzip::<S>(vector, second);
            reached[tap] = even;
            if tap + 1 < TAPS {
                reached[tap + 1] = odd;
            }
        }
        reached
    }
}

/// The numbers of a mask, and others.
///
/// # Safety
///
/// The numbers of the mask can be read.
#[inline(always)]
unsafe fn read<S: Simd>(simd: S, mask: MemMask<S::m32s>, from: *const f32, other: f32) -> S::f32s {
    // SAFETY: the caller's promise; no others are read.
    let x = unsafe { simd.mask_load_ptr_f32s(mask, from) };
    if other == 0.0 { x } else { simd.select_f32s(mask.mask(), x, simd.splat_f32s(other)) }
}

/// The numbers of a vector from a column on that lie in a line.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the window's rule bounds the extents")]
pub(super) fn in_line<S: Simd>(simd: S, column: isize, width: usize) -> MemMask<S::m32s> {
    const NUMBERS: [u32; WIDEST] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    let numbers = S::as_simd_u32s(&NUMBERS[..S::F32_LANES]).0[0];
    // A column before the line is beyond any width as an unsigned number.
    let columns = simd.add_u32s(numbers, simd.splat_u32s(column as u32));
    MemMask::new(simd.less_than_u32s(columns, simd.splat_u32s(width as u32)))
}

/// The even and the odd elements of two vectors.
#[inline(always)]
fn unzip<S: Simd>(a: S::f32s, b: S::f32s) -> [S::f32s; 2] {
    // Arrays of the widest vector, whose places are constants: such copies are shuffles.
    let (mut both, mut even, mut odd) = ([0.0; 2 * WIDEST], [0.0; WIDEST], [0.0; WIDEST]);
    both[..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[a]));
    both[S::F32_LANES..2 * S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[b]));
    for k in 0..S::F32_LANES {
        (even[k], odd[k]) = (both[2 * k], both[2 * k + 1]);
    }
    let [even, odd] = [&even[..S::F32_LANES], &odd[..S::F32_LANES]];
    [S::as_simd_f32s(even).0[0], S::as_simd_f32s(odd).0[0]]
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;

    /// Sums of numbers that depend on the tap.
    struct Taps;

    impl<S: Simd, const K: usize> Window<S, K> for Taps {
        const BESIDE: f32 = 2.0;

        fn empty(&self, simd: S) -> S::f32s {
            simd.splat_f32s(100.0)
        }

        #[expect(clippy::cast_precision_loss, reason = "small integers")]
        fn with_row(&self, simd: S, row: usize, x: &[S::f32s; K], before: S::f32s) -> S::f32s {
            x.iter().enumerate().fold(before, |sum, (column, &x)| {
                simd.mul_add_f32s(simd.splat_f32s((row * K + column + 1) as f32), x, sum)
            })
        }
    }

    struct Slide<'a, const K: usize, const STRIDE: usize>(Plane<'a>);

    impl<const K: usize, const STRIDE: usize> WithSimd for Slide<'_, K, STRIDE> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(mut self, simd: S) {
            self.0.slide::<S, _, K, STRIDE>(simd, &Taps);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn check<const K: usize, const STRIDE: usize>(run: &mut dyn FnMut(Slide<'_, K, STRIDE>)) {
        for (inputs, padding) in [
            ([1, 1], [K - 1, K - 1]),
            ([7, 7], [K / 2, K / 2]),
            ([9, 16], [0, K / 2]),
            ([8, 17], [K, 0]),
            ([10, 40], [1, 1]),
            ([7, 75], [K / 2, K - 1]),
        ] {
            let x: Vec<f32> = (0..inputs[0] * inputs[1]).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            // One window more than the usual rule has reaches beside the plane.
            let outputs = [0, 1].map(|axis| (inputs[axis] + 2 * padding[axis]).saturating_sub(K) / STRIDE + 2);
            let mut y = vec![f32::NAN; outputs[0] * outputs[1]];
            run(Slide(Plane { x: &x, inputs, y: &mut y, outputs, padding }));
            for (at, y) in y.iter().enumerate() {
                let mut sum = 100.0;
                for tap in 0..K * K {
                    let place = [at / outputs[1] * STRIDE + tap / K, at % outputs[1] * STRIDE + tap % K];
                    let [row, column] = [0, 1].map(|axis| place[axis].wrapping_sub(padding[axis]));
                    if row < inputs[0] {
                        let x = if column < inputs[1] { x[row * inputs[1] + column] } else { 2.0 };
                        sum += (tap + 1) as f32 * x;
                    }
                }
                assert_eq!(*y, sum, "{K}, stride {STRIDE}, {inputs:?} with {padding:?} at {at}");
            }
        }
    }

    #[test]
    fn every_window_has_its_taps_in_vectors_of_every_width() {
        macro_rules! check_all {
            ($run:expr) => {
                check::<1, 1>(&mut $run);
                check::<2, 1>(&mut $run);
                check::<2, 2>(&mut $run);
                check::<3, 1>(&mut $run);
                check::<3, 2>(&mut $run);
                check::<5, 2>(&mut $run);
                check::<7, 1>(&mut $run);
            };
        }
        check_all!(|slide| pulp::Arch::new().dispatch(slide));
        check_all!(|slide| slide.with_simd(pulp::Scalar));
        check_all!(|slide| slide.with_simd(pulp::Scalar128b));
        check_all!(|slide| slide.with_simd(pulp::Scalar256b));
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_all!(|slide| slide.with_simd(simd));
        }
    }
}
