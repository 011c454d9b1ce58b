//! Gradients of products with small square windows that slide over a plane, as depthwise convolutions have them. As in
//! [`windows`](super::windows), planes are read where they lie, and each row once for all windows that it is in.

use pulp::Simd;

use super::windows::{Reach, WIDEST, in_line};

/// The most rows of one column of vectors that are summed before they are added to the partial sums: rounding errors
/// grow with their number and that of the parts, not of all rows.
const ROWS: usize = 128;

/// The cotangents of windows two apart, and the gradient of the plane that they slide over. Each number of `outputs`,
/// `inputs` and `padding` is of an axis.
pub(crate) struct Spread<'a> {
    pub(crate) dy: &'a [f32],
    pub(crate) outputs: [usize; 2],
    pub(crate) dx: &'a mut [f32],
    pub(crate) inputs: [usize; 2],
    pub(crate) padding: [usize; 2],
}

impl Spread<'_> {
    /// `dx[2p + i − pad, 2q + j − pad] = Σ dy[p,q] · w[i,j]` with weights of `K` rows and columns; `HALF` is `K / 2`,
    /// rounded up.
    ///
    /// # Panics
    ///
    /// If a slice is not as long as its extents say.
    #[inline(always)]
    pub(crate) fn compute<S: Simd, const K: usize, const HALF: usize>(&mut self, simd: S, w: &[[S::f32s; K]; K]) {
        const { assert!(HALF == K.div_ceil(2), "the taps of every other number") };
        assert_eq!(self.dy.len(), self.outputs[0] * self.outputs[1], "a cotangent for each window");
        assert_eq!(self.dx.len(), self.inputs[0] * self.inputs[1], "the plane");
        if self.dx.is_empty() {
            return;
        }
        // Pair `m` of columns are those that the first two taps of window `m` reach; of rows likewise.
        let [[first_row, rows], [first, end]] =
            [0, 1].map(|axis| [self.padding[axis] / 2, (self.inputs[axis] - 1 + self.padding[axis]) / 2 + 1]);
        for pair in (first..end).step_by(S::F32_LANES) {
            self.columns::<S, K, HALF>(simd, w, pair, first_row..rows);
        }
    }

    /// Computes a vector of pairs of columns.
    #[inline(always)]
    #[expect(clippy::cast_possible_wrap, reason = "the window's rule bounds the extents")]
    fn columns<S: Simd, const K: usize, const HALF: usize>(
        &mut self,
        simd: S,
        w: &[[S::f32s; K]; K],
        pair: usize,
        rows: std::ops::Range<usize>,
    ) {
        let Self { dy, outputs: [p, q], ref mut dx, inputs: [height, width], padding: [top, left] } = *self;
        // Tap `2k` and the one after it reach the pair from the window `k` columns before it.
        let reach = Reach::<S, HALF, 1>::new(simd, pair, HALF - 1, q);
        let column = (2 * pair) as isize - left as isize;
        let second = column + S::F32_LANES as isize;
        let inside = [in_line(simd, column, width), in_line(simd, second, width)];
        // Sums of each pair of rows that a window reaches, of its rows and columns.
        let mut sums = [[[simd.splat_f32s(0.0); 2]; 2]; HALF];
        for row in 0..rows.end {
            if row < p {
                // SAFETY: there is such a row of cotangents.
                let dy = unsafe { reach.line(dy.as_ptr().add(row * q), 0.0) };
                for i in 0..K {
                    for j in 0..K {
                        let sum = &mut sums[i / 2][i % 2][j % 2];
                        *sum = simd.mul_add_e_f32s(w[i][j], dy[HALF - 1 - j / 2], *sum);
                    }
                }
            }
            if row >= rows.start {
                for (at, [even, odd]) in sums[0].iter().enumerate() {
                    let line = (2 * row + at).wrapping_sub(top);
                    if line < height {
                        let numbers = zip::<S>(*even, *odd);
                        let line = dx[line * width..][..width].as_mut_ptr();
                        // SAFETY: the masks have the numbers that lie in the line.
                        unsafe {
                            simd.mask_store_ptr_f32s(inside[0], line.wrapping_offset(column), numbers[0]);
                            simd.mask_store_ptr_f32s(inside[1], line.wrapping_offset(second), numbers[1]);
                        }
                    }
                }
            }
            for k in 1..HALF {
                sums[k - 1] = sums[k];
            }
            sums[HALF - 1] = [[simd.splat_f32s(0.0); 2]; 2];
        }
    }
}

/// A plane, the cotangents of all windows, and partial sums of each weight's gradient.
pub(crate) struct Correlated<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) inputs: [usize; 2],
    pub(crate) dy: &'a [f32],
    pub(crate) outputs: [usize; 2],
    pub(crate) padding: [usize; 2],
    /// `[tap]`
    pub(crate) sums: &'a mut [[f32; WIDEST]],
}

impl Correlated<'_> {
    /// Adds `dw[i,j] = Σ dy[p,q] · x[p·s + i − pad, q·s + j − pad]` for `COUNT` rows of taps from row `FIRST` on, with
    /// windows of `K` rows and columns that are `STRIDE` apart.
    ///
    /// # Panics
    ///
    /// If a slice is not as long as its extents say.
    #[inline(always)]
    pub(crate) fn add<S: Simd, const K: usize, const STRIDE: usize, const FIRST: usize, const COUNT: usize>(
        &mut self,
        simd: S,
    ) {
        assert_eq!(self.x.len(), self.inputs[0] * self.inputs[1], "the plane");
        assert_eq!(self.dy.len(), self.outputs[0] * self.outputs[1], "a cotangent for each window");
        assert_eq!(self.sums.len(), K * K, "partial sums of each tap");
        for column in (0..self.outputs[1]).step_by(S::F32_LANES) {
            for row in (0..self.outputs[0]).step_by(ROWS) {
                let rows = row..self.outputs[0].min(row + ROWS);
                self.columns::<S, K, STRIDE, FIRST, COUNT>(simd, column, rows);
            }
        }
    }

    /// Adds a vector of some rows.
    #[inline(always)]
    fn columns<S: Simd, const K: usize, const STRIDE: usize, const FIRST: usize, const COUNT: usize>(
        &mut self,
        simd: S,
        column: usize,
        rows: std::ops::Range<usize>,
    ) {
        let Self { x, inputs: [h, w], dy, outputs: [_, q], padding: [top, left], .. } = *self;
        let reach = Reach::<S, K, STRIDE>::new(simd, column, left, w);
        let last = in_line(simd, 0, q - column);
        let is_whole = q - column >= S::F32_LANES;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; K]; COUNT];
        // The cotangents of the windows that a row of the plane is in: the later a row, the earlier in its windows.
        let mut cotangents = [zero; COUNT];
        let later = (COUNT - 1) / STRIDE;
        for group in rows.start..rows.end + later {
            for k in (1..COUNT).rev() {
                cotangents[k] = cotangents[k - 1];
            }
            if group < rows.end {
                // SAFETY: the row goes on for the elements of the mask.
                cotangents[0] = unsafe { simd.mask_load_ptr_f32s(last, dy.as_ptr().add(group * q + column)) };
            }
            for at in 0..STRIDE {
                let line = (group * STRIDE + FIRST + at).wrapping_sub(top);
                if line >= h {
                    continue;
                }
                // SAFETY: the plane has this row.
                let mut x = unsafe { reach.line(x.as_ptr().add(line * w), 0.0) };
                if !is_whole {
                    // Numbers of no window here may be infinite.
                    x.iter_mut().for_each(|x| *x = simd.select_f32s(last.mask(), *x, zero));
                }
                for (k, &cotangent) in cotangents.iter().enumerate() {
                    let row = at + STRIDE * k;
                    if row < COUNT && group >= rows.start + k && group - k < rows.end {
                        for (sum, &x) in sums[row].iter_mut().zip(&x) {
                            *sum = simd.mul_add_e_f32s(cotangent, x, *sum);
                        }
                    }
                }
            }
        }
        for (to, sum) in self.sums[FIRST * K..].iter_mut().zip(sums.as_flattened()) {
            let to = &mut to[..S::F32_LANES];
            simd.partial_store_f32s(to, simd.add_f32s(simd.partial_load_f32s(to), *sum));
        }
    }
}

/// The elements of two vectors by turns.
#[inline(always)]
fn zip<S: Simd>(a: S::f32s, b: S::f32s) -> [S::f32s; 2] {
    // Arrays of the widest vector, whose places are constants: such copies are shuffles.
    let (mut even, mut odd, mut both) = ([0.0; WIDEST], [0.0; WIDEST], [0.0; 2 * WIDEST]);
    even[..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[a]));
    odd[..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[b]));
    for k in 0..S::F32_LANES {
        (both[2 * k], both[2 * k + 1]) = (even[k], odd[k]);
    }
    let [first, second] = [&both[..S::F32_LANES], &both[S::F32_LANES..2 * S::F32_LANES]];
    [S::as_simd_f32s(first).0[0], S::as_simd_f32s(second).0[0]]
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;

    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn numbers(len: usize, period: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 7 % period) as f32 - 5.0).collect()
    }

    /// Extents of planes, of their padding, and of results for windows of `k` rows and columns.
    fn extents(k: usize, stride: usize) -> Vec<[[usize; 2]; 3]> {
        let planes = [
            ([3, 3], [k - 1, k - 1]),
            ([7, 7], [k / 2, k / 2]),
            ([9, 16], [0, k / 2]),
            ([8, 17], [k - 1, 0]),
            ([300, 40], [1, 1]),
            ([7, 75], [k / 2, k - 1]),
        ];
        let fits = |&(inputs, padding): &([usize; 2], [usize; 2])| (0..2).all(|at| inputs[at] + 2 * padding[at] >= k);
        let of = |(inputs, padding): ([usize; 2], [usize; 2])| {
            [inputs, padding, [0, 1].map(|at| (inputs[at] + 2 * padding[at] - k) / stride + 1)]
        };
        planes.into_iter().filter(fits).map(of).collect()
    }

    /// Runs `f(window, tap, place)` for each window and tap that lies in the plane.
    fn each(
        [inputs, padding, outputs]: [[usize; 2]; 3],
        [k, stride]: [usize; 2],
        f: &mut dyn FnMut(usize, usize, usize),
    ) {
        for (window, tap) in (0..outputs[0] * outputs[1]).flat_map(|window| (0..k * k).map(move |tap| (window, tap))) {
            let place = [window / outputs[1] * stride + tap / k, window % outputs[1] * stride + tap % k];
            let [row, column] = [0, 1].map(|axis| place[axis].wrapping_sub(padding[axis]));
            if row < inputs[0] && column < inputs[1] {
                f(window, tap, row * inputs[1] + column);
            }
        }
    }

    struct OfInput<'a, const K: usize, const HALF: usize>(Spread<'a>, &'a [f32]);

    impl<const K: usize, const HALF: usize> WithSimd for OfInput<'_, K, HALF> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(mut self, simd: S) {
            let mut w = [[simd.splat_f32s(0.0); K]; K];
            self.1.iter().enumerate().for_each(|(tap, &x)| w[tap / K][tap % K] = simd.splat_f32s(x));
            self.0.compute::<S, K, HALF>(simd, &w);
        }
    }

    fn check_input<const K: usize, const HALF: usize>(run: &mut dyn FnMut(OfInput<'_, K, HALF>)) {
        for all in extents(K, 2) {
            let [inputs, padding, outputs] = all;
            let (dy, w) = (numbers(outputs[0] * outputs[1], 11), numbers(K * K, 13));
            let mut wanted = vec![0.0; inputs[0] * inputs[1]];
            each(all, [K, 2], &mut |window, tap, place| wanted[place] += dy[window] * w[tap]);
            let mut dx = vec![f32::NAN; wanted.len()];
            run(OfInput(Spread { dy: &dy, outputs, dx: &mut dx, inputs, padding }, &w));
            assert_eq!(dx, wanted, "{K}, {all:?}");
        }
    }

    struct OfWeight<'a, const K: usize, const STRIDE: usize, const FIRST: usize, const COUNT: usize>(Correlated<'a>);

    impl<const K: usize, const STRIDE: usize, const FIRST: usize, const COUNT: usize> WithSimd
        for OfWeight<'_, K, STRIDE, FIRST, COUNT>
    {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(mut self, simd: S) {
            self.0.add::<S, K, STRIDE, FIRST, COUNT>(simd);
        }
    }

    fn check_weight<const K: usize, const STRIDE: usize, const FIRST: usize, const COUNT: usize>(
        run: &mut dyn FnMut(OfWeight<'_, K, STRIDE, FIRST, COUNT>),
    ) {
        for all in extents(K, STRIDE) {
            let [inputs, padding, outputs] = all;
            let (mut x, dy) = (numbers(inputs[0] * inputs[1], 11), numbers(outputs[0] * outputs[1], 13));
            // What no window reaches does not count, whatever it is.
            let mut reached = vec![false; x.len()];
            each(all, [K, STRIDE], &mut |_, _, place| reached[place] = true);
            x.iter_mut().zip(&reached).filter(|(_, reached)| !**reached).for_each(|(x, _)| *x = f32::INFINITY);
            let mut wanted = vec![1.0; K * K];
            each(all, [K, STRIDE], &mut |window, tap, place| wanted[tap] += dy[window] * x[place]);
            let mut sums = vec![[0.0; WIDEST]; K * K];
            sums.iter_mut().for_each(|sums| sums[0] = 1.0);
            run(OfWeight(Correlated { x: &x, inputs, dy: &dy, outputs, padding, sums: &mut sums }));
            for (tap, (sums, &wanted)) in sums.iter().zip(&wanted).enumerate() {
                let wanted = if (FIRST..FIRST + COUNT).contains(&(tap / K)) { wanted } else { 1.0 };
                assert_eq!(sums.iter().sum::<f32>(), wanted, "{K}, stride {STRIDE}, tap {tap}, {all:?}");
            }
        }
    }

    #[test]
    fn gradients_are_those_of_every_window_in_vectors_of_every_width() {
        macro_rules! check_all {
            ($run:expr, $run_weight:expr) => {
                check_input::<2, 1>(&mut $run);
                check_input::<3, 2>(&mut $run);
                check_input::<5, 3>(&mut $run);
                check_input::<7, 4>(&mut $run);
                check_weight::<3, 1, 0, 3>(&mut $run_weight);
                check_weight::<3, 2, 0, 3>(&mut $run_weight);
                check_weight::<5, 2, 0, 5>(&mut $run_weight);
                check_weight::<7, 1, 0, 4>(&mut $run_weight);
                check_weight::<7, 2, 4, 3>(&mut $run_weight);
            };
        }
        check_all!(|of| pulp::Arch::new().dispatch(of), |of| pulp::Arch::new().dispatch(of));
        check_all!(|of| of.with_simd(pulp::Scalar), |of| of.with_simd(pulp::Scalar));
        check_all!(|of| of.with_simd(pulp::Scalar128b), |of| of.with_simd(pulp::Scalar128b));
        check_all!(|of| of.with_simd(pulp::Scalar256b), |of| of.with_simd(pulp::Scalar256b));
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_all!(|of| of.with_simd(simd), |of| of.with_simd(simd));
        }
    }
}
