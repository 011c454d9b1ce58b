//! Values that make functions fail.

use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use meganeura::Result;
use meganeura::check::{Report, gradcheck};
use meganeura::data::{Array, Examples, ImageFolder};
use meganeura::io::LoadReport;
use meganeura::metric::Regression;
use meganeura::module::{At, Slot, SlotMut};
use meganeura::onnx::{Export, Model, Onnx};
use meganeura::prelude::*;
use meganeura::run::Run;
use meganeura::serve::Batched;

/// The values that the mistakes use.
pub(super) struct Stage {
    pub(super) device: Device,
    pub(super) tape: Tape,
    /// Two numbers.
    pub(super) tensor: Tensor,
    /// The same on the tape.
    pub(super) var: Var,
    /// Two labels.
    pub(super) labels: Tensor,
    /// Two examples of two numbers.
    pub(super) dataset: Dataset,
    /// Parameters of 2 and 3 numbers.
    pub(super) net: Pair,
    /// The same structure with other shapes.
    pub(super) other: Pair,
    pub(super) folder: tempfile::TempDir,
}

pub(super) type Pair = (Param, Param);

/// A layer that fails only if its width is 0.
#[derive(Module)]
#[module(config(width: usize))]
pub(super) struct Configured(#[module(init = Linear::new(width, 1))] Linear);

/// Fails in a nested element of a field.
#[derive(Module)]
pub(super) struct Fails {
    #[module(init)]
    inner: [Inner; 2],
}

#[derive(Module)]
pub(super) struct Inner {
    #[module(init = Linear::new(1, 1))]
    fits: Linear,
    #[module(init = vec![Linear::new(0, 1)])]
    does_not: Vec<Linear>,
}

/// A number of examples, none of which can be read.
pub(super) struct Damaged(pub(super) usize);

impl Examples for Damaged {
    type Inputs = Array<f32>;
    type Targets = u32;

    fn len(&self) -> usize {
        self.0
    }

    fn read(&self, _: usize) -> Result<(Array<f32>, u32)> {
        Err(meganeura::Error::new(meganeura::ErrorKind::Data, "damaged"))
    }
}

/// The failed check of `x²` with one of its two factors detached.
pub(super) fn disagreement(w: &Stage) -> Report {
    gradcheck(&(), std::slice::from_ref(&w.tensor), |(), x| vec![x[0].detach() * &x[0]]).expect("fits")
}

/// The errors of a row of this many columns.
pub(super) fn counted(w: &Stage, columns: usize) -> Regression {
    let (mut errors, row) = (Regression::new(), Tensor::zeros(&w.device, [1, columns]).expect("fits"));
    errors.update(&row, &row).expect("fits");
    errors
}

pub(super) fn nan(w: &Stage) -> Tensor {
    Tensor::full(&w.device, [1], f32::NAN).expect("fits")
}

/// A run that writes for TensorBoard.
pub(super) fn with_board(w: &Stage) -> Run {
    Run::at(w.run(), &w.device).tensorboard(true).create().expect("an empty folder")
}

/// A function of two numbers.
pub(super) fn doubled(w: &Stage) -> Batched<Array<f32>> {
    Batched::compile(&w.device, [1], Array::from(vec![0.0; 2]), |x| x * 2.0).expect("fits")
}

/// The result of a future that is ready at once, as on the CPU.
pub(super) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the CPU has computed"),
    }
}

pub(super) fn set_slot(
    module: &mut Pair,
    set: fn(&mut SlotMut<'_>, &Tensor) -> Result<()>,
    value: &Tensor,
) -> Result<()> {
    let mut result = Ok(());
    module.visit_mut(At::root(), &mut |_, mut slot| {
        if result.is_ok() {
            result = set(&mut slot, value);
        }
    });
    result
}

/// The report on a file that has only one of two names.
pub(super) fn partial(w: &mut Stage) -> LoadReport {
    let bytes = [w.net.0.clone()].to_safetensors().expect("fits");
    w.net.load_safetensors(&bytes).expect("fits")
}

impl Stage {
    pub(super) fn new() -> Result<Self> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let tensor = Tensor::from_slice(&device, [2], &[1.0, 2.0])?;
        let param = |extent| Tensor::full(&device, [extent], 1.0).map(Param::new);
        Ok(Self {
            var: tape.input(&tensor),
            tape,
            tensor,
            labels: Tensor::indices(&device, [2], &[0, 1])?,
            dataset: Dataset::new(vec![0.0; 4], [2], vec![0, 1])?,
            net: (param(2)?, param(3)?),
            other: (param(2)?, param(4)?),
            folder: tempfile::tempdir().expect("a folder"),
            device,
        })
    }

    /// A value recorded from a parameter that has been updated since.
    pub(super) fn stale(&self) -> Var {
        let mut param = self.net.0.tied();
        let value = Tape::new(&self.device).param(&param) * 2.0;
        param.set(self.tensor.clone()).expect("fits");
        value
    }

    pub(super) fn grads(&self) -> Grads {
        let tape = Tape::new(&self.device);
        tape.backward(&(tape.param(&self.net.0).sum() + tape.param(&self.net.1).sum())).expect("a scalar")
    }

    /// Two parameters with one path.
    pub(super) fn twice(&self) -> Twice {
        Twice(self.net.0.clone(), self.net.1.clone())
    }

    pub(super) fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub(super) fn begun(&self) -> Run {
        Run::at(self.run(), &self.device).create().expect("an empty folder")
    }

    /// A resumed run with a checkpoint.
    pub(super) fn resumed(&self) -> Run {
        let mut run = self.begun();
        run.advance();
        run.checkpoint(&self.net, &Sgd::new(0.1)).expect("room");
        drop(run);
        Run::at(self.run(), &self.device).resume().expect("a run")
    }

    pub(super) fn restored(&self) -> Run {
        let mut run = self.resumed();
        run.restore_parts().expect("a checkpoint");
        run
    }

    pub(super) fn damaged_metrics(&self) -> PathBuf {
        fs::create_dir_all(self.run()).expect("a folder");
        fs::write(self.run().join("metrics.jsonl"), "nonsense\n").expect("room");
        self.run()
    }

    pub(super) fn remove_run(&self) {
        fs::remove_file(self.run().join("run.json")).expect("there");
    }

    /// A function of two numbers, for a batch of any size.
    pub(super) fn onnx(&self) -> Onnx {
        Export::new().batch("N").record(&self.device, [2], Var::exp).expect("it has a form")
    }

    pub(super) fn model(&self) -> Model {
        Model::from_bytes(&self.device, &self.onnx().to_bytes().expect("small")).expect("what was written")
    }

    /// Images of two sizes.
    pub(super) fn images(&self) -> ImageFolder {
        let class = self.folder.path().join("images/class");
        fs::create_dir_all(&class).expect("a folder");
        for (name, extent) in [("a.pgm", 1), ("b.pgm", 2)] {
            let image = [format!("P5 {extent} 1 255\n").as_bytes(), &vec![0; extent]].concat();
            fs::write(class.join(name), image).expect("room");
        }
        ImageFolder::open(self.folder.path().join("images")).expect("images")
    }

    /// Images that were deleted after the folder was opened.
    pub(super) fn lost_images(&self) -> ImageFolder {
        let images = self.images();
        fs::remove_dir_all(self.folder.path().join("images")).expect("it is there");
        images
    }
}

/// A file of one tensor without elements.
pub(super) fn empty_tensor() -> Vec<u8> {
    let header = br#"{"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header].concat()
}

pub(super) struct Twice(Param, Param);

impl Module for Twice {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        f(at.field("w"), Slot::Param(&self.0));
        f(at.field("w"), Slot::Param(&self.1));
    }

    fn visit_mut<'a>(&'a mut self, _: At<'_>, _: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {}
}
