//! GPU only: launches whose results an earlier launch has left in scratch memory, the same kernel with the same numbers on operands
//! that nobody has written since, are not done again. A product and both of its gradients bring each operand into the same form;
//! that is done once for all of them.

use std::collections::HashMap;

use super::{Plan, Step, StorageId};
use crate::kernel::launch::{Binding, Launch};

/// Elements that a scratch buffer may have to be kept for later steps, each for itself: what is larger is computed again, rather than
/// held from the forward to the backward pass.
const MOST: usize = 1 << 21;

/// What a launch computes: its kernel, its defines, and the storages that it reads.
type Transform = (&'static str, Vec<(&'static str, String)>, Vec<StorageId>);

pub(super) fn share(plan: &mut Plan) {
    // With the step that left it there.
    let mut known: HashMap<Transform, (usize, Vec<StorageId>)> = HashMap::new();
    // The last step that wrote a storage.
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
                    |since| transform.2.iter().all(|read| written.get(read).is_none_or(|&at| at < since));
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

/// What a launch computes that reads operands alone, and the scratch buffers that it writes: it is the first of its step to bind
/// them. Launches after it only read them: a scratch buffer has one writer.
fn transform(step: &Step, launch: &Launch, bound: &[bool]) -> Option<(Transform, Vec<usize>)> {
    if launch.loads.is_some() || launch.stores {
        return None;
    }
    let (mut reads, mut made) = (Vec::new(), Vec::new());
    for binding in &launch.bindings {
        match *binding {
            Binding::Input(k) => reads.push(step.inputs[k].storage),
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

    /// The kernels that a large GPU launches for what is recorded on inputs of these shapes: its first value, where there is one, becomes
    /// the first input.
    fn kernels(
        matrix: bool,
        shapes: &[Shape],
        f: impl Fn(&[Var]) -> (Option<Var>, Vec<Var>),
    ) -> Result<Vec<&'static str>> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let input = |&shape: &Shape| Ok(tape.input(&Tensor::zeros(&device, shape)?));
        let x = shapes.iter().map(input).collect::<Result<Vec<_>>>()?;
        let (assigned, outputs) = f(&x);
        let outputs = outputs.iter().map(Var::id).collect::<Result<Vec<_>>>()?;
        let assigns = assigned.iter().map(|value| Ok((0, value.id()?))).collect::<Result<Vec<_>>>()?;
        let caps = Caps { matrix, ..Caps::DISCRETE };
        let preferences = Preferences::default();
        tape.with_graph(|graph| {
            let request = Request { graph, outputs: &outputs, assigns: &assigns };
            let plan = Plan::new(&request, Target::Gpu { caps, preferences: &preferences })?;
            Ok(plan.launched().map(|launched| launched.kernel).collect())
        })
    }

    fn count(kernels: &[&str], kernel: &str) -> usize {
        kernels.iter().filter(|name| **name == kernel).count()
    }

    fn product_and_gradients(x: &[Var]) -> (Option<Var>, Vec<Var>) {
        (None, vec![x[0].matmul(&x[1]), x[2].matmul(&x[1].t()), x[0].t().matmul(&x[2])])
    }

    #[test]
    fn operands_that_products_share_are_packed_once() -> Result<()> {
        let kernels = kernels(true, &[Shape::from([1024, 1024]); 3], product_and_gradients)?;
        assert_eq!((count(&kernels, "gemm_of_packed"), count(&kernels, "gemm_pack")), (3, 3));
        Ok(())
    }

    #[test]
    fn large_ones_are_packed_again() -> Result<()> {
        let kernels = kernels(true, &[Shape::from([4096, 4096]); 3], product_and_gradients)?;
        assert_eq!((count(&kernels, "gemm_of_packed"), count(&kernels, "gemm_pack")), (3, 6));
        Ok(())
    }

    #[test]
    fn what_was_written_since_is_packed_again() -> Result<()> {
        // The last product's left operand is in the memory of the first one's.
        let updated = |x: &[Var]| {
            let z = &x[0] - x[1].matmul(&x[2]);
            (Some(z.clone()), vec![x[0].matmul(&x[1]), z.matmul(&x[1])])
        };
        let kernels = kernels(true, &[Shape::from([1024, 1024]); 3], updated)?;
        assert_eq!((count(&kernels, "gemm_of_packed"), count(&kernels, "gemm_pack")), (3, 4));
        Ok(())
    }

    #[test]
    fn what_reads_a_dropped_launch_is_told_apart() -> Result<()> {
        // Each product writes its parts to scratch memory, and reads weights that another convolution packed.
        let [image, weight] = [Shape::from([8, 64, 16, 16]), Shape::from([64, 64, 3, 3])];
        let stride = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() };
        let convolutions = |x: &[Var]| {
            let pairs = [(0, 2), (0, 3), (1, 2), (1, 3)];
            (None, pairs.map(|(image, weight)| x[image].conv2d(&x[weight], stride)).to_vec())
        };
        let kernels = kernels(false, &[image, image, weight, weight], convolutions)?;
        assert_eq!((count(&kernels, "conv2d_gemm"), count(&kernels, "conv2d_pack")), (4, 2), "{kernels:?}");
        Ok(())
    }
}
