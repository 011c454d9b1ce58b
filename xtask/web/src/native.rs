//! The same training outside the browser, for comparison.

use meganeura::Device;
use meganeura::io::tensors_from_safetensors;
use meganeura_web::{Model, Session};
use pollster::block_on;

use crate::Done;

/// The seed of the page.
const SEED: u64 = 42;

/// The driver that runs kernels on the CPU, like the browser's.
pub const LAVAPIPE: &str = "llvmpipe";

/// A session after a number of steps of the reader and of the drawer, at the page's learning rates.
pub fn session(device: &str, reader: usize, drawer: usize) -> Done<Session> {
    let trained = || {
        let mut session = Session::new(&Device::named(device)?, SEED)?;
        block_on(session.train(Model::Reader, reader))?;
        block_on(session.train(Model::Drawer, drawer))?;
        Ok(session)
    };
    trained().map_err(|error: meganeura::Error| format!("natively on {device}: {error}"))
}

/// The weights of a model, as a file.
pub fn weights(session: &Session, model: Model) -> Done<Vec<u8>> {
    block_on(session.save(model)).map_err(|error| error.to_string())
}

/// The difference between two files of weights: the largest `‖a − b‖ / ‖b‖` over all tensors. It uses norms because an
/// element whose gradient is only rounding error still moves by the learning rate under Adam.
pub fn difference(a: &[u8], b: &[u8]) -> Done<f64> {
    let cpu = Device::cpu();
    let read = |bytes| {
        let tensors = tensors_from_safetensors(bytes, &cpu).map_err(|error| error.to_string())?;
        let values = tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.to_vec()?)));
        values.collect::<meganeura::Result<Vec<_>>>().map_err(|error| error.to_string())
    };
    let (a, b) = (read(a)?, read(b)?);
    if a.iter().map(|(name, values)| (name, values.len())).ne(b.iter().map(|(name, values)| (name, values.len()))) {
        return Err("the files have different tensors".to_owned());
    }
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let shares = a.iter().zip(&b).map(|((_, a), (_, b))| {
        let off = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
        off / norm(&mut b.iter().copied()).max(1e-6)
    });
    Ok(shares.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_seen() {
        let of = |reader, drawer, model| weights(&session("cpu", reader, drawer).unwrap(), model).unwrap();
        let one = of(1, 0, Model::Reader);
        assert_eq!(difference(&one, &one), Ok(0.0));
        assert!(difference(&one, &of(2, 0, Model::Reader)).unwrap() > 1e-3);
        assert!(difference(&one, &of(0, 0, Model::Drawer)).is_err());
    }
}
