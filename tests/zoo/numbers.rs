//! Parameters and inputs from their names, bit for bit those of `make_models.py`.

use meganeura::module::At;
use meganeura::{Device, Module, Result, Shape, Tensor};

/// FNV-1a, 64 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Numbers from -1 to below 1: a hash of the name, and of each number's index.
fn uniform(name: &str, count: usize) -> impl Iterator<Item = f64> {
    let seed = fnv1a(name.as_bytes()) as u32;
    (0..count as u32).map(move |index| {
        let mut x = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9));
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        f64::from(x ^ (x >> 16)) / f64::from(1u32 << 31) - 1.0
    })
}

/// A parameter or a buffer. Weights keep the size of what passes through.
pub(crate) fn number(name: &str, shape: Shape) -> Vec<f64> {
    let (centre, scale) = match shape.dims() {
        _ if name.ends_with("running_var") => (1.0, 0.5),
        [_, fan @ ..] if !fan.is_empty() => (0.0, (3.0 / fan.iter().product::<usize>() as f64).sqrt()),
        _ if name.ends_with("weight") => (1.0, 0.25),
        _ => (0.0, 0.1),
    };
    uniform(name, shape.elements()).map(|x| f64::from((centre + scale * x) as f32)).collect()
}

/// Gives every parameter and buffer the numbers of its path.
pub(crate) fn fill(module: &mut dyn Module) -> Result<()> {
    let mut result = Ok(());
    module.visit_mut(At::root(), &mut |at, mut slot| {
        let old = slot.value();
        let fresh = Tensor::from_f64(old.device(), old.shape(), &number(&at.path(), old.shape()));
        let set = fresh.and_then(|fresh| slot.set(fresh));
        if result.is_ok() {
            result = set;
        }
    });
    result
}

/// An input of floats.
pub(crate) fn picture(device: &Device, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let data: Vec<_> = uniform(name, shape.elements()).map(|x| f64::from(x as f32)).collect();
    Tensor::from_f64(device, shape, &data)
}

/// An input of tokens.
pub(crate) fn tokens(device: &Device, name: &str, shape: impl Into<Shape>, count: u32) -> Result<Tensor> {
    let shape = shape.into();
    let token = |x: f64| ((x + 1.0) / 2.0 * f64::from(count)) as u32;
    Tensor::indices(device, shape, &uniform(name, shape.elements()).map(token).collect::<Vec<_>>())
}
