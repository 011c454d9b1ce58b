//! Launches whose results an earlier launch has left in scratch memory: the same kernel with the same numbers on operands that
//! nobody has written since. Products that scale their operands ask for the peaks of each, once for its result and again for its
//! gradients; they are found once.

use std::collections::HashMap;

use super::{Plan, Step, StorageId};
use crate::kernel::launch::{Binding, Launch};

/// Elements of scratch memory that may be kept for later steps: what is larger is computed again, rather than held.
const MOST: usize = 1 << 14;

/// What a launch computes: its kernel, its defines, and the storages it reads.
type Key = (&'static str, Vec<(&'static str, String)>, Vec<StorageId>);

pub(super) fn share(plan: &mut Plan) {
    let mut known: HashMap<Key, StorageId> = HashMap::new();
    for step in &mut plan.steps {
        let mut kept = Vec::with_capacity(step.launches.len());
        for launch in std::mem::take(&mut step.launches) {
            if let Some((key, scratch)) = shareable(step, &launch)
                && plan.storages[step.scratch[scratch]].elements <= MOST
            {
                if let Some(&storage) = known.get(&key) {
                    step.scratch[scratch] = storage;
                    continue;
                }
                known.insert(key, step.scratch[scratch]);
            }
            kept.push(launch);
        }
        step.launches = kept;
        for (written, _) in &step.outputs {
            known.retain(|(_, _, reads), _| !reads.contains(written));
        }
    }
}

/// What a launch computes that reads operands alone and writes one scratch buffer, the last that it binds; and which.
fn shareable(step: &Step, launch: &Launch) -> Option<(Key, usize)> {
    let (&Binding::Scratch(scratch), operands) = launch.bindings.split_last()? else { return None };
    let reads = operands.iter().map(|binding| match binding {
        Binding::Input(k) => Some(step.inputs[*k].storage),
        _ => None,
    });
    let reads = reads.collect::<Option<Vec<_>>>()?;
    let alone = launch.loads.is_none() && !launch.stores && !reads.is_empty();
    alone.then(|| ((launch.kernel, launch.defines.clone(), reads), scratch))
}

#[cfg(test)]
mod tests {
    use crate::kernel::launch::{Caps, Kind};
    use crate::plan::{Plan, Preferences, Request, Target};
    use crate::{Device, Result, Tape, Tensor, Var};

    /// The kernels that a device with matrix units launches for what is recorded on three `[256, 256]` matrices, of which the first
    /// becomes `assigned`, if that is said.
    fn kernels(f: impl Fn(&[Var]) -> Vec<Var>, assigned: Option<usize>) -> Result<Vec<&'static str>> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let input = |_| Ok(tape.input(&Tensor::zeros(&device, [256, 256])?));
        let x = (0..3).map(input).collect::<Result<Vec<_>>>()?;
        let outputs = f(&x).iter().map(Var::id).collect::<Result<Vec<_>>>()?;
        let assigns: Vec<_> = assigned.map(|k| (0, outputs[k])).into_iter().collect();
        let caps = Caps {
            kind: Kind::Discrete,
            workgroup_memory: 49_152,
            workgroup_size: 1024,
            bindings: 16,
            buffer: 1 << 30,
            subgroup: (32, 32),
            matrix: true,
        };
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

    #[test]
    fn operands_that_products_share_are_searched_once() -> Result<()> {
        let product_and_gradients =
            |x: &[Var]| vec![x[0].matmul(&x[1]), x[2].matmul(&x[1].t()), x[0].t().matmul(&x[2])];
        let kernels = kernels(product_and_gradients, None)?;
        assert_eq!((count(&kernels, "gemm"), count(&kernels, "peaks")), (3, 3));
        Ok(())
    }

    #[test]
    fn what_was_written_since_is_searched_again() -> Result<()> {
        // The second product reads what was computed in place of the first one's operand.
        let updated = |x: &[Var]| {
            let y = x[0].matmul(&x[1]);
            let z = &x[0] - &y;
            vec![z.clone(), z.matmul(&x[1])]
        };
        let kernels = kernels(updated, Some(0))?;
        assert_eq!((count(&kernels, "gemm"), count(&kernels, "peaks")), (2, 3));
        Ok(())
    }
}
