//! Norms, running products and other numeric functions.

use crate::{ErrorKind, Var};

impl Var {
    /// The Euclidean norm of all elements, `√Σ x²`: a scalar. Where it is 0, so is its gradient.
    #[must_use]
    #[track_caller]
    pub fn norm(&self) -> Self {
        self.norm_over(&(0..self.shape().rank()).collect::<Vec<_>>(), 2.0)
    }

    /// The `p`-norm over some axes, which are removed: `(Σ |x|ᵖ)^(1/p)`, the largest `|x|` for `p = ∞`, the number of
    /// elements other than 0 for `p = 0`. Where the norm is 0, so is its gradient.
    ///
    /// Errors: a `p` below 0, or NaN.
    #[doc(alias = "vector_norm")]
    #[must_use]
    #[track_caller]
    pub fn norm_over(&self, axes: &[usize], p: f64) -> Self {
        let power = match p {
            2.0 => self.square(),
            1.0 => return self.abs().sum_over(axes),
            0.0 => return self.ne(&self.constant(0.0)).sum_over(axes),
            f64::INFINITY => return self.abs().max_over(axes),
            p if p > 0.0 => {
                let magnitude = self.abs();
                let is_zero = magnitude.eq(&self.constant(0.0));
                let power = is_zero.where_cond(&self.constant(1.0), &magnitude).powf(p);
                is_zero.where_cond(&self.constant(0.0), &power)
            }
            _ => return self.refuse("norm", ErrorKind::Argument, format!("p must be at least 0, it is {p}")),
        };
        let sum = power.sum_over(axes);
        // A root of 0 has no derivative: the root of 1 is computed instead, and not used.
        let is_zero = sum.eq(&sum.constant(0.0));
        let sum = is_zero.where_cond(&sum.constant(1.0), &sum);
        let root = if p == 2.0 { sum.sqrt() } else { sum.powf(p.recip()) };
        is_zero.where_cond(&sum.constant(0.0), &root)
    }

    /// `ln Σ eˣ` over some axes, which are removed. Nothing overflows: the largest element is subtracted first.
    #[must_use]
    #[track_caller]
    pub fn logsumexp(&self, axes: &[usize]) -> Self {
        // If all elements are −∞, or one is ∞, the peak is infinite, and a difference from it is NaN.
        let peak = self.max_keep(axes).detach();
        let is_infinite = peak.abs().eq(&self.tape().scalar(f64::INFINITY));
        let peak = is_infinite.where_cond(&peak.constant(0.0), &peak);
        let sum = (self - &peak).exp().sum_keep(axes).log() + peak;
        let dims: Vec<_> =
            (0..self.shape().rank()).filter(|axis| !axes.contains(axis)).map(|a| self.shape()[a]).collect();
        sum.reshape(&dims[..])
    }

    /// The standard deviation of all elements, `√variance`: see [`variance`](Self::variance).
    #[must_use]
    #[track_caller]
    pub fn std(&self, correction: usize) -> Self {
        self.variance(correction).sqrt()
    }

    /// The standard deviation over some axes, which are removed.
    #[must_use]
    #[track_caller]
    pub fn std_over(&self, axes: &[usize], correction: usize) -> Self {
        self.variance_over(axes, correction).sqrt()
    }

    /// Running products along an axis: `y[…, k, …] = Π_{l ≤ k} x[…, l, …]`. The gradient is exact even with zeros.
    #[must_use]
    #[track_caller]
    pub fn cumprod(&self, axis: usize) -> Self {
        if let Some(poisoned) = self.without_axis("cumprod", axis) {
            return poisoned;
        }
        let (mut product, extent) = (self.clone(), self.shape()[axis]);
        let mut widths = vec![(0, 0); self.shape().rank()];
        let mut step = 1;
        // Each element times the product of as many elements before it.
        while step < extent {
            widths[axis] = (step, 0);
            let before = product.slice(axis, 0..extent - step).pad(&widths, 1.0);
            product = product * before;
            step *= 2;
        }
        product
    }

    /// 1 if no element is 0, else 0. NaN is not 0. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn all(&self) -> Self {
        self.ne(&self.constant(0.0)).min()
    }

    /// [`all`](Self::all) over some axes, which are removed.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2, 2], &[1.0, 0.0, 2.0, -3.0])?);
    /// assert_eq!(x.all_over(&[1]).to_vec()?, [0.0, 1.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn all_over(&self, axes: &[usize]) -> Self {
        self.ne(&self.constant(0.0)).min_over(axes)
    }

    /// 1 if some element is not 0, else 0. NaN is not 0. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn any(&self) -> Self {
        self.ne(&self.constant(0.0)).max()
    }

    /// [`any`](Self::any) over some axes, which are removed.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2, 2], &[0.0, 0.0, 2.0, 0.0])?);
    /// assert_eq!(x.any_over(&[1]).to_vec()?, [0.0, 1.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn any_over(&self, axes: &[usize]) -> Self {
        self.ne(&self.constant(0.0)).max_over(axes)
    }

    /// Gaussian random numbers of this value's shape, with mean 0 and variance 1, from the tape's seed: by
    /// [Box and Muller, 1958](https://doi.org/10.1214/aoms/1177706645).
    #[doc(alias = "randn_like")]
    #[must_use]
    #[track_caller]
    pub fn random_normal(&self) -> Self {
        // 1 − u is above 0.
        let radius = ((self.constant(1.0) - self.random_uniform()).log() * self.constant(-2.0)).sqrt();
        radius * (self.random_uniform() * self.constant(std::f64::consts::TAU)).cos()
    }
}
