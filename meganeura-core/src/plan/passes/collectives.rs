//! Merging exchanges, and sharing their memory.
//!
//! The cost of an exchange is mostly fixed, so independent ones are merged: the mean of a loss joins those of the
//! gradients. On GPUs the values of an exchange lie side by side in a range. A later exchange with the same layout
//! reuses the range of an earlier one that is no longer read: updated parameters replace the gradients that they are
//! made from.

use crate::TensorType;
use crate::kernel::launch::Argument;
use crate::ops::{CollectiveOp, KernelOp};
use crate::plan::{KernelWork, Operand, Place, Plan, Step, StorageId, Work};
use crate::world::Collective;

/// Merges exchanges of sums that do not depend on each other.
pub(super) fn join(plan: &mut Plan) {
    let sum =
        |step: &Step| step.collective().filter(|it| it.collective == Collective::AllReduce).map(|it| it.world.clone());
    let mut at = 0;
    while let Some(next) = plan.steps[at..].iter().position(|step| sum(step).is_some()) {
        at += next;
        let own = sum(&plan.steps[at]);
        let Some(distance) = plan.steps[at + 1..].iter().position(|step| sum(step) == own) else {
            at += 1;
            continue;
        };
        let later = at + 1 + distance;
        if may_rise(&plan.steps, at, later) {
            let risen = plan.steps.remove(later);
            append(&mut plan.steps[at], risen);
        } else if may_sink(&plan.steps, at, later) {
            let sunk = plan.steps.remove(at);
            append(&mut plan.steps[later - 1], sunk);
        } else {
            at += 1;
        }
    }
}

fn touches(step: &Step, storages: &[StorageId]) -> bool {
    step.reads().chain(step.writes()).any(|storage| storages.contains(&storage))
}

fn storages(step: &Step) -> [Vec<StorageId>; 2] {
    [step.reads().collect(), step.outputs.iter().map(|&(storage, _)| storage).collect()]
}

/// `true` if step `later` can move up to step `at`: its operands are ready there, and no step in between touches its
/// results.
fn may_rise(steps: &[Step], at: usize, later: usize) -> bool {
    let [reads, results] = storages(&steps[later]);
    let between = &steps[at..later];
    between.iter().all(|step| !touches(step, &results) && step.writes().all(|storage| !reads.contains(&storage)))
}

/// `true` if step `at` can move down to step `later`: no step in between reads its results or writes its operands.
fn may_sink(steps: &[Step], at: usize, later: usize) -> bool {
    let [reads, results] = storages(&steps[at]);
    let between = &steps[at + 1..=later];
    between.iter().all(|step| !touches(step, &results) && step.writes().all(|storage| !reads.contains(&storage)))
}

/// Appends the operands and results of another exchange.
fn append(step: &mut Step, other: Step) {
    let (Work::Kernel(kernel), Work::Kernel(more)) = (&mut step.work, other.work) else {
        unreachable!("exchanges are kernels")
    };
    let KernelWork { op: KernelOp::CollectiveOp(_), operands, types, .. } = *more else {
        unreachable!("exchanges are joined with exchanges")
    };
    kernel.operands += operands;
    kernel.types.extend(types);
    step.inputs.extend(other.inputs);
    step.outputs.extend(other.outputs);
    kernel.elementwise = step.inputs.len();
}

/// Lets exchanges reuse the ranges of earlier ones.
pub(super) fn reuse(plan: &mut Plan) {
    let collectives: Vec<_> = (0..plan.steps.len()).filter(|&at| plan.steps[at].collective().is_some()).collect();
    for (number, &later) in collectives.iter().enumerate() {
        let free = collectives[..number].iter().find(|&&earlier| is_free(plan, earlier, later));
        let Some(&earlier) = free else { continue };
        let pairs: Vec<_> = results(plan, earlier).into_iter().zip(results(plan, later)).collect();
        for (place, storage) in pairs.into_iter().filter(|(place, storage)| place != storage) {
            replace(plan, storage, place);
        }
    }
}

fn results(plan: &Plan, at: usize) -> Vec<StorageId> {
    plan.steps[at].outputs.iter().map(|&(storage, _)| storage).collect()
}

/// `true` if the values of `later` can take the memory of those of `earlier`.
fn is_free(plan: &Plan, earlier: usize, later: usize) -> bool {
    let steps = [&plan.steps[earlier], &plan.steps[later]];
    let [Some(first), Some(second)] = steps.map(Step::collective) else { return false };
    let type_of = |&(storage, ty): &(StorageId, TensorType)| (ty, plan.storages[storage].format);
    let types = steps.map(|step| step.outputs.iter().map(type_of).collect::<Vec<_>>());
    let is_alike = |first: &CollectiveOp, second: &CollectiveOp| {
        first.world == second.world && first.collective.is_arranged_as(&second.collective)
    };
    if !is_alike(first, second) || types[0] != types[1] {
        return false;
    }
    let pairs = results(plan, earlier).into_iter().zip(results(plan, later));
    pairs.into_iter().all(|(place, storage)| {
        let is_unplaced = |storage: StorageId| plan.storages[storage].place == Place::Unplaced;
        let touches =
            |storage: StorageId| move |step: &Step| step.reads().chain(step.writes()).any(|touched| touched == storage);
        let last = plan.steps.iter().rposition(touches(place));
        let begin = plan.steps.iter().position(touches(storage));
        let (Some(last), Some(begin)) = (last, begin) else { return false };
        let follows = last < begin || (last == begin && is_in_place(&plan.steps[begin], place, storage));
        place == storage || (is_unplaced(place) && is_unplaced(storage) && follows)
    })
}

/// `true` if a step reads `place` only elementwise, for its result `storage`.
fn is_in_place(step: &Step, place: StorageId, storage: StorageId) -> bool {
    let output = step.outputs.iter().position(|&(output, _)| output == storage);
    let Some((output, elementwise)) = output.and_then(|output| Some((output, step.elementwise(output)?))) else {
        return false;
    };
    let elements = step.outputs[output].1.shape.elements();
    let whole = |argument: &Argument| argument.layout.is_contiguous() && argument.ty.shape.elements() == elements;
    let is_harmless =
        |(k, input): (usize, &Operand)| input.storage != place || (elementwise.contains(&k) && whole(&input.argument));
    step.writes().all(|written| written != place) && step.inputs.iter().enumerate().all(is_harmless)
}

/// Replaces a storage in every step.
fn replace(plan: &mut Plan, old: StorageId, new: StorageId) {
    for step in &mut plan.steps {
        step.inputs.iter_mut().filter(|input| input.storage == old).for_each(|input| input.storage = new);
        step.outputs.iter_mut().filter(|(storage, _)| *storage == old).for_each(|output| output.0 = new);
    }
    plan.storages[old].elements = 0;
}

#[cfg(test)]
mod tests {
    use crate::functions::{all_mean, record_collective};
    use crate::kernel::launch::{Caps, Format, Launch};
    use crate::ops::Conv2dOptions;
    use crate::plan::{Place, Plan, Preferences, Request, StorageId, Target};
    use crate::world::{Collective, World};
    use crate::{Device, Result, Shape, Tape, Tensor, Var};

    /// The plans of a recording on two inputs, for the CPU and for a GPU.
    fn plans(record: impl Fn([Var; 2]) -> Vec<Var>) -> Result<[Plan; 2]> {
        let device = Device::cpu();
        let preferences = Preferences::default();
        let targets = [Target::Cpu, Target::Gpu { caps: Caps::DISCRETE, preferences: &preferences }];
        let plan = |target| {
            let tape = Tape::new(&device);
            let x = tape.input(&Tensor::zeros(&device, [4])?);
            let y = tape.input(&Tensor::zeros(&device, [2, 3])?);
            let outputs = record([x, y]);
            let outputs = outputs.iter().map(Var::id).collect::<Result<Vec<_>>>()?;
            tape.with_graph(|graph| Plan::new(&Request { graph, outputs: &outputs, assigns: &[] }, target))
        };
        let [cpu, gpu] = targets.map(plan);
        Ok([cpu?, gpu?])
    }

    /// The number of values in each exchange.
    fn exchanges(plan: &Plan) -> Vec<usize> {
        plan.steps.iter().filter(|step| step.collective().is_some()).map(|step| step.outputs.len()).collect()
    }

    #[test]
    fn independent_exchanges_are_joined() -> Result<()> {
        let world = World::of_two();
        // The second exchange reads a value that is ready before the first, or the first is read only after the second.
        let early = |[x, y]: [Var; 2]| {
            let means = [x.exp().all_mean(&world), y.all_mean(&world)];
            means.map(|mean| mean.square()).to_vec()
        };
        let late = |[x, y]: [Var; 2]| {
            let first = x.exp().all_mean(&world);
            vec![(y.sum() + 1.0).all_mean(&world) + first]
        };
        // The second exchange depends on the first.
        let after = |[x, _]: [Var; 2]| vec![x.all_mean(&world).exp().all_mean(&world)];
        for plan in plans(early)?.into_iter().chain(plans(late)?) {
            assert_eq!(exchanges(&plan), [2], "{plan}");
        }
        for plan in plans(after)? {
            assert_eq!(exchanges(&plan), [1, 1], "{plan}");
        }
        Ok(())
    }

    #[test]
    fn values_with_other_readers_are_not_overwritten() -> Result<()> {
        let world = World::of_two();
        let [_, plan] = plans(|[x, _]| {
            let x = x.exp();
            vec![x.all_mean(&world).square(), x.sum()]
        })?;
        let step = plan.steps.iter().find(|step| step.collective().is_some()).expect("an exchange");
        assert_ne!(step.inputs[0].storage, step.outputs[0].0, "{plan}");
        assert!(matches!(plan.storages[step.outputs[0].0].place, Place::Range { .. }), "{plan}");
        Ok(())
    }

    /// The plan of a step of gradient descent on weights, whose gradients are averaged and may be rounded.
    fn step(caps: Caps, clip: bool) -> Result<Plan> {
        let (world, device) = (World::of_two(), Device::cpu());
        let tape = Tape::new(&device);
        let leaf = |shape: &[usize]| Ok(tape.input(&Tensor::zeros(&device, Shape::new(shape))?));
        let shapes: [&[usize]; 4] = [&[24, 16, 3, 3], &[24, 24, 1, 1], &[24, 1, 1], &[512, 512]];
        let weights = shapes.iter().map(|shape| leaf(shape)).collect::<Result<Vec<Var>>>()?;
        let same = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
        let y = leaf(&[8, 16, 6, 6])?.conv2d(&weights[0], same).conv2d(&weights[1], Conv2dOptions::default());
        let loss = (y + weights[2].expand([8, 24, 6, 6])).square().sum();
        let loss = loss + leaf(&[1024, 512])?.matmul(&weights[3].t()).square().sum();
        let grads = tape.backward(&loss)?;
        let gradients: Vec<_> = weights.iter().filter_map(|weight| grads.of(weight)).collect();
        let means = all_mean(&gradients.iter().collect::<Vec<_>>(), &world, true);
        let loss = loss.all_mean(&world);
        let norm = means.iter().map(|mean| mean.square().sum()).reduce(|a, b| a + b).expect("there are gradients");
        let step = |(weight, mean): (&Var, Var)| {
            let mean = if clip { &mean / norm.expand(mean.ty().shape) } else { mean };
            weight - mean * 0.1
        };
        let updates = weights.iter().zip(means).map(step).collect::<Vec<_>>();
        let assigns = updates.iter().enumerate().map(|(leaf, update)| Ok((leaf, update.id()?)));
        let assigns = assigns.collect::<Result<Vec<_>>>()?;
        let (outputs, preferences) = ([loss.id()?], Preferences::default());
        let target = Target::Gpu { caps, preferences: &preferences };
        tape.with_graph(|graph| Plan::new(&Request { graph, outputs: &outputs, assigns: &assigns }, target))
    }

    #[test]
    fn gradients_are_exchanged_as_the_kernels_store_them() -> Result<()> {
        let bf16 = Caps { matrix: true, bf16: true, linked: true, ..Caps::DISCRETE };
        // The sizes of the values that are exchanged as bf16.
        let rounded = |plan: &Plan| -> Vec<usize> {
            let step = plan.steps.iter().find(|step| step.collective().is_some()).expect("an exchange");
            assert_eq!(step.outputs.len(), 5, "{plan}");
            for (input, &(storage, _)) in step.inputs.iter().zip(&step.outputs) {
                assert_eq!(input.argument.format, plan.storages[storage].format, "{plan}");
            }
            let outputs = step.outputs.iter().filter(|(storage, _)| plan.storages[*storage].format != Format::Full);
            outputs.map(|(_, ty)| ty.shape.elements()).collect()
        };
        let large = [24 * 16 * 9, 24 * 24, 512 * 512];
        for clip in [false, true] {
            let plan = step(bf16, clip)?;
            assert_eq!(exchanges(&plan), [5], "the loss joins the gradients: {plan}");
            assert_eq!(rounded(&plan), large, "{plan}");
            // What reads the sums divides them: a step for each parameter, one for the loss, and one for each norm.
            let at = plan.steps.iter().position(|step| step.collective().is_some()).expect("an exchange");
            assert_eq!(plan.steps.len() - at - 1, if clip { 9 } else { 5 }, "{plan}");
            // Parameters are not rounded, and no step converts a gradient.
            let steps = plan.steps.iter().flat_map(|step| &step.outputs);
            let is_leaf = |storage: StorageId| matches!(plan.storages[storage].place, Place::Leaf(_));
            assert_eq!(steps.clone().filter(|(storage, _)| is_leaf(*storage)).count(), 4, "{plan}");
            assert!(
                steps.filter(|(storage, _)| is_leaf(*storage)).all(|&(s, _)| plan.storages[s].format == Format::Full)
            );
            let sums = plan.steps.iter().flat_map(|step| &step.launches).filter(|launch| launch.kernel == "sum_parts");
            let in_rows = |launch: &&Launch| launch.defines.iter().any(|(name, _)| *name == "ROWS");
            assert_eq!(sums.filter(in_rows).count(), 2, "{plan}");
        }
        for caps in [Caps { linked: false, ..bf16 }, Caps { bf16: false, matrix: false, ..bf16 }] {
            assert!(rounded(&step(caps, false)?).is_empty());
        }
        Ok(())
    }

    #[test]
    fn gradients_give_way_to_parameters() -> Result<()> {
        let (world, device) = (World::of_two(), Device::cpu());
        let tape = Tape::new(&device);
        let leaf = |elements: usize| Ok::<_, crate::Error>(tape.input(&Tensor::zeros(&device, [elements])?));
        let w: [Var; 2] = [leaf(300)?, leaf(200)?];
        let gradients = [w[0].exp(), w[1].sin()];
        let owners = vec![0, 1];
        let means = record_collective(&gradients.each_ref(), &world, Collective::ReduceScatter(owners.clone()));
        // This rank steps the first parameter, the other rank the second.
        let stepped = [&w[0] - &means[0] * 0.1, means[1].clone()];
        let updated = record_collective(&stepped.each_ref(), &world, Collective::AllGather(owners));
        let assigns = [(0, updated[0].id()?), (1, updated[1].id()?)];
        let preferences = Preferences::default();
        let target = Target::Gpu { caps: Caps::DISCRETE, preferences: &preferences };
        let plan = tape.with_graph(|graph| Plan::new(&Request { graph, outputs: &[], assigns: &assigns }, target))?;
        assert_eq!(exchanges(&plan), [2, 2], "{plan}");
        let collectives: Vec<_> = plan.steps.iter().filter(|step| step.collective().is_some()).collect();
        assert_eq!(collectives[0].outputs, collectives[1].outputs, "{plan}");
        Ok(())
    }
}
