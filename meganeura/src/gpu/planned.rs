//! For tests: plans for a GPU that is not there.

use std::collections::BTreeSet;

use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};

use super::pipelines::Source;
use crate::Result;
use crate::error::bail;
use crate::kernel::launch::Caps;
use crate::plan::{Plan, Preferences, Request, Target};

/// Plans a part of a graph for a large GPU with matrix units, and validates its kernels: every variant for units that multiply bf16, and
/// the first choice for those that multiply f16.
pub(crate) fn plan_for_matrix_units(request: &Request<'_>) -> Result<()> {
    let mut seen = BTreeSet::new();
    let of_f16 = Caps { bfloat: false, ..Caps::MATRIX_UNITS };
    plan_and_validate(request, of_f16, 0, &mut seen)?;
    let (mut number, mut variants) = (0, 1);
    while number < variants {
        variants = variants.max(plan_and_validate(request, Caps::MATRIX_UNITS, number, &mut seen)?);
        number += 1;
    }
    Ok(())
}

/// Validates the kernels of a plan with variant `number` of each, but for those that were `seen` before. Returns how many variants the step
/// with the most has.
fn plan_and_validate(request: &Request<'_>, caps: Caps, number: usize, seen: &mut BTreeSet<String>) -> Result<usize> {
    let preferences = Preferences { number, ..Preferences::default() };
    let plan = Plan::new(request, Target::Gpu { caps, preferences: &preferences })?;
    for launch in plan.steps.iter().flat_map(|step| &step.launches) {
        let source = Source::new(launch, true)?;
        if seen.insert(source.wgsl.clone()) {
            expect_valid(launch.kernel, &source.wgsl)?;
        }
    }
    Ok(plan.steps.iter().map(|step| step.offered.len()).max().unwrap_or(0))
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
