//! Models and gradients that the ranks of a world share.

use std::sync::Arc;

use super::trained::expect_some;
use crate::error::{bail, here};
use crate::functions::{all_mean, record_collective};
use crate::module::{Module, ModuleExt};
use crate::world::{Collective, Shards, World};
use crate::{Grads, Result, Tensor};

impl Grads {
    /// Replaces a model's gradients by their mean over all ranks of a [world](crate::world).
    ///
    /// The mean is the gradient of the batch of all ranks, if each rank has an equal part of it. In a world of one
    /// rank, the gradients stay as they are.
    ///
    /// Average before clipping, so that the norm is that of the whole batch. With several micro-batches,
    /// accumulate first: then ranks exchange data once a step. NaN in a gradient on one
    /// rank makes the mean NaN on every rank.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let world = World::join()?;
    /// let device = Device::cpu();
    /// let weight = Param::new(Tensor::from_slice(&device, [2], &[3.0, 4.0])?);
    /// let tape = Tape::new(&device);
    /// let loss = tape.param(&weight).square().sum() * 0.5;
    /// let grads = tape.backward(&loss)?.average(&weight, &world)?.clip_norm(&weight, 1.0)?;
    /// # drop(grads);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`clip_norm`](Self::clip_norm) with [`NoGradient`](crate::ErrorKind::NoGradient). The run of the step
    /// fails like any exchange between ranks: with [`PeerLost`](crate::ErrorKind::PeerLost) if another rank left, and
    /// with [`Argument`](crate::ErrorKind::Argument) if another rank called something else.
    #[track_caller]
    pub fn average(self, module: &dyn Module, world: &World) -> Result<Self> {
        self.averaged(module, world, false)
    }

    /// Like [`average`](Self::average), but ranks may exchange bf16: half the bytes, and eight significant bits.
    ///
    /// They do so on GPUs that NCCL links, in [`Precision::Fast`](crate::Precision::Fast), for gradients that a kernel
    /// can store as bf16: those of convolutions and large matrix products. The other gradients are exchanged in `f32`.
    /// Elsewhere, and in models so small that bf16 does not pay, this is [`average`](Self::average). Parameters and
    /// their updates stay `f32`.
    ///
    /// NCCL rounds after each addition. Over eight ranks, means of independent normal numbers are off by 0.4 % (root
    /// mean square), in no direction; one rounding alone is 0.17 %. The guide has [more numbers of ranks][bf16].
    ///
    /// This pays off where steps are short: [how far it scales][far].
    ///
    /// [bf16]: https://docs.rs/meganeura/latest/meganeura/guide/scaling/index.html#gradients-in-bf16
    /// [far]: https://docs.rs/meganeura/latest/meganeura/guide/scaling/index.html#how-far-it-scales
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let world = World::join()?;
    /// let device = world.device("cpu")?;
    /// let mut net = Linear::new(2, 1).init(&device, Seed::new(42))?;
    /// let tape = Tape::new(&device);
    /// let loss = net.forward(&tape.input(&Tensor::full(&device, [4, 2], 1.0)?)).square().mean();
    /// let grads = tape.backward(&loss)?.average_bf16(&net, &world)?;
    /// AdamW::new(1e-3).step(&mut net, &grads)?;
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`average`](Self::average).
    #[doc(alias = "bf16_compress_hook")]
    #[track_caller]
    pub fn average_bf16(self, module: &dyn Module, world: &World) -> Result<Self> {
        self.averaged(module, world, true)
    }

    #[track_caller]
    fn averaged(mut self, module: &dyn Module, world: &World, rounded: bool) -> Result<Self> {
        let trained = here(|| expect_some(module, &self))?;
        if world.is_alone() {
            return Ok(self);
        }
        let gradients: Vec<_> = trained.iter().map(|trained| &trained.dw).collect();
        let means = all_mean(&gradients, world, rounded);
        let averaged = trained.iter().map(|trained| Arc::clone(&trained.cell)).zip(means).collect();
        self.note_world(world);
        Ok(self.with_entries(averaged))
    }

    /// Like [`average`](Self::average), but shards the optimizer's state: each rank owns an equal share of the
    /// parameters.
    ///
    /// It gets their mean gradients, keeps their state, and updates them; the step then gives the new values to all
    /// ranks. With AdamW on `R` ranks, a rank keeps `2/R` numbers per parameter instead of two. The result of a step is
    /// the same. This is stage 1 of [ZeRO](https://arxiv.org/abs/1910.02054).
    ///
    /// Owners depend on the parameters that are trained. To freeze or thaw some later, load the whole state
    /// (`Optimizer::whole_state_of`) before the next step.
    ///
    /// Clipping and NaN checks cover all gradients. Do not read a single gradient: only its owner has it.
    /// `Run::checkpoint` saves the whole state (`Optimizer::whole_state_of`), and any number of ranks can resume from
    /// it.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let world = World::join()?;
    /// let device = world.device("cpu")?;
    /// let mut net = Linear::new(2, 1).init(&device, Seed::new(42))?;
    /// let mut optimizer = AdamW::new(1e-3);
    /// let tape = Tape::new(&device);
    /// let loss = net.forward(&tape.input(&Tensor::full(&device, [4, 2], 1.0)?)).square().mean();
    /// let grads = tape.backward(&loss)?.average_to_owners(&net, &world)?.clip_norm(&net, 1.0)?;
    /// optimizer.step(&mut net, &grads)?;
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`average`](Self::average), and with [`Argument`](crate::ErrorKind::Argument) if it is called twice
    /// or if there are more ranks than trained parameters.
    #[track_caller]
    pub fn average_to_owners(mut self, module: &dyn Module, world: &World) -> Result<Self> {
        let trained = here(|| expect_some(module, &self))?;
        if world.is_alone() {
            return Ok(self);
        }
        // One call for all parameters: ranks must record the same exchanges in the same order.
        if self.shards().is_some() {
            return here(|| {
                bail!(Argument, "gradients are averaged to their owners once, those of the whole model together")
            });
        }
        if trained.len() < world.size() {
            let (count, ranks) = (trained.len(), world.size());
            return here(|| {
                bail!(Argument, "{count} trained parameters are too few to shard over {ranks} ranks; use `average`")
            });
        }
        let shards = Shards::of_trained(&trained, world);
        let gradients: Vec<_> = trained.iter().map(|trained| &trained.dw).collect();
        let mut means = record_collective(&gradients, world, Collective::ReduceScatter(shards.owners(&trained)));
        for (mean, trained) in means.iter_mut().zip(&trained) {
            // The others are not read.
            if shards.is_own(trained.cell.id()) {
                *mean = mean.scale(1.0 / world.size() as f64);
            }
        }
        let averaged = trained.iter().map(|trained| Arc::clone(&trained.cell)).zip(means).collect();
        self.note_world(world);
        self.note_shards(shards);
        Ok(self.with_entries(averaged))
    }
}

impl World {
    /// Gives every rank the parameters and buffers of rank 0.
    ///
    /// Call it at the start, so that all ranks train the same model.
    ///
    /// # Errors
    ///
    /// Fails with [`Argument`](crate::ErrorKind::Argument) if the model of another rank has other parameters, and if a
    /// device fails. A rank that fails keeps its parameters as they were.
    #[track_caller]
    pub fn share(&self, module: &mut dyn Module) -> Result<()> {
        here(|| {
            if self.is_alone() {
                return Ok(());
            }
            let leaves = module.leaves();
            let spell = |leaf: &crate::module::Leaf<'_>| format!("{} {}", leaf.path, leaf.ty());
            self.expect_same("the model", &leaves.iter().map(spell).collect::<Vec<_>>().join(", "))?;
            let mut values = Vec::with_capacity(leaves.len());
            for leaf in &leaves {
                let value = leaf.value();
                let mut host = value.to_host_here()?;
                self.broadcast(host.bytes_mut())?;
                values.push(Tensor::from_host(value.device(), value.shape(), host)?);
            }
            leaves.iter().zip(values).for_each(|(leaf, value)| leaf.cell().set(value));
            Ok(())
        })
    }
}
