//! SPIR-V as words: edits of a module between naga and the driver.

/// The number of words before the first instruction.
pub(super) const HEADER: usize = 5;
/// The word that exceeds every id.
pub(super) const BOUND: usize = 3;

/// An instruction of a module.
pub(super) fn instruction(code: u32, operands: &[u32]) -> Vec<u32> {
    let mut instruction = vec![(operands.len() as u32 + 1) << 16 | code];
    instruction.extend(operands);
    instruction
}

/// A string as operands: it ends with a zero byte, and is padded to whole words.
pub(super) fn text(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// The code and the operands of each instruction of a module.
pub(super) fn instructions(module: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut left = &module[HEADER..];
    std::iter::from_fn(move || {
        let first = *left.first()?;
        let (instruction, rest) = left.split_at((first >> 16) as usize);
        left = rest;
        Some((first & 0xffff, &instruction[1..]))
    })
}

/// The module with a hint to drivers not to unroll its loops. Kernels on matrix units unroll in WGSL where it pays off.
/// If NVIDIA's driver unrolls more, they take up to twice as long to compile, and are no faster. Other kernels do gain
/// from the driver's unrolling: a training step in single precision is 7 % faster with it.
pub(super) fn without_unrolling(module: &[u32]) -> Vec<u32> {
    const LOOP_MERGE: u32 = 246;
    const DONT_UNROLL: u32 = 2;

    let changed = instructions(module).flat_map(|(code, operands)| match (code, operands) {
        (LOOP_MERGE, &[after, next, 0]) => instruction(code, &[after, next, DONT_UNROLL]),
        _ => instruction(code, operands),
    });
    module[..HEADER].iter().copied().chain(changed).collect()
}

/// The module with barriers of subgroups that order accesses to workgroup memory, as barriers of workgroups do. Those
/// of naga order accesses to the memory of subgroups, of which Vulkan has none.
pub(super) fn with_ordering_subgroup_barriers(module: &[u32]) -> Vec<u32> {
    const CONSTANT: u32 = 43;
    const BARRIER: u32 = 224;
    const SUBGROUP: u32 = 3;
    /// `AcquireRelease` and `WorkgroupMemory`.
    const ORDERING: u32 = 0x108;

    let scope = instructions(module).find_map(|(code, operands)| match operands {
        &[_, id, SUBGROUP] if code == CONSTANT => Some(id),
        _ => None,
    });
    let naga_semantics = instructions(module).find_map(|(code, operands)| match operands {
        &[execution, _, semantics] if code == BARRIER && Some(execution) == scope => Some(semantics),
        _ => None,
    });
    let Some(naga_semantics) = naga_semantics else { return module.to_vec() };
    let ordering = module[BOUND];
    let changed = instructions(module).flat_map(|(code, operands)| match (code, operands) {
        (CONSTANT, &[ty, id, _]) if id == naga_semantics => {
            [instruction(code, operands), instruction(CONSTANT, &[ty, ordering, ORDERING])].concat()
        }
        (BARRIER, &[execution, memory, _]) if Some(execution) == scope => {
            instruction(code, &[execution, memory, ordering])
        }
        _ => instruction(code, operands),
    });
    let mut module: Vec<u32> = module[..HEADER].iter().copied().chain(changed).collect();
    module[BOUND] += 1;
    module
}

/// The module with contraction of multiplications and additions disabled, so that a value has the same bits in every
/// kernel that computes it. Otherwise drivers may contract the two, depending on the surrounding code. Kernels call
/// `fma` where they want contraction.
pub(super) fn without_contraction(module: &[u32]) -> Vec<u32> {
    const DECORATE: u32 = 71;
    const NO_CONTRACTION: u32 = 42;
    const COOPERATIVE_MATRIX: u32 = 4456;

    // Arithmetic on matrix units offers no choice of contraction.
    let is_matrix = |&(code, _): &(u32, &[u32])| code == COOPERATIVE_MATRIX;
    let matrices: Vec<u32> = instructions(module).filter(is_matrix).map(|(_, operands)| operands[0]).collect();
    let decorations = instructions(module).filter_map(|(code, operands)| match operands {
        [ty, result, ..] if is_float_arithmetic(code, operands) && !matrices.contains(ty) => {
            Some(instruction(DECORATE, &[*result, NO_CONTRACTION]))
        }
        _ => None,
    });
    let decorations: Vec<u32> = decorations.flatten().collect();
    // Decorations come right before the types.
    let before_types: usize =
        instructions(module).take_while(|&(code, _)| !is_type(code)).map(|(_, operands)| operands.len() + 1).sum();
    let (head, body) = module.split_at(HEADER + before_types);
    [head, &decorations, body].concat()
}

/// `true` if an instruction declares a type: `OpTypeVoid` to `OpTypeForwardPointer`, and matrices of matrix units.
fn is_type(code: u32) -> bool {
    matches!(code, 19..=39 | 4456)
}

/// `true` if an instruction adds, subtracts, multiplies or divides floats, or vectors of them: `OpFAdd`, `OpFSub`,
/// `OpFMul`, `OpFDiv`, `OpVectorTimesScalar` to `OpDot`, and `Fma` of the GLSL instruction set, the only one that naga
/// imports.
fn is_float_arithmetic(code: u32, operands: &[u32]) -> bool {
    matches!(code, 129 | 131 | 133 | 136 | 142..=148) || matches!((code, operands), (12, [_, _, _, 50, ..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_arithmetic_alone_is_decorated() {
        let header = [0x0723_0203, 0x0001_0600, 0, 9, 0];
        let (before, types) =
            (instruction(71, &[8, 2]), [instruction(22, &[1, 32]), instruction(4456, &[2, 1])].concat());
        let (float, matrix) = (instruction(133, &[1, 5, 3, 4]), instruction(133, &[2, 6, 3, 4]));
        let (integer, [root, fma]) =
            (instruction(128, &[7, 8, 3, 4]), [(10, 31), (11, 50)].map(|(id, of)| instruction(12, &[1, id, 2, of, 3])));
        let code = [float, matrix, integer, root, fma].concat();
        let module = |decorations: &[u32]| [&header, &*before, decorations, &types, &code].concat();
        let decorations = [5, 11].map(|id| instruction(71, &[id, 42])).concat();
        assert_eq!(without_contraction(&module(&[])), module(&decorations));
    }

    #[test]
    fn barriers_of_subgroups_alone_change() {
        let header = |bound| [0x0723_0203, 0x0001_0600, 0, bound, 0];
        let constant = |id, value| instruction(43, &[1, id, value]);
        let constants = [constant(2, 2), constant(3, 3), constant(4, 0x108), constant(5, 0x88)].concat();
        let barrier = |scope, semantics| instruction(224, &[scope, scope, semantics]);
        let module = [&header(9)[..], &constants, &barrier(2, 4), &barrier(3, 5)].concat();
        let expected = [&header(10)[..], &constants, &constant(9, 0x108), &barrier(2, 4), &barrier(3, 9)].concat();
        assert_eq!(with_ordering_subgroup_barriers(&module), expected);
        let without = [&header(9)[..], &constants, &barrier(2, 4)].concat();
        assert_eq!(with_ordering_subgroup_barriers(&without), without);
    }

    #[test]
    fn loops_alone_change() {
        let header = [0x0723_0203, 0x0001_0600, 0, 9, 0];
        let branch = instruction(249, &[7]);
        let module = |control| [&header[..], &instruction(246, &[5, 6, control]), &branch].concat();
        assert_eq!(without_unrolling(&module(0)), module(2));
        assert_eq!(without_unrolling(&module(1)), module(1));
    }
}
