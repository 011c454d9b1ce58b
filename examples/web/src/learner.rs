//! A model in training: its training step, its optimizer, and the number of steps.

use meganeura::optim::{OptimizerState, TrainStep};
use meganeura::prelude::*;
use meganeura::{Outputs, Result, Tensors};

/// A model with its training. `I` is a batch: a tuple or an array of [`Var`]s.
pub struct Learner<M: Module, I> {
    step: TrainStep<'static, Box<M>, I, Var>,
    optimizer: AdamW,
    steps: u64,
}

impl<M: Module + Clone, I: Outputs> Learner<M, I> {
    /// An untrained model. `loss` is recorded with the first batch.
    pub fn new(net: M, lr: f64, loss: impl FnMut(&M, &I) -> Var + 'static) -> Self {
        Self { step: TrainStep::new(Box::new(net), loss), optimizer: AdamW::new(lr), steps: 0 }
    }

    /// Takes a step with this batch. Returns its loss, on the device.
    pub async fn advance(&mut self, batch: <I::Tensors as Tensors>::Refs<'_>) -> Result<Tensor> {
        let loss = self.step.call_async(&mut self.optimizer, batch).await?;
        self.steps += 1;
        Ok(loss)
    }

    pub fn net(&self) -> &M {
        self.step.module()
    }

    /// The number of steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    pub fn lr(&self) -> f64 {
        self.optimizer.lr()
    }

    pub fn set_lr(&mut self, lr: f64) {
        self.optimizer.set_lr(lr);
    }

    /// Loads the weights of a safetensors file, and resets the optimizer's moments. An error changes nothing.
    pub fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let mut net = self.net().clone();
        net.load_safetensors(bytes)?.strict()?;
        self.step.module_mut().load_safetensors(bytes)?.strict()?;
        self.optimizer = AdamW::new(self.lr());
        Ok(())
    }

    /// The weights and the optimizer's state, as two safetensors files.
    pub async fn snapshot(&self) -> Result<[Vec<u8>; 2]> {
        let weights = self.net().to_safetensors_async().await?;
        let state = self.optimizer.state_of(self.net()).to_safetensors_async().await?;
        Ok([weights, state])
    }

    /// Continues from a [`snapshot`](Self::snapshot) that was taken after `steps` steps.
    pub fn restore(&mut self, device: &Device, [weights, state]: [&[u8]; 2], steps: u64) -> Result<()> {
        self.step.module_mut().load_safetensors(weights)?.strict()?;
        self.optimizer.load_state(self.step.module(), &OptimizerState::from_safetensors(state, device)?)?;
        self.steps = steps;
        Ok(())
    }
}
