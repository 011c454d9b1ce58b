//! For tests: plans for a GPU that is not there.

use std::collections::BTreeSet;

use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};

use super::pipelines::Source;
use crate::Result;
use crate::error::bail;
use crate::kernel::launch::Caps;
use crate::plan::{Plan, Preferences, Request, Target};

/// More variants than any kernel has.
const VARIANTS: usize = 8;

/// Plans a part of a graph for a large GPU with matrix units, with each variant of its kernels, and validates the kernels.
pub(crate) fn plan_for_matrix_units(request: &Request<'_>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for number in 0..VARIANTS {
        let preferences = Preferences { number, ..Preferences::default() };
        let plan = Plan::new(request, Target::Gpu { caps: Caps::MATRIX_UNITS, preferences: &preferences })?;
        for launch in plan.steps.iter().flat_map(|step| &step.launches) {
            let source = Source::new(launch, true)?;
            if seen.insert(source.wgsl.clone()) {
                expect_valid(launch.kernel, &source.wgsl)?;
            }
        }
    }
    Ok(())
}

fn expect_valid(kernel: &str, wgsl: &str) -> Result<()> {
    let module = match naga::front::wgsl::parse_str(wgsl) {
        Ok(module) => module,
        Err(error) => bail!(Device, "kernel {kernel} does not parse: {}", error.emit_to_string(wgsl)),
    };
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    match validator.validate(&module) {
        Ok(_) => Ok(()),
        Err(error) => bail!(Device, "kernel {kernel} is not valid: {}", error.emit_to_string(wgsl)),
    }
}
