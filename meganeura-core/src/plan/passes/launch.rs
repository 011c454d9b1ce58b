//! Chooses how each step is launched.

use crate::kernel::launch::{Argument, Binding, Caps, Format, Launch, Variant};
use crate::plan::{KernelWork, Place, Plan, Preferences, Step, StorageInfo, Work};
use crate::{DType, Error, ErrorKind, Result};

/// Chooses the launches of every step: the best variant of each kernel, unless another is preferred.
pub(super) fn launch(plan: &mut Plan, caps: &Caps, preferences: &Preferences) -> Result<()> {
    // A value too large for a buffer is refused where buffers are allocated.
    let fits = plan.storages.iter().all(|storage| storage.bytes() <= caps.buffer);
    for step in &mut plan.steps {
        match &step.work {
            Work::Pointwise(program) => step.launches = vec![program.launch(step)],
            Work::Kernel(kernel) => {
                let mut variants = variants(kernel, step, caps);
                if fits {
                    expect_ends(kernel.op.name(), &mut variants, caps)?;
                }
                let holds = |variant: &Variant| {
                    variant.scratch.iter().all(|elements| elements.saturating_mul(4) <= caps.buffer)
                };
                if variants.iter().any(holds) {
                    variants.retain(holds);
                }
                let merged = kernel.load.is_some() || kernel.store.is_some();
                if merged {
                    // Merging counts operands and results; launches that also read scratch memory bind more.
                    variants.retain(|variant| {
                        variant.launches.iter().all(|launch| kernel.bindings(step, launch) <= caps.bindings)
                    });
                }
                step.offered = variants.iter().map(|variant| variant.name).collect();
                let mut chosen = variants.swap_remove(preferences.choose(kernel.op.name(), &step.offered)?);
                for Launch { kernel, workgroups, .. } in &chosen.launches {
                    debug_assert!(workgroups.fit(caps), "{kernel} in {workgroups:?} does not fit the device");
                }
                let stores = chosen.launches.iter().filter(|launch| launch.stores).count();
                debug_assert_eq!(stores, usize::from(kernel.op.stores()), "{:?} {}", kernel.op, chosen.name);
                for launch in &mut chosen.launches {
                    for binding in &mut launch.bindings {
                        if let Binding::Input(k) = binding {
                            *k = kernel.operand(*k);
                        }
                    }
                    kernel.complete(step, launch);
                    debug_assert!(!merged || launch.bindings.len() <= caps.bindings, "{:?} binds too many", kernel.op);
                }
                let loads = chosen.launches.iter().find_map(|launch| launch.loads);
                debug_assert!(kernel.load.as_ref().is_none_or(|load| loads == Some(load.operand)), "{:?}", kernel.op);
                for elements in chosen.scratch {
                    step.scratch.push(plan.storages.len());
                    plan.storages.push(StorageInfo {
                        dtype: DType::F32,
                        format: Format::Full,
                        elements,
                        place: Place::Unplaced,
                    });
                }
                (step.variant, step.launches) = (chosen.name, chosen.launches);
            }
        }
    }
    Ok(())
}

/// Leaves out variants whose loops exceed the device's limit for one invocation. Every operation with long sums has a
/// variant that shares them among invocations.
fn expect_ends(op: &'static str, variants: &mut Vec<Variant>, caps: &Caps) -> Result<()> {
    let most = |variant: &Variant| variant.launches.iter().map(|launch| launch.workgroups.loops).max().unwrap_or(0);
    let fewest = variants.iter().map(most).min().unwrap_or(0);
    if fewest > caps.loops {
        let message = format!("needs {fewest} iterations of a loop, but the device runs at most {}", caps.loops);
        return Err(Error::new(ErrorKind::OutOfMemory, message).in_op(op));
    }
    variants.retain(|variant| most(variant) <= caps.loops);
    Ok(())
}

/// The variants of a kernel, for the operands and results of the operation.
fn variants(kernel: &KernelWork, step: &Step, caps: &Caps) -> Vec<Variant> {
    let mut arguments: Vec<Argument> = step.inputs.iter().map(|input| input.argument).collect();
    if let Some(load) = &kernel.load {
        arguments.insert(load.operand, load.argument);
    }
    arguments.truncate(kernel.operands);
    kernel.op.variants(&arguments, &kernel.types, caps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Conv2dOptions;
    use crate::plan::{Request, Target};
    use crate::{Device, Tape, Tensor, Var};

    /// The launches for a function of `x`, which has one element, and for its gradient: kernel, variant, and the
    /// maximum of loop iterations per invocation.
    fn planned(caps: Caps, f: impl Fn(&Var) -> Var) -> Result<Vec<(&'static str, &'static str, usize)>> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [1, 1, 1, 1])?);
        let y = f(&x);
        let grads = tape.backward(&y.sum())?;
        let dx = grads.of(&x).expect("the value depends on it");
        let outputs = [y.id()?, dx.id()?];
        tape.with_graph(|graph| {
            let request = Request { graph, outputs: &outputs, assigns: &[] };
            let plan = Plan::new(&request, Target::Gpu { caps, preferences: &Preferences::default() })?;
            let launches = plan.steps.iter().flat_map(|step| step.launches.iter().map(move |launch| (step, launch)));
            Ok(launches.map(|(step, launch)| (launch.kernel, step.variant, launch.workgroups.loops)).collect())
        })
    }

    /// No value here exceeds a buffer of lavapipe, which holds 2²⁵ elements.
    #[test]
    fn every_operation_that_fits_lavapipe_has_a_variant_within_its_loops() -> Result<()> {
        type Build = fn(&Var) -> Var;
        let cases: &[(&str, Build)] = &[
            ("avg_pool2d", |x| x.expand([1, 1, 4096, 8192]).avg_pool2d([4096, 8192], [1, 1], [0, 0], false)),
            ("avg_pool2d", |x| x.expand([1, 1, 64, 64]).avg_pool2d([4096, 4096], [1, 1], [2048, 2048], true)),
            ("max_pool2d", |x| x.expand([1, 1, 4096, 8192]).max_pool2d([4096, 8192], [1, 1], [0, 0], [1, 1])),
            ("max_pool2d", |x| x.expand([1, 1, 64, 64]).max_pool2d([4096, 4096], [1, 1], [2048, 2048], [1, 1])),
            ("resample", |x| x.resize_bilinear([4096, 8192], true)),
            ("resample", |x| x.expand([1, 1, 2897, 2897]).adaptive_avg_pool2d([2, 2])),
            ("conv2d", |x| {
                x.expand([1, 1 << 25, 1, 1]).conv2d(&x.expand([1, 1 << 25, 1, 1]), Conv2dOptions::default())
            }),
            ("conv2d", |x| {
                x.expand([1, 1 << 22, 1, 2]).conv2d(&x.expand([8, 1 << 22, 1, 1]), Conv2dOptions::default())
            }),
            ("conv2d", |x| {
                x.expand([1, 1 << 12, 1, 1]).conv2d(&x.expand([1 << 13, 1 << 12, 1, 1]), Conv2dOptions::default())
            }),
            ("conv2d", |x| x.expand([1 << 25, 1, 1, 1]).conv2d(&x.expand([1, 1, 1, 1]), Conv2dOptions::default())),
            ("conv2d", |x| {
                x.expand([1, 1, 4096, 4096]).conv2d(&x.expand([1, 1, 4000, 4000]), Conv2dOptions::default())
            }),
            ("conv2d", |x| x.expand([1, 8, 1024, 4096]).conv2d(&x.expand([8, 8, 300, 300]), Conv2dOptions::default())),
            ("matmul", |x| x.expand([1, 1, 1, 1 << 25]).matmul(&x.expand([1, 1, 1 << 25, 1]))),
            ("matmul", |x| x.expand([1, 1, 32, 1 << 20]).matmul(&x.expand([1, 1, 1 << 20, 32]))),
            ("sum", |x| x.expand([1, 1, 1, 1 << 25]).sum()),
            ("sum", |x| x.expand([1, 1, 1 << 16, 65_519]).max_over(&[3])),
            ("sum", |x| x.expand([1, 1, 65_519, 1 << 16]).max_over(&[2])),
            ("softmax", |x| x.expand([1, 1, 1, 1 << 25]).softmax(3)),
            ("softmax", |x| x.expand([1, 1, 1 << 23, 4]).log_softmax(2)),
            ("softmax", |x| x.expand([1, 1, 512, 1 << 16]).log_softmax(2)),
            ("cross_entropy", |x| {
                let labels = Tensor::indices(&Device::cpu(), [1], &[3]).expect("one");
                x.expand([1, 1, 1, 1 << 25]).reshape([1, 1 << 25]).cross_entropy(&labels)
            }),
            ("embedding_grad", |x| {
                let index = Tensor::indices(&Device::cpu(), [1], &[3]).expect("one");
                x.expand([1, 1, 5, 1]).reshape([5, 1]).embedding(&x.tape().input(&index).expand([1 << 25]))
            }),
            ("group_norm", |x| {
                let one = x.reshape([1]);
                x.expand([1, 1, 4096, 8192]).group_norm(1, 1e-5, &one, &one)
            }),
            ("group_norm", |x| {
                let many = x.reshape([1]).expand([1 << 25]);
                x.expand([1, 1 << 25, 1, 1]).group_norm(1, 1e-5, &many, &many)
            }),
            ("group_norm", |x| {
                let one = x.reshape([1]);
                x.expand([1 << 25, 1, 1, 1]).group_norm(1, 1e-5, &one, &one)
            }),
        ];
        for (op, build) in cases {
            let launches = planned(Caps::SOFTWARE, build)?;
            assert!(launches.iter().all(|&(.., loops)| loops <= Caps::LOOPS_IN_SOFTWARE), "{op}: {launches:?}");
        }
        Ok(())
    }

    #[test]
    fn an_operation_beyond_the_loops_of_all_variants_is_an_error() {
        let caps = Caps { loops: 10, ..Caps::SOFTWARE };
        let error = planned(caps, |x| x.expand([1, 1, 1, 100]).softmax(3)).expect_err("100 terms in 10 iterations");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let message = error.to_string();
        assert!(message.starts_with("softmax: needs ") && message.ends_with("the device runs at most 10"), "{message}");
        planned(Caps::SOFTWARE, |x| x.expand([1, 1, 1, 100]).softmax(3)).expect("enough");
    }
}
