//! SPIR-V as words: edits of a module between naga and the driver.

/// The number of words before the first instruction.
pub(super) const HEADER: usize = 5;

/// An instruction of a module.
pub(super) fn instruction(code: u32, operands: &[u32]) -> Vec<u32> {
    let mut instruction = vec![(operands.len() as u32 + 1) << 16 | code];
    instruction.extend(operands);
    instruction
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
/// If NVIDIA's driver unrolls more, they take up to twice as long to compile, and are no faster. Other kernels are
/// faster: a step in single precision by 7 %.
pub(super) fn without_unrolling(module: &[u32]) -> Vec<u32> {
    const LOOP_MERGE: u32 = 246;
    const DONT_UNROLL: u32 = 2;

    let changed = instructions(module).flat_map(|(code, operands)| match (code, operands) {
        (LOOP_MERGE, &[after, next, 0]) => instruction(code, &[after, next, DONT_UNROLL]),
        _ => instruction(code, operands),
    });
    module[..HEADER].iter().copied().chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_alone_change() {
        let header = [0x0723_0203, 0x0001_0600, 0, 9, 0];
        let branch = instruction(249, &[7]);
        let module = |control| [&header[..], &instruction(246, &[5, 6, control]), &branch].concat();
        assert_eq!(without_unrolling(&module(0)), module(2));
        assert_eq!(without_unrolling(&module(1)), module(1));
    }
}
