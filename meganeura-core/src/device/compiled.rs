//! The compiled form of a plan for a GPU: at first with kernels that serve several shapes, later with its own.

use std::sync::{Arc, Mutex};

use super::lock;
use crate::gpu::{Executable, Gpu};
use crate::plan::Plan;

/// The run from which on a plan has kernels of its own. Those know all of their extents when they are compiled, and
/// are faster, but must pay for their compilation. A transformer's step on an H200 saved a third of a millisecond a
/// run, and a new shape took 0.1 s; longer steps save more.
const OWN_KERNELS_FROM: u32 = 64;

/// A compiled plan.
pub(super) struct Compiled(Mutex<Form>);

struct Form {
    executable: Arc<Executable>,
    runs: u32,
}

impl Compiled {
    pub(super) fn new(executable: Executable) -> Self {
        Self(Mutex::new(Form { executable: Arc::new(executable), runs: 0 }))
    }

    pub(super) fn latest(&self) -> Arc<Executable> {
        Arc::clone(&lock(&self.0).executable)
    }

    /// The form for a run. Other threads run the previous form while one compiles.
    pub(super) fn for_run(&self, gpu: &Gpu, plan: &Plan, checked: bool) -> Arc<Executable> {
        let (executable, runs) = {
            let mut form = lock(&self.0);
            form.runs = form.runs.saturating_add(1);
            (Arc::clone(&form.executable), form.runs)
        };
        if runs != OWN_KERNELS_FROM || executable.dynamic().0 == 0 {
            return executable;
        }
        // Without memory for new kernels, the old ones still serve.
        let Ok(own) = gpu.compile(plan, checked, false) else { return executable };
        let own = Arc::new(own);
        lock(&self.0).executable = Arc::clone(&own);
        own
    }
}
