//! Embeddings of points in time.

use meganeura_derive::Module;

use crate::error::bail;
use crate::module::{Init, Layer, Seed};
use crate::{Buffer, Device, ErrorKind, Result, Tensor, Var};

/// Embeddings of points in time, sines before cosines:
/// `y[n] = (sin t[n]·f₀, …, sin t[n]·fₖ₋₁, cos t[n]·f₀, …, cos t[n]·fₖ₋₁)`
///
/// The width is `2k`. The frequencies are `fᵢ = P^(−i/(k−1))`, from 1 down to `1/P`, with `P` = 10,000 by default; a
/// single frequency is 1. As in [Ho et al., 2020](https://arxiv.org/abs/2006.11239), "DDPM".
///
/// Shapes: `t [N]`, floats → `y [N, 2k]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let embedding = SinusoidalEmbedding::new(128).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let y = embedding.forward(&tape.input(&Tensor::from_slice(&device, [2], &[0.0, 999.0])?));
/// assert_eq!(y.shape(), Shape::from([2, 128]));
/// assert_eq!(y.to_vec()?[63..65], [0.0, 1.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
pub struct SinusoidalEmbedding {
    /// Radians per unit of time, `[k]`.
    pub frequencies: Buffer,
}

impl SinusoidalEmbedding {
    /// An embedding of this width, an even number.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(width: usize) -> SinusoidalEmbeddingConfig {
        SinusoidalEmbeddingConfig { width, max_period: 10_000.0 }
    }
}

impl Layer for SinusoidalEmbedding {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        match *x.shape().dims() {
            [n] if x.ty().dtype.is_float() => {
                let angles = x.reshape([n, 1]) * x.buffer(&self.frequencies);
                Var::concat(&[&angles.sin(), &angles.cos()], 1)
            }
            _ => {
                x.refuse("sinusoidal_embedding", ErrorKind::Shape, format!("takes floats [N], the input is {}", x.ty()))
            }
        }
    }
}

/// Describes a [`SinusoidalEmbedding`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct SinusoidalEmbeddingConfig {
    width: usize,
    max_period: f64,
}

impl SinusoidalEmbeddingConfig {
    /// The slowest period, in units of 2π; 10,000 by default.
    pub fn max_period(self, max_period: f64) -> Self {
        Self { max_period, ..self }
    }
}

impl Init for SinusoidalEmbeddingConfig {
    type Output = SinusoidalEmbedding;

    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^53")]
    fn build(self, device: &Device, _: Seed) -> Result<SinusoidalEmbedding> {
        let Self { width, max_period } = self;
        if width == 0 || width % 2 != 0 {
            bail!(Argument, "sinusoidal_embedding: of width {width}; it must be even, for as many sines as cosines");
        }
        if !max_period.is_finite() || max_period <= 0.0 {
            bail!(Argument, "sinusoidal_embedding: max_period is {max_period}; it must be above 0");
        }
        let count = width / 2;
        let frequency = |i: usize| max_period.powf(-(i as f64) / (count - 1).max(1) as f64);
        let frequencies: Vec<_> = (0..count).map(frequency).collect();
        let frequencies = Buffer::constant(Tensor::from_f64(device, [count], &frequencies)?);
        Ok(SinusoidalEmbedding { frequencies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModuleExt, Tape};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let of = |width, t: &[f32]| {
            let embedding = SinusoidalEmbedding::new(width).init(&device, Seed::new(0)).unwrap();
            assert!(embedding.named_parameters().is_empty());
            let t = Tape::new(&device).input(&Tensor::from_slice(&device, [t.len()], t).unwrap());
            embedding.forward(&t).to_vec().unwrap()
        };
        // Frequencies 1, 1/100 and 1/10,000.
        let expected = [0.0, 1.0, 250.0]
            .map(|t: f64| [t.sin(), (t / 100.0).sin(), (t / 1e4).sin(), t.cos(), (t / 100.0).cos(), (t / 1e4).cos()]);
        let near = |(y, e): (&f32, &f64)| (f64::from(*y) - e).abs() < 2e-6;
        let y = of(6, &[0.0, 1.0, 250.0]);
        assert!(y.iter().zip(expected.as_flattened()).all(near), "{y:?} is not {expected:?}");
        assert!(of(2, &[3.0]).iter().zip(&[3f64.sin(), 3f64.cos()]).all(near));
        assert!(of(4, &[1e4]).iter().zip(&[1e4f64.sin(), 1f64.sin(), 1e4f64.cos(), 1f64.cos()]).all(near));
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        let of = SinusoidalEmbedding::new;
        for config in [of(0), of(5), of(4).max_period(0.0), of(4).max_period(f64::NAN)] {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
        let embedding = of(4).init(&device, Seed::new(0)).unwrap();
        let tape = Tape::new(&device);
        for t in [Tensor::zeros(&device, [2, 1]), Tensor::indices(&device, [2], &[1, 2])] {
            let error = embedding.forward(&tape.input(&t.unwrap())).error().unwrap();
            assert!(error.to_string().contains("sinusoidal_embedding: takes floats [N]"), "{error}");
        }
    }
}
