//! The ready-made walks over a module.

use super::{At, Module, Slot, SlotMut, Summary};
use crate::{Buffer, Device, Param, Result};

/// What every [`Module`] can do. Implemented for all of them, `dyn` ones included.
pub trait ModuleExt: Module {
    /// The parameters and their paths, in the order of the visit.
    fn named_parameters(&self) -> Vec<(String, &Param)> {
        let mut parameters = Vec::new();
        self.visit(At::root(), &mut |at, slot| {
            if let Slot::Param(param) = slot {
                parameters.push((at.path(), param));
            }
        });
        parameters
    }

    /// The buffers and their paths, in the order of the visit.
    fn named_buffers(&self) -> Vec<(String, &Buffer)> {
        let mut buffers = Vec::new();
        self.visit(At::root(), &mut |at, slot| {
            if let Slot::Buffer(buffer) = slot {
                buffers.push((at.path(), buffer));
            }
        });
        buffers
    }

    /// How many numbers are trained, frozen ones included. Buffers are not parameters.
    fn parameter_count(&self) -> usize {
        let mut count = 0;
        self.visit(At::root(), &mut |_, slot| {
            if let Slot::Param(param) = slot {
                count += param.shape().elements();
            }
        });
        count
    }

    /// Tells every parameter and buffer its path, for messages and saved files to call it by.
    ///
    /// The generated `init` has done so. Call it on a model that was put together by hand.
    fn name_parameters(&self) {
        self.visit(At::root(), &mut |at, slot| match slot {
            Slot::Param(param) => param.set_path(&at.path()),
            Slot::Buffer(buffer) => buffer.set_path(&at.path()),
        });
    }

    /// Moves every parameter and buffer to `device`.
    ///
    /// # Errors
    ///
    /// The first tensor that cannot be moved. Those visited before it have been moved, those after it have not.
    fn to_device(&mut self, device: &Device) -> Result<()> {
        let mut result = Ok(());
        self.visit_mut(At::root(), &mut |_, slot| {
            if result.is_ok() {
                result = match slot {
                    SlotMut::Param(param) => param.to_device(device),
                    SlotMut::Buffer(buffer) => buffer.to_device(device),
                };
            }
        });
        result
    }

    /// The tree of parameters and buffers, with their shapes, to be printed.
    fn summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl<M: Module + ?Sized> ModuleExt for M {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    type Net = (Param, Vec<(Param, Buffer)>);

    fn net() -> Net {
        let tensor = |shape| Tensor::zeros(&Device::cpu(), shape).unwrap();
        (Param::new(tensor([2, 3])), vec![(Param::new(tensor([1, 4])), Buffer::new(tensor([5, 5])))])
    }

    fn paths<T>(named: Vec<(String, &T)>) -> Vec<String> {
        named.into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn roles_are_kept_apart() {
        assert_eq!(paths(net().named_parameters()), ["0", "1.0.0"]);
        assert_eq!(paths(net().named_buffers()), ["1.0.1"]);
    }

    #[test]
    fn buffers_are_not_counted_as_parameters() {
        assert_eq!(net().parameter_count(), 2 * 3 + 4);
    }

    #[test]
    fn every_leaf_learns_its_path() {
        let net = net();
        net.name_parameters();
        assert_eq!(net.1[0].0.path().as_deref(), Some("1.0.0"));
        assert_eq!(net.1[0].1.path().as_deref(), Some("1.0.1"));
    }

    #[test]
    fn a_boxed_module_is_walked_like_any() {
        let net: Box<dyn Module> = Box::new(net());
        assert_eq!(net.parameter_count(), 10);
        assert_eq!(paths(net.named_parameters()), ["0", "1.0.0"]);
    }

    #[test]
    fn every_leaf_is_moved() {
        net().to_device(&Device::cpu()).unwrap();
    }
}
