//! Running products, sums of exponentials, integrals and other numeric functions.

use super::axis::{Axis, axes, axis};
use crate::{ErrorKind, Var};

impl Var {
    /// `ln Σ eˣ` over some axes, which are removed. Nothing overflows: the largest element is subtracted first.
    #[must_use]
    #[track_caller]
    pub fn logsumexp(&self, axes: &[impl Axis]) -> Self {
        let axes = &axes!(self, "logsumexp", axes)[..];
        // If all elements are −∞, or one is ∞, the peak is infinite, and a difference from it is NaN.
        let peak = self.max_keep(axes).detach();
        let is_infinite = peak.abs().eq(self.tape().scalar(f64::INFINITY));
        let peak = is_infinite.where_cond(&peak.constant(0.0), &peak);
        let sum = (self - &peak).exp().sum_keep(axes).log() + peak;
        let dims: Vec<_> =
            (0..self.shape().rank()).filter(|axis| !axes.contains(axis)).map(|a| self.shape()[a]).collect();
        sum.reshape(&dims[..])
    }

    /// Running products along an axis: `y[…, k, …] = Π_{l ≤ k} x[…, l, …]`. The gradient is exact even with zeros.
    #[must_use]
    #[track_caller]
    pub fn cumprod(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "cumprod", axis);
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
            product *= before;
            step *= 2;
        }
        product
    }

    /// The product of all elements: a scalar. The gradient is exact even with zeros.
    #[must_use]
    #[track_caller]
    pub fn prod(&self) -> Self {
        self.prod_over(&self.all_axes())
    }

    /// The product over some axes, which are removed. The gradient is exact even with zeros.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [2, 2], &[1.0, 2.0, 3.0, 4.0])?);
    /// assert_eq!(x.prod_over(&[1]).to_vec()?, [2.0, 12.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn prod_over(&self, axes: &[impl Axis]) -> Self {
        let axes = &axes!(self, "prod", axes)[..];
        let shape = self.shape();
        let mut product = self.clone();
        for &axis in axes {
            if let Some(poisoned) = self.without_axis("prod", axis) {
                return poisoned;
            }
            // Half of the elements by the other half.
            while product.shape()[axis] > 1 {
                let extent = product.shape()[axis];
                let half = extent / 2;
                let halves = product.slice(axis, 0..half) * product.slice(axis, half..2 * half);
                product = match extent % 2 {
                    0 => halves,
                    _ => Self::concat(&[&halves, &product.slice(axis, 2 * half..extent)], axis),
                };
            }
        }
        let dims: Vec<_> = (0..shape.rank()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect();
        product.reshape(&dims[..])
    }

    /// The integral along an axis, which is removed, of a function that is given at points of distance 1: by the
    /// trapezoidal rule, `Σ (x[…, k, …] + x[…, k + 1, …])/2`. The integral over a single point is 0.
    #[must_use]
    #[track_caller]
    pub fn trapezoid(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "trapezoid", axis);
        if let Some(poisoned) = self.without_axis("trapezoid", axis) {
            return poisoned;
        }
        if self.shape()[axis] == 1 {
            // Also of NaN.
            let zero = self.constant(0.0);
            return zero.where_cond(self, &zero).sum_over(&[axis]);
        }
        self.trapezoids(axis).sum_over(&[axis])
    }

    /// [`trapezoid`](Self::trapezoid) with points of distance `dx`.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let squares = tape.input(&Tensor::from_slice(&device, [3], &[0.0, 0.25, 1.0])?);
    /// assert_eq!(squares.trapezoid_with(0, 0.5).item()?, 0.375); // ∫x² from 0 to 1 is 1/3
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn trapezoid_with(&self, axis: impl Axis, dx: f64) -> Self {
        self.trapezoid(axis) * dx
    }

    /// The integrals from the first point to each later one, by the rule of [`trapezoid`](Self::trapezoid). The axis,
    /// of at least two points, becomes shorter by one.
    #[must_use]
    #[track_caller]
    pub fn cumulative_trapezoid(&self, axis: impl Axis) -> Self {
        let axis = axis!(self, "cumulative_trapezoid", axis);
        if let Some(poisoned) = self.without_axis("cumulative_trapezoid", axis) {
            return poisoned;
        }
        if self.shape()[axis] == 1 {
            let message = format!("axis {axis} of {} has one point, and no point after it", self.shape());
            return self.refuse("cumulative_trapezoid", ErrorKind::Shape, message);
        }
        self.trapezoids(axis).cumsum(axis)
    }

    /// [`cumulative_trapezoid`](Self::cumulative_trapezoid) with points of distance `dx`.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let speed = tape.input(&Tensor::from_slice(&device, [4], &[0.0, 1.0, 2.0, 2.0])?);
    /// let way = speed.cumulative_trapezoid_with(0, 0.5);
    /// assert_eq!(way.to_vec()?, [0.25, 1.0, 2.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn cumulative_trapezoid_with(&self, axis: impl Axis, dx: f64) -> Self {
        self.cumulative_trapezoid(axis) * dx
    }

    /// The means of neighbours along an axis of at least two elements.
    #[track_caller]
    fn trapezoids(&self, axis: usize) -> Self {
        let extent = self.shape()[axis];
        (self.slice(axis, 0..extent - 1) + self.slice(axis, 1..extent)).scale(0.5)
    }

    /// 1 if no element is 0, else 0. NaN is not 0. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn all(&self) -> Self {
        self.ne(self.constant(0.0)).min()
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
    pub fn all_over(&self, axes: &[impl Axis]) -> Self {
        self.ne(self.constant(0.0)).min_over(axes)
    }

    /// 1 if some element is not 0, else 0. NaN is not 0. Has no gradient.
    #[must_use]
    #[track_caller]
    pub fn any(&self) -> Self {
        self.ne(self.constant(0.0)).max()
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
    pub fn any_over(&self, axes: &[impl Axis]) -> Self {
        self.ne(self.constant(0.0)).max_over(axes)
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
