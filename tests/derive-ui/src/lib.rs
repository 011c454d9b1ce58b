//! Small layers with known behaviour for the cases in `tests/`.

pub mod strict;

use std::sync::LazyLock;

use meganeura::module::{At, Slot, SlotMut};
use meganeura::{Buffer, Device, Init, Layer, Module, Param, Result, Seed, Tape, Tensor, Var};

/// The CPU. Always the same device, because layers and tapes must share one.
#[must_use]
pub fn device() -> Device {
    static CPU: LazyLock<Device> = LazyLock::new(Device::cpu);
    CPU.clone()
}

/// Multiplies by its one parameter, `weight`.
#[derive(Module, Debug)]
pub struct Scale {
    weight: Param,
}

/// Builds a [`Scale`].
#[derive(Debug, Clone)]
pub struct ScaleBuilder {
    factors: Vec<f32>,
}

impl Scale {
    /// A layer that multiplies every number by `factor`.
    #[expect(clippy::new_ret_no_self, reason = "as in the layers of the framework, `new` begins a builder")]
    #[must_use]
    pub fn new(factor: f32) -> ScaleBuilder {
        ScaleBuilder { factors: vec![factor] }
    }
}

impl ScaleBuilder {
    /// Multiplies each of `width` numbers by its own factor instead.
    #[must_use]
    pub fn wide(self, width: usize) -> Self {
        Self { factors: self.factors.repeat(width) }
    }
}

impl Init for ScaleBuilder {
    type Output = Scale;

    fn build(self, device: &Device, _: Seed) -> Result<Scale> {
        let weight = Tensor::from_slice(device, [self.factors.len()], &self.factors)?;
        Ok(Scale { weight: Param::new(weight) })
    }
}

impl Layer for Scale {
    fn forward(&self, x: &Var) -> Var {
        x.clone() * x.param(&self.weight)
    }
}

/// Adds its one buffer, `offset`.
#[derive(Module, Debug)]
pub struct Shift {
    offset: Buffer,
}

/// Builds a [`Shift`].
#[derive(Debug, Clone)]
pub struct ShiftBuilder {
    offset: f32,
}

impl Shift {
    /// A layer that adds `offset` to every number.
    #[expect(clippy::new_ret_no_self, reason = "as in the layers of the framework, `new` begins a builder")]
    #[must_use]
    pub fn new(offset: f32) -> ShiftBuilder {
        ShiftBuilder { offset }
    }
}

impl Init for ShiftBuilder {
    type Output = Shift;

    fn build(self, device: &Device, _: Seed) -> Result<Shift> {
        Ok(Shift { offset: Buffer::new(Tensor::from_slice(device, [1], &[self.offset])?) })
    }
}

impl Layer for Shift {
    fn forward(&self, x: &Var) -> Var {
        x.clone() + x.buffer(&self.offset)
    }
}

/// The contents of a module, in the order of its visits: `a.weight`, frozen ones as `a.weight (frozen)`, buffers as
/// `a.offset (buffer)`.
///
/// # Panics
///
/// If the module's two visits disagree.
pub fn leaves(module: &mut (impl Module + ?Sized)) -> Vec<String> {
    let line = |at: At<'_>, role: &str| format!("{at}{role}{}", if at.is_frozen() { " (frozen)" } else { "" });
    let (mut shared, mut exclusive) = (Vec::new(), Vec::new());
    module.visit(At::root(), &mut |at, slot| {
        if matches!(slot, Slot::Param(_) | Slot::Buffer(_)) {
            shared.push(line(at, if matches!(slot, Slot::Buffer(_)) { " (buffer)" } else { "" }));
        }
    });
    module.visit_mut(At::root(), &mut |at, slot| {
        exclusive.push(line(at, if matches!(slot, SlotMut::Buffer(_)) { " (buffer)" } else { "" }));
    });
    assert_eq!(shared, exclusive);
    shared
}

/// The result of `layer`, which is on [`device`], for the number `x`.
///
/// # Errors
///
/// The error of the layer.
pub fn apply(layer: &(impl Layer + ?Sized), x: f32) -> Result<f32> {
    let device = device();
    let tape = Tape::new(&device);
    layer.forward(&tape.input(&Tensor::from_slice(&device, [1], &[x])?)).item()
}
