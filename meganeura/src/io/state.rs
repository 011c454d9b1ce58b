//! The state of optimizers as a file: tensors by name, and numbers in the header, as text that is parsed bit for bit.

use std::collections::BTreeMap;

use super::format;
use crate::error::{bail, here, here_async};
use crate::optim::OptimizerState;
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::{Device, Result};

/// The word of the header that names the optimizer. Names of numbers end in other words.
const OPTIMIZER: &str = "optimizer";

impl OptimizerState {
    /// The bytes of a safetensors file.
    ///
    /// # Errors
    ///
    /// Fails if the device fails.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        block_on(self.to_safetensors_async())
    }

    /// Like [`to_safetensors`](Self::to_safetensors), without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails if the device fails.
    #[track_caller]
    pub fn to_safetensors_async(&self) -> impl Future<Output = Result<Vec<u8>>> {
        here_async(async {
            // The shortest text that parses to the same number.
            let mut words: BTreeMap<_, _> =
                self.numbers.iter().map(|(name, number)| (name.clone(), format!("{number:?}"))).collect();
            words.insert(OPTIMIZER.to_owned(), self.optimizer.clone());
            let tensors = self.tensors.iter().map(|(name, tensor)| (name.clone(), vec![tensor.clone()])).collect();
            format::write(tensors, words).await
        })
    }

    /// Parses the bytes of [`to_safetensors`](Self::to_safetensors), with tensors on `device`.
    ///
    /// ```
    /// use meganeura::optim::OptimizerState;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let net = Linear::new(2, 1).init(&device, Seed::new(1))?;
    /// let bytes = AdamW::new(0.125).state_of(&net).to_safetensors()?;
    ///
    /// let mut later = AdamW::new(1.0);
    /// later.load_state(&net, &OptimizerState::from_safetensors(&bytes, &device)?)?;
    /// assert_eq!(later.lr(), 0.125);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint) if the bytes are not such a file, or if the device
    /// fails.
    #[track_caller]
    pub fn from_safetensors(bytes: &[u8], device: &Device) -> Result<Self> {
        here(|| {
            let (tensors, mut words) = format::read_all(bytes, device)?;
            let tensors = tensors.complete()?;
            if let Some((name, tensor)) = tensors.iter().find(|(_, tensor)| !tensor.ty().dtype.is_float()) {
                bail!(Checkpoint, "`{name}` is {}, and an optimizer remembers floats", tensor.ty());
            }
            let Some(optimizer) = words.remove(OPTIMIZER) else {
                bail!(Checkpoint, "no state of an optimizer: the header does not name one");
            };
            let mut numbers = BTreeMap::new();
            for (name, text) in words {
                let Ok(number) = text.parse::<f64>() else {
                    bail!(Checkpoint, "`{name}` is `{text}`, which is not a number");
                };
                numbers.insert(name, number);
            }
            Ok(Self { optimizer, tensors, numbers })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::io::Checkpoint;
    use crate::{ErrorKind, Param};

    #[test]
    fn every_bit_comes_back() {
        let device = Device::cpu();
        let numbers = [0.1, -0.0, 1e-310, f64::MAX, f64::INFINITY, 1.0 / 3.0, 9_007_199_254_740_991.0];
        let odd = [f32::from_bits(0x7fc0_1234), -0.0, f32::MIN_POSITIVE / 2.0];
        let state = OptimizerState {
            optimizer: "adamw".into(),
            tensors: [("w.m".to_owned(), Tensor::from_slice(&device, [3, 1], &odd).unwrap())].into(),
            numbers: numbers.iter().enumerate().map(|(i, &number)| (format!("{i}.steps"), number)).collect(),
        };
        let bytes = state.to_safetensors().unwrap();
        let read = OptimizerState::from_safetensors(&bytes, &device).unwrap();
        assert_eq!(read.optimizer, "adamw");
        assert_eq!(read.numbers.values().map(|n| n.to_bits()).collect::<Vec<_>>(), numbers.map(f64::to_bits));
        let values = read.tensors["w.m"].to_vec().unwrap();
        assert_eq!(values.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), odd.map(f32::to_bits));
        assert_eq!(read.to_safetensors().unwrap(), bytes);
    }

    #[test]
    fn files_without_optimizer_state_are_refused() {
        let device = Device::cpu();
        let model = Param::new(Tensor::zeros(&device, [1]).unwrap()).to_safetensors().unwrap();
        let bad = OptimizerState { optimizer: "sgd".into(), ..OptimizerState::default() };
        let mut bad = bad.to_safetensors().unwrap();
        let text = String::from_utf8(bad.clone()).unwrap().replace("\"sgd\"", "\"sg\",\"lr\":\"fast\"");
        bad.splice(8.., text.into_bytes().into_iter().skip(8));
        let length = (bad.len() - 8) as u64;
        bad[..8].copy_from_slice(&length.to_le_bytes());
        for (bytes, message) in [
            (&model[..], "does not name one"),
            (&bad, "`lr` is `fast`"),
            (b"half a file", "not a safetensors file, or not all of one"),
        ] {
            let error = OptimizerState::from_safetensors(bytes, &device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checkpoint);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
