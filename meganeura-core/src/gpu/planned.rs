//! For tests: plans for hypothetical GPUs.

use std::collections::BTreeSet;

use super::executable::fold;
use super::pipelines::Source;
use crate::Result;
use crate::error::bail;
use crate::kernel::launch::{Caps, Workgroups};
use crate::plan::{Plan, Preferences, Request, Target};

/// A hypothetical GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Absent {
    /// A large GPU with matrix units.
    MatrixUnits,
    /// A GPU with the limits that every WebGPU device has, and no optional feature.
    Baseline,
}

/// A kernel of a plan for a hypothetical GPU.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PlannedKernel {
    /// The kernel's file in the shaders crate.
    pub kernel: &'static str,
    /// Its source, including everything that the plan added.
    pub wgsl: String,
    /// `true` if it runs without checks.
    pub trusted: bool,
    /// The number of buffers that its launch binds.
    pub bindings: usize,
    /// Invocations and bytes of memory of a workgroup, as its launch states them; `None` for a user's kernel.
    pub workgroup: Option<(usize, usize)>,
}

/// Plans a part of a graph, and keeps the kernels. At the baseline, and for units that multiply bf16, these are all
/// variants; for units that multiply f16, only the first choice.
pub(crate) fn plan_for(absent: Absent, request: &Request<'_>, kept: &mut BTreeSet<PlannedKernel>) -> Result<()> {
    let caps = match absent {
        Absent::Baseline => Caps::BASELINE,
        Absent::MatrixUnits => {
            let of_f16 = Caps { bf16_units: false, fragments: false, ..Caps::MATRIX_UNITS };
            plan_variant(request, of_f16, 0, kept)?;
            Caps::MATRIX_UNITS
        }
    };
    let (mut number, mut variants) = (0, 1);
    while number < variants {
        variants = variants.max(plan_variant(request, caps, number, kept)?);
        number += 1;
    }
    Ok(())
}

/// Keeps the kernels of a plan with variant `number` of each. Returns the largest number of variants of any step.
fn plan_variant(request: &Request<'_>, caps: Caps, number: usize, kept: &mut BTreeSet<PlannedKernel>) -> Result<usize> {
    let preferences = Preferences { number, ..Preferences::default() };
    let plan = Plan::new(request, Target::Gpu { caps, preferences: &preferences })?;
    for launch in plan.steps.iter().flat_map(|step| &step.launches) {
        let most = wgpu::Limits::default().max_compute_workgroups_per_dimension;
        if fold(launch.workgroups.count, most).is_none() {
            bail!(Device, "kernel {} is launched with {} workgroups", launch.kernel, launch.workgroups.count);
        }
        let Source { wgsl, checked, .. } = Source::new(launch, false)?;
        let Workgroups { invocations, memory, .. } = launch.workgroups;
        let workgroup = (invocations > 0).then_some((invocations, memory));
        let bindings = launch.bindings.len();
        kept.insert(PlannedKernel { kernel: launch.kernel, wgsl, trusted: !checked, bindings, workgroup });
    }
    Ok(plan.steps.iter().map(|step| step.offered.len()).max().unwrap_or(0))
}
