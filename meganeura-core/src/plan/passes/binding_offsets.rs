//! Binds parts of storages where they begin. A kernel has its offsets as constants, so without this pass, steps that
//! differ in an offset alone would compile kernels of their own: each time step of a recurrent layer, for one.

use std::collections::HashMap;

use crate::kernel::launch::{Binding, Caps};
use crate::plan::{Plan, Step, StorageId};

/// Lets each binding begin at the last aligned element that is not behind the first one it needs.
///
/// Results in one storage share a binding, so they begin together. An operand in the storage of a result is read
/// through the result's binding; both then begin with the storage.
pub(super) fn set(plan: &mut Plan, caps: &Caps) {
    let Plan { steps, storages, .. } = plan;
    let aligned = |storage: StorageId, offset: usize| {
        let every = caps.alignment / storages[storage].element_bytes();
        offset / every * every
    };
    for step in steps {
        begin_results(step, aligned);
        begin_operands(step, aligned);
    }
}

fn begin_results(step: &mut Step, aligned: impl Fn(StorageId, usize) -> usize) {
    // The first element that is stored in each storage.
    let mut firsts: HashMap<StorageId, usize> = step.inputs.iter().map(|input| (input.storage, 0)).collect();
    for k in 0..step.outputs.len() {
        let storage = step.outputs[k].0;
        let first = step.place_mut(k).map_or(0, |place| place.offset());
        firsts.entry(storage).and_modify(|other| *other = first.min(*other)).or_insert(first);
    }
    for k in 0..step.outputs.len() {
        let storage = step.outputs[k].0;
        let begin = aligned(storage, firsts[&storage]);
        if let Some(place) = step.place_mut(k).filter(|_| begin > 0) {
            *place = place.counted_from(begin);
            step.binding_offsets.push((Binding::Output(k), begin));
        }
    }
}

fn begin_operands(step: &mut Step, aligned: impl Fn(StorageId, usize) -> usize) {
    let Step { inputs, outputs, binding_offsets, .. } = step;
    for (k, input) in inputs.iter_mut().enumerate() {
        let begin = aligned(input.storage, input.argument.layout.offset());
        if begin > 0 && outputs.iter().all(|(storage, _)| *storage != input.storage) {
            input.argument.layout = input.argument.layout.counted_from(begin);
            binding_offsets.push((Binding::Input(k), begin));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::functions::RecurrentOptions;
    use crate::graph::ValueId;
    use crate::ops::recurrent::RecurrentFormula;
    use crate::plan::{Preferences, Request, Target};
    use crate::{Device, Param, Result, Tape, Tensor, Var};

    /// The plan of a recurrence's outputs and gradients over sequences `[steps, 3, 8]`. A step gets the products of its
    /// input and of the last state with weights `[8, width]`, and that state, of 8 features.
    fn planned(step: fn(Var, &Var) -> Var, width: usize, steps: usize) -> Result<Plan> {
        let device = Device::cpu();
        let weight = |seed| Ok::<_, crate::Error>(Param::new(Tensor::randn(&device, [8, width], seed)?));
        let (of_input, of_state) = (weight(1)?, weight(2)?);
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [steps, 3, 8])?);
        let (of_input, of_state) = (tape.param(&of_input), tape.param(&of_state));
        let inputs = x.matmul(&of_input);
        let mut states = vec![tape.constant(0.0).expand([3, 8])];
        for time in 0..steps {
            let gates = inputs.slice(0, time..time + 1).reshape([3, width]) + states[time].matmul(&of_state);
            states.push(step(gates, &states[time]));
        }
        let y = Var::stack(&states[1..].iter().collect::<Vec<_>>(), 0);
        let grads = tape.backward(&y.square().sum())?;
        let of = |x: &Var| grads.of(x).expect("the outputs depend on it").id();
        plan_of(&tape, &[y.id()?, of(&x)?, of(&of_input)?, of(&of_state)?])
    }

    fn plan_of(tape: &Tape, outputs: &[ValueId]) -> Result<Plan> {
        let target = Target::Gpu { caps: Caps::DISCRETE, preferences: &Preferences::default() };
        tape.with_graph(|graph| Plan::new(&Request { graph, outputs, assigns: &[] }, target))
    }

    #[test]
    fn bindings_begin_at_aligned_elements() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [4, 16])?);
        let [y, z] = [1..3, 2..4].map(|rows| x.slice(0, rows).slice(1, 9..13));
        let plan = plan_of(&tape, &[(y * z).id()?])?;
        // Elements 25 and 41: 32 bytes are 8 elements.
        assert_eq!(plan.steps[0].binding_offsets, [(Binding::Input(0), 24), (Binding::Input(1), 40)], "{plan}");
        assert!(plan.steps[0].inputs.iter().all(|input| input.argument.layout.offset() == 1), "{plan}");
        Ok(())
    }

    #[test]
    fn results_in_one_storage_begin_together() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [3, 16])?);
        let tanh = x.tanh();
        let joined = Var::concat(&[&x.sum_over(&[0]).reshape([1, 16]), &tanh.exp(), &tanh.square()], 0);
        drop(tanh);
        let plan = plan_of(&tape, &[joined.softmax(1).id()?])?;
        let step = plan.steps.iter().find(|step| step.outputs.len() == 2).expect("one group computes both");
        assert_eq!(step.binding_offsets, [(Binding::Output(0), 16), (Binding::Output(1), 16)], "{plan}");
        Ok(())
    }

    /// The number of kernels that a plan compiles.
    fn kernels(plan: &Plan) -> usize {
        let launches = plan.steps.iter().flat_map(|step| &step.launches);
        launches.map(|launch| (launch.kernel, &launch.defines)).collect::<HashSet<_>>().len()
    }

    #[test]
    fn time_steps_share_kernels() -> Result<()> {
        let plain = |gates: Var, _: &Var| gates.tanh();
        let gated = |gates: Var, state: &Var| {
            let [open, new] = [0..8, 8..16].map(|columns| gates.slice(1, columns));
            let open = open.sigmoid();
            &open * state + (open.constant(1.0) - &open) * new.tanh()
        };
        for (step, width) in [(plain as fn(Var, &Var) -> Var, 8), (gated, 16)] {
            // A launch joins 15 steps; the last joins 5. Products over all steps may choose other variants.
            let (short, long) = (planned(step, width, 20)?, planned(step, width, 80)?);
            assert!(kernels(&long) <= kernels(&short) + 2, "{} {} kernels\n{long}", kernels(&short), kernels(&long));
            assert!(long.launches() > 2 * short.launches(), "{short}");
        }
        Ok(())
    }

    /// The plan of the outputs and gradients of an LSTM over `steps` steps.
    fn lstm(caps: Caps, steps: usize) -> Result<Plan> {
        let (device, h) = (Device::cpu(), 64);
        let weight = Param::new(Tensor::randn(&device, [4 * h, h], 1)?);
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::zeros(&device, [steps, 8, 4 * h])?);
        let (weight, zero) = (tape.param(&weight), tape.constant(0.0).expand([8, h]));
        let options = RecurrentOptions { formula: RecurrentFormula::Lstm, reverse: false, bias: None, mask: None };
        let (y, _) = x.recurrent(&weight, &[zero.clone(), zero], options);
        let grads = tape.backward(&y.square().sum())?;
        let of = |x: &Var| grads.of(x).expect("the outputs depend on it").id();
        let outputs = [y.id()?, of(&x)?, of(&weight)?];
        let target = Target::Gpu { caps, preferences: &Preferences::default() };
        tape.with_graph(|graph| Plan::new(&Request { graph, outputs: &outputs, assigns: &[] }, target))
    }

    /// In `f32`, and where the weight is read as bf16: one launch forward and one backward for each step, of kernels
    /// that all steps share. What else is launched does not depend on their number.
    #[test]
    fn a_step_of_a_recurrent_layer_is_one_launch() -> Result<()> {
        let bf16 = Caps { matrix: true, bf16: true, bf16_units: true, ..Caps::DISCRETE };
        for caps in [Caps::DISCRETE, bf16] {
            let (short, long) = (lstm(caps, 20)?, lstm(caps, 80)?);
            let count = |plan: &Plan, kernel: &str| plan.launch_infos().filter(|info| info.kernel == kernel).count();
            for (plan, steps) in [(&short, 20), (&long, 80)] {
                assert_eq!(count(plan, "recurrent"), steps, "{plan}");
                // The last gives the cotangent of the initial state.
                assert_eq!(count(plan, "recurrent_grad"), steps + 1, "{plan}");
            }
            let others = |plan: &Plan, steps: usize| plan.launches() - 2 * steps;
            assert!(others(&short, 20) < 16 && others(&long, 80) < 16, "{long}");
            let own = |plan: &Plan| {
                let launches = plan.steps.iter().flat_map(|step| &step.launches);
                let own = launches.filter(|launch| launch.kernel.starts_with("recurrent"));
                own.map(|launch| (launch.kernel, &launch.defines)).collect::<HashSet<_>>().len()
            };
            // The beginning; a step, and the last; and three of the gradient.
            assert_eq!((own(&short), own(&long)), (6, 6), "{long}");
            let lines = long.steps.iter().flat_map(|step| &step.launches);
            let lines = lines.filter(|launch| launch.defines.contains(&("HELD", "line".to_owned()))).count();
            assert_eq!(lines, if caps.bf16 { 160 } else { 0 }, "{long}");
        }
        Ok(())
    }
}
