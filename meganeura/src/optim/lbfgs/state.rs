//! The memory of L-BFGS as an optimizer's state, for checkpoints.

use super::{History, Lbfgs, dot};
use crate::error::bail;
use crate::optim::OptimizerState;
use crate::{Device, Precision, Result, Tensor};

const NAME: &str = "lbfgs";
/// `[pairs, elements]`, the oldest pair first.
const CHANGES: &str = "changes";
const GRADIENT_CHANGES: &str = "gradient_changes";
/// `[elements]`, of the last iteration.
const DIRECTION: &str = "direction";
const GRADIENT: &str = "gradient";
const LENGTH: &str = "length";
const SCALE: &str = "scale";

impl Lbfgs {
    /// The memory: what the next step continues from. Its tensors are on the CPU, in double precision.
    pub(crate) fn state(&self) -> Result<OptimizerState> {
        let device = Device::cpu_with(Precision::Double);
        let mut state = OptimizerState { optimizer: NAME.to_owned(), ..OptimizerState::default() };
        let History { pairs, scale, last } = &self.memory;
        if let Some((first, ..)) = pairs.front() {
            let shape = [pairs.len(), first.len()];
            let changes: Vec<_> = pairs.iter().flat_map(|(change, ..)| change).copied().collect();
            let of_gradient: Vec<_> = pairs.iter().flat_map(|(_, change, _)| change).copied().collect();
            state.tensors.insert(CHANGES.to_owned(), Tensor::from_f64(&device, shape, &changes)?);
            state.tensors.insert(GRADIENT_CHANGES.to_owned(), Tensor::from_f64(&device, shape, &of_gradient)?);
            state.numbers.insert(SCALE.to_owned(), *scale);
        }
        if let Some((direction, length, gradient)) = last {
            let shape = [direction.len()];
            state.tensors.insert(DIRECTION.to_owned(), Tensor::from_f64(&device, shape, direction)?);
            state.tensors.insert(GRADIENT.to_owned(), Tensor::from_f64(&device, shape, gradient)?);
            state.numbers.insert(LENGTH.to_owned(), *length);
        }
        Ok(state)
    }

    /// Continues from a memory that [`state`](Self::state) returned.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint) if it is not such a state. The memory has not changed
    /// then.
    pub(crate) fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        let OptimizerState { optimizer, tensors, numbers } = state;
        if optimizer != NAME {
            bail!(Checkpoint, "the state is of {optimizer}, not of {NAME}");
        }
        let known = [CHANGES, GRADIENT_CHANGES, DIRECTION, GRADIENT];
        let unknown = tensors.keys().find(|name| !known.contains(&name.as_str()));
        if let Some(name) = unknown.or_else(|| numbers.keys().find(|name| ![LENGTH, SCALE].contains(&name.as_str()))) {
            bail!(Checkpoint, "{NAME} has no `{name}`");
        }
        let two = |names: [&str; 2], number: &str| match (names.map(|name| tensors.get(name)), numbers.get(number)) {
            ([None, None], None) => Ok(None),
            ([Some(a), Some(b)], Some(number)) if a.shape() == b.shape() => {
                Ok(Some((a.shape(), a.to_f64_vec()?, b.to_f64_vec()?, *number)))
            }
            _ => bail!(Checkpoint, "{NAME} needs `{}` and `{}` of one shape, and `{number}`", names[0], names[1]),
        };
        let mut memory = History::default();
        let mut elements = None;
        if let Some((shape, direction, gradient, length)) = two([DIRECTION, GRADIENT], LENGTH)? {
            elements = Some(shape.elements());
            memory.last = Some((direction, length, gradient));
        }
        if let Some((shape, changes, of_gradient, scale)) = two([CHANGES, GRADIENT_CHANGES], SCALE)? {
            let &[_, each] = shape.dims() else {
                bail!(Checkpoint, "`{CHANGES}` is {shape}, and needs two axes: pairs and elements");
            };
            if elements.is_some_and(|elements| elements != each) {
                bail!(Checkpoint, "`{CHANGES}` is {shape}, and `{DIRECTION}` has other elements");
            }
            memory.scale = scale;
            let pairs = changes.chunks(each).zip(of_gradient.chunks(each));
            memory.pairs = pairs.map(|(s, y)| (s.to_vec(), y.to_vec(), 1.0 / dot(y, s))).collect();
        }
        self.memory = memory;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Param, Tape, Var};

    fn valley(w: &Param) -> Result<Var> {
        let w = Tape::new(&Device::cpu_with(Precision::Double)).param(w);
        let (x, y) = (w.slice(0, 0..1), w.slice(0, 1..2));
        Ok(((y - x.square()).square() * 100.0 + (1.0 - x).square()).sum())
    }

    fn start() -> Param {
        Param::new(Tensor::from_f64(&Device::cpu_with(Precision::Double), [2], &[-1.5, 2.0]).unwrap())
    }

    #[test]
    fn a_loaded_memory_continues_to_the_bit() {
        for line_search in [false, true] {
            let new = || Lbfgs::new(0.8).line_search(line_search).iterations(3).history(4);
            let (mut w, mut lbfgs) = (start(), new());
            // Before the first step, there is nothing to save.
            lbfgs.load_state(&lbfgs.state().unwrap()).unwrap();
            lbfgs.step(&mut w, valley).unwrap();
            lbfgs.step(&mut w, valley).unwrap();
            let bytes = lbfgs.state().unwrap().to_safetensors().unwrap();
            let (mut twin, mut later) = (start(), new());
            twin.set(w.value()).unwrap();
            let device = Device::cpu_with(Precision::Double);
            later.load_state(&OptimizerState::from_safetensors(&bytes, &device).unwrap()).unwrap();
            assert_eq!(later.state().unwrap().to_safetensors().unwrap(), bytes);
            for _ in 0..3 {
                assert_eq!(lbfgs.step(&mut w, valley).unwrap(), later.step(&mut twin, valley).unwrap());
            }
            assert_eq!(w.value().to_f64_vec().unwrap(), twin.value().to_f64_vec().unwrap());
        }
    }

    #[test]
    fn another_state_is_refused() {
        let (mut w, mut lbfgs) = (start(), Lbfgs::new(1.0).iterations(4));
        lbfgs.step(&mut w, valley).unwrap();
        let good = lbfgs.state().unwrap();
        let before = good.to_safetensors().unwrap();
        let without = |name: &str| {
            let mut state = good.clone();
            state.tensors.remove(name);
            state.numbers.remove(name);
            state
        };
        let with = |name: &str, shape: &[usize]| {
            let mut state = good.clone();
            state.tensors.insert(name.to_owned(), Tensor::zeros(&Device::cpu(), shape).unwrap());
            state
        };
        for (state, message) in [
            (OptimizerState { optimizer: "adamw".into(), ..good.clone() }, "the state is of adamw, not of lbfgs"),
            (without(GRADIENT), "lbfgs needs `direction` and `gradient` of one shape, and `length`"),
            (without(SCALE), "lbfgs needs `changes` and `gradient_changes` of one shape, and `scale`"),
            (with(DIRECTION, &[3]), "lbfgs needs `direction` and `gradient` of one shape, and `length`"),
            (with("w.m", &[2]), "lbfgs has no `w.m`"),
        ] {
            let error = lbfgs.load_state(&state).unwrap_err();
            assert_eq!((error.kind(), error.message()), (ErrorKind::Checkpoint, message));
        }
        let mut other = with(CHANGES, &[1, 3]);
        other.tensors.insert(GRADIENT_CHANGES.to_owned(), Tensor::zeros(&Device::cpu(), [1, 3]).unwrap());
        assert!(lbfgs.load_state(&other).unwrap_err().message().contains("`direction` has other elements"));
        assert_eq!(lbfgs.state().unwrap().to_safetensors().unwrap(), before);
    }
}
