//! Next-token prediction: the workload of language models.

use std::iter::Cycle;
use std::vec;

use meganeura::optim::Optimizer;
use meganeura::prelude::*;
use meganeura::{Error, ErrorKind, Result};

use crate::workload::{Data, Ranks, SEED, Steps, Workload, state_bytes};

/// "As You Like It": see `examples/data/README.md`. Its bytes are the tokens of several batches.
const PLAY: &[u8] = include_bytes!("../data/as-you-like-it.txt");

/// Learns to predict the next token.
pub struct NextToken<M, O> {
    device: Device,
    steps: Steps<M, (Var, Var)>,
    optimizer: O,
    data: Cycle<vec::IntoIter<Sequences>>,
}

/// Tokens, and those of one position further on, both `[N, L]`.
#[derive(Clone)]
struct Sequences {
    tokens: Tensor,
    next: Tensor,
}

impl Sequences {
    /// Sequences of one token more than the model sees, one after the other.
    fn new(device: &Device, shape: [usize; 2], tokens: &[u32]) -> Result<Self> {
        let part = |skipped: usize| -> Vec<u32> {
            tokens.chunks(shape[1] + 1).flat_map(|sequence| &sequence[skipped..shape[1] + skipped]).copied().collect()
        };
        let [tokens, next] = [0, 1].map(|skipped| Tensor::indices(device, shape, &part(skipped)));
        Ok(Self { tokens: tokens?, next: next? })
    }

    /// Random tokens.
    fn random(device: &Device, shape: [usize; 2], vocabulary: usize) -> Result<Self> {
        let seed = Seed::new(SEED).field("data");
        let token = |place| (seed.index(place).get() % vocabulary as u64) as u32;
        Self::new(device, shape, &(0..shape[0] * (shape[1] + 1)).map(token).collect::<Vec<_>>())
    }

    /// Passages of the play, each from a random place on.
    fn passages(device: &Device, shape: [usize; 2], seed: Seed) -> Result<Self> {
        let length = shape[1] + 1;
        let places = PLAY.len().checked_sub(length).ok_or_else(|| {
            let message = format!("--length {}: the play has {} bytes", shape[1], PLAY.len());
            Error::new(ErrorKind::Argument, message)
        })?;
        let passage = |index| {
            let from = (seed.index(index).get() % (places as u64 + 1)) as usize;
            PLAY[from..from + length].iter().map(|&byte| u32::from(byte))
        };
        Self::new(device, shape, &(0..shape[0]).flat_map(passage).collect::<Vec<_>>())
    }
}

impl<M: Module + 'static, O: Optimizer + 'static> NextToken<M, O> {
    /// The workload on sequences of this shape, `[N, L]`. The model's first parameter is the table of tokens; `loss` is
    /// that of its tokens and the next ones.
    pub fn boxed(
        net: M,
        loss: fn(&M, &(Var, Var)) -> Var,
        optimizer: O,
        shape: [usize; 2],
        data: Data,
        compile: bool,
        ranks: &Ranks,
    ) -> Result<Box<dyn Workload>> {
        let weight = net.named_parameters()[0].1.value();
        let device = weight.device().clone();
        let data = match data {
            Data::Several { batches, seed } => {
                let seed = Seed::new(seed).field("data");
                (0..batches).map(|at| Sequences::passages(&device, shape, seed.index(at))).collect::<Result<_>>()?
            }
            Data::Noise | Data::Files { .. } => vec![Sequences::random(&device, shape, weight.shape()[0])?],
        };
        let steps = Steps::new(net, loss, compile, ranks);
        Ok(Box::new(Self { device, steps, optimizer, data: data.into_iter().cycle() }))
    }
}

impl<M: Module + 'static, O: Optimizer> Workload for NextToken<M, O> {
    fn step(&mut self) -> Result<f32> {
        let Self { device, steps, optimizer, data } = self;
        let Sequences { tokens, next } = &data.next().expect("a cycle never ends");
        steps.take(optimizer, (tokens, next), |tape| (tape.input(tokens), tape.input(next)), device)
    }

    fn parameter_count(&self) -> usize {
        self.steps.module().parameter_count()
    }

    fn state_bytes(&self) -> usize {
        state_bytes(&self.optimizer, self.steps.module())
    }
}
