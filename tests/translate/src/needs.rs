//! The device requirements of a kernel.

use naga::{AddressSpace, ShaderStage, TypeInner};

use crate::{parse, text};

/// The requirements of a kernel, or the features of a device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Needs {
    /// Storage buffers.
    pub buffers: usize,
    /// Bytes of workgroup memory, as WebGPU counts them: each variable is rounded up to 16.
    pub workgroup_memory: usize,
    /// Invocations of a workgroup, all of them along x.
    pub invocations: usize,
    /// 16-bit floats.
    pub f16: bool,
    /// Subgroup operations.
    pub subgroups: bool,
    /// Cooperative matrices.
    pub matrices: bool,
}

/// The features of every WebGPU device.
pub const BASELINE: Needs =
    Needs { buffers: 8, workgroup_memory: 16_384, invocations: 256, f16: false, subgroups: false, matrices: false };

impl Needs {
    /// The requirements of a valid module whose entry point is `main`.
    pub(crate) fn of(module: &naga::Module) -> Result<Self, String> {
        let [main] = module.entry_points.as_slice() else { return Err("a kernel has one entry point".into()) };
        if main.name != "main" || main.stage != ShaderStage::Compute || main.workgroup_size[1..] != [1, 1] {
            return Err("a kernel is a compute shader `main`, whose invocations are along x".into());
        }
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).map_err(|error| error.to_string())?;
        let variables = || module.global_variables.iter().map(|(_, variable)| variable);
        let shared = variables().filter(|variable| variable.space == AddressSpace::WorkGroup);
        let any = |has: fn(&TypeInner) -> bool| module.types.iter().any(|(_, ty)| has(&ty.inner));
        let is_f16 = |ty: &TypeInner| ty.scalar() == Some(naga::Scalar::F16);
        Ok(Self {
            buffers: variables().filter(|variable| matches!(variable.space, AddressSpace::Storage { .. })).count(),
            workgroup_memory: shared.map(|variable| layouter[variable.ty].size.next_multiple_of(16) as usize).sum(),
            invocations: main.workgroup_size[0] as usize,
            f16: any(is_f16),
            subgroups: uses_subgroups(module),
            matrices: any(|ty| matches!(ty, TypeInner::CooperativeMatrix { .. })),
        })
    }

    /// The needs of a valid kernel that differs only in numbers from the kernel of these needs. Only its declarations
    /// are read, which takes a fraction of the time.
    ///
    /// # Errors
    ///
    /// If the declarations are not valid WGSL.
    pub fn with_sizes(self, name: &str, wgsl: &str) -> Result<Self, String> {
        let Self { buffers, workgroup_memory, invocations, .. } = Self::of(&parse(name, &text::declarations(wgsl))?)?;
        Ok(Self { buffers, workgroup_memory, invocations, ..self })
    }

    /// `true` if a device with these limits can run the kernel.
    #[must_use]
    pub fn within(&self, limits: &Self) -> bool {
        self.buffers <= limits.buffers
            && self.workgroup_memory <= limits.workgroup_memory
            && self.invocations <= limits.invocations
            && self.f16 <= limits.f16
            && self.subgroups <= limits.subgroups
            && self.matrices <= limits.matrices
    }
}

/// `true` if a function computes over subgroups, or the entry point asks for their size or number.
fn uses_subgroups(module: &naga::Module) -> bool {
    use naga::{BuiltIn, Expression};
    let functions = module.functions.iter().map(|(_, function)| function);
    let functions = functions.chain(module.entry_points.iter().map(|entry| &entry.function));
    let of_subgroups = |function: &naga::Function| {
        let computes = function.expressions.iter().any(|(_, expression)| {
            matches!(expression, Expression::SubgroupBallotResult | Expression::SubgroupOperationResult { .. })
        });
        let asks = function.arguments.iter().any(|argument| {
            let of_subgroup =
                [BuiltIn::NumSubgroups, BuiltIn::SubgroupId, BuiltIn::SubgroupSize, BuiltIn::SubgroupInvocationId];
            of_subgroup.iter().any(|&builtin| argument.binding == Some(naga::Binding::BuiltIn(builtin)))
        });
        computes || asks
    };
    functions.into_iter().any(of_subgroups)
}
