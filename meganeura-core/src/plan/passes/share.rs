//! Drops launches whose results an earlier launch left in scratch memory, by the same kernel with the same
//! defines on operands that have not been written since. So convolutions that read the same weight transform it once.

use std::collections::HashMap;

use crate::kernel::launch::{Binding, Launch};
use crate::plan::{Plan, Step, StorageId};

/// The most elements of a scratch buffer that is kept for later steps. A larger one is recomputed rather than held from
/// the forward to the backward pass.
const MOST: usize = 1 << 21;

/// The computation of a launch: its kernel, its defines, and the storages that it reads, each with the element from
/// which on it is bound.
type Transform = (&'static str, Vec<(&'static str, String)>, Vec<(StorageId, usize)>);

pub(super) fn share(plan: &mut Plan) {
    // The scratch buffers with each transform's result, and the step that wrote them.
    let mut known: HashMap<Transform, (usize, Vec<StorageId>)> = HashMap::new();
    // The last step that wrote each storage.
    let mut written: HashMap<StorageId, usize> = HashMap::new();
    for (at, step) in plan.steps.iter_mut().enumerate() {
        let mut kept: Vec<Launch> = Vec::with_capacity(step.launches.len());
        let mut bound = vec![false; step.scratch.len()];
        for launch in std::mem::take(&mut step.launches) {
            let found = transform(step, &launch, &bound)
                .filter(|(_, made)| made.iter().all(|&k| plan.storages[step.scratch[k]].elements <= MOST));
            for binding in &launch.bindings {
                if let Binding::Scratch(k) = *binding {
                    bound[k] = true;
                }
            }
            if let Some((transform, made)) = found {
                let is_unchanged =
                    |since| transform.2.iter().all(|(read, _)| written.get(read).is_none_or(|&at| at < since));
                if let Some((_, storages)) = known.get(&transform).filter(|(since, _)| is_unchanged(*since)) {
                    made.iter().zip(storages).for_each(|(&k, &storage)| step.scratch[k] = storage);
                    continue;
                }
                known.insert(transform, (at, made.iter().map(|&k| step.scratch[k]).collect()));
            }
            kept.push(launch);
        }
        step.launches = kept;
        written.extend(step.outputs.iter().map(|&(storage, _)| (storage, at)));
    }
}

/// The computation of a launch that reads only operands, and the scratch buffers that it writes. It must be the first
/// in its step to bind them, and later launches must only read them: a scratch buffer has one writer.
fn transform(step: &Step, launch: &Launch, bound: &[bool]) -> Option<(Transform, Vec<usize>)> {
    if launch.loads.is_some() || launch.stores {
        return None;
    }
    let (mut reads, mut made) = (Vec::new(), Vec::new());
    for binding in &launch.bindings {
        match *binding {
            Binding::Input(k) => reads.push((step.inputs[k].storage, step.binding_offset(*binding))),
            Binding::Scratch(k) if !bound[k] => made.push(k),
            _ => return None,
        }
    }
    let found = !reads.is_empty() && !made.is_empty();
    found.then(|| ((launch.kernel, launch.defines.clone(), reads), made))
}

#[cfg(test)]
mod tests {
    use crate::kernel::launch::Caps;
    use crate::ops::Conv2dOptions;
    use crate::plan::{Plan, Preferences, Request, Target};
    use crate::{Device, Result, Shape, Tape, Tensor, Var};

    /// The kernels that a large GPU launches for a recording on inputs of these shapes. If the recording returns an
    /// update, it is assigned to the first input.
    fn kernels(shapes: &[Shape], f: impl Fn(&[Var]) -> (Option<Var>, Vec<Var>)) -> Result<Vec<&'static str>> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let input = |&shape: &Shape| Ok(tape.input(&Tensor::zeros(&device, shape)?));
        let x = shapes.iter().map(input).collect::<Result<Vec<_>>>()?;
        let (assigned, outputs) = f(&x);
        let outputs = outputs.iter().map(Var::id).collect::<Result<Vec<_>>>()?;
        let assigns = assigned.iter().map(|value| Ok((0, value.id()?))).collect::<Result<Vec<_>>>()?;
        let preferences = Preferences::default();
        tape.with_graph(|graph| {
            let request = Request { graph, outputs: &outputs, assigns: &assigns };
            let plan = Plan::new(&request, Target::Gpu { caps: Caps::DISCRETE, preferences: &preferences })?;
            Ok(plan.launch_infos().map(|launched| launched.kernel).collect())
        })
    }

    fn count(kernels: &[&str], kernel: &str) -> usize {
        kernels.iter().filter(|name| **name == kernel).count()
    }

    const STRIDE: Conv2dOptions = Conv2dOptions { stride: [2, 2], padding: [0, 0], dilation: [1, 1], groups: 1 };

    #[test]
    fn a_large_weight_is_packed_again() -> Result<()> {
        let twice = |x: &[Var]| (None, vec![x[0].conv2d(&x[1], STRIDE), x[0].square().conv2d(&x[1], STRIDE)]);
        for (channels, packed) in [(64, 1), (512, 2)] {
            let [image, weight] = [Shape::from([8, channels, 16, 16]), Shape::from([512, channels, 3, 3])];
            let kernels = kernels(&[image, weight], twice)?;
            assert_eq!((count(&kernels, "conv2d_gemm"), count(&kernels, "conv2d_pack")), (2, packed), "{kernels:?}");
        }
        Ok(())
    }

    #[test]
    fn updated_weights_are_packed_again() -> Result<()> {
        // The last convolution's weight shares the memory of the first one's.
        let updated = |x: &[Var]| {
            let z = &x[0] * 0.5;
            (Some(z.clone()), vec![x[1].conv2d(&x[0], STRIDE), x[1].conv2d(&z, STRIDE)])
        };
        let [image, weight] = [Shape::from([8, 64, 16, 16]), Shape::from([64, 64, 3, 3])];
        let kernels = kernels(&[weight, image], updated)?;
        assert_eq!((count(&kernels, "conv2d_gemm"), count(&kernels, "conv2d_pack")), (2, 2), "{kernels:?}");
        Ok(())
    }

    #[test]
    fn products_with_shared_packing_are_not_merged() -> Result<()> {
        // Each product writes partial sums to scratch memory, and reads weights that another convolution packed.
        let [image, weight] = [Shape::from([8, 64, 16, 16]), Shape::from([64, 64, 3, 3])];
        let convolutions = |x: &[Var]| {
            let pairs = [(0, 2), (0, 3), (1, 2), (1, 3)];
            (None, pairs.map(|(image, weight)| x[image].conv2d(&x[weight], STRIDE)).to_vec())
        };
        let kernels = kernels(&[image, image, weight, weight], convolutions)?;
        assert_eq!((count(&kernels, "conv2d_gemm"), count(&kernels, "conv2d_pack")), (4, 2), "{kernels:?}");
        Ok(())
    }
}
