//! Nonlinearities as layers, for chains. In a `forward` of your own, call the method of [`Var`].

use meganeura_derive::Module;

use crate::module::{Init, Layer, Seed};
use crate::{Device, Result, Var};

/// A struct, its doc, and what it records.
macro_rules! activations {
    ($($(#[$doc:meta])* $Name:ident $x:ident => $y:expr;)+) => {
        $(
            $(#[$doc])*
            ///
            /// Shapes: any, kept.
            #[derive(Module, Debug, Clone, Copy, Default, PartialEq, Eq)]
            pub struct $Name;

            impl Layer for $Name {
                fn forward(&self, $x: &Var) -> Var {
                    let _entered = crate::module::enter(self, $x);
                    $y
                }

                fn flow(&self) -> crate::module::Flow {
                    crate::module::Flow::kept()
                }
            }
        )+
        inits!($($Name),+);
    };
}

/// [`Init`] without anything to build.
macro_rules! inits {
    ($($Name:ident),+) => {
        $(impl Init for $Name {
            type Output = Self;

            fn build(self, _: &Device, _: Seed) -> Result<Self> {
                Ok(self)
            }
        })+
    };
}

activations! {
    /// `max(x, 0)`; the derivative at 0 is 0.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [3], &[-1.0, 0.0, 2.0])?);
    /// assert_eq!(Relu.forward(&x).to_vec()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    Relu x => x.relu();
    /// `x·Φ(x)`, exactly, through `erf`. [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415).
    Gelu x => x.gelu();
    /// GELU through `tanh`: `x/2·(1 + tanh(√(2/π)(x + 0.044715 x³)))`.
    GeluTanh x => x.gelu_tanh();
    /// `x·σ(x)`, also called swish.
    Silu x => x.silu();
    /// `1/(1 + e⁻ˣ)`
    Sigmoid x => x.sigmoid();
    /// The hyperbolic tangent.
    Tanh x => x.tanh();
    /// `ln(1 + eˣ)`
    Softplus x => x.softplus();
    /// `min(max(x, 0), 6)`
    Relu6 x => x.clamp(0.0, 6.0);
    /// A sigmoid of straight lines: `min(max(x + 3, 0), 6)/6`. [Howard et al., 2019](https://arxiv.org/abs/1905.02244).
    Hardsigmoid x => (x + 3.0).clamp(0.0, 6.0) * (1.0 / 6.0);
    /// SiLU with straight lines in its sigmoid: `x·min(max(x + 3, 0), 6)/6`.
    Hardswish x => x * (x + 3.0).clamp(0.0, 6.0) * (1.0 / 6.0);
    /// `x·tanh(ln(1 + eˣ))`. [Misra, 2019](https://arxiv.org/abs/1908.08681).
    Mish x => x * x.softplus().tanh();
    /// An [`Elu`] that keeps mean 0 and deviation 1: `λ·x` above 0, `λ·α·(eˣ − 1)` below, with α ≈ 1.6733 and
    /// λ ≈ 1.0507. [Klambauer et al., 2017](https://arxiv.org/abs/1706.02515).
    Selu x => x.elu(1.673_263_242_354_377_2) * 1.050_700_987_355_480_5;
    /// `x`: in place of a layer that is taken away, such as the head of a model whose features are used.
    Identity x => x.clone();
}

/// `x` above 0, `slope·x` below.
///
/// Shapes: any, kept.
#[derive(Module, Debug, Clone, Copy, PartialEq)]
pub struct LeakyRelu {
    /// The slope below 0; 0.01 by default.
    #[module(skip)]
    pub slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> Self {
        Self { slope: 0.01 }
    }
}

impl Layer for LeakyRelu {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.leaky_relu(self.slope)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept()
    }
}

/// `x` above 0, `alpha·(eˣ − 1)` below. [Clevert et al., 2015](https://arxiv.org/abs/1511.07289).
///
/// Shapes: any, kept.
#[derive(Module, Debug, Clone, Copy, PartialEq)]
pub struct Elu {
    /// The negated limit for `x → −∞`; 1 by default.
    #[module(skip)]
    pub alpha: f64,
}

impl Default for Elu {
    fn default() -> Self {
        Self { alpha: 1.0 }
    }
}

impl Layer for Elu {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        x.elu(self.alpha)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept()
    }
}

inits!(LeakyRelu, Elu);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tape, Tensor};

    #[test]
    fn each_computes_its_formula() {
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::from_slice(&device, [2], &[-1.0, 2.0]).unwrap());
        let layers: [(&dyn Layer, [f32; 2]); 15] = [
            (&Relu, [0.0, 2.0]),
            (&Gelu, [-0.158_655_25, 1.954_499_7]),
            (&GeluTanh, [-0.158_808, 1.954_597_7]),
            (&Silu, [-0.268_941_43, 1.761_594_2]),
            (&Sigmoid, [0.268_941_43, 0.880_797]),
            (&Tanh, [-0.761_594_2, 0.964_027_6]),
            (&Softplus, [0.313_261_7, 2.126_928]),
            (&Relu6, [0.0, 2.0]),
            (&Hardsigmoid, [1.0 / 3.0, 5.0 / 6.0]),
            (&Hardswish, [-1.0 / 3.0, 5.0 / 3.0]),
            (&Mish, [-0.303_401_46, 1.943_959]),
            (&Selu, [-1.111_330_7, 2.101_402]),
            (&Identity, [-1.0, 2.0]),
            (&LeakyRelu { slope: 0.25 }, [-0.25, 2.0]),
            (&Elu { alpha: 2.0 }, [-1.264_241_1, 2.0]),
        ];
        for (index, (layer, expected)) in layers.iter().enumerate() {
            let y = layer.forward(&x).to_vec().unwrap();
            // A few f32 roundings.
            assert!(y.iter().zip(expected).all(|(y, e)| (y - e).abs() <= 4e-7), "layer {index}: {y:?}");
        }
    }
}
