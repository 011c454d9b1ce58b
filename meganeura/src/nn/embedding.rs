//! Learned vectors, looked up by index.

use std::panic::Location;

use meganeura_derive::Module;

use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed, init_field};
use crate::param::Use;
use crate::{Device, Error, ErrorKind, Param, Result, Shape, Tensor, Var};

/// Learned vectors, looked up by index: `y[i…] = weight[x[i…]]`
///
/// With [`padding`](EmbeddingConfig::padding), that index gives zeros whatever its row holds, and the row gets no
/// gradient. It starts as zeros, as in PyTorch, whose `padding_idx` returns the row. An index past the end is an error
/// if the host knows the indices, as it does for inputs from [`Tensor::indices`](crate::Tensor::indices); otherwise it
/// gives NaN.
///
/// Shapes: `x [I…]` of integers, `weight [count, width]` → `y [I…, width]`.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let embedding = Embedding::new(10, 4).padding(0).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let y = embedding.forward(&tape.input(&Tensor::indices(&device, [2, 3], &[7, 1, 0, 2, 9, 0])?));
/// assert_eq!(y.shape(), Shape::from([2, 3, 4]));
/// assert_eq!(y.to_vec()?[8..12], [0.0; 4]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct Embedding {
    /// The vectors, one per row: `[count, width]`.
    pub weight: Param,
    /// The index for padding, which gives zeros.
    #[module(skip)]
    pub padding: Option<u32>,
}

impl Embedding {
    /// `count` vectors of `width` numbers.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(count: usize, width: usize) -> EmbeddingConfig {
        EmbeddingConfig { count, width, padding: None, weight_init: Initializer::Normal { mean: 0.0, std: 1.0 } }
    }
}

impl Layer for Embedding {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let count = self.weight.shape()[0];
        let dtype = x.ty().dtype;
        let message = match x.largest_index(None) {
            _ if dtype.is_float() => {
                (ErrorKind::Shape, format!("takes integers, from `Tensor::indices`, the input holds {dtype}"))
            }
            Some(largest) if largest as usize >= count => {
                (ErrorKind::Argument, format!("number {largest} is past the end, there are {count} vectors"))
            }
            _ => return x.param(&self.weight).embedding_with(x, self.padding),
        };
        let error = Error::new(message.0, message.1).in_op("embedding").at(Location::caller());
        x.fail(error.operand(x.ty(), x.path()).operand(self.weight.ty(), self.weight.path()))
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::unknown().gives_features(self.weight.shape()[1])
    }
}

/// Describes an [`Embedding`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct EmbeddingConfig {
    count: usize,
    width: usize,
    padding: Option<u32>,
    weight_init: Initializer,
}

impl EmbeddingConfig {
    /// The index for padding: it gives zeros, and its row gets no gradient. None by default.
    #[doc(alias = "padding_idx")]
    pub fn padding(self, padding: u32) -> Self {
        Self { padding: Some(padding), ..self }
    }

    /// The weight's initializer; the standard normal distribution by default. The row of the padding is 0.
    pub fn weight_init(self, weight_init: Initializer) -> Self {
        Self { weight_init, ..self }
    }
}

impl Init for EmbeddingConfig {
    type Output = Embedding;

    fn build(self, device: &Device, seed: Seed) -> Result<Embedding> {
        let Self { count, width, padding, weight_init } = self;
        if count == 0 || width == 0 {
            bail!(Argument, "embedding: {count} vectors of {width} numbers; both must be at least 1");
        }
        if let Some(padding) = padding.filter(|&padding| padding as usize >= count) {
            bail!(Argument, "embedding: padding is number {padding}, there are {count} vectors");
        }
        let draw = || {
            let mut values = weight_init.draw(device, Shape::from([count, width]), seed.field("weight"))?;
            if let Some(padding) = padding {
                values[padding as usize * width..][..width].fill(0.0);
            }
            Tensor::from_f64(device, [count, width], &values)
        };
        Ok(Embedding { weight: Param::new(init_field("weight", draw())?).used_as(Use::Embedding), padding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tape, Tensor};

    #[test]
    fn rows_get_summed_gradients_and_padding_gets_none() {
        let device = Device::cpu();
        let embedding = Embedding::new(4, 2).padding(1).init(&device, Seed::new(3)).unwrap();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::indices(&device, [5], &[3, 1, 0, 3, 1]).unwrap());
        let y = embedding.forward(&x);
        let weight = embedding.weight.value().to_vec().unwrap();
        let row = |r: usize| weight[2 * r..2 * r + 2].to_vec();
        let expected = [row(3), vec![0.0; 2], row(0), row(3), vec![0.0; 2]].concat();
        assert_eq!(y.to_vec().unwrap(), expected);
        let dy = Tensor::from_slice(&device, [5, 2], &[1., 2., 3., 4., 5., 6., 7., 8., 9., 10.]).unwrap();
        let grads = tape.backward_with(&y, &tape.input(&dy)).unwrap();
        let dw = grads.get(&embedding.weight).unwrap().to_vec().unwrap();
        assert_eq!(dw, [5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 8.0, 10.0]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        for config in [Embedding::new(0, 2), Embedding::new(2, 0), Embedding::new(2, 2).padding(2)] {
            assert_eq!(config.init(&Device::cpu(), Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn invalid_indices_poison_and_name_the_parameter() {
        let device = Device::cpu();
        let embedding = Embedding::new(3, 2).init(&device, Seed::new(0)).unwrap();
        embedding.weight.set_path("words.weight");
        let tape = Tape::new(&device);
        for (x, part) in [
            (Tensor::indices(&device, [2], &[0, 3]).unwrap(), "number 3 is past the end, there are 3 vectors"),
            (Tensor::zeros(&device, [2]).unwrap(), "takes integers, from `Tensor::indices`"),
        ] {
            let (y, line) = (embedding.forward(&tape.input(&x)), line!());
            let error = y.error().unwrap();
            assert_eq!(error.location().unwrap().line(), line);
            let message = error.to_string();
            assert!(message.contains(part) && message.contains("words.weight"), "{message}");
        }
    }
}
