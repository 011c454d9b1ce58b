//! The ready-made visits of a module.

use std::collections::HashSet;

use super::combine::{update, zip};
use super::evaluate::{is_evaluated, set_evaluated};
use super::forward_summary::{RecordedForward, device_of};
use super::leaves::leaves;
use super::select::Selection;
use super::tie::tie;
use super::{Counts, ForwardSummary, FromSeed, Layer, Leaf, Module, Seed, Summary, init_module};
use crate::error::{bail, here};
use crate::{Buffer, Device, Error, Inputs, Outputs, Param, Result, Tape, Var};

/// The methods of every [`Module`], `dyn` ones included.
///
/// A tied tensor, shared by several places of the model, is a single one: it has one entry, under the first of its
/// paths, and counts once.
pub trait ModuleExt: Module {
    /// Every parameter and buffer with its path, role and value, in the order of the visit.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let linear = Linear::new(3, 2).init(&Device::cpu(), Seed::new(1))?;
    /// let state: Vec<(String, Tensor)> = linear.leaves().into_iter().map(|leaf| (leaf.path.clone(), leaf.value())).collect();
    /// assert_eq!((&*state[0].0, state[0].1.shape()), ("weight", Shape::from([2, 3])));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    fn leaves(&self) -> Vec<Leaf<'_>> {
        leaves(self)
    }

    /// The parameters and their paths, in the order of the visit.
    fn named_parameters(&self) -> Vec<(String, &Param)> {
        leaves(self).into_iter().filter_map(|leaf| leaf.param().map(|param| (leaf.path, param))).collect()
    }

    /// The buffers and their paths, in the order of the visit.
    fn named_buffers(&self) -> Vec<(String, &Buffer)> {
        leaves(self).into_iter().filter_map(|leaf| leaf.buffer().map(|buffer| (leaf.path, buffer))).collect()
    }

    /// The number of elements in parameters, frozen ones included. Buffers are not parameters.
    #[doc(alias("numel", "num_params"))]
    fn parameter_count(&self) -> usize {
        self.counts().parameters()
    }

    /// The number of trained elements, of frozen ones, and of elements in buffers.
    fn counts(&self) -> Counts {
        Counts::of(&leaves(self))
    }

    /// Builds the module on `device`, with initial values drawn from `seed`, and tells every parameter its path.
    ///
    /// A struct whose fields all have an `init` has its own function of this name. This one does the same for arrays,
    /// tuples and boxes of such structs, and for generic code.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// #[derive(Module)]
    /// struct Block {
    ///     #[module(init = Linear::new(8, 8))]
    ///     linear: Linear,
    /// }
    ///
    /// let blocks = <[Block; 3]>::init(&Device::cpu(), 42)?;
    /// assert_eq!(blocks[2].linear.weight.path().as_deref(), Some("2.linear.weight"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of the first part that cannot be built.
    #[track_caller]
    fn init(device: &Device, seed: impl Into<Seed>) -> Result<Self>
    where
        Self: FromSeed,
    {
        init_module(device, seed)
    }

    /// Tells every parameter and buffer its path, which messages and saved files use, and whether the model's struct
    /// freezes it, so that the backward pass can stop there.
    ///
    /// The generated `init` does this. Call it on a model that was assembled by hand.
    fn name_parameters(&self) {
        leaves(self).iter().for_each(Leaf::name);
    }

    /// Freezes the parameters whose paths match: no gradient is computed for them, and the backward pass ends where
    /// nothing below is trained.
    ///
    /// In a pattern, `*` matches any characters of a segment, and `**` any number of segments: `encoder.**`, `**.bias`,
    /// `blocks.*.conv.weight`. The last call wins, and also overrides `#[module(frozen)]`.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let mut net = [Linear::new(4, 8), Linear::new(8, 2)].init(&device, Seed::new(1))?;
    /// net.freeze("**")?;
    /// net.thaw("1.*")?;
    /// assert_eq!((net.counts().frozen, net.counts().trained), (40, 18));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the pattern matches no parameter; the message names similar paths.
    #[track_caller]
    fn freeze(&mut self, pattern: &str) -> Result<()> {
        here(|| set_frozen(self, &Selection::Pattern(pattern.to_owned()), true))
    }

    /// Like [`freeze`](Self::freeze), for the parameters that `rule` accepts, given each of their paths.
    ///
    /// # Errors
    ///
    /// Fails if there is no such parameter.
    #[track_caller]
    fn freeze_where(&mut self, rule: impl Fn(&str, &Param) -> bool + Send + Sync) -> Result<()> {
        here(|| set_frozen(self, &Selection::Rule(Box::new(rule)), true))
    }

    /// Trains the parameters whose paths match, from the next step on; see [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// Fails like [`freeze`](Self::freeze).
    #[track_caller]
    fn thaw(&mut self, pattern: &str) -> Result<()> {
        here(|| set_frozen(self, &Selection::Pattern(pattern.to_owned()), false))
    }

    /// Like [`thaw`](Self::thaw), for the parameters that `rule` accepts, given each of their paths.
    ///
    /// # Errors
    ///
    /// Fails if there is no such parameter.
    #[track_caller]
    fn thaw_where(&mut self, rule: impl Fn(&str, &Param) -> bool + Send + Sync) -> Result<()> {
        here(|| set_frozen(self, &Selection::Rule(Box::new(rule)), false))
    }

    /// Puts the parts whose paths match, and everything below them, into evaluation. Even on a training tape, batch
    /// normalisation then uses its running statistics without updating them, and dropout drops nothing.
    ///
    /// `encoder` and `encoder.**` are the same part. Patterns are those of [`freeze`](Self::freeze), but select parts
    /// rather than parameters; `**` is the whole. The last call for a part wins. The mode applies from the next use on,
    /// and clones keep it. Files and checkpoints do not: a program sets it each time it starts.
    ///
    /// Freezing is something else: frozen parameters stay as they are, but the running statistics of a frozen part
    /// move. For a part that must not change, such as the pretrained one in fine-tuning, do both:
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let encoder = (Conv2d::new(3, 8, 3), BatchNorm2d::new(8), Dropout::new(0.5));
    /// let mut net = (encoder, Conv2d::new(8, 2, 1)).init(&device, Seed::new(1))?;
    /// net.freeze("0.**")?;
    /// net.evaluate("0")?;
    ///
    /// let tape = Tape::new(&device);
    /// let y = net.forward(&tape.input(&Tensor::full(&device, [4, 3, 8, 8], 1.0)?));
    /// let grads = tape.backward(&y.square().mean())?;
    /// Sgd::new(0.1).step(&mut net, &grads)?;
    /// assert_eq!(net.0.1.running_mean.value().to_vec()?, [0.0; 8]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the pattern selects no part that holds a parameter, a buffer or a [mode](super::Mode); the message
    /// names similar parts.
    #[doc(alias("eval", "valid"))]
    #[track_caller]
    fn evaluate(&mut self, pattern: &str) -> Result<()> {
        here(|| set_evaluated(self, pattern, true))
    }

    /// Takes the parts whose paths match, and everything below them, out of evaluation, so that the tape decides; see
    /// [`evaluate`](Self::evaluate). New models are in training everywhere.
    ///
    /// # Errors
    ///
    /// Fails like [`evaluate`](Self::evaluate).
    #[track_caller]
    fn train(&mut self, pattern: &str) -> Result<()> {
        here(|| set_evaluated(self, pattern, false))
    }

    /// `true` if this module trains on `tape`: a [training tape](Tape::is_training), unless all of the module's
    /// parameters, buffers and [modes](super::Mode) are in [evaluation](Self::evaluate).
    ///
    /// Call it in the `forward` of a layer that behaves differently in training.
    fn is_training(&self, tape: &Tape) -> bool {
        tape.is_training() && is_evaluated(self) != Some(true)
    }

    /// Moves every parameter and buffer to `device`.
    ///
    /// # Errors
    ///
    /// Fails if a tensor cannot be moved, and names the first one. Nothing has been moved then.
    #[track_caller]
    fn to_device(&mut self, device: &Device) -> Result<()> {
        here(|| {
            let leaves = leaves(self);
            let named = |leaf: &Leaf<'_>, error: Error| match &*leaf.path {
                "" => error,
                path => error.context(format!("`{path}`")),
            };
            let moved = leaves.iter().map(|leaf| leaf.value().to_device(device).map_err(|error| named(leaf, error)));
            let moved = moved.collect::<Result<Vec<_>>>()?;
            leaves.iter().zip(moved).for_each(|(leaf, value)| leaf.cell().set(value));
            Ok(())
        })
    }

    /// Replaces every parameter and buffer by the result of `f`, all in one run on the device. Constants and buffers of
    /// integers stay.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let mut linear = Linear::new(3, 2).init(&Device::cpu(), Seed::new(1))?;
    /// linear.map(|leaf, x| if leaf.path == "bias" { x * 0.0 } else { x.clamp(-0.1, 0.1) })?;
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a new value has another type, or if recording it failed; the message names the path. On error, nothing
    /// changes.
    #[track_caller]
    fn map(&mut self, mut f: impl FnMut(&Leaf<'_>, &Var) -> Var) -> Result<()> {
        here(|| update(leaves(self).into_iter().map(|leaf| (leaf, None)), |leaf, x, _| f(leaf, x)))
    }

    /// Pairs the parameters and buffers of two models: to find what differs, and by how much.
    ///
    /// # Errors
    ///
    /// Fails if the models differ in structure: an `Option` that only one has, another variant of an enum, another
    /// shape or role, a tie that `other` does not have. The message names the path.
    #[track_caller]
    fn zip<'a>(&'a self, other: &'a Self) -> Result<Vec<(Leaf<'a>, Leaf<'a>)>> {
        here(|| zip(self, other))
    }

    /// Replaces every parameter and buffer by the result of `f`, called with its value and its counterpart in `other`,
    /// which does not change. All of it is one run on the device.
    ///
    /// Use it to average models. To save an average with its model, keep it in a `#[module(frozen)]` field.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let net = Linear::new(3, 2).init(&Device::cpu(), Seed::new(1))?;
    /// let mut average = net.clone();
    /// // After each step of training:
    /// average.zip_with(&net, |_, average, new| average * 0.999 + new * 0.001)?;
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`zip`](Self::zip) and [`map`](Self::map), and if the models are on different devices.
    #[track_caller]
    fn zip_with(&mut self, other: &Self, mut f: impl FnMut(&Leaf<'_>, &Var, &Var) -> Var) -> Result<()> {
        here(|| {
            let pairs = zip(self, other)?.into_iter().map(|(leaf, partner)| (leaf, Some(partner)));
            update(pairs, |leaf, x, partner| f(leaf, x, partner.expect("a pair")))
        })
    }

    /// Copies the values of another model. Both keep their devices, precisions and ties.
    ///
    /// # Errors
    ///
    /// Fails like [`zip`](Self::zip), or if a device fails. On error, nothing changes.
    #[track_caller]
    fn copy_from(&mut self, other: &Self) -> Result<()> {
        here(|| {
            let pairs = zip(self, other)?;
            let copy = |(leaf, partner): &(Leaf<'_>, Leaf<'_>)| partner.value().to_device(leaf.value().device());
            let values = pairs.iter().map(copy).collect::<Result<Vec<_>>>()?;
            pairs.iter().zip(values).for_each(|((leaf, _), value)| leaf.cell().set(value));
            Ok(())
        })
    }

    /// Ties what is tied in `other`: parameters that share a tensor there share the one of the first path here. A clone
    /// has a copy for each path, so this is for clones.
    ///
    /// # Errors
    ///
    /// Fails if types differ, if `other` has a tie at a path that is missing here, or if parameters are in different
    /// modules shared by `Arc`. On error, nothing changes.
    #[track_caller]
    fn tie_like(&mut self, other: &Self) -> Result<()> {
        here(|| {
            let groups: Vec<Vec<String>> = leaves(other)
                .into_iter()
                .filter(|leaf| !leaf.aliases.is_empty())
                .map(|leaf| leaf.paths().map(str::to_owned).collect())
                .collect();
            if !groups.is_empty() {
                let own = leaves(self);
                let known: HashSet<&str> = own.iter().flat_map(Leaf::paths).collect();
                if let Some(path) = groups.iter().flatten().find(|path| !known.contains(path.as_str())) {
                    bail!(Argument, "`{path}` is tied in the other model, and is not in this one");
                }
            }
            tie(self, &groups)
        })
    }

    /// The tree of parameters and buffers, with their types and sizes, for printing.
    fn summary(&self) -> Summary {
        Summary::of(self)
    }

    /// The layers that an input of this type passes through, with their outputs, parameters, multiply-adds and memory,
    /// for printing. The forward pass is recorded as for inference and not computed, so a batch of any size costs
    /// nothing, and parameters, buffers and random numbers stay untouched.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let net = (Conv2d::new(3, 8, 3).padding(1), Relu, Conv2d::new(8, 1, 1)).init(&Device::cpu(), 42)?;
    /// let summary = net.summary_with([16, 3, 32, 32])?;
    /// println!("{summary}");
    /// assert_eq!(summary.rows()[1].output.shape, Shape::from([16, 8, 32, 32]));
    /// assert_eq!(summary.multiply_adds(), 16 * 32 * 32 * (8 * 3 * 9 + 8));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like the forward pass: for an input that does not fit, with the line of the field.
    #[track_caller]
    fn summary_with<I: Inputs<Vars = Var>>(&self, input: I) -> Result<ForwardSummary>
    where
        Self: Layer,
    {
        let recorded = RecordedForward::new(&device_of(self), &input)?;
        let y = self.forward(&recorded.inputs);
        here(|| recorded.finish(self, &[y]))
    }

    /// [`summary_with`](Self::summary_with) for a model that is not a [`Layer`]: `forward` calls it.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let net = (Embedding::new(100, 8), Linear::new(8, 8)).init(&Device::cpu(), 42)?;
    /// let words = TensorType::new(meganeura::DType::U32, Shape::from([2, 5]));
    /// let summary = net.summary_by((words, [2, 5, 8]), |net, (words, x)| net.1.forward(&(net.0.forward(words) + x)))?;
    /// assert_eq!(summary.rows()[2].path.as_deref(), Some("1"));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`summary_with`](Self::summary_with).
    #[track_caller]
    fn summary_by<I: Inputs, O: Outputs>(
        &self,
        inputs: I,
        forward: impl FnOnce(&Self, &I::Vars) -> O,
    ) -> Result<ForwardSummary> {
        let recorded = RecordedForward::new(&device_of(self), &inputs)?;
        let outputs = forward(self, &recorded.inputs).vars()?;
        here(|| recorded.finish(self, &outputs))
    }
}

fn set_frozen<M: Module + ?Sized>(module: &M, selection: &Selection<'_>, frozen: bool) -> Result<()> {
    let leaves = leaves(module);
    for index in selection.among(&leaves)? {
        leaves[index].cell().set_frozen(frozen);
    }
    Ok(())
}

impl<M: Module + ?Sized> ModuleExt for M {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::module::{At, Role, Slot, SlotMut};

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
    fn frozen_parameters_are_counted_separately() {
        let mut net = net();
        net.freeze("1.**").unwrap();
        assert_eq!(net.counts(), Counts { trained: 6, frozen: 4, buffers: 25 });
        net.thaw_where(|_, param| param.shape().rank() == 2).unwrap();
        net.freeze_where(|path, _| path == "0").unwrap();
        assert_eq!(net.counts(), Counts { trained: 4, frozen: 6, buffers: 25 });
        let roles: Vec<_> = net.leaves().into_iter().map(|leaf| (leaf.path, leaf.role)).collect();
        let expected = [("0", Role::Frozen), ("1.0.0", Role::Trained), ("1.0.1", Role::Buffer)];
        assert_eq!(roles, expected.map(|(path, role)| (path.to_owned(), role)));
        assert!(net.freeze("1.0.1").unwrap_err().to_string().contains("near it are `1.0.0`, `0`"));
        // A clone is frozen if its original is.
        assert!(net.0.clone().is_frozen() && !net.1[0].0.clone().is_frozen());
    }

    #[test]
    fn tied_parameters_are_one() {
        let (w, b) = net().1.remove(0);
        let net = [(w.tied(), b.tied()), (w, b)];
        assert_eq!(net.counts(), Counts { trained: 4, frozen: 0, buffers: 25 });
        assert_eq!(
            (paths(net.named_parameters()), paths(net.named_buffers())),
            (vec!["0.0".into()], vec!["0.1".into()])
        );
        let aliases: Vec<_> = net.leaves().into_iter().map(|leaf| leaf.aliases).collect();
        assert_eq!(aliases, [["1.0"], ["1.1"]]);
    }

    #[test]
    fn every_leaf_is_moved() {
        net().to_device(&Device::cpu()).unwrap();
    }

    /// A chain of nested modules. Its paths add up to 16 MB.
    struct Nested(Param, Option<Box<Nested>>);

    impl Module for Nested {
        fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
            self.0.visit(at.index(0), f);
            self.1.visit(at.index(1), f);
        }

        fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
            self.0.visit_mut(at.index(0), f);
            self.1.visit_mut(at.index(1), f);
        }
    }

    #[test]
    fn a_thousand_modules_within_each_other_are_frozen_by_their_paths() {
        const DEPTH: usize = 1_000;
        let run = || {
            let tensor = Tensor::zeros(&Device::cpu(), [1]).unwrap();
            let inner = (1..DEPTH).fold(None, |inner, _| Some(Box::new(Nested(Param::new(tensor.clone()), inner))));
            let mut net = Nested(Param::new(tensor), inner);
            net.freeze("**.0").unwrap();
            net.thaw("1.**.1.1.0").unwrap();
            assert_eq!(net.counts(), Counts { trained: DEPTH - 3, frozen: 3, buffers: 0 });
            assert!(net.freeze("**.weight").unwrap_err().to_string().contains("selects no parameter; near it are `"));
        };
        // Visiting and dropping recurse as deep as the model is nested.
        std::thread::Builder::new().stack_size(256 << 20).spawn(run).unwrap().join().unwrap();
    }
}
